"""Selects the scores of a call that count: the newest revision of each subject, unless it is withdrawn."""

from collections.abc import Iterable

from schemas.scores.all_records import AnyScoreRecord, Scored, Unscored, UnscoredReason, VoiceToVoiceLatency

Subject = tuple[str, int | None, int]
"""Name, turn and index of a record. A higher revision of the same subject replaces a lower one."""


def newest_scores(records: Iterable[AnyScoreRecord]) -> dict[Subject, AnyScoreRecord]:
    """Returns the newest revision of each subject of one call, in the order in which they were written.

    Args:
        records: All records of the call in order. Once `closed` is among them, the newest revisions are final.
    """
    newest: dict[Subject, AnyScoreRecord] = {}
    for record in records:
        subject = (record.name, record.turn, record.index)
        last = newest.pop(subject, None)
        newest[subject] = record if last is None or last.revision <= record.revision else last
    return {subject: record for subject, record in newest.items() if not is_withdrawn(record)}


def is_withdrawn(record: AnyScoreRecord) -> bool:
    """Whether this revision withdraws the earlier ones without a new value.

    A latency is withdrawn whenever it has no value; the record of its turn has the reason.
    """
    if isinstance(record, VoiceToVoiceLatency):
        return not isinstance(record.result, Scored)
    result = getattr(record, "result", None)
    if isinstance(result, Unscored):
        return result.reason is UnscoredReason.WITHDRAWN
    return bool(getattr(record, "is_withdrawn", False))
