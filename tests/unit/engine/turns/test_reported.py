"""When the record of an ElevenLabs agent's call is placed beside its turns: as words come, within
bounds, and at the close.
"""

import pytest

from consumers.engine.effects import Effect
from consumers.engine.sources.facts import Recorded
from consumers.engine.sources.rules import RULES
from consumers.engine.turns import reported as agent_records
from consumers.engine.turns.bot import AgentWords, BotElementKind, BotHistory, RankedWords
from consumers.engine.turns.reported import MAX_RECORDS, AgentRecords
from consumers.engine.turns.timeline import CHECKPOINT_EVERY, Replays
from schemas.closed_sets import Anchor
from schemas.events.elevenlabs import ConversationRecord
from tests.support.calls.agent_calls import (
    entry,
    envelope_of,
    heard,
    interrupted,
    metrics,
    record,
    said,
    waited,
)
from tests.support.fakes.engine_feed import T0_MS, Feed, Json

LIMIT_HITS = "callgauge_limits_hit_total"
RECORD = record(
    entry("user", "hello"),
    entry("agent", "Yes.", **waited(1.1)),
    entry("user", "wait"),
    entry("agent", "Okay.", **waited(1.2)),
    at_ms=9_000,
    status="in-progress",
)
"""Of two turns, of which the events below have the words of one: without the late ones, neither
fits.
"""
UNRECORDED = {1: 1_000.0}


def fed(feed: Feed, *events: Json) -> Feed:
    for event in events:
        feed.send("user_sim", event, int(event["timestamp"]) - T0_MS, envelope=envelope_of(event))
    return feed


def two_turns() -> Feed:
    return fed(
        Feed(),
        heard("hi", 1_000, 7),
        said("Yes.", 2_000, 8),
        interrupted(4_000, 8),
        said("Okay.", 5_000, 9),
    )


def pipecat_hears(feed: Feed) -> None:
    feed.send("pipecat", {"type": "user_message", "data": {"content": "stop it"}}, 6_000)


def latencies(feed: Feed) -> list[tuple[float | str, Anchor | None]]:
    """By the records of the turns, when the call is over."""
    feed.advance(900_000)
    return [(feed.latencies()[turn], feed.turn(turn).anchor) for turn in (1, 2)]


def stages_by_elevenlabs(feed: Feed, turn: int) -> list[float]:
    return [each.latency_ms for each in feed.turn(turn).stages if each.source == "elevenlabs"]


def test_words_that_come_after_the_record_place_it_anew() -> None:
    before = two_turns()
    pipecat_hears(before)
    fed(before, RECORD)
    after = fed(two_turns(), RECORD)
    assert after.latencies() == UNRECORDED
    pipecat_hears(after)
    assert after.latencies() == before.latencies() == {1: 1_100.0, 2: 1_200.0}
    assert (
        latencies(after)
        == latencies(before)
        == [(1_100.0, Anchor.RECORD), (1_200.0, Anchor.RECORD)]
    )
    assert stages_by_elevenlabs(after, 1) == stages_by_elevenlabs(before, 1) == [1_100.0]


def test_beyond_a_bound_of_work_the_record_is_placed_anew_at_the_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_records, "MAX_PLACING_WORK", 3)
    feed = fed(two_turns(), RECORD)
    assert feed.counts(LIMIT_HITS) == {("placed_records",): 1}
    pipecat_hears(feed)
    assert feed.latencies() == UNRECORDED
    assert latencies(feed) == [(1_100.0, Anchor.RECORD), (1_200.0, Anchor.RECORD)]
    assert [each.latency_ms for each in feed.turn(2).stages] == [1_200.0]
    assert feed.counts(LIMIT_HITS) == {("placed_records",): 1}


def test_of_too_many_records_the_best_is_placed_at_the_close() -> None:
    feed = fed(Feed(), heard("hello", 1_000, 7), said("Yes.", 2_000, 8))
    for number in range(1, MAX_RECORDS + 3):
        said_so_far = [entry("user", "hello"), entry("agent", "Yes.", **waited(number / 10))]
        fed(feed, record(*said_so_far, at_ms=9_000 + number, status="in-progress"))
    assert feed.latencies() == {1: MAX_RECORDS * 100.0}
    assert feed.counts(LIMIT_HITS) == {("agent_records",): 1}
    feed.advance(900_000)
    assert feed.latencies() == {1: (MAX_RECORDS + 2) * 100.0}


def test_audio_after_the_record_takes_its_stages_back() -> None:
    feed = Feed().bot_text("Welcome.", 0)
    fed(
        feed,
        heard("Hello", 3_000, 2),
        said("Hi.", 4_000, 2),
        heard("Bye", 5_000, 3),
        said("Bye.", 6_000, 3),
        heard("So", 6_400, 4),
    )
    waits = waited(2.0), metrics(llm_service_ttfb=0.7)
    fed(
        feed,
        record(
            entry("user", "Hello"),
            entry("agent", "Hi.", **waits[0]),
            entry("user", "Bye"),
            entry("agent", "Bye.", **waits[1]),
            at_ms=7_000,
        ),
    )
    fed(feed, said("Yes?", 7_100, 4), heard("No", 7_200, 5))
    assert (stages_by_elevenlabs(feed, 1), stages_by_elevenlabs(feed, 2)) == ([2_000.0], [700.0])
    (
        feed.user_audio(1_000, 2_400, behind_ms=6_500)
        .assistant_audio(4_100, behind_ms=4_000)
        .user_audio(7_000, 8_000)
        .assistant_audio(9_000)
        .advance(900_000)
    )
    for turn in (1, 2):
        assert stages_by_elevenlabs(feed, turn) == []


@pytest.mark.parametrize("is_record_first", [True, False])
def test_a_call_with_audio_has_its_best_record_all_the_same(is_record_first: bool) -> None:
    feed = fed(Feed(), heard("Hello", 3_000, 2), said("Hi.", 4_000, 2))
    call = feed.evaluator._calls["call"]
    live = call.live
    spoken = record(entry("user", "Hello"), entry("agent", "Hi.", **waited(2.0)), at_ms=5_000)
    if is_record_first:
        fed(feed, spoken)
    feed.user_audio(1_000, 2_400, behind_ms=4_500)
    if not is_record_first:
        fed(feed, spoken)
    feed.advance(900_000)
    assert live.record is not None
    assert (live.record.agent_id, live.record.placed) == ("agent-1", {})


def utter(bot: BotHistory, moment: BotElementKind, number: int) -> int:
    is_user = moment is BotElementKind.AGENT_HEARD
    words = RankedWords(is_user=is_user, rank=0, ref="yes" if is_user else "Good.", event_id=number)
    time_ms = T0_MS + number * 1_000 + (0 if is_user else 500)
    return bot.from_agent(moment, time_ms, number, AgentWords((words,), is_exact=True))


def turns_heard(count: int) -> BotHistory:
    bot = BotHistory(Replays())
    for number in range(1, count + 1):
        utter(bot, BotElementKind.AGENT_HEARD, number)
        utter(bot, BotElementKind.AGENT_SAID, number)
    return bot


def waits_recorded(*waits: Json, at_ms: int) -> Recorded:
    entries = [
        each
        for number, wait in enumerate(waits, 1)
        for each in (entry("user", "yes", source_event_id=number), entry("agent", "Good.", **wait))
    ]
    (recorded,) = RULES[ConversationRecord].facts(
        ConversationRecord.model_validate(record(*entries, at_ms=at_ms))
    )
    assert isinstance(recorded, Recorded)
    return recorded


def test_words_that_were_never_said_are_no_place_in_a_record() -> None:
    bot = turns_heard(CHECKPOINT_EVERY // 2)
    last = CHECKPOINT_EVERY // 2 + 1
    key = utter(bot, BotElementKind.AGENT_HEARD, last)
    records = AgentRecords()
    records.fold(waits_recorded(*[waited(1.0)] * last, at_ms=9_000))
    assert records.follow(bot.machine, []) == set(range(1, last + 1))
    bot.timeline.remove(key)
    assert records.follow(bot.machine, []) == {last}


def test_a_record_touches_the_turns_of_which_it_says_something_else() -> None:
    bot = turns_heard(3)
    records = AgentRecords()
    out: list[Effect] = []

    def taken(*waits: Json, at_ms: int) -> set[int]:
        records.fold(waits_recorded(*waits, at_ms=at_ms))
        return records.follow(bot.machine, out)

    assert taken(waited(1.0), {}, waited(3.0), at_ms=9_000) == {1, 3}
    assert taken(waited(1.0), {}, waited(3.0), at_ms=9_001) == set()
    assert taken(waited(1.0), metrics(llm_service_ttfb=0.7), waited(4.0), at_ms=9_002) == {2, 3}
    assert records.follow(bot.machine, out) == set()
    assert out == []
