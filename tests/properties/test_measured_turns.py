"""The rows of turns and of the call: whenever turns are measured, and at the close, each part
equals one computed anew.
"""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival
from consumers.engine.evaluator import PartitionEvaluator
from schemas.rows import CallRow, NotApplicable, TurnRow, Unscored
from tests.properties.evaluation import closing_of_one, end_of, fresh, holds, newest_turns
from tests.properties.measured_anew import MeasuredTurns, differing, measured_at_the_close
from tests.properties.steered_calls import drawn
from tests.support.calls.agent_calls import Json, agent_calls
from tests.support.calls.agent_calls import arrivals_of as agent_arrivals
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import Feed, rows_of
from tests.support.laws import examples

STARTED: tuple[Json, ...] = (
    {"type": "call_started", "timestamp": 1_790_000_000_000, "agent": "desk"},
)


def _check(
    arrivals: Sequence[Arrival], evaluator: PartitionEvaluator
) -> tuple[list[TurnRow], CallRow]:
    """Follow a call to its end; returns the last rows of its turns, and that of the call."""
    measured = MeasuredTurns(evaluator)
    for arrival in arrivals:
        measured.take(evaluator.receive(arrival), arrival.conversation_id)
    (open_call,) = evaluator._calls.values()
    expected = measured_at_the_close(open_call)
    effects = evaluator.advance(end_of(arrivals))
    last = measured.newest | newest_turns(rows_of(effects))
    turns = {turn: row for turn, row in last.items() if holds(row)}
    assert turns.keys() == expected.keys()
    for turn, row in turns.items():
        found = differing(row, expected[turn])
        assert not found, f"turn {turn} has at the close, and should have: {found}"
    return list(turns.values()), closing_of_one(effects)


@examples(times=1.5)
@given(st.data())
def test_whenever_turns_are_measured_they_are_what_the_whole_call_says(data: st.DataObject) -> None:
    call, order = drawn(data)
    _sums_up(*_check(arrivals_of(call, order), fresh()))


@given(agent_calls(), st.data())
def test_so_are_the_turns_of_an_agent(
    drawn: tuple[list[Json], Json | None], data: st.DataObject
) -> None:
    events, record = drawn
    shuffled = data.draw(st.permutations(events if record is None else [*events, record]))
    _sums_up(*_check(agent_arrivals(shuffled, control=STARTED), fresh()))


def _sums_up(turns: list[TurnRow], call: CallRow) -> None:
    """The row of the call has the same values of its turns as their own rows."""
    compared: Counter[str] = Counter()
    disputed: Counter[str] = Counter()
    unscored: dict[str, Counter[str]] = {
        "voice_to_voice_latency_ms": Counter(),
        "turn_taking": Counter(),
    }
    errors: Counter[str] = Counter()
    for row in turns:
        for stage in row.stages:
            compared[stage.stage] += bool(stage.others_ms)
            disputed[stage.stage] += stage.is_disputed
        waited, taking = row.wait_ms, row.turn_taking
        if isinstance(waited, Unscored):
            unscored["voice_to_voice_latency_ms"][waited.reason] += 1
        if taking is not None and isinstance(taking.result, Unscored):
            unscored["turn_taking"][taking.result.reason] += 1
        rate = row.stt_wer
        if rate is not None:
            parts = {
                "substitutions": rate.substitutions,
                "deletions": rate.deletions,
                "insertions": rate.insertions,
            }
            errors.update({**parts, "reference_words": rate.reference_words, "turns": 1})
    assert {stage: (each.compared, each.disputed) for stage, each in call.stages.items()} == {
        stage: (number, disputed[stage]) for stage, number in compared.items() if number
    }
    assert call.unscored_turns == {name: reasons for name, reasons in unscored.items() if reasons}
    assert call.stt_wer is not None
    if not isinstance(call.stt_wer.result, NotApplicable):
        assert call.stt_wer.normalizer == "en"
        for name in ("substitutions", "deletions", "insertions", "reference_words", "turns"):
            assert getattr(call.stt_wer, name) == errors[name]


def test_a_text_that_takes_the_place_of_one_as_long_is_read() -> None:
    """On a phone line the log's texts are no part of the turns, so nothing but the text itself says
    that it is another.
    """
    feed = (
        Feed()
        .send("audit", {"message_type": "user", "value": "I want ham", "turn_id": 1}, 1_000)
        .bot_text("Yes.", 1_500)
        .heard("And bread", 5_000)
        .bot_text("Yes.", 5_500)
        .heard("And", 15_000)
    )
    assert [talk.user.words for talk in feed.values("talk", 1) if talk is not None] == [3]
    feed.send(
        "audit", {"type": "user_text_updated", "text": "I w an ham", "turn_id": 1}, 20_000
    ).advance(10_000_000)
    assert feed.values("talk", 1)[-1].user.words == 4


def test_the_first_sound_of_the_bot_takes_answers_back_that_were_known_by_their_text() -> None:
    """Of every turn, when it is heard: whether the bot says when it speaks is a fact about the
    call.
    """
    feed = Feed().heard("I lost my badge.", 1_000).bot_text("Yes.", 1_500).heard("And bread", 5_000)
    assert feed.latencies() == {1: 500.0}
    feed.speech("bot_speech_started", 5_700)
    assert feed.latencies() == {1: "withdrawn", 2: 700.0}
    feed.heard("And", 9_000)
    assert feed.latencies() == {1: "no_assistant_speech", 2: 700.0}
