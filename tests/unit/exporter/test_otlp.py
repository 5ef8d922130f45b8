"""Final scores leave as OpenTelemetry log events: right in OpenTelemetry's own reading, bounded,
and without delaying anything.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from msgspec import structs
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from consumers.exporter import otlp as evaluations
from consumers.exporter.otlp import (
    FIRST_PAUSE_SECONDS,
    MAX_BATCH_EVENTS,
    Evaluation,
    EvaluationSender,
    FinalScores,
)
from consumers.exporter.settings import OtlpSettings
from consumers.runtime.process import SetupError
from schemas.closed_sets import UnscoredReason
from schemas.rows import (
    CallRow,
    GoalsRow,
    NotApplicable,
    Row,
    TurnRow,
    Unscored,
    Value,
    decode,
    encode,
)
from tests.support.fakes.http_answers import Answer, Request, answering
from tests.support.patience import patient
from tests.unit.exporter.simulated import GOALS_OF_CODE, rows_with_goals_of_code


def written(seed: int = 1) -> list[Row]:
    """All rows of a simulated call, as they are on the topic."""
    return [decode(encode(row)) for row in rows_with_goals_of_code(seed)]


def events_of(rows: list[Row]) -> list[Evaluation]:
    scores = FinalScores()
    return [event for row in rows for event in scores.keep_row(row)]


def with_wait(rows: list[Row], wait_ms: Value) -> list[Row]:
    return [
        structs.replace(row, wait_ms=wait_ms) if isinstance(row, TurnRow) else row for row in rows
    ]


class Collector:
    """An OTLP endpoint on this machine."""

    def __init__(self, answer: Answer) -> None:
        self.asked_at: list[float] = []
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.url = ""
        self._answer = answer

    def answer(self, request: Request) -> Answer:
        self.asked_at.append(time.monotonic())
        self.bodies.append(request.body)
        self.paths.append(request.path)
        return self._answer


@contextmanager
def collecting(status: int = 200, retry_after: str | None = None) -> Iterator[Collector]:
    collector = Collector(
        Answer(status, headers={} if retry_after is None else {"Retry-After": retry_after})
    )
    with answering(collector.answer) as address:
        collector.url = f"{address}/v1/logs"
        yield collector


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + patient(20)
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def test_nothing_of_a_call_is_an_event_before_it_has_closed() -> None:
    rows = written()
    assert isinstance(rows[-1], CallRow)
    assert rows[-1].state == "closed"
    assert events_of(rows[:-1]) == []
    events = events_of(rows)
    assert {event.attributes["gen_ai.evaluation.name"] for event in events} >= {
        "voice_to_voice_latency_ms",
        "turn_taking",
        "eva_turn_taking",
        "eva_response_speed",
        "progress",
        "subgoal",
        "success",
    }
    names = ("gen_ai.evaluation.name", "callgauge.turn", "callgauge.subgoal.id")
    subjects = Counter(tuple(event.attributes.get(name) for name in names) for event in events)
    assert set(subjects.values()) == {1}, "only the newest revision"
    assert {event.attributes["gen_ai.conversation.id"] for event in events} == {
        rows[0].conversation_id
    }


def test_values_are_those_of_the_last_rows() -> None:
    rows = written()
    last = {row.turn: row for row in rows if isinstance(row, TurnRow)}
    events = [
        each
        for each in events_of(rows)
        if each.attributes["gen_ai.evaluation.name"] == "voice_to_voice_latency_ms"
    ]
    for event in events:
        row = last[int(event.attributes["callgauge.turn"])]
        if "gen_ai.evaluation.score.value" in event.attributes:
            assert event.attributes["gen_ai.evaluation.score.value"] == row.wait_ms
        assert event.attributes["callgauge.revision"] == row.revision
        assert event.time_ms == row.known_ms
    asked = [
        row for row in last.values() if not isinstance(row.wait_ms, (NotApplicable, type(None)))
    ]
    assert len(events) == len(asked) > 0


def test_subgoals_have_their_names_and_a_withdrawn_turn_has_no_event() -> None:
    rows = written()
    subgoals = [
        e.attributes for e in events_of(rows) if e.attributes["gen_ai.evaluation.name"] == "subgoal"
    ]
    assert [each["callgauge.subgoal.id"] for each in subgoals] == [
        each.id for each in GOALS_OF_CODE.subgoals
    ]
    for each in subgoals:
        assert each["gen_ai.evaluation.score.label"] == (
            "reached" if each["gen_ai.evaluation.score.value"] else "open"
        )
    without = events_of([row for row in rows if not isinstance(row, GoalsRow)])
    assert {e.attributes["gen_ai.evaluation.name"] for e in without} & {"subgoal", "success"} == {
        "success"
    }
    gone = [
        structs.replace(row, status="withdrawn") if isinstance(row, TurnRow) else row
        for row in rows
    ]
    assert {each.attributes.get("callgauge.turn") for each in events_of(gone)} == {None}


def test_an_unknown_score_has_its_reason_and_no_value() -> None:
    rows = written()
    events = events_of(with_wait(rows, Unscored(UnscoredReason.USER_STILL_SPEAKING)))
    for event in events:
        assert ("error.type" in event.attributes) != (
            "gen_ai.evaluation.score.value" in event.attributes
        )
    assert {event.attributes.get("error.type") for event in events} >= {None, "user_still_speaking"}
    inapplicable = events_of(with_wait(rows, NotApplicable("nothing was due")))
    assert "voice_to_voice_latency_ms" not in {
        e.attributes["gen_ai.evaluation.name"] for e in inapplicable
    }


def test_calls_and_their_turns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = written()
    everything = len(events_of(rows))
    monkeypatch.setattr(evaluations, "MAX_TURNS_PER_CALL", 2)
    scores = FinalScores()
    events = [event for row in rows for event in scores.keep_row(row)]
    assert 0 < len(events) < everything
    assert {event.attributes.get("callgauge.turn") for event in events} == {None, 1}, (
        "turns 0 and 1 are kept"
    )
    assert scores.left_out > 0
    monkeypatch.setattr(evaluations, "MAX_CALLS", 0)
    scores = FinalScores()
    events = [event for row in rows for event in scores.keep_row(row)]
    assert {event.attributes.get("callgauge.turn") for event in events} == {None}, (
        "the closed row speaks for itself"
    )
    assert scores.left_out > 0


def test_the_tenant_with_the_most_calls_loses_its_quietest_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluations, "MAX_CALLS", 2)
    scores = FinalScores()
    rows = written()
    first = next(row for row in rows if isinstance(row, TurnRow))
    labels = {name: structs.replace(first.labels, tenant=name) for name in ("big", "small")}
    for call, tenant in (("b-1", "big"), ("s-1", "small"), ("b-2", "big")):
        scores.keep_row(
            structs.replace(first, conversation_id=call, labels=labels[tenant], wait_ms=5.0)
        )
    waits = []
    for call in ("b-1", "s-1", "b-2"):
        closing = scores.keep_row(structs.replace(rows[-1], conversation_id=call))
        waits.append(any(event.attributes.get("callgauge.turn") is not None for event in closing))
    assert waits == [False, True, True]


@pytest.mark.parametrize("parent", [f"00-{'0a' * 16}-{'0b' * 8}-01", None])
def test_the_body_is_what_opentelemetry_reads(parent: str | None) -> None:
    counted: Counter[str] = Counter()
    named = {"traceparent": parent}
    events = events_of(
        [structs.replace(row, **named) if isinstance(row, CallRow) else row for row in written()]
    )
    with collecting() as collector:
        sending = EvaluationSender(
            OtlpSettings(endpoint=collector.url),
            "1.2",
            lambda outcome, number: counted.update({outcome: number}),
        )
        sending.put(events)
        wait_for(lambda: counted["sent"] == len(events))
        sending.close()
    assert set(collector.paths) == {"/v1/logs"}
    found = []
    for body in collector.bodies:
        request = ExportLogsServiceRequest.FromString(body)
        assert request.SerializeToString() == body, "nothing in it is unknown"
        for resource in request.resource_logs:
            assert ("service.name", "callgauge") in [
                (a.key, a.value.string_value) for a in resource.resource.attributes
            ]
            found += [record for scope in resource.scope_logs for record in scope.log_records]
    assert {record.event_name for record in found} == {"gen_ai.evaluation.result"}
    spans = {(record.trace_id.hex(), record.span_id.hex(), record.flags) for record in found}
    assert spans == {("0a" * 16, "0b" * 8, 1) if parent else ("", "", 0)}, (
        "they are part of the call's span"
    )
    read = [
        {a.key: getattr(a.value, a.value.WhichOneof("value") or "") for a in record.attributes}
        for record in found
    ]
    assert read == [dict(event.attributes) for event in events]
    assert [record.time_unix_nano for record in found] == [
        event.time_ms * 1_000_000 for event in events
    ]
    values = [
        a.value.WhichOneof("value")
        for r in found
        for a in r.attributes
        if a.key == "gen_ai.evaluation.score.value"
    ]
    assert set(values) == {"double_value"}
    assert dict(counted) == {"sent": len(events)}


def test_of_an_endpoint_that_is_away_every_event_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluations, "MAX_QUEUED", 10)
    monkeypatch.setattr(evaluations, "TIMEOUT_SECONDS", 60.0)
    counted: Counter[str] = Counter()
    event = Evaluation(1, {"gen_ai.evaluation.name": "x"})
    settings = OtlpSettings(endpoint="http://127.0.0.1:1/v1/logs")
    sending = EvaluationSender(
        settings, "1", lambda outcome, number: counted.update({outcome: number})
    )
    sending.put([event] * 1_000)
    assert counted["queue_full"] >= 900
    sending.close()
    assert (counted.total(), counted["sent"]) == (1_000, 0)


def test_a_refused_batch_is_counted() -> None:
    counted: Counter[str] = Counter()
    with collecting(status=400) as collector:
        sending = EvaluationSender(
            OtlpSettings(endpoint=collector.url),
            "1",
            lambda outcome, number: counted.update({outcome: number}),
        )
        sending.put([Evaluation(1, {"gen_ai.evaluation.name": "x"})])
        wait_for(lambda: counted["failed"] == 1)
        sending.close()
    assert dict(counted) == {"failed": 1}


def test_an_endpoint_that_asks_for_a_pause_gets_one_also_if_batches_wait() -> None:
    counted: Counter[str] = Counter()
    with collecting(status=429, retry_after="3600") as collector:
        sending = EvaluationSender(
            OtlpSettings(endpoint=collector.url),
            "1",
            lambda outcome, number: counted.update({outcome: number}),
        )
        sending.put([Evaluation(1, {"gen_ai.evaluation.name": "x"})] * 3 * MAX_BATCH_EVENTS)
        wait_for(lambda: counted["failed"] == 2 * MAX_BATCH_EVENTS)
        ending = threading.Thread(target=sending.close, daemon=True)
        ending.start()
        ending.join(patient(20))
        assert not ending.is_alive(), "the end waits for no pause, which is of an hour"
    first, second = collector.asked_at
    assert second - first >= FIRST_PAUSE_SECONDS
    assert dict(counted) == {"failed": 2 * MAX_BATCH_EVENTS, "unsent_at_stop": MAX_BATCH_EVENTS}


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http._log_exporter", None)
    with pytest.raises(SetupError, match=r"\[otlp\]"):
        EvaluationSender(OtlpSettings(endpoint="http://127.0.0.1:1/v1/logs"), "1", lambda *_: None)
