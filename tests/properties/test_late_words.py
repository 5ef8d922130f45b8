"""Words of the caller belong to the turn of their sound, however late they come and in whatever
order records arrive.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.engine.turns.heard import Purpose
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from tests.support.calls.agent_calls import arrivals_of as agent_arrivals
from tests.support.calls.agent_calls import heard, said
from tests.support.fakes.engine_feed import T0_MS, Json

LIMITS = Limits(max_event_time_skew_ms=0)
MOMENTS = ("user_speech_started", "user_speech_stopped", "bot_speech_started", "bot_speech_stopped")
RULINGS = ("user_turn_started", "user_turn_stopped")


class Talk(NamedTuple):
    """A call: its records by the times of their events, and the words of the caller by turn."""

    records: list[Json]
    words: dict[int, str]


def _speech(kind: str, at_ms: int) -> Json:
    return {
        "type": "speech_event",
        "timestamp": T0_MS + at_ms,
        "data": {"kind": kind, "timestamp": (T0_MS + at_ms) / 1000},
    }


def _said(text: str, at_ms: int, sounded_ms: int | None) -> Json:
    data: Json = {"content": text}
    if sounded_ms is not None:
        data["timestamp"] = datetime.fromtimestamp((T0_MS + sounded_ms) / 1000, UTC).isoformat()
    return {"type": "user_message", "timestamp": T0_MS + at_ms, "data": data}


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    """Turns in which the caller may cut off the bot. Words have a time of their own and come at any
    time, or have none and come before the end of the next sound, at most one slow transcription
    late.
    """
    has_rulings, have_times = draw(st.booleans()), draw(st.booleans())
    records = [_speech("bot_speech_started", 0), _speech("bot_speech_stopped", 900)]
    sounds: list[tuple[int, int]] = []
    at_ms = 1_000
    for _ in range(draw(st.integers(1, 5))):
        start_ms, end_ms = at_ms, at_ms + draw(st.integers(400, 3_000))
        bot_ms = end_ms + draw(st.integers(600, 2_000))
        is_cut = draw(st.booleans())
        stop_ms = bot_ms + draw(st.integers(500, 3_000))
        sounds.append((start_ms, end_ms))
        records += [
            _speech(kind, when)
            for kind, when in zip(MOMENTS, (start_ms, end_ms, bot_ms, stop_ms), strict=True)
        ]
        if has_rulings:
            records += [
                _speech(kind, when)
                for kind, when in zip(RULINGS, (start_ms + 150, end_ms + 400), strict=True)
            ]
        at_ms = (
            stop_ms - draw(st.integers(50, 400))
            if is_cut
            else stop_ms + draw(st.integers(50, 2_000))
        )
    words: dict[int, str] = {}
    ends_ms = [end_ms for _, end_ms in sounds[1:]] + [at_ms + 9_000]
    for turn, ((start_ms, end_ms), next_end_ms) in enumerate(zip(sounds, ends_ms, strict=True), 1):
        words[turn] = f"words {turn}"
        if have_times:
            sounded_ms, late_ms = (
                draw(st.integers(start_ms, end_ms)),
                draw(st.integers(450, 20_000)),
            )
        else:
            sounded_ms, late_ms = None, draw(st.integers(450, min(5_000, next_end_ms - end_ms - 1)))
        records.append(_said(words[turn], end_ms + late_ms, sounded_ms))
    return Talk(sorted(records, key=lambda record: record["timestamp"]), words)


def arrivals(records: Sequence[Json]) -> list[Arrival]:
    result = []
    for offset, record in enumerate(records):
        value = json.dumps(record).encode()
        typed = decode(InputSource.PIPECAT, value)
        result.append(
            Arrival(InputSource.PIPECAT, offset, T0_MS + 100_000, "call", typed, value, None)
        )
    return result


def folded(records: Sequence[Json]) -> PartitionEvaluator:
    evaluator = PartitionEvaluator(LIMITS, "test")
    for arrival in arrivals(records):
        evaluator.receive(arrival)
    return evaluator


def said_in(evaluator: PartitionEvaluator) -> dict[int, str]:
    """The words of the caller by turn."""
    heard = evaluator._calls["call"].live.heard()
    found = {
        number: turn.user.said(Purpose.SPOKEN)
        for number, turn in heard.turns(heard.numbers()).items()
    }
    return {number: text for number, text in found.items() if text}


@given(talks())
def test_late_words_belong_to_the_turn_of_their_sound(talk: Talk) -> None:
    assert said_in(folded(talk.records)) == talk.words


@given(talks(), st.data())
def test_the_order_of_arrival_does_not_matter_for_which_turn_has_the_words(
    talk: Talk, data: st.DataObject
) -> None:
    assert said_in(folded(data.draw(st.permutations(talk.records)))) == talk.words


@given(talks(), st.data())
def test_after_every_record_the_words_are_where_the_records_so_far_put_them(
    talk: Talk, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(talk.records))
    evaluator = PartitionEvaluator(LIMITS, "test")
    for place, arrival in enumerate(arrivals(order), 1):
        evaluator.receive(arrival)
        again = folded(sorted(order[:place], key=lambda record: record["timestamp"]))
        assert said_in(evaluator) == said_in(again)


@st.composite
def agent_talks(draw: st.DrawFn) -> tuple[list[Json], list[Json]]:
    """An ElevenLabs agent's words with ids that grow, in time, and with some of them later than the
    next ones.
    """
    events = [said("Hello.", 0, 1)] if draw(st.booleans()) else []
    at_ms, event_id = 0, 1
    for turn in range(1, draw(st.integers(2, 6))):
        for speaks in [heard, *[said] * draw(st.integers(1, 2))]:
            at_ms, event_id = (
                at_ms + draw(st.integers(300, 4_000)),
                event_id + draw(st.integers(1, 3)),
            )
            events.append(speaks(f"{speaks.__name__} {turn} {event_id}", at_ms, event_id))
    late, place = list(events), 0
    while place < len(late) - 1:
        if draw(st.booleans()):
            late[place], late[place + 1] = (
                late[place + 1],
                late[place] | {"timestamp": late[place + 1]["timestamp"] + 50},
            )
            place += 1
        place += 1
    return events, late


def agent_words(events: Sequence[Json]) -> dict[int, list[list[str]]]:
    """The words of both sides by turn; two answers of a turn in any order."""
    evaluator = PartitionEvaluator(LIMITS, "test")
    for arrival in agent_arrivals(events):
        evaluator.receive(arrival)
    call = evaluator._calls.get("call")
    heard_turns = {} if call is None else call.live.heard().turns(call.live.heard().numbers())
    return {
        number: [sorted(side.said(Purpose.SPOKEN).split()) for side in (turn.user, turn.assistant)]
        for number, turn in heard_turns.items()
    }


@given(agent_talks(), st.data())
def test_an_agent_s_late_words_are_filed_by_their_ids_in_any_order_of_arrival(
    talk: tuple[list[Json], list[Json]], data: st.DataObject
) -> None:
    events, late = talk
    assert agent_words(late) == agent_words(events)
    assert agent_words(data.draw(st.permutations(late))) == agent_words(events)
