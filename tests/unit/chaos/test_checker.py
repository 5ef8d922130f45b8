"""The checker of the chaos run finds the faults planted in the records of a real evaluation, and no others."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import CloseReason, JudgeKind, UnscoredReason
from schemas.scores.live_view import is_withdrawn
from schemas.scores.records import (
    AnyScoreRecord,
    CallLabels,
    CallStartedFact,
    CallValues,
    ClosedFact,
    DeadAirFact,
    InterruptionFact,
    Scored,
    ToolUseFact,
    TurnStatus,
    TurnValues,
    Unscored,
    VoiceToVoiceLatency,
)
from schemas.topics import EVENTS_TOPIC
from streamer.sources.replay import renamed, shifted
from streamer.sources.simulator.traffic import SimulatedCall, simulate_call
from tests.chaos.evaluators import newer_version
from tests.chaos.load.call_pool import T0_SECONDS, CallTemplate, call_template, make_pool
from tests.chaos.verdict.beside_scores import Beside, beside_compared
from tests.chaos.verdict.checker import MOST_EXAMPLES, Findings, compared
from tests.chaos.verdict.log_check import Log
from tests.chaos.verdict.topic_reader import ReadRecord
from tests.chaos.verdict.undisturbed import Undisturbed, undisturbed
from tests.unit.chaos.appended import appended, inputs_of

LIMITS = Limits(closing_grace_ms=1_000)
UNKNOWN = Unscored(reason=UnscoredReason.NO_USER_SPEECH)


def folded(pool: Sequence[CallTemplate], rules: GoalRules | None = None) -> Undisturbed:
    """What the log of these calls comes to."""
    return undisturbed(Log().read(appended(inputs_of(pool)), 0), LIMITS, rules)


@pytest.fixture(scope="module")
def peaceful() -> Undisturbed:
    return folded(make_pool(3, 8))


def written(records: Sequence[AnyScoreRecord]) -> list[bytes]:
    return [record.model_dump_json().encode() for record in records]


def zeros(findings: Findings) -> tuple[int, int, int]:
    return findings.missing, findings.duplicate, findings.wrong


def about(record: AnyScoreRecord) -> tuple[str, str, int | None, int]:
    return record.conversation_id, record.name, record.turn, record.index


def changed(peaceful: Undisturbed, old: AnyScoreRecord, *new: AnyScoreRecord) -> Findings:
    """The findings when `new` replaces all records about the same thing as `old`."""
    records = [record for record in peaceful.records if about(record) != about(old) or record is old]
    at = records.index(old)
    records[at : at + 1] = new
    return compared(peaceful.records, written(records))


def newest(peaceful: Undisturbed) -> list[AnyScoreRecord]:
    """The records that hold in the end."""
    found = {about(record): record for record in peaceful.records}
    return [record for record in found.values() if not is_withdrawn(record)]


def one_of(peaceful: Undisturbed, kind: type[Any]) -> Any:
    """A record that holds in the end."""
    return next(record for record in newest(peaceful) if isinstance(record, kind))


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
        "call",
    }


@pytest.mark.parametrize(
    "kind", [VoiceToVoiceLatency, ClosedFact, TurnValues, CallValues, DeadAirFact, InterruptionFact, ToolUseFact]
)
def test_a_record_that_is_not_there_is_missing(peaceful: Undisturbed, kind: type[Any]) -> None:
    findings = changed(peaceful, one_of(peaceful, kind))
    assert zeros(findings) == (1, 0, 0)
    assert "is not there" in findings.examples[0]


def test_an_intermediate_record_may_differ(peaceful: Undisturbed) -> None:
    """A replay may pass through other values on its way to the same end."""
    last = one_of(peaceful, TurnValues)
    passing = last.model_copy(update={"input_hash": "of another value", "voice_to_voice_ms": UNKNOWN})
    later = {"revision": last.revision + 1, "is_first": False, "first_known": ()}
    assert changed(peaceful, last, passing, last.model_copy(update=later)).is_clean
    assert not changed(peaceful, last, last, passing.model_copy(update=later)).is_clean


def test_revisions_never_fall(peaceful: Undisturbed) -> None:
    last = one_of(peaceful, VoiceToVoiceLatency)
    before, again = (
        last.model_copy(update={"revision": last.revision - less, "input_hash": f"{less}", "is_first": False})
        for less in (4, 0)
    )
    assert changed(peaceful, last, before, again, last).is_clean, "one step may decide two, and the last counts"
    findings = changed(peaceful, last, last, before)
    assert zeros(findings) == (0, 0, 1)
    assert f"revision {last.revision - 4} comes after {last.revision}" in findings.examples[0]


@pytest.mark.parametrize("kind", [ClosedFact, CallValues, TurnValues])
def test_a_final_record_with_a_number_too_high_or_too_low_is_found(peaceful: Undisturbed, kind: type[Any]) -> None:
    final = one_of(peaceful, kind)
    earlier = [record for record in peaceful.records if about(record) == about(final) and record is not final]
    for wrong in (final.revision + 2, final.revision - 2):
        other = final.model_copy(update={"revision": wrong})
        others = [other if record is final else record for record in peaceful.records]
        findings = compared(peaceful.records, written(others))
        assert not findings.is_clean, (wrong, len(earlier))


def test_another_version_says_everything_again_with_an_odd_revision(peaceful: Undisturbed) -> None:
    last: VoiceToVoiceLatency = one_of(peaceful, VoiceToVoiceLatency)

    def numbered(more: int, value: float | None = None) -> VoiceToVoiceLatency:
        how: dict[str, Any] = {"revision": last.revision + more, "is_first": False}
        if value is not None:
            how |= {"result": Scored(value=value), "input_hash": f"{value}"}
        return last.model_copy(update=how)

    again = numbered(1)
    findings = changed(peaceful, last, last, again, again)
    assert (zeros(findings), findings.again) == ((0, 0, 0), 2), "by two owners that ended in front of the same record"
    there = (numbered(-6), numbered(-5), numbered(-4, 1), numbered(-3, 1))
    assert changed(peaceful, last, *there, last).is_clean
    assert zeros(changed(peaceful, last, *there)) == (0, 0, 1), "its value is another one in the end"
    assert zeros(changed(peaceful, last, *there[:2], last)) == (0, 1, 0), "nothing new"


def test_a_call_that_closes_again_is_found_whatever_version_closes_it(peaceful: Undisturbed) -> None:
    closed = one_of(peaceful, ClosedFact)
    again = closed.model_copy(update={"revision": closed.revision + 1})
    assert zeros(changed(peaceful, closed, again, again)) == (0, 1, 0)


def test_nothing_comes_after_the_end_of_a_call(peaceful: Undisturbed) -> None:
    closed = one_of(peaceful, ClosedFact)
    of_the_call = [record for record in newest(peaceful) if record.conversation_id == closed.conversation_id]
    score = next(record for record in of_the_call if isinstance(record, VoiceToVoiceLatency))
    how = {"revision": score.revision + 1, "input_hash": "another", "is_first": False, "offsets": closed.offsets}
    late = score.model_copy(update=how)
    findings = compared(peaceful.records, written([*peaceful.records, late]))
    assert zeros(findings) == (0, 0, 2), "and what it says is not what is final"
    assert "after the end" in "".join(findings.examples)


def test_what_was_taken_back_was_never_there(peaceful: Undisturbed) -> None:
    gone: dict[str, Any] = {"turn": 77, "revision": 1, "offsets": {}}
    row = one_of(peaceful, TurnValues).model_copy(update={**gone, "is_withdrawn": True})
    latency = one_of(peaceful, VoiceToVoiceLatency).model_copy(update={**gone, "result": UNKNOWN})
    tool = one_of(peaceful, ToolUseFact).model_copy(update={**gone, "is_withdrawn": True})
    assert compared(peaceful.records, written([row, latency, tool, *peaceful.records])).is_clean
    with_them = Undisturbed((*peaceful.records, row, latency, tool))
    assert compared(with_them.records, written(peaceful.records)).is_clean


def test_a_record_read_twice_is_a_duplicate(peaceful: Undisturbed) -> None:
    first, *_ = peaceful.records
    assert zeros(changed(peaceful, first, first, first)) == (0, 1, 0)
    closed = one_of(peaceful, ClosedFact)
    assert zeros(changed(peaceful, closed, closed, closed, closed)) == (0, 2, 0)


@pytest.mark.parametrize("kind", [ClosedFact, CallValues])
def test_a_second_end_of_a_call_is_a_duplicate_under_any_id(peaceful: Undisturbed, kind: type[Any]) -> None:
    final = next(r for r in newest(peaceful) if isinstance(r, kind))
    again = final.model_copy(update={"revision": final.revision + 1, "is_first": False, "input_hash": "another"})
    assert again.record_id != final.record_id
    others = [record for record in peaceful.records if record is not final]
    findings = compared(peaceful.records, written([*others, final, again]))
    assert (findings.missing, findings.duplicate) == (0, 1)
    assert "a second final record" in findings.examples[0]


def test_a_record_that_says_nothing_new_is_a_duplicate(peaceful: Undisturbed) -> None:
    last = one_of(peaceful, VoiceToVoiceLatency)
    before = last.model_copy(update={"revision": last.revision - 2, "is_first": False})
    assert zeros(changed(peaceful, last, before, last)) == (0, 1, 0)


def test_what_counters_would_count_twice_is_a_duplicate(peaceful: Undisturbed) -> None:
    first = next(r for r in newest(peaceful) if isinstance(r, TurnValues) and r.is_first and len(r.first_known) > 1)
    before = first.model_copy(update={"revision": first.revision - 2, "input_hash": "another", "first_known": ()})
    findings = changed(peaceful, first, before, first)
    assert zeros(findings) == (0, 1, 0)
    assert "the first one again" in findings.examples[0]
    before = first.model_copy(update={"input_hash": "another", "is_first": False, "first_known": first.first_known[:1]})
    findings = changed(peaceful, first, before, first)
    assert zeros(findings) == (0, 1, 0)
    assert f"{first.first_known[0]} is known for the first time again" in findings.examples[0]


def test_another_value_is_wrong_and_the_example_says_what(peaceful: Undisturbed) -> None:
    final = one_of(peaceful, VoiceToVoiceLatency)
    assert isinstance(final.result, Scored)
    other = final.model_copy(update={"result": Scored(value=final.result.value + 1)})
    findings = changed(peaceful, final, other)
    assert zeros(findings) == (0, 0, 1)
    assert f"expected {{'outcome': 'scored', 'value': {final.result.value}}}" in findings.examples[0]


def test_how_and_when_it_was_said_is_not_what_it_says(peaceful: Undisturbed) -> None:
    final = one_of(peaceful, VoiceToVoiceLatency)
    how: dict[str, Any] = {
        "revision": final.revision + 1,
        "offsets": {"audit.events": 9},
        "caused_at_ms": 1,
        "code_version": "9",
    }
    how |= {"labels": CallLabels(agent="unknown"), "event_time_ms": 5}
    assert changed(peaceful, final, final.model_copy(update=how)).is_clean


@pytest.mark.parametrize("kind", [ClosedFact, CallValues, DeadAirFact, CallStartedFact])
def test_what_is_about_the_call_or_its_end_has_one_time_and_its_labels(peaceful: Undisturbed, kind: type[Any]) -> None:
    record = one_of(peaceful, kind)
    for other in ({"labels": CallLabels(agent="another")}, {"event_time_ms": 5}):
        assert zeros(changed(peaceful, record, record.model_copy(update=other))) == (0, 0, 1)


def test_what_is_final_stays_final(peaceful: Undisturbed) -> None:
    """Another status may go back: a late event opens a turn again."""
    last: TurnValues = one_of(peaceful, TurnValues)

    def then(number: int, status: TurnStatus) -> TurnValues:
        how = {"revision": last.revision - 4 + 2 * number, "is_first": False, "first_known": (), "status": status}
        return last.model_copy(update={**how, "input_hash": last.input_hash if number == 2 else f"{number}"})

    settled, provisional, final = TurnStatus.SETTLED, TurnStatus.PROVISIONAL, TurnStatus.FINAL
    assert changed(peaceful, last, then(0, settled), then(1, provisional), then(2, final)).is_clean
    findings = changed(peaceful, last, then(0, settled), then(1, final), then(2, provisional))
    assert zeros(findings) == (0, 0, 1)
    assert "is provisional after a final one" in findings.examples[0]


def test_offsets_of_a_call_do_not_go_back(peaceful: Undisturbed) -> None:
    """Of the end of a call they are those of the undisturbed run: which records belong to it follows from the log."""
    *_, last = [record for record in peaceful.records if record.name == "turn"]
    earlier = last.model_copy(update={"offsets": {EVENTS_TOPIC: 0}})
    at = peaceful.records.index(last)
    findings = compared(peaceful.records, written([*peaceful.records[:at], earlier, *peaceful.records[at + 1 :]]))
    assert zeros(findings) == (0, 0, 1)
    assert f"{EVENTS_TOPIC}@0, after" in findings.examples[0]
    closed: ClosedFact = one_of(peaceful, ClosedFact)
    further = {"offsets": {EVENTS_TOPIC: closed.offsets[EVENTS_TOPIC] + 1}}
    assert zeros(changed(peaceful, closed, closed.model_copy(update=further))) == (0, 0, 1)


def test_two_logs_of_the_same_inputs_have_other_places_and_nothing_else(peaceful: Undisturbed) -> None:
    closed: ClosedFact = one_of(peaceful, ClosedFact)
    at = peaceful.records.index(closed)

    def of_another_log(**how: Any) -> Findings:
        moved = closed.model_copy(update={"offsets": {EVENTS_TOPIC: 10**6}, "through": {EVENTS_TOPIC: 10**6}, **how})
        records = [*peaceful.records[:at], moved, *peaceful.records[at + 1 :]]
        return compared(peaceful.records, written(records), is_one_log=False)

    assert of_another_log().is_clean
    assert zeros(of_another_log(event_time_ms=1)) == (0, 0, 1)


def test_a_score_that_nobody_expects_is_wrong(peaceful: Undisturbed) -> None:
    final = one_of(peaceful, VoiceToVoiceLatency)
    assert zeros(changed(peaceful, final, final, final.model_copy(update={"turn": 77}))) == (0, 0, 1)
    assert zeros(compared([], written([final]))) == (0, 0, 1)


def test_what_is_no_score_is_wrong(peaceful: Undisturbed) -> None:
    assert zeros(compared(peaceful.records, [*written(peaceful.records), b"", b'{"name":"closed"}'])) == (0, 0, 2)


def test_why_a_call_was_over_follows_from_the_log(peaceful: Undisturbed) -> None:
    closed = one_of(peaceful, ClosedFact)
    other = next(reason for reason in CloseReason if reason is not closed.reason)
    assert zeros(changed(peaceful, closed, closed.model_copy(update={"reason": other}))) == (0, 0, 1)
    assert zeros(changed(peaceful, closed, closed.model_copy(update={"turns": 99}))) == (0, 0, 1)


def test_so_does_a_silence(peaceful: Undisturbed) -> None:
    silence = one_of(peaceful, DeadAirFact)
    later = silence.model_copy(update={"silent_since_ms": silence.silent_since_ms + 1})
    assert zeros(changed(peaceful, silence, later)) == (0, 0, 1)
    assert zeros(changed(peaceful, silence)) == (1, 0, 0)
    assert zeros(changed(peaceful, silence, silence, silence.model_copy(update={"index": 9}))) == (0, 0, 1)


def test_a_record_of_the_newer_version_says_the_same(peaceful: Undisturbed) -> None:
    closed = one_of(peaceful, ClosedFact)
    value = closed.model_dump_json().encode()
    newer = value
    for old, new in newer_version.RENAMED.items():
        newer = newer.replace(old, new)
    assert (newer_version.is_newer(newer), newer_version.is_newer(value)) == (True, False)
    assert newer_version.as_this_version(newer) == newer_version.as_this_version(value) == value
    others = written([record for record in peaceful.records if record is not closed])
    changed_hash = newer.replace(closed.input_hash.encode(), b"of another version")
    assert zeros(compared(peaceful.records, [*others, changed_hash])) == (0, 0, 0)
    assert zeros(compared(peaceful.records, [*others, changed_hash.replace(b'"turns":', b'"turns":9')])) == (0, 0, 1)
    for name, line, _ in newer_version.CHANGES:
        assert Path(str(import_module(name).__file__)).read_text().count(line) == 1


def test_findings_add_up_and_examples_of_one_kind_do_not_hide_the_others(peaceful: Undisturbed) -> None:
    findings = Findings()
    findings.add(compared(peaceful.records, []))
    held = newest(peaceful)
    assert zeros(findings) == (len(held), 0, 0)
    findings.add(compared([], written(peaceful.records)))
    assert zeros(findings) == (len(held), 0, len(held))
    assert len(findings.examples) == MOST_EXAMPLES
    assert findings.by_name["missing", "closed"] == findings.by_name["wrong", "closed"] == 8
    assert len({example.split()[2] for example in findings.examples}) >= 4


def test_a_template_gives_the_bytes_that_playing_the_call_gives() -> None:
    seconds, name = 1_800_000_123, "another"
    for seed in range(12):
        simulated = simulate_call(seed, start_ms=T0_SECONDS * 1_000)
        moved = renamed(shifted(simulated.call, seconds - T0_SECONDS), name)
        played = list(SimulatedCall(moved, simulated.delivery, simulated.features).wire_events())
        template = call_template([seed], None)
        assert [event.rendered(seconds, name.encode()) for event in template.events] == [e.value for e in played]
        assert [event.after_ms + seconds * 1_000 for event in template.events] == [e.arrival_ms for e in played]


# The checker finds what is wrong beside scores: a transcript or a question that is missing, doubled or another one.


OTHER = b"another transcript"


@pytest.fixture(scope="module")
def judged() -> Undisturbed:
    rules = GoalRules(asks_judge=True, text_judges=(JudgeKind.CONCISENESS,))
    return folded(make_pool(3, 3), rules)


def transcripts_of(judged: Undisturbed) -> list[ReadRecord]:
    return [
        ReadRecord(0, at, 0, each.conversation_id.encode(), each.value) for at, each in enumerate(judged.transcripts)
    ]


def questions_of(judged: Undisturbed) -> list[ReadRecord]:
    return [
        ReadRecord(0, at, 0, each.conversation_id.encode(), each.model_dump_json().encode())
        for at, each in enumerate(judged.questions)
    ]


def test_transcripts_and_questions_are_there_once(judged: Undisturbed) -> None:
    expected = Beside.of(judged)
    transcripts, questions = transcripts_of(judged), questions_of(judged)
    assert len(transcripts) == 3
    assert len(questions) > 3
    assert beside_compared(expected, transcripts, questions).is_clean
    assert zeros(beside_compared(expected, transcripts[1:], questions)) == (1, 0, 0)
    assert zeros(beside_compared(expected, [*transcripts, transcripts[0]], questions)) == (0, 1, 0)
    another = transcripts[0]._replace(value=OTHER)
    assert zeros(beside_compared(expected, [another, *transcripts[1:]], questions)) == (1, 0, 1)
    assert zeros(beside_compared(expected, [another, *transcripts], questions)) == (0, 0, 1)
    assert zeros(beside_compared(expected, transcripts, questions[1:])) == (1, 0, 0)
    assert zeros(beside_compared(expected, transcripts, [*questions, questions[0]])) == (0, 1, 0)


def test_a_question_names_its_call(judged: Undisturbed) -> None:
    transcripts, (first, *others) = transcripts_of(judged), questions_of(judged)
    findings = beside_compared(Beside.of(judged), transcripts, [first._replace(key=b"another"), *others])
    assert zeros(findings) == (0, 0, 1)


def test_what_partitions_hold_adds_up(judged: Undisturbed) -> None:
    expected = Beside.of(judged).and_of(Beside.of(judged))
    transcripts, questions = transcripts_of(judged), questions_of(judged)
    assert beside_compared(expected, transcripts * 2, questions * 2).is_clean
    assert not beside_compared(expected, transcripts, questions).is_clean
