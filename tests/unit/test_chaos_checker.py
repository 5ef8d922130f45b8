"""The checker of the chaos run finds what is planted in the records of a real evaluation, and nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from consumers.engine.limits import Limits
from schemas import scores
from schemas.codec import InputSource
from schemas.scores import (
    AnyScoreRecord,
    ClosedFact,
    CloseReason,
    DeadAirFact,
    Scored,
    TurnFact,
    TurnStatus,
    VoiceToVoiceLatency,
)
from schemas.topics import TOPIC_BY_SOURCE
from streamer.playback import renamed, shifted
from streamer.simulator import SimulatedCall, simulate_call
from tests.chaos import newer_version
from tests.chaos.call_pool import T0_SECONDS, CallTemplate, call_template, make_pool
from tests.chaos.checker import MOST_EXAMPLES, Findings, compared
from tests.chaos.undisturbed import InputRecord, Undisturbed, undisturbed

LIMITS = Limits(closing_grace_ms=1_000)


def inputs_of(pool: Sequence[CallTemplate], *, bad: Sequence[bytes] = ()) -> dict[InputSource, list[InputRecord]]:
    """The records of calls that begin a second apart, as one partition of each input holds them."""
    inputs: dict[InputSource, list[InputRecord]] = {source: [] for source in InputSource}
    events = sorted(
        (
            1_000 * number + event.after_ms,
            number,
            event.source,
            event.rendered(T0_SECONDS + number, b"call-%d" % number),
        )
        for number, call in enumerate(pool)
        for event in call.events
    )
    for after_ms, number, name, value in events:
        source = InputSource(name)
        records = inputs[source]
        time_ms = T0_SECONDS * 1_000 + after_ms
        records.append(InputRecord(TOPIC_BY_SOURCE[source], 0, len(records), time_ms, b"call-%d" % number, value))
    audit = inputs[InputSource.AUDIT]
    for value in bad:
        audit.append(InputRecord("audit.events", 0, len(audit), audit[-1].timestamp, b"call-0", value))
    return inputs


@pytest.fixture(scope="module")
def peaceful() -> Undisturbed:
    return undisturbed(inputs_of(make_pool(3, 8)), LIMITS)


def written(records: Sequence[AnyScoreRecord]) -> list[bytes]:
    return [record.model_dump_json().encode() for record in records]


def zeros(findings: Findings) -> tuple[int, int, int]:
    return findings.missing, findings.duplicate, findings.wrong


def changed(peaceful: Undisturbed, old: AnyScoreRecord, *new: AnyScoreRecord) -> Findings:
    """The findings when `new` stands in place of `old`."""
    records = list(peaceful.records)
    at = records.index(old)
    records[at : at + 1] = new
    return compared(peaceful.records, written(records))


def a_final(peaceful: Undisturbed, kind: type[Any]) -> Any:
    return next(record for record in peaceful.records if isinstance(record, kind) and record.status is TurnStatus.FINAL)


def test_equal_records_are_clean(peaceful: Undisturbed) -> None:
    findings = compared(peaceful.records, written(peaceful.records))
    assert zeros(findings) == (0, 0, 0)
    assert findings.is_clean
    assert (findings.calls, findings.scores) == (8, len(peaceful.records))
    assert findings.finals > 100
    assert {record.name for record in peaceful.records} >= {
        "dead_air",
        "tool_call",
        "voice_to_voice_latency_ms",
        "turn",
    }


@pytest.mark.parametrize("kind", [VoiceToVoiceLatency, ClosedFact, TurnFact, DeadAirFact])
def test_a_final_record_that_is_not_there_is_missing(peaceful: Undisturbed, kind: type[Any]) -> None:
    findings = changed(peaceful, a_final(peaceful, kind))
    assert zeros(findings) == (1, 0, 0)
    assert "is not there" in findings.examples[0]


def test_an_intermediate_record_may_differ(peaceful: Undisturbed) -> None:
    """A replay may pass through other values on its way to the same end."""
    passing = next(r for r in peaceful.records if isinstance(r, VoiceToVoiceLatency) and r.status is TurnStatus.OPEN)
    assert changed(peaceful, passing).is_clean
    assert changed(peaceful, passing, passing, passing.model_copy(update={"revision": 90, "is_first": False})).is_clean


def test_a_record_read_twice_is_a_duplicate(peaceful: Undisturbed) -> None:
    first, *_ = peaceful.records
    assert zeros(changed(peaceful, first, first, first)) == (0, 1, 0)
    closed = a_final(peaceful, ClosedFact)
    assert zeros(changed(peaceful, closed, closed, closed, closed)) == (0, 2, 0)


def test_a_second_final_score_is_a_duplicate_under_any_id(peaceful: Undisturbed) -> None:
    final = a_final(peaceful, VoiceToVoiceLatency)
    again = final.model_copy(update={"revision": final.revision + 1})
    assert again.record_id != final.record_id
    assert zeros(changed(peaceful, final, final, again)) == (0, 1, 0)


def test_what_counters_would_count_twice_is_a_duplicate(peaceful: Undisturbed) -> None:
    first = next(r for r in peaceful.records if isinstance(r, VoiceToVoiceLatency) and r.is_first)
    again = first.model_copy(update={"revision": first.revision + 50})
    findings = changed(peaceful, first, first, again)
    assert zeros(findings) == (0, 1, 0)
    assert "the first one again" in findings.examples[0]


def test_another_value_is_wrong_and_the_example_says_what(peaceful: Undisturbed) -> None:
    final = next(
        r for r in peaceful.records
        if isinstance(r, VoiceToVoiceLatency) and r.status is TurnStatus.FINAL and isinstance(r.result, Scored)
    )  # fmt: skip
    assert isinstance(final.result, Scored)
    other = final.model_copy(update={"result": Scored(value=final.result.value + 1)})
    findings = changed(peaceful, final, other)
    assert zeros(findings) == (0, 0, 1)
    assert f"expected {{'outcome': 'scored', 'value': {final.result.value}}}" in findings.examples[0]


def test_how_and_when_it_was_said_is_not_what_it_says(peaceful: Undisturbed) -> None:
    final = a_final(peaceful, VoiceToVoiceLatency)
    how = {"revision": 7, "offsets": {"audit.events": 9}, "caused_at_ms": 1, "code_version": "9", "is_change": True}
    assert changed(peaceful, final, final.model_copy(update=how)).is_clean


def test_a_final_score_that_nobody_expects_is_wrong(peaceful: Undisturbed) -> None:
    final = a_final(peaceful, VoiceToVoiceLatency)
    assert zeros(changed(peaceful, final, final, final.model_copy(update={"turn": 77}))) == (0, 0, 1)
    assert zeros(compared([], written([final]))) == (0, 0, 1)


def test_what_is_no_score_is_wrong(peaceful: Undisturbed) -> None:
    assert zeros(compared(peaceful.records, [*written(peaceful.records), b"", b'{"name":"closed"}'])) == (0, 0, 2)


def test_why_a_call_was_over_follows_from_the_log(peaceful: Undisturbed) -> None:
    closed = a_final(peaceful, ClosedFact)
    other = next(reason for reason in CloseReason if reason is not closed.reason)
    assert zeros(changed(peaceful, closed, closed.model_copy(update={"reason": other}))) == (0, 0, 1)
    assert zeros(changed(peaceful, closed, closed.model_copy(update={"turns": 99}))) == (0, 0, 1)


def test_so_does_a_silence(peaceful: Undisturbed) -> None:
    silence = a_final(peaceful, DeadAirFact)
    later = silence.model_copy(update={"silent_since_ms": silence.silent_since_ms + 1})
    assert zeros(changed(peaceful, silence, later)) == (0, 0, 1)
    assert zeros(changed(peaceful, silence)) == (1, 0, 0)
    assert zeros(changed(peaceful, silence, silence, silence.model_copy(update={"index": 9}))) == (0, 0, 1)


def test_refused_records_must_be_in_quarantine() -> None:
    result = undisturbed(inputs_of(make_pool(3, 1), bad=[b"[", b"\xff"]), LIMITS)
    assert len(result.refused) == 2
    seen = written(result.records)
    assert zeros(compared(result.records, seen, result.refused, result.refused)) == (0, 0, 0)
    kept = frozenset(sorted(result.refused)[1:])
    assert zeros(compared(result.records, seen, result.refused, kept)) == (1, 0, 0)
    assert compared(result.records, seen, result.refused, kept).refused == 2


def test_of_a_call_that_lost_records_only_doubles_count(peaceful: Undisturbed) -> None:
    closed = a_final(peaceful, ClosedFact)
    lost = {closed.conversation_id}
    others = [record for record in peaceful.records if record.conversation_id not in lost]
    findings = compared(peaceful.records, written(others), lost=lost)
    assert (zeros(findings), findings.calls, findings.lost) == ((0, 0, 0), 7, 1)
    other = closed.model_copy(update={"turns": 99})
    assert zeros(compared(peaceful.records, written([*others, other]), lost=lost)) == (0, 0, 0)
    assert zeros(compared(peaceful.records, written([*others, closed, closed]), lost=lost)) == (0, 1, 0)
    assert zeros(compared(peaceful.records, written(others))) != (0, 0, 0)


def test_a_record_of_the_newer_version_says_the_same(peaceful: Undisturbed) -> None:
    closed = a_final(peaceful, ClosedFact)
    value = closed.model_dump_json().encode()
    newer = value.replace(newer_version.OLD_REASON, newer_version.NEW_REASON)
    assert newer != value
    assert newer_version.as_this_version(newer) == newer_version.as_this_version(value) == value
    others = written([record for record in peaceful.records if record is not closed])
    changed_hash = newer.replace(closed.input_hash.encode(), b"of another version")
    assert zeros(compared(peaceful.records, [*others, changed_hash])) == (0, 0, 0)
    assert zeros(compared(peaceful.records, [*others, changed_hash.replace(b'"turns":', b'"turns":9')])) == (0, 0, 1)
    text = Path(scores.__file__).read_text()
    assert [text.count(old) for old, _ in newer_version._CHANGES] == [1, 1]


def test_findings_add_up_and_examples_of_one_kind_do_not_hide_the_others(peaceful: Undisturbed) -> None:
    findings = Findings()
    findings.add(compared(peaceful.records, []))
    finals = [record for record in peaceful.records if record.status is TurnStatus.FINAL]
    assert zeros(findings) == (len(finals), 0, 0)
    findings.add(compared([], written(finals)))
    assert zeros(findings) == (len(finals), 0, len(finals))
    assert len(findings.examples) == MOST_EXAMPLES
    assert findings.by_name["missing", "closed"] == findings.by_name["wrong", "closed"] == 8
    assert len({example.split()[2] for example in findings.examples}) >= 4


def test_the_peaceful_run_goes_by_broker_time_and_not_by_topic(peaceful: Undisturbed) -> None:
    inputs = inputs_of(make_pool(3, 8))
    backwards = undisturbed(dict(reversed(inputs.items())), LIMITS)
    assert compared(peaceful.records, written(backwards.records)).is_clean


def test_a_template_gives_the_bytes_that_playing_the_call_gives() -> None:
    seconds, name = 1_800_000_123, "another"
    for seed in range(12):
        simulated = simulate_call(seed, start_ms=T0_SECONDS * 1_000)
        moved = renamed(shifted(simulated.call, seconds - T0_SECONDS), name)
        played = list(SimulatedCall(moved, simulated.delivery, simulated.features).wire_events())
        template = call_template([seed], None)
        assert [event.rendered(seconds, name.encode()) for event in template.events] == [e.value for e in played]
        assert [event.after_ms + seconds * 1_000 for event in template.events] == [e.arrival_ms for e in played]
