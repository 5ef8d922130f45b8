"""What holds of a call: of each subject the newest record that was not taken back."""

from collections.abc import Iterable

from schemas.scores.all_records import AnyScoreRecord, Scored, Unscored, UnscoredReason, VoiceToVoiceLatency

Subject = tuple[str, int | None, int]
"""Name, turn and index: what a record is about. A higher revision of a subject replaces a lower one."""


def newest_scores(records: Iterable[AnyScoreRecord]) -> dict[Subject, AnyScoreRecord]:
    """The newest revision of each subject of one call, in the order in which they were written.

    Args:
        records: All of them, in order; once `closed` is among them, the newest revisions are final.
    """
    newest: dict[Subject, AnyScoreRecord] = {}
    for record in records:
        subject = (record.name, record.turn, record.index)
        last = newest.pop(subject, None)
        newest[subject] = record if last is None or last.revision <= record.revision else last
    return {subject: record for subject, record in newest.items() if not is_taken_back(record)}


def is_taken_back(record: AnyScoreRecord) -> bool:
    """Whether this revision says that the ones before it do not hold, and nothing in their place.

    Of a latency that is not known any more, the row of its turn says why.
    """
    if isinstance(record, VoiceToVoiceLatency):
        return not isinstance(record.result, Scored)
    result = getattr(record, "result", None)
    if isinstance(result, Unscored):
        return result.reason is UnscoredReason.WITHDRAWN
    return bool(getattr(record, "is_withdrawn", False))
