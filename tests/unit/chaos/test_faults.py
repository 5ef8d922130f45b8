"""The faults of the chaos run: their plan, the poison, and the tools that make the faults."""

import random
from pathlib import Path

from consumers.engine.admission import Arrival, admit
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from tests.chaos.faults.fault_kinds import HARM
from tests.chaos.faults.faults import ON_SEVERAL, SEVERAL_BROKERS, USUAL, Fault
from tests.chaos.load.foreign import is_foreign
from tests.chaos.load.heavy_call import heavy_call
from tests.chaos.load.poison import Cook, Kind
from tests.chaos.verdict.deleted_records import DeletedRecords, with_deleted
from tests.chaos.verdict.log_check import InputRecord
from tests.chaos.verdict.topic_reader import ReadRecord

NOW_MS = 1_790_000_000_000


def test_every_fault_is_done_by_something_that_says_what_must_hold() -> None:
    assert set(HARM) == set(ON_SEVERAL) == set(Fault) == set(USUAL) | SEVERAL_BROKERS
    assert all(harm.__doc__ for harm in HARM.values())


def test_poison_has_every_kind_and_what_is_to_be_refused_is_refused() -> None:
    cook = Cook(random.Random(1))  # noqa: S311  # play, not secrets
    kinds: set[Kind] = set()
    for offset in range(100):
        poison = cook.draw(b"call-1", NOW_MS)
        kinds.add(poison.kind)
        if poison.kind is Kind.FOREIGN:
            assert is_foreign(poison.key)
        elif poison.raw is None:
            record = InputRecord("topic", 0, offset, NOW_MS, poison.key, poison.value)
            is_admitted = isinstance(admit(InputSource(poison.source), record, Limits()), Arrival)
            assert is_admitted == (poison.kind is Kind.ODD_KEY), poison.kind
    assert kinds == set(Kind)


def test_a_heavy_call_is_inside_every_limit() -> None:
    limits = Limits()
    events = list(heavy_call(NOW_MS))
    for offset, (source, value) in enumerate(events):
        arrival = admit(
            InputSource(source), InputRecord("topic", 0, offset, NOW_MS, b"heavy", value), limits
        )
        assert isinstance(arrival, Arrival), arrival
    kept_bytes = sum(len(value) for _, value in events)
    assert limits.max_kept_bytes_per_call / 2 < kept_bytes < limits.max_kept_bytes_per_call
    assert sum(b'"audio_start"' in value for _, value in events) / 2 < limits.max_turns_per_call


def test_what_is_deleted_is_kept_with_each_life_of_its_topic(tmp_path: Path) -> None:
    kept = DeletedRecords(tmp_path / "deleted")
    records = [
        ReadRecord(
            3, n, NOW_MS + n, b"call-%d" % n, b"\xff" if n else None, (("h", b"\x00"),) * (n % 2)
        )
        for n in range(6)
    ]
    kept.keep("audit.events", 3, records[:2])
    kept.keep("audit.events", 3, records[2:4])
    assert (list(kept.of("audit.events", 3)), list(kept.of("audit.events", 4))) == (records[:4], [])
    assert list(with_deleted(kept.of("audit.events", 3), records[3:])) == records
    kept.made["audit.events"] = 1
    kept.keep("audit.events", 3, records[:1])
    assert list(kept.of("audit.events", 3, 1)) == records[:1]
    assert list(kept.of("audit.events", 3)) == records[:4]
