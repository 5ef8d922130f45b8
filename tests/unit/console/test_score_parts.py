"""The values in rows and in the record of a call, one by one: each has its own name, and only measured ones appear."""

from consumers.console.page.calls import LATENCY, ScorePart, part_of, parts_of
from schemas.closed_sets import Anchor, UnscoredReason
from schemas.scores.latency_stages import Stage
from schemas.scores.records import (
    CallValues,
    NotApplicable,
    Scored,
    SideTalk,
    StageAgreement,
    TurnTalk,
    TurnValues,
    Unscored,
)
from streamer.backtest.rerun import Comparison, Subject, last_words
from tests.unit.exporter.test_projection import (
    ERROR,
    NOT_KNOWN,
    call,
    eva,
    latency,
    progress,
    rating,
    row,
    stages,
    timing,
    word_errors,
)

WAITED = Scored(value=900)


def named(record: TurnValues | CallValues) -> dict[str, ScorePart]:
    parts = list(parts_of(record))
    by_name = {part.name: part for part in parts}
    assert len(by_name) == len(parts)
    return by_name


def test_a_row_of_which_nothing_is_measured_says_why_there_is_no_latency() -> None:
    assert list(named(row())) == [LATENCY]
    assert named(row())[LATENCY].result == Unscored(reason=UnscoredReason.NO_USER_SPEECH)
    assert list(named(row(turn=0, voice_to_voice_ms=NotApplicable(reason="greeting")))) == []


def test_each_value_of_a_turn_has_a_name_of_its_own() -> None:
    talk = TurnTalk(user=SideTalk(speech_ms=WAITED, words=4), assistant=SideTalk(speech_ms=NOT_KNOWN))
    parts = named(
        stages(
            voice_to_voice_ms=WAITED, anchor=Anchor.VAD, source="pipecat", turn_taking=timing(Scored(value=0.5)), talk=talk,
            estimate_error=ERROR, conciseness=rating(NOT_KNOWN),
        )
    )  # fmt: skip
    assert parts[LATENCY] == ScorePart(LATENCY, WAITED, {"anchor": Anchor.VAD, "source": "pipecat"})
    assert parts["turn_taking"].result == Scored(value=0.5)
    assert parts["turn_taking"].fields["anchor"] is Anchor.VAD
    assert parts["turn_taking"].meaning.startswith("How well a turn was timed")
    assert parts["estimate_error_ms"].result == Scored(value=-850.0)
    assert parts["estimate_error_ms"].fields == {"estimated_ms": 1_150.0, "recorded_ms": 2_000.0}
    assert parts["conciseness"].result == NOT_KNOWN
    assert (parts["talk"].result, parts["talk"].fields) == (None, dict(talk))
    assert len(parts["stages"].fields["stages"]) == 2
    assert parts.keys() == {LATENCY, "turn_taking", "talk", "estimate_error_ms", "conciseness", "stages"}


def test_eva_s_metrics_of_a_call_have_their_own_names() -> None:
    agreement = {Stage.TOOL_RUN: StageAgreement(compared=1)}
    parts = named(eva("eva_x_mean", Scored(value=0.5), 0.5, stages=agreement, tool_correctness=NOT_KNOWN))
    assert parts["eva_x_mean"].result == Scored(value=0.5)
    assert parts["eva_x_mean"].fields["normalized"] == 0.5
    assert parts["tool_correctness"] == ScorePart("tool_correctness", NOT_KNOWN, {})
    assert parts["stages"].fields == {"stages": agreement}
    assert parts.keys() == {"eva_x_mean", "tool_correctness", "stages"}


def test_word_errors_of_a_call_say_up_to_which_turn() -> None:
    assert named(word_errors(20))["stt_wer"].fields["through_turn"] == 3
    assert "through_turn" not in part_of("stt_wer", word_errors(20).stt_wer).fields


def test_of_a_record_only_what_its_kind_has_is_a_part() -> None:
    part = part_of("progress", progress(Scored(value=0.5)))
    assert part.result == Scored(value=0.5)
    assert set(part.fields) == {"auc", "auc_if_ended_now", "ppt", "success", "reached", "missing", "subgoals"}


def test_a_comparison_names_the_value_that_differs() -> None:
    def said(value: float) -> list[TurnValues]:
        return [row(conciseness=rating(Scored(value=value)), turn_taking=timing(Scored(value=0.7)))]

    comparison = Comparison()
    comparison.add("c", last_words(said(0.5)), last_words(said(1.0)))
    differing = {name: tally.mean_difference for name, tally in comparison.tallies.items() if tally.differing}
    assert differing == {"conciseness": 0.5}
    assert comparison.tallies.keys() == {"turn", LATENCY, "turn_taking", "conciseness"}
    (example,) = comparison.examples
    assert example.then == {"result": {"outcome": "scored", "value": 0.5}}


def test_a_latency_is_compared_once_whether_it_has_a_record_or_not() -> None:
    known = row(voice_to_voice_ms=WAITED, anchor=Anchor.VAD, source="pipecat")
    about = Subject(LATENCY, 2, 0)
    both = last_words([latency(900), known])
    assert both[about] == last_words([known])[about] == last_words([latency(900)])[about]
    assert last_words([latency(900), known, latency(None, revision=2), row(revision=2)])[about]["result"] == {
        "outcome": "unscored", "reason": "no_user_speech",
    }  # fmt: skip


def test_a_call_of_which_nothing_is_known_has_no_values() -> None:
    assert named(call()) == {}
