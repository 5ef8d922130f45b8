"""Back-tests without a broker: the past rows, the new evaluation of a log, and the comparison."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import pytest
from aiokafka import TopicPartition
from msgspec import structs

from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.measures.files import MeasureSettings
from consumers.measures.own import NotMeasured, measure
from consumers.runtime.kafka.connection import KafkaSettings
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.log import Event, LogReader, Tick
from schemas.rows import CallRow, GoalsRow, OwnRow, Row, TurnRow, encode
from schemas.topics import SOURCE_BY_TOPIC, TOPIC_BY_SOURCE
from streamer import backtest
from streamer.backtest import (
    MAX_EXAMPLES,
    BacktestError,
    BacktestPlan,
    BacktestResult,
    PastCalls,
    PastTopics,
    Rerun,
    RerunComparison,
    ScoreDifference,
    last_values,
    remarks,
    report,
    report_document,
)
from streamer.history.comparison import ComparedPeriod
from streamer.offline.own_values import OwnMeasures
from streamer.terminal import Screen
from streamer.trials.calls import NewestRows
from tests.support.calls.log_records import PlacedRecords
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.engine_feed import T0_MS, Feed, rows_of
from tests.support.fakes.kept_topics import KeptTopics

AUDIT, PIPECAT, ELEVENLABS = InputSource.AUDIT, InputSource.PIPECAT, InputSource.ELEVENLABS
LATENCY = "wait_ms"


def record(
    source: InputSource, offset: int, at_ms: int, value: bytes = b"{}", key: str = "call"
) -> BrokerRecord:
    return BrokerRecord(TOPIC_BY_SOURCE[source], offset, T0_MS + at_ms, key.encode(), value)


def in_log(records: Iterable[BrokerRecord], until_ms: int = 60_000) -> list[BrokerRecord]:
    """These records as the log has them: time is told before each, and at the end."""
    placed = PlacedRecords()
    for each in sorted(records, key=lambda each: each.timestamp):
        placed.tick(each.timestamp)
        placed.event(SOURCE_BY_TOPIC[each.topic], each)
    placed.tick(T0_MS + until_ms)
    return placed.records


def read(log: Iterable[Any]) -> list[Event | Tick]:
    reader = LogReader()
    return [found for each in log if (found := reader.read(each)) is not None]


# The past rows.


def live(
    *, key: str = "call", from_ms: int = 0, limits: Limits | None = None, feed: Feed | None = None
) -> Feed:
    """A call: a greeting, an answer after 1.5 s, another after 4 s of dead air, a tool, and a
    goodbye.
    """
    feed = feed or Feed(limits)
    for stream, event, at_ms in EVENTS:
        feed.advance(from_ms + at_ms - 1)
        feed.send(stream, stamped(event, from_ms), from_ms + at_ms, key=key)
    feed.advance(from_ms + 30_000)
    return feed


def stamped(event: dict[str, Any], from_ms: int) -> dict[str, Any]:
    sound_s = event.get("audio_timestamp")
    return event if sound_s is None else {**event, "audio_timestamp": sound_s + from_ms / 1_000}


def heard(kind: str, who: str, at_ms: int) -> tuple[str, dict[str, Any], int]:
    return (
        "user_sim",
        {"event_type": kind, "user": who, "audio_timestamp": (T0_MS + at_ms) / 1_000},
        at_ms,
    )


def spoken(at_ms: int) -> list[tuple[str, dict[str, Any], int]]:
    start = {"type": "turn_start", "data": {"frame": "turn_start"}}
    return [
        ("pipecat", start, at_ms),
        ("pipecat", {"type": "tts_text", "data": {"frame": "Certainly."}}, at_ms),
    ]


EVENTS: list[tuple[str, dict[str, Any], int]] = [
    ("audit", {"type": "call_started", "agent": "desk"}, 0),
    heard("audio_start", "assistant", 0),
    *spoken(0),
    heard("audio_end", "assistant", 100),
    heard("audio_start", "simulated_user", 200),
    ("user_sim", {"type": "user_speech", "data": {"text": "Hello"}}, 200),
    heard("audio_end", "simulated_user", 1_000),
    ("audit", {"message_type": "user", "value": "Hello"}, 1_000),
    ("audit", {"message_type": "tool_call", "value": {"tool": "find", "parameters": {}}}, 1_200),
    (
        "audit",
        {
            "message_type": "tool_response",
            "value": {"tool": "find", "response": {"status": "success"}},
        },
        1_500,
    ),
    heard("audio_start", "assistant", 2_500),
    *spoken(2_500),
    heard("audio_end", "assistant", 3_000),
    heard("audio_start", "simulated_user", 4_000),
    ("user_sim", {"type": "user_speech", "data": {"text": "Hello"}}, 4_000),
    heard("audio_end", "simulated_user", 5_000),
    ("audit", {"message_type": "user", "value": "Hello"}, 5_000),
    heard("audio_start", "assistant", 9_000),
    *spoken(9_000),
    heard("audio_end", "assistant", 9_500),
    ("audit", {"type": "call_ended", "reason": "goodbye"}, 10_000),
]


def log(*, key: str = "call", from_ms: int = 0) -> list[BrokerRecord]:
    """The same call as the inputs have it."""
    sources = {"audit": AUDIT, "pipecat": PIPECAT, "user_sim": ELEVENLABS}
    offsets = dict.fromkeys(sources, 0)
    records = []
    for stream, event, at_ms in EVENTS:
        value = json.dumps(
            {"timestamp": T0_MS + from_ms + at_ms} | stamped(event, from_ms)
        ).encode()
        records.append(record(sources[stream], offsets[stream], from_ms + at_ms, value, key))
        offsets[stream] += 1
    return records


def written(calls: PastCalls, rows: Sequence[Row]) -> None:
    for row in rows:
        calls.read_record(row.conversation_id.encode(), encode(row))


def together(*logs: Sequence[BrokerRecord]) -> list[BrokerRecord]:
    """Calls side by side: offsets of each topic in the order of time."""
    next_offset = Counter[str]()
    merged_logs = []
    for each in sorted(chain(*logs), key=lambda record: record.timestamp):
        merged_logs.append(each._replace(offset=next_offset[each.topic]))
        next_offset[each.topic] += 1
    return merged_logs


def period(since_ms: int = 0, until_ms: int = 60_000) -> ComparedPeriod:
    return ComparedPeriod(T0_MS + since_ms, T0_MS + until_ms)


def past(*rows: Row, within: ComparedPeriod | None = None) -> PastCalls:
    calls = PastCalls(within or period())
    written(calls, rows)
    return calls


def test_what_holds_of_a_call_in_the_end_is_kept() -> None:
    everything = live().rows()
    (call,) = past(*everything).by_id.values()
    kept = call.rows()
    subjects = [subject(row) for row in kept]
    assert len(set(subjects)) == len(subjects)
    assert dict(zip(subjects, kept, strict=True)) == {subject(row): row for row in everything}
    assert kept[-1] == everything[-1]


def subject(row: Row) -> tuple[type[Row], int | None]:
    return type(row), row.turn if isinstance(row, TurnRow) else None


@pytest.mark.parametrize(
    ("begin_ms", "end_ms", "is_in"), [(0, 0, False), (0, 1, True), (-9, 9, True), (1, 9, False)]
)
def test_calls_are_those_that_closed_in_the_time(
    begin_ms: int, end_ms: int, *, is_in: bool
) -> None:
    *rows, closed = live().rows()
    assert isinstance(closed, CallRow)
    closed_ms = closed.known_ms
    calls = past(*rows, closed, within=ComparedPeriod(closed_ms + begin_ms, closed_ms + end_ms))
    assert ("call" in calls.by_id) is is_in


def test_a_conversation_id_used_again_is_left_out() -> None:
    first, second = live().rows(), live(from_ms=20_000).rows()
    calls = past(*first, *second)
    assert (list(calls.by_id), calls.closed_twice) == ([], {"call"})
    calls = past(*first, *second, *first)
    assert (list(calls.by_id), calls.closed_twice) == ([], {"call"})
    calls = past(*first, *second, within=period(25_000))
    assert (list(calls.by_id), calls.closed_twice) == ([], {"call"}), "it closed before, too"


def test_what_cannot_be_read_is_counted() -> None:
    calls = PastCalls(period())
    calls.read_record(b"call", b'{"status":"settled"}')
    calls.read_record(
        b"call", b'{"row":"call","conversation_id":"call","state":"of a newer version"}'
    )
    calls.read_record(None, b'{"status":"final"}')
    calls.read_record(b"call", None)
    assert (calls.unreadable, calls.by_id) == (2, {})


def test_more_calls_than_are_held_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtest, "MAX_CALLS", 1)
    calls = past(*live(key="one").rows("one"))
    with pytest.raises(BacktestError, match="shorter time"):
        written(calls, live(key="two").rows("two"))
    monkeypatch.setattr(backtest, "MAX_HELD_BYTES", 100)
    with pytest.raises(BacktestError, match="more than 100 bytes"):
        past(*live(key="one").rows("one"))
    monkeypatch.setattr(backtest, "MAX_CALLS", 1)
    rerun = anew({})
    feed_in(rerun, in_log(log(key="one")))
    with pytest.raises(BacktestError, match="shorter time"):
        feed_in(rerun, in_log(log(key="two")))


# The log.


async def test_a_partition_is_read_from_a_time_on_and_what_is_gone_of_it_is_told() -> None:
    topics, tp = KeptTopics(*in_log(log())), TopicPartition("events", 0)
    kept = PastTopics(topics, KafkaSettings())
    stretch = await kept.begin(0, T0_MS + 1_000)
    found = [each async for each in kept.read(0, stretch)]
    assert isinstance(found[0], Tick)
    assert found[0].known_ms == T0_MS + 1_000
    assert (stretch.cut_ms, kept.cut) == (0, {})
    topics.first[tp] = stretch.start
    assert await kept.begin(0, T0_MS + 1_000) == stretch, "nothing is gone that was wanted"
    assert (await kept.begin(0, T0_MS + 999)).cut_ms == T0_MS + 1_000
    assert kept.cut == {"events[0]": T0_MS + 1_000}
    empty = await kept.begin(0, T0_MS + 10**9)
    assert (empty.start, empty.cut_ms) == (empty.end, 0)
    assert [each async for each in kept.read(0, empty)] == []


# The new evaluation.


def anew(
    calls: Any, *, limits: Limits | None = None, within: ComparedPeriod | None = None
) -> Rerun:
    """Without the facts of then."""
    return Rerun(
        limits or Limits(),
        "test",
        within or period(),
        calls,
        obeys_facts=False,
        comparison=RerunComparison(),
    )


def as_then(
    calls: PastCalls, *, limits: Limits | None = None, goals: ChosenGoals | None = None, **more: Any
) -> Rerun:
    return Rerun(
        limits or Limits(),
        "test",
        calls.period,
        calls.by_id,
        obeys_facts=True,
        comparison=RerunComparison(),
        folds_all=calls.has_evicted,
        goals=goals or ChosenGoals(),
        **more,
    )


def feed_in(rerun: Rerun, records: Iterable[BrokerRecord]) -> list[bytes]:
    """Folds these records of the log; nothing is evaluated behind a time from which on nothing can
    change.
    """
    out: list[Row | OwnRow] = []
    for found in read(records):
        out += rerun.fold_record(found)
        if rerun.is_over(found.known_ms if isinstance(found, Tick) else found.timestamp):
            break
    return [*map(encode, out)]


def finished(rerun: Rerun, now_ms: int = 60_000) -> list[bytes]:
    return [*map(encode, rerun.finish(T0_MS + now_ms))]


class Evaluated:
    """What an evaluator makes of these records, until a minute after the beginning of the first
    call.

    Attributes:
        log: The log that it read.
        rows: What it wrote to `scores`.
    """

    def __init__(
        self,
        records: Sequence[BrokerRecord],
        *,
        limits: Limits | None = None,
        goals: ChosenGoals | None = None,
    ) -> None:
        self.log = in_log(records)
        evaluator = PartitionEvaluator(limits or Limits(), "test", goals)
        self.rows: list[Row] = []
        for found in read(self.log):
            if isinstance(found, Tick):
                self.rows += rows_of(evaluator.pass_time(found.known_ms, found.place))
            else:
                arrival = admit(found.source, found, limits or Limits())
                assert isinstance(arrival, Arrival)
                arrival.offset = found.place
                self.rows += rows_of(evaluator.receive(arrival))
            while evaluator.closing_calls:
                self.rows += rows_of(evaluator.close_some())

    @property
    def past(self) -> PastCalls:
        return past(*self.rows)


def folded(then: Evaluated, **given: Any) -> Rerun:
    """Its log once more, with the facts of then."""
    rerun = as_then(then.past, **given)
    feed_in(rerun, then.log)
    return rerun


def test_the_same_settings_give_the_same_bytes() -> None:
    then = Evaluated(together(log(key="one"), log(key="two", from_ms=300)))
    rerun = as_then(then.past)
    assert not rerun.is_over(T0_MS)
    written = feed_in(rerun, then.log)
    assert rerun.is_over(T0_MS)
    assert finished(rerun) == []
    assert sorted(written) == sorted(map(encode, then.rows))
    assert (rerun.comparison.calls["equal"], rerun.comparison.examples, rerun.open_calls) == (
        2,
        [],
        0,
    )
    assert (rerun.comparison.equal_values > 100, rerun.comparison.changes()) == (True, [])


def test_measures_of_ones_own_are_computed_by_the_functions_of_today() -> None:
    @measure
    def waited(turn: TurnRow) -> object:
        return turn.wait_ms or NotMeasured("no wait")

    @measure
    def of_context(call: CallRow, context: object) -> int:
        return 1

    then = Evaluated(log())
    rerun = as_then(then.past, own=OwnMeasures(MeasureSettings(), [waited, of_context]))
    written = feed_in(rerun, then.log)
    assert written == [*map(encode, then.rows)]
    (change,) = rerun.comparison.changes()
    assert change.measure == "waited", "a back-test has no contexts"
    assert change.before == change.after is not None


def test_the_settings_of_today_decide_about_silence() -> None:
    then = Evaluated(log())
    rerun = folded(then, limits=Limits(dead_air_ms=10_000))
    finished(rerun)
    assert ScoreDifference("call", 2, "dead_air", 1, 0) in rerun.comparison.examples
    assert ScoreDifference("call", None, "dead_airs", 1, 0) in rerun.comparison.examples
    rerun = folded(then, limits=Limits(dead_air_ms=700, delivery_allowance_ms=0))
    assert ScoreDifference("call", 1, "dead_air", 0, 1) in rerun.comparison.examples
    (change,) = [each for each in rerun.comparison.changes() if each.measure == "dead_airs"]
    assert (change.before, change.after, change.low) == (1, 2, None)


def test_a_call_ends_as_today_s_settings_say_sooner_or_later() -> None:
    then = Evaluated(log())
    rerun = as_then(then.past, limits=Limits(idle_ms=2_000))
    assert b'"close_reason":"idle"' in b"".join(feed_in(rerun, then.log))
    assert rerun.is_over(T0_MS), "what comes later opens no call"
    rerun = folded(then, limits=Limits(closing_grace_ms=100_000))
    assert (rerun.open_calls, rerun.is_over(T0_MS)) == (1, False)
    assert f'"known_ms":{T0_MS + 110_000}'.encode() in finished(rerun)[-1], "nothing follows"
    assert (rerun.open_calls, rerun.comparison.calls["equal"]) == (0, 1)


def test_a_call_gives_way_to_another_as_it_did_then() -> None:
    """Also if the other one is not evaluated: it is folded, and nothing of it is written or
    compared.
    """
    limits = Limits(max_open_calls=1)
    then = Evaluated(together(log(key="one"), log(key="other", from_ms=3_100)), limits=limits)
    both = then.past
    assert (both.closed_twice, both.has_evicted) == (set(), True)
    assert both.by_id.keys() == {"one", "other"}
    for left in ({"one", "other"}, {"one"}, {"other"}):
        by_id = {key: call for key, call in both.by_id.items() if key in left}
        rerun = as_then(PastCalls(period(), by_id, has_evicted="one" in left), limits=limits)
        written = feed_in(rerun, then.log)
        assert (b'"close_reason":"limit_open_calls"' in b"".join(written)) is ("one" in left)
        assert finished(rerun) == []
        assert (rerun.comparison.calls["equal"], rerun.comparison.examples) == (len(left), [])
    rerun = as_then(both)
    feed_in(rerun, then.log)
    assert rerun.comparison.calls["changed"] == 1, "with room for both it ends by itself"


ANSWERED = GoalSet.model_validate(
    {
        "id": "any",
        "agents": ["desk"],
        "subgoals": [
            {
                "id": "sure",
                "details": "d",
                "check": {"kind": "says", "speaker": "assistant", "pattern": "Certainly"},
            }
        ],
    }
)


class OneSet:
    """A source of goals for calls of the agent `desk`."""

    def __init__(self, goals: GoalSet = ANSWERED) -> None:
        self.goals = goals

    def choose(self, _goals_id: str | None, agent: str | None) -> GoalSet | None:
        return self.goals if agent == "desk" else None


def test_goals_are_those_of_then_or_without_the_facts_those_of_now() -> None:
    goals = ChosenGoals(OneSet())
    then = Evaluated(log(), goals=goals)
    for given in (ChosenGoals(), goals):
        rerun = folded(then, goals=given)
        assert rerun.comparison.calls["equal"] == 1
    rerun = anew(then.past.by_id)
    feed_in(rerun, in_log(log()))
    finished(rerun)
    assert [each for each in rerun.comparison.differing if each.startswith("goals.")]
    assert (rerun.comparison.other_goals, rerun.comparison.flipped) == (1, {}), "it has none now"
    without = Evaluated(log())
    rerun = as_then(without.past, goals=goals)
    feed_in(rerun, without.log)
    assert rerun.comparison.calls["equal"] == 1, "there were none, whatever there is today"


def test_other_goals_than_then_are_told_with_the_subgoals_that_flipped() -> None:
    """`sure` was reached in turn 1; the new check of the same name asks for words that
    nobody says.
    """
    check = ANSWERED.subgoals[0].model_dump() | {
        "check": {"kind": "says", "speaker": "user", "pattern": "Goodbye"}
    }
    other = GoalSet.model_validate(ANSWERED.model_dump() | {"subgoals": [check]})
    then = Evaluated(log(), goals=ChosenGoals(OneSet()))
    rerun = anew(then.past.by_id)
    rerun.goals.source = OneSet(other)
    feed_in(rerun, in_log(log()))
    finished(rerun)
    comparison = rerun.comparison
    ((call, (flip,)),) = comparison.flipped.items()
    assert (call, flip.subgoal_id, flip.is_won, comparison.other_goals) == (
        "call",
        "sure",
        False,
        1,
    )
    assert flip.turn is not None
    assert flip.quote is not None
    assert "user: " in flip.quote
    result = BacktestResult(comparison)
    text = shown(result)
    assert "1 call with other goals than then." in text
    assert f"call: sure lost (turn {flip.turn})" in text
    assert f"    turn {flip.turn}: {flip.quote}" in text
    document = report_document(plan(), result)
    assert document["subgoals"] == [{"id": "sure", "won": 0, "lost": 1}]
    assert document["flipped"] == [{"conversation_id": "call", "subgoals": [flip._asdict()]}]


def test_goals_count_from_the_record_on_that_brought_them() -> None:
    """The first `call_started` of a call may name neither goals nor an agent."""
    nobody = record(AUDIT, 0, 0, b'{"type":"call_started","timestamp":%d}' % T0_MS)
    then = Evaluated(together([nobody], log()), goals=ChosenGoals(OneSet()))
    rerun = as_then(then.past)
    written = feed_in(rerun, then.log)
    assert written == [*map(encode, then.rows)]
    assert any(isinstance(row, GoalsRow) for row in then.rows)


def test_calls_without_their_beginning_are_left_out() -> None:
    then = Evaluated(together(log(key="one"), log(key="two", from_ms=300)))
    is_left = [each for each in then.log if each.timestamp >= T0_MS + 300]
    rerun = as_then(then.past, cut_ms=T0_MS + 300)
    feed_in(rerun, is_left)
    assert rerun.is_over(T0_MS)
    assert rerun.counts["without_beginning"] == 1
    assert (rerun.comparison.calls["equal"], rerun.comparison.calls["only_then"]) == (1, 0)
    rerun = as_then(then.past)
    assert feed_in(rerun, []) == finished(rerun) == []
    assert (rerun.counts["without_beginning"], rerun.open_calls) == (2, 0)


def test_a_call_that_is_in_the_log_twice_is_folded_once() -> None:
    """A successor of the sequencer appends again what it does not know of."""
    then = Evaluated(log())
    again = PlacedRecords(term=0)
    for _ in range(2):
        for each in log():
            again.tick(0, {})
            again.event(SOURCE_BY_TOPIC[each.topic], each)
        again.term += 1
    again.tick(T0_MS + 60_000)
    rerun = as_then(then.past)
    feed_in(rerun, again.records)
    assert rerun.comparison.calls["equal"] == 1


def test_a_record_refused_today_is_counted_and_its_call_closes_all_the_same() -> None:
    then = Evaluated(log())
    rerun = folded(then, limits=Limits(max_record_bytes=110))
    assert rerun.counts["refused_records"] > 0
    assert rerun.comparison.calls["changed"] == 1
    rerun = folded(then, limits=Limits(max_record_bytes=1))
    assert finished(rerun) == []
    assert (
        rerun.comparison.calls["only_then"],
        rerun.open_calls,
        rerun.counts["without_beginning"],
    ) == (1, 0, 0)


# Without the facts.


def test_without_the_facts_the_settings_of_today_decide() -> None:
    then = past(*live().rows()).by_id
    rerun = anew(then, limits=Limits(dead_air_ms=10_000))
    feed_in(rerun, in_log(log(), until_ms=10_000))
    assert not rerun.is_over(T0_MS + 60_000), "the call is open"
    finished(rerun)
    assert rerun.is_over(T0_MS + 60_000)
    assert not rerun.is_over(T0_MS + 59_999), "another may begin"
    assert rerun.comparison.calls["changed"] == 1
    assert ScoreDifference("call", 2, "dead_air", 1, 0) in rerun.comparison.examples
    assert "close_reason" not in rerun.comparison.differing


@pytest.mark.parametrize("gap_ms", [0, 3_500])
def test_what_nobody_listened_to_is_no_silence(gap_ms: int) -> None:
    rerun = anew(past(*live().rows()).by_id)
    for each in read(in_log(log())):
        found = each
        # in front of the late answer
        if isinstance(found, Tick) and found.known_ms == T0_MS + 9_000:
            found = found.model_copy(update={"gap_ms": gap_ms})
        rerun.fold_record(found)
    finished(rerun)
    assert rerun.comparison.differing["dead_air"] == (1 if gap_ms else 0)


def test_the_same_log_gives_the_same_bytes() -> None:
    """The time of the command changes nothing: a call is woken at the time that it asked for."""
    runs = []
    for now_ms in (60_000, 900_000):
        rerun = anew({})
        runs.append([*feed_in(rerun, in_log(log())), *finished(rerun, now_ms)])
    assert runs[0] == runs[1]
    assert any(b'"closed"' in value for value in runs[0])


def test_without_the_facts_calls_are_those_that_began_in_the_time() -> None:
    everything = together(
        log(key="early"), log(key="within", from_ms=5_000), log(key="late", from_ms=61_000)
    )
    rerun = anew({}, within=period(1_000, 60_000))
    feed_in(rerun, in_log(everything))
    finished(rerun, 200_000)
    assert rerun.comparison.calls["only_now"] == 1
    assert {example.conversation_id for example in rerun.comparison.examples} == {"within"}


def test_silence_decides_before_the_record_that_ends_it() -> None:
    rerun = anew({}, limits=Limits(idle_ms=2_000))
    written = b"".join(feed_in(rerun, in_log(log())))
    assert b'"close_reason":"idle"' in written
    assert f'"known_ms":{T0_MS + 7_000}'.encode() in written
    assert rerun.open_calls == 0, "what comes later opens no call"


def test_a_call_whose_id_was_used_again_is_left_out() -> None:
    rerun = anew({})
    rerun.left_out = frozenset({"call"})
    assert feed_in(rerun, in_log(together(log(), log(key="other"))))
    finished(rerun)
    assert rerun.comparison.calls["only_now"] == 1


def test_a_call_that_is_not_over_is_counted() -> None:
    rerun = anew({})
    feed_in(rerun, in_log(log()[:-1]))
    finished(rerun, 11_000)
    assert (rerun.open_calls, rerun.comparison.calls["only_now"]) == (1, 0)


# The comparison.


def waited(*waits_ms: float | None, call: str = "call") -> list[Row]:
    """The rows of a closed call whose turns had these waits."""
    turns = [
        TurnRow(conversation_id=call, turn=number, wait_ms=wait_ms)
        for number, wait_ms in enumerate(waits_ms)
    ]
    return [
        *turns,
        CallRow(conversation_id=call, state="closed", longest_wait_ms=max(filter(None, waits_ms))),
    ]


def test_calls_are_compared_value_by_value() -> None:
    comparison = RerunComparison()
    comparison.add("same", waited(100.0), waited(100.0))
    comparison.add("other", waited(100.0, 50.0, 1.0), waited(140.0, 30.0))
    comparison.add("then", waited(1.0), [])
    comparison.add("now", [], waited(1.0))
    comparison.add("neither", [], [])
    assert comparison.calls == {"equal": 1, "changed": 1, "only_then": 1, "only_now": 1}
    assert (
        comparison.differing[LATENCY],
        comparison.differing["longest_wait_ms"],
        comparison.differing["state"],
    ) == (*(3, 1, 2),)
    assert comparison.examples[0] == ScoreDifference("other", 0, LATENCY, 100.0, 140.0)
    assert ScoreDifference("other", 2, LATENCY, 1.0, None) in comparison.examples
    assert comparison.examples[-2:] == [
        ScoreDifference("then", None, "state", "closed", None),
        ScoreDifference("now", None, "state", None, "closed"),
    ]
    (change,) = comparison.changes()
    assert change[:5] == ("longest_wait_ms", 100.0, 120.0, 2, 2)
    assert change.is_paired


def test_a_number_that_became_unknown_is_in_no_mean() -> None:
    comparison = RerunComparison()
    comparison.add("call", waited(100.0), [structs.replace(waited(1.0)[-1], longest_wait_ms=None)])
    (change,) = comparison.changes()
    assert change[:5] == ("longest_wait_ms", 100.0, None, 1, 0)


def test_examples_and_means_are_bounded_and_counts_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtest, "MOST_MEASURED", 10)
    comparison = RerunComparison()
    for number in range(100):
        comparison.add(f"c{number}", waited(1.0), waited(2.0))
    assert len(comparison.examples) == MAX_EXAMPLES
    assert (comparison.calls["changed"], comparison.differing[LATENCY]) == (100, 100)
    assert comparison.changes()[0].calls_before == 10


def test_the_last_values_leave_out_what_was_taken_back_and_how_it_was_said() -> None:
    rows = live().rows()
    said = last_values(NewestRows(rows))
    assert (said[1, LATENCY], said[1, "anchor"], said[2, "dead_air"], said[None, "dead_airs"]) == (
        1_500.0,
        "audio",
        1,
        1,
    )
    names = {column for _, column in said}
    assert not names & {
        "revision",
        "known_ms",
        "news",
        "status",
        "code_version",
        "first_place",
        "last_place",
    }
    assert (2, "labels.agent") not in said
    last = max(
        (row for row in rows if isinstance(row, TurnRow)), key=lambda row: (row.turn, row.revision)
    )
    without = last_values(NewestRows([*rows, structs.replace(last, status="withdrawn")]))
    assert said.keys() - without.keys() == {each for each in said if each[0] == 2}
    assert without.items() <= said.items(), "what the caller sat through stays, in the call"


# The report.


def plan(*, obeys_facts: bool = True) -> BacktestPlan:
    return BacktestPlan(period(), obeys_facts, T0_MS + 60_000)


def shown(result: BacktestResult) -> str:
    console = Screen(width=160, record=True, file=None, quiet=True)
    console.print(report(plan(), result))
    with console.capture() as capture:
        console.quiet = False
        console.print(report(plan(), result))
    return capture.get()


def test_a_report_says_what_differs() -> None:
    result = BacktestResult(
        counts=Counter(refused_records=3, without_beginning=2), cut={"events[0]": T0_MS}
    )
    result.comparison.add("equal", waited(1.0), waited(1.0))
    result.comparison.add("c\x1b[31m", waited(100.0), waited(140.5))
    text = shown(result)
    assert "Calls: 1 equal, 1 changed" in text
    assert "+20" in " ".join(text.split()) or "20.2" in text
    assert "c\\x1b[31m" in text
    assert "Values that differ: wait_ms 1, longest_wait_ms 1." in text
    told = list(remarks(result))
    assert told[0].startswith("events[0] has nothing before 2026")
    assert any(line.startswith("2 calls left out: the log does not have") for line in told)
    as_json = report_document(plan(), result)
    assert (as_json["calls"]["changed"], as_json["calls"]["without_beginning"]) == (1, 2)
    assert as_json["differing_values"] == {LATENCY: 1, "longest_wait_ms": 1}
    assert as_json["measures"]["longest_wait_ms"]["change"] == 20.25
    assert as_json["examples"][0]["now"] == 140.5


def test_a_report_of_no_difference_and_of_nothing_says_so() -> None:
    result = BacktestResult()
    assert "There is nothing to compare" in shown(result)
    result.comparison.add("equal", waited(1.0), waited(1.0))
    text = shown(result)
    assert re.search(r"No difference: \d+ final values of 1 call are equal", text)
