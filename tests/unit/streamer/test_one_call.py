"""One call as text: as far as it has progressed, and with the words of its transcript."""

import pytest

from schemas.closed_sets import UnscoredReason
from schemas.scores.records import CallValues, ClosedFact, DeadAirFact, InterruptionFact, Scored, TextRating, Unscored
from schemas.transcript import TRANSCRIPT
from streamer.offline.scored_recordings import plan_from, score_all, scorings_of
from streamer.offline.scoring import RecordedScoring
from streamer.one_call import call_lines
from streamer.recordings.files import SAMPLE
from streamer.recordings.reader import goals_for
from streamer.settings.all_settings import Settings


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> RecordedScoring:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        settings = Settings()
        plan = plan_from(settings, asks_judge=False, writes_transcripts=True)
        scored: list[RecordedScoring] = []
        calls = scorings_of([SAMPLE], plan, goals_for([SAMPLE], None), None)
        score_all(calls, settings, scored.append, lambda: None, asks_judge=False)
        return scored[0]


def test_a_call_that_is_still_on_is_shown_as_far_as_it_has_come(scoring: RecordedScoring) -> None:
    records = [record for record in scoring.records if not isinstance(record, ClosedFact)]
    half = records[: len(records) // 2]
    lines = list(call_lines("c", half, None))
    assert lines[1].endswith("not over")
    assert lines[-1].startswith("There is no transcript")
    kinds = {DeadAirFact: "dead air", InterruptionFact: "interrupted by the"}
    for kind, words in kinds.items():
        assert any(words in line for line in lines) is any(isinstance(record, kind) for record in half)


def test_ratings_of_a_call_are_shown_with_what_was_not_judged(scoring: RecordedScoring) -> None:
    assert "Judged:" not in call_lines("c", scoring.records, None)
    missing = {"violating_policies": "the agent's instructions are not known"}
    ratings = {
        "faithfulness": TextRating(result=Scored(value=1), through_turn=7, rating=3, not_applicable=missing),
        "conversation_progression": TextRating(result=Unscored(reason=UnscoredReason.UNAVAILABLE), through_turn=6),
    }
    records = [
        record.model_copy(update=ratings) if isinstance(record, CallValues) else record for record in scoring.records
    ]
    lines = list(call_lines("c", records, None))
    assert lines[lines.index("Judged:") :][:3] == [
        "Judged:",
        "  faithfulness up to turn 7: 1; not judged: violating policies (the agent's instructions are not known)",
        "  conversation progression up to turn 6: Unscored: unavailable",
    ]


def test_the_words_are_those_of_the_transcript(scoring: RecordedScoring) -> None:
    assert scoring.transcript is not None
    entries = TRANSCRIPT.validate_json(scoring.transcript)
    text = "\n".join(call_lines("c", scoring.records, entries))
    assert [each.message for each in entries if each.message and each.message not in text] == []
