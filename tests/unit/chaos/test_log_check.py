"""The checker of the log finds a record that is missing, doubled, overtaken, elsewhere or never
sent, and time that is told too early.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from consumers.engine.limits import Limits
from schemas import rows
from schemas.closed_sets import InputSource
from schemas.log import Next
from schemas.rows import TurnRow, encode
from tests.chaos.load.call_pool import make_pool
from tests.chaos.load.silences import LENGTHS_MS, Silence, SilenceTimes, silence_name
from tests.chaos.verdict.checker import Findings
from tests.chaos.verdict.deleted_records import Deletion, Excuse
from tests.chaos.verdict.log_check import (
    InputFindings,
    InputRecord,
    Log,
    dead_airs_in,
    input_compared,
    refused_compared,
    silences_compared,
    times_compared,
)
from tests.chaos.verdict.topic_reader import ReadRecord
from tests.unit.chaos.appended import appended, event, inputs_of, tick

AUDIT = InputSource.AUDIT
LIMITS = Limits()
ALONE = 1  # partition of the log


def zeros(findings: Findings) -> tuple[int, int, int]:
    return findings.missing, findings.duplicate, findings.wrong


@pytest.fixture
def sent() -> list[InputRecord]:
    """The records of one input."""
    return inputs_of(make_pool(3, 2))[AUDIT]


def found(
    log: Sequence[ReadRecord],
    *lives: Sequence[InputRecord],
    deletions: Sequence[Deletion] = (),
    partitions: int = ALONE,
) -> InputFindings:
    """What the lives of the audit input say of a log."""
    read = Log()
    list(read.read(log, 0))
    assert read.fault is None
    return input_compared(AUDIT, lives, read.entries[AUDIT, 0], LIMITS, partitions, deletions)


def log_of(
    records: Sequence[InputRecord], first: int = 0, generation: int = 0, term: int = 1
) -> list[ReadRecord]:
    return [event(first + n, AUDIT, record, term, generation) for n, record in enumerate(records)]


def test_a_log_that_has_each_record_once_in_order_is_clean(sent: list[InputRecord]) -> None:
    whole = found(log_of(sent), sent)
    assert (zeros(whole.findings), whole.admitted, whole.refused) == ((0, 0, 0), len(sent), set())
    again = [*log_of(sent[:9]), *log_of(sent[4:], first=9, term=2)]
    assert found(again, sent).findings.is_clean, (
        "a successor appends again what is in the log, and readers drop it"
    )


def test_what_is_dropped_overtaken_or_void_is_missing(sent: list[InputRecord]) -> None:
    whole = log_of(sent)
    assert zeros(found([*whole[:5], *whole[6:]], sent).findings) == (1, 0, 0)
    assert zeros(found([*whole[:5], whole[6], whole[5], *whole[7:]], sent).findings) == (1, 0, 0), (
        "it counts as a repeat"
    )
    void = [
        *log_of(sent[:1], term=2),
        *log_of(sent[1:3], first=1),
        *log_of(sent[3:], first=3, term=2),
    ]
    assert zeros(found(void, sent).findings) == (2, 0, 0)


def test_what_is_elsewhere_doubled_changed_or_of_nobody_is_found(sent: list[InputRecord]) -> None:
    elsewhere = Log()
    assert [*elsewhere.read(log_of(sent), 1)]
    assert found(log_of(sent), sent, partitions=2).findings.wrong + input_compared(
        AUDIT, [sent], elsewhere.entries[AUDIT, 0], LIMITS, 2
    ).findings.wrong == len(sent), "a call's key has one place"
    twice, other = Log(), Log()
    list(twice.read(log_of(sent), 0))
    list(other.read(log_of(sent[3:4]), 0))
    twice.add(other)
    assert (
        zeros(input_compared(AUDIT, [sent], twice.entries[AUDIT, 0], LIMITS, ALONE).findings)[1]
        == 1
    )
    changed = [*sent[:5], replace(sent[5], value=b"{}"), *sent[6:]]
    assert zeros(found(log_of(changed), sent).findings) == (1, 0, 1)
    moved = [*sent[:5], replace(sent[5], timestamp=sent[5].timestamp + 1), *sent[6:]]
    assert zeros(found(log_of(moved), sent).findings) == (1, 0, 1), (
        "the time at the origin is part of it"
    )


def test_an_input_that_was_made_anew_has_its_records_of_each_life(sent: list[InputRecord]) -> None:
    first, second = sent[:9], [replace(each, offset=n) for n, each in enumerate(sent[9:14])]
    log = [*log_of(first), *log_of(second, first=9, generation=1)]
    assert found(log, first, second).findings.is_clean
    unnoticed = [*log_of(first), *log_of(second, first=9)]
    assert zeros(found(unnoticed, first, second).findings) == (5, 0, 0), (
        "as of the old generation they are repeats"
    )
    too_often = [*log_of(first), *log_of(first, first=9, generation=1)]
    assert zeros(found(too_often, first).findings) == (0, 9, 0)
    backwards = [*log_of(second), *log_of(first, first=9, generation=1)]
    assert zeros(found(backwards, first, second).findings) == (0, 0, 5)


def test_what_was_deleted_unread_may_be_missing_and_what_is_refused_belongs_in_quarantine(
    sent: list[InputRecord],
) -> None:
    bad = [*sent[:3], replace(sent[3], value=b"["), *sent[4:]]
    whole = log_of(bad)
    for log in (whole, [*whole[:3], *whole[4:]]):
        result = found(log, bad)
        assert (zeros(result.findings), result.refused) == ((0, 0, 0), {("audit.events", 0, 3)})
    assert zeros(refused_compared(result.refused, frozenset({("audit.events", 0, 3)}))) == (0, 0, 0)
    assert zeros(refused_compared(result.refused, frozenset())) == (1, 0, 0)
    deleted = [Deletion("audit.events", 0, 0, 3, 6)]
    result = found([*whole[:3], *whole[6:]], bad, deletions=deleted)
    assert (zeros(result.findings), result.refused, result.unread) == ((0, 0, 0), set(), 2)
    assert zeros(found([*whole[:3], *whole[7:]], bad, deletions=deleted).findings) == (1, 0, 0)


def test_time_above_a_record_that_comes_later_is_wrong_unless_it_was_hidden() -> None:
    inputs = inputs_of(make_pool(3, 2))
    log = Log()
    records = list(appended(inputs))
    list(log.read(records, 0))
    assert log.early == []
    (first, second), at_ms = inputs[AUDIT][:2], inputs[AUDIT][1].timestamp
    late = [
        event(0, AUDIT, first),
        tick(1, at_ms + 7, {(AUDIT, 0): Next(0, 1)}),
        event(2, AUDIT, second),
    ]
    list(log.read(late, 0))
    (early,) = log.early
    assert (early.offset, early.time_ms, early.known_ms) == (1, at_ms, at_ms + 7)

    def topic_of(source: InputSource) -> str:
        return f"x.{source}"

    assert zeros(times_compared(log.early, topic_of, [])) == (0, 0, 1)
    assert times_compared(log.early, topic_of, [Excuse("x.audit", at_ms, at_ms)]).is_clean
    assert zeros(times_compared(log.early, topic_of, [Excuse("x.pipecat", at_ms, at_ms)])) == (
        0,
        0,
        1,
    )
    assert times_compared([early._replace(left_out=("x.audit[0]",))], topic_of, []).is_clean


def test_silences_have_as_many_dead_airs_as_the_inputs_say() -> None:
    times = SilenceTimes()
    for number in range(4):
        silence, now_ms = Silence(number), 1_000_000
        while True:
            _, value = silence.event(now_ms)
            times.take(silence_name(number), value, now_ms)
            if (wait_ms := silence.wait_ms) is None:
                break
            now_ms += wait_ms
    names = [silence_name(number) for number in range(4)]
    assert [each[0] for each in times.silences_ms().values()] == list(LENGTHS_MS)
    assert [len(each) for each in times.silences_ms().values()] == [1, 1, 2, 2], (
        "a tool's answer begins another one"
    )
    scores = [dead_air(name, 0) for name in (names[1], names[3], "call-1")]
    assert silences_compared(
        times, dead_airs_in([*scores, scores[0]]), 3_000, lambda _: False
    ).is_clean
    twice = dead_airs_in([*scores, dead_air(names[1], 1)])
    assert zeros(silences_compared(times, twice, 3_000, lambda _: False)) == (0, 0, 1)
    assert zeros(silences_compared(times, {}, 3_000, lambda _: False)) == (2, 0, 0)
    assert zeros(silences_compared(times, dict.fromkeys(names, 1), 3_000, lambda _: False)) == (
        0,
        0,
        2,
    )
    assert silences_compared(times, {}, 3_000, lambda _: True).is_clean
    times.lost.add(names[1])
    assert zeros(silences_compared(times, {}, 3_000, lambda _: False)) == (1, 0, 0)


def dead_air(name: str, number: int) -> bytes:
    """The row of a turn with this silence."""
    return encode(
        TurnRow(conversation_id=name, turn=1, dead_air=(rows.Silence(number, 0, 3_000, 3_000),))
    )


def test_a_log_that_somebody_else_wrote_into_is_named(sent: list[InputRecord]) -> None:
    log = Log()
    list(log.read([*log_of(sent[:2]), ReadRecord(0, 2, 0, b"k", b"v")], 4))
    assert log.fault is not None
    assert log.fault.startswith("events[4]@2: ")
