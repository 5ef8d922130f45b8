"""Each figure says how it is known, how far it can still change, and what it was; an interruption stands at its answer."""

from typing import Any

import pytest

from consumers.console.page.calls import Earlier, HeardCall, ReportedCall, Said, TurnHeard
from consumers.console.page.sections import section, tiles
from consumers.engine.turns.eva_text import CUT_OFF_BY_USER, USER_INTERRUPTS
from schemas.closed_sets import Anchor, CloseReason, Speaker, UnscoredReason
from schemas.scores.records import (
    WITHDRAWN,
    AnyScoreRecord,
    ClosedFact,
    InterruptionFact,
    ProgressScore,
    Result,
    Scored,
    TextRating,
    TurnOutcome,
    TurnStatus,
    TurnValues,
    Unscored,
    VoiceToVoiceLatency,
)
from tests.support.calls.report_calls import Marks
from tests.unit.console.test_page import words
from tests.unit.exporter.test_projection import call as call_record
from tests.unit.exporter.test_projection import progress, row

USER, ASSISTANT = Speaker.USER, Speaker.ASSISTANT
NOON_MS = 1_772_366_587_000
"""12:03:07 in UTC."""


def common(**more: Any) -> dict[str, Any]:
    return {**row().model_dump(exclude={"name", "kind", "record_id", "index"}), **more}


def waited(
    revision: int, result: Result, at_ms: int = 0, status: TurnStatus = TurnStatus.PROVISIONAL
) -> VoiceToVoiceLatency:
    fields = common(turn=1, revision=revision, caused_at_ms=at_ms, status=status)
    return VoiceToVoiceLatency(**fields | {"result": result, "anchor": Anchor.VAD, "source": "pipecat"})


def closed() -> ClosedFact:
    return ClosedFact(**common(turn=None, reason=CloseReason.ENDED, ended_reason=None, turns=1, events=1, through={}))


def of(
    *records: AnyScoreRecord, history: tuple[AnyScoreRecord, ...] = (), turns: tuple[TurnHeard, ...] = ()
) -> ReportedCall:
    return ReportedCall("c", HeardCall(0.0, 1.0, (), (), turns), records, "c1", Marks("\x00"), history)


def text_of(record: VoiceToVoiceLatency) -> str:
    return f"{record.result.value:.0f}" if isinstance(record.result, Scored) else "unknown"


def test_a_value_was_another_until_the_revision_that_changed_it() -> None:
    revisions = (
        waited(1, Scored(value=1_200)),
        waited(2, Scored(value=1_200), 1_000, TurnStatus.SETTLED),
        waited(3, Scored(value=900), NOON_MS),
        waited(4, Scored(value=900), NOON_MS + 1),
    )
    assert of(history=revisions).earlier(revisions[-1], text_of) == Earlier("1200", NOON_MS)
    assert of(history=revisions[::-1]).earlier(revisions[-1], text_of) == Earlier("1200", NOON_MS)
    assert of(history=revisions).earlier(revisions[1], text_of) is None
    assert of().earlier(revisions[-1], text_of) is None


def test_a_revision_that_withdrew_the_value_was_no_value() -> None:
    revisions = (waited(1, Scored(value=1_200)), waited(2, WITHDRAWN, 5), waited(3, Scored(value=1_200), 9))
    assert of(history=revisions).earlier(revisions[-1], text_of) is None


def test_the_longest_wait_says_its_anchor_status_and_what_it_was() -> None:
    newest = waited(2, Scored(value=900), NOON_MS)
    call = of(newest, history=(waited(1, Scored(value=1_200)), newest))
    (longest,) = [each for each in tiles(call) if each.name == "Longest wait"]
    assert longest.why[:3] == (
        ("End of the user's speech", "by voice detector"),
        ("Status", "provisional: late events can change it"),
        ("Before", "1.20 s, until 12:03:07 UTC"),
    )
    assert "0.90 s provisional; was 1.20 s until 12:03:07" in words(section(call, has_index=False))
    final = of(newest, closed())
    (longest,) = [each for each in tiles(final) if each.name == "Longest wait"]
    assert longest.why[1] == ("Status", "final: the call is over")
    assert "Status: final: the call is over." in words(section(final, has_index=False))


def test_a_median_says_how_many_of_its_waits_can_still_change() -> None:
    settled = row(turn=2, voice_to_voice_ms=Scored(value=900), anchor=Anchor.AUDIO, status=TurnStatus.SETTLED)
    (median,) = [each for each in tiles(of(waited(1, Scored(value=900)), settled)) if each.name == "Median wait"]
    assert ("End of the user's speech", "by voice detector (1 turn), heard on the line (1 turn)") in median.why
    assert ("Status", "1 provisional, 1 settled") in median.why


def test_a_moment_has_the_status_of_its_turn_once_that_has_a_row() -> None:
    moment = waited(1, Scored(value=900), status=TurnStatus.OPEN)
    settled = row(turn=1, voice_to_voice_ms=Scored(value=900), anchor=Anchor.VAD, status=TurnStatus.SETTLED)
    assert of(moment).status(moment) is TurnStatus.OPEN
    assert of(moment, settled).status(moment) is TurnStatus.SETTLED
    assert of(moment, settled, closed()).status(moment) is TurnStatus.FINAL


def test_scores_of_turns_and_of_the_call_say_what_they_were() -> None:
    turn, whole = row(turn=1), call_record(tool_correctness=Scored(value=0.5), revision=2, caused_at_ms=NOON_MS)
    changed = TurnValues(
        **dict(turn) | {"voice_to_voice_ms": Scored(value=900.0), "revision": 9, "caused_at_ms": NOON_MS}
    )
    first = call_record(tool_correctness=Unscored(reason=UnscoredReason.NO_TOOL_CALL_DUE))
    call = of(changed, whole, history=(turn, changed, first, whole))
    text = words(section(call, has_index=False))
    assert "0.90 s was Unscored: no user speech until 12:03:07" in text
    assert "Before Unscored: no tool call due, until 12:03:07 UTC" in text


def test_progress_says_what_it_was() -> None:
    first = progress(Scored(value=0.5))
    newest = ProgressScore(**dict(first) | {"result": Scored(value=1), "revision": 2, "caused_at_ms": NOON_MS})
    text = words(section(of(newest, history=(first, newest)), has_index=False))
    assert "Progress so far" in text
    assert "Before 0.5, until 12:03:07 UTC" in text


SAID = Said(USER, "hello", None)
ANSWER = Said(ASSISTANT, "the answer", None)


def interrupted(turn: int, by: Speaker) -> InterruptionFact:
    return InterruptionFact(**common(turn=turn, name=f"interruption_by_{by}"))


@pytest.mark.parametrize(
    ("turns", "fact", "place"),
    [
        (
            [(1, [SAID, ANSWER]), (2, [SAID, ANSWER])],
            (2, USER),
            "turn 1 user hello assistant the answer interrupted by the user",
        ),
        ([(1, [SAID, ANSWER, SAID, ANSWER])], (1, USER), "assistant the answer interrupted by the user user hello"),
        ([(1, [SAID, ANSWER]), (3, [SAID, ANSWER])], (3, USER), "turn 3 user interrupted user hello"),
        ([(1, [SAID]), (2, [SAID, ANSWER])], (2, USER), "turn 2 user interrupted user hello"),
        ([(1, [SAID, ANSWER])], (1, ASSISTANT), "assistant the answer spoke over the user"),
        ([(1, [SAID])], (1, ASSISTANT), "turn 1 assistant spoke over the user user hello"),
    ],
)
def test_an_interruption_stands_at_the_answer(
    turns: list[tuple[int, list[Said]]], fact: tuple[int, Speaker], place: str
) -> None:
    heard = tuple(TurnHeard(turn, tuple(items)) for turn, items in turns)
    text = section(of(interrupted(*fact), closed(), turns=heard), has_index=False)
    shown = words(text[text.index('id="c1-transcript"') :]).lower()
    assert place in shown
    assert shown.count("interrupted") + shown.count("spoke over") == 1


def test_eva_s_marks_are_said_beside_the_words() -> None:
    turn = TurnHeard(
        1,
        (Said(USER, f"{USER_INTERRUPTS} no", None), Said(ASSISTANT, f"One moment {CUT_OFF_BY_USER}", None)),
        heard_by_user=f"One {CUT_OFF_BY_USER} mum",
    )
    text = words(section(of(closed(), turns=(turn,)), has_index=False))
    assert "User no interrupted the assistant Assistant One moment likely cut off by the user" in text
    assert "The user heard One mum" in text
    assert "[" not in text


def test_of_an_answer_that_was_interrupted_no_guess_is_said() -> None:
    cut = Said(ASSISTANT, f"One moment {CUT_OFF_BY_USER}", None)
    turns = (TurnHeard(1, (SAID, cut)), TurnHeard(2, (SAID,)))
    text = words(section(of(interrupted(2, USER), closed(), turns=turns), has_index=False))
    assert "Assistant One moment interrupted by the user" in text
    assert "likely" not in text


def test_a_rating_is_pending_once_a_judge_is_asked() -> None:
    """That is when the call has left the turn, or is over."""
    rated = row(turn=1, conciseness=TextRating(result=Scored(value=1), through_turn=1), outcome=TurnOutcome.ANSWERED)

    def pending(*records: AnyScoreRecord) -> int:
        return words(section(of(rated, *records), has_index=False)).count("Pending a judge is asked")

    assert pending(row(turn=2)) == 0
    assert pending(row(turn=2, outcome=TurnOutcome.ANSWERED)) == 1
    assert pending(row(turn=-1, outcome=TurnOutcome.ANSWERED), row(turn=2), row(turn=3)) == 1
    assert pending(row(turn=2), call_record(is_over=True)) == 1
    assert pending(row(turn=2, outcome=TurnOutcome.ANSWERED), closed()) == 0


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (TurnOutcome.UNANSWERED, "no answer: the call went on"),
        (TurnOutcome.ABANDONED, "no answer: the call ended"),
        (TurnOutcome.FAILED, "no answer: the agent reported an error"),
        (TurnOutcome.ANSWERED, ""),
        (None, ""),
    ],
)
def test_a_turn_says_how_it_ended(outcome: TurnOutcome | None, told: str) -> None:
    call = of(row(turn=1, outcome=outcome), closed(), turns=(TurnHeard(1, (SAID,)),))
    text = section(call, has_index=False)
    assert words(text[text.index('id="c1-transcript"') :]).split("Turn 1 ")[1] == f"{told} User hello".strip()
