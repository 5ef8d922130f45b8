"""Final scores leave as OpenTelemetry log events: right in OpenTelemetry's own reading, bounded, and without delaying anything."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from consumers.exporter import otlp as evaluations
from consumers.exporter.otlp import (
    FIRST_PAUSE_SECONDS,
    MAX_BATCH_EVENTS,
    Evaluation,
    EvaluationSender,
    FinalScores,
    OtlpUnavailableError,
)
from consumers.exporter.settings import OtlpSettings
from schemas.closed_sets import UnscoredReason
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord, CallStartedFact, NotApplicable, TurnValues, Unscored
from streamer.offline import scoring
from streamer.recordings.files import RecordedCall
from streamer.settings.all_settings import Settings
from streamer.sources.simulator.traffic import simulate_call
from tests.support.fakes.http_answers import Answer, Request, answering
from tests.support.patience import patient


def scored(seed: int = 1) -> list[AnyScoreRecord]:
    """All records of a simulated call, as they are on the topic."""
    call: RecordedCall = simulate_call(seed, start_ms=1_790_000_000_000, kind="cascade").call
    records = scoring.scored(call, scoring.plan_from(Settings())).records
    return [SCORE_RECORD.validate_json(record.model_dump_json()) for record in records]


def events_of(records: list[AnyScoreRecord]) -> list[Evaluation]:
    scores = FinalScores()
    return [event for record in records for event in scores.take(record)]


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
    collector = Collector(Answer(status, headers={} if retry_after is None else {"Retry-After": retry_after}))
    with answering(collector.answer) as address:
        collector.url = f"{address}/v1/logs"
        yield collector


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + patient(20)
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def test_nothing_of_a_call_is_an_event_before_it_has_closed() -> None:
    records = scored()
    assert records[-1].name == "closed"
    assert events_of(records[:-1]) == []
    events = events_of(records)
    assert {event.attributes["gen_ai.evaluation.name"] for event in events} >= {
        "voice_to_voice_latency_ms", "turn_taking", "eva_turn_taking", "eva_response_speed",
    }  # fmt: skip
    subjects = Counter(
        (event.attributes["gen_ai.evaluation.name"], event.attributes.get("callgauge.turn")) for event in events
    )
    assert set(subjects.values()) == {1}, "only the newest revision"
    assert {event.attributes["gen_ai.conversation.id"] for event in events} == {records[0].conversation_id}


def test_an_unknown_score_has_its_reason_and_no_value() -> None:
    records = scored()
    unknown = [
        record.model_copy(update={"voice_to_voice_ms": Unscored(reason=UnscoredReason.USER_STILL_SPEAKING)})
        if isinstance(record, TurnValues)
        else record
        for record in records
    ]
    events = events_of(unknown)
    for event in events:
        assert ("error.type" in event.attributes) != ("gen_ai.evaluation.score.value" in event.attributes)
    assert {event.attributes.get("error.type") for event in events} == {None, "user_still_speaking"}
    inapplicable = [
        record.model_copy(update={"voice_to_voice_ms": NotApplicable(reason="nothing was due")})
        if isinstance(record, TurnValues)
        else record
        for record in records
    ]
    assert "voice_to_voice_latency_ms" not in {e.attributes["gen_ai.evaluation.name"] for e in events_of(inapplicable)}


def test_calls_and_their_scores_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    records = scored()
    everything = len(events_of(records))
    monkeypatch.setattr(evaluations, "MAX_RECORDS_PER_CALL", 3)
    scores = FinalScores()
    events = [event for record in records for event in scores.take(record)]
    assert 0 < len(events) < everything
    assert scores.left_out > 0
    monkeypatch.setattr(evaluations, "MAX_CALLS", 0)
    scores = FinalScores()
    assert [event for record in records for event in scores.take(record)] == []
    assert scores.left_out > 0


@pytest.mark.parametrize("parent", [f"00-{'0a' * 16}-{'0b' * 8}-01", None])
def test_the_body_is_what_opentelemetry_reads(parent: str | None) -> None:
    counted: Counter[str] = Counter()
    named = {"traceparent": parent}
    events = events_of([r.model_copy(update=named) if isinstance(r, CallStartedFact) else r for r in scored()])
    with collecting() as collector:
        sending = EvaluationSender(
            OtlpSettings(endpoint=collector.url), "1.2", lambda outcome, number: counted.update({outcome: number})
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
    assert spans == {("0a" * 16, "0b" * 8, 1) if parent else ("", "", 0)}, "they are part of the call's span"
    read = [{a.key: getattr(a.value, a.value.WhichOneof("value") or "") for a in record.attributes} for record in found]
    assert read == [dict(event.attributes) for event in events]
    assert [record.time_unix_nano for record in found] == [event.time_ms * 1_000_000 for event in events]
    values = [
        a.value.WhichOneof("value") for r in found for a in r.attributes if a.key == "gen_ai.evaluation.score.value"
    ]
    assert set(values) == {"double_value"}
    assert dict(counted) == {"sent": len(events)}


def test_an_endpoint_that_is_away_delays_nothing_and_every_event_is_counted() -> None:
    counted: Counter[str] = Counter()
    event = Evaluation(1, {"gen_ai.evaluation.name": "x"})
    settings = OtlpSettings(endpoint="http://127.0.0.1:1/v1/logs", queue_events=10, timeout_seconds=60)
    sending = EvaluationSender(settings, "1", lambda outcome, number: counted.update({outcome: number}))
    began = time.process_time()
    sending.put([event] * 1_000)
    assert time.process_time() - began < 1
    assert counted["queue_full"] >= 900
    sending.close()
    assert counted.total() == 1_000
    assert counted["sent"] == 0


def test_a_refused_batch_is_counted() -> None:
    counted: Counter[str] = Counter()
    with collecting(status=400) as collector:
        sending = EvaluationSender(
            OtlpSettings(endpoint=collector.url), "1", lambda outcome, number: counted.update({outcome: number})
        )
        sending.put([Evaluation(1, {"gen_ai.evaluation.name": "x"})])
        wait_for(lambda: counted["failed"] == 1)
        sending.close()
    assert dict(counted) == {"failed": 1}


def test_an_endpoint_that_asks_for_a_pause_gets_one_also_if_batches_wait() -> None:
    counted: Counter[str] = Counter()
    with collecting(status=429, retry_after="3600") as collector:
        sending = EvaluationSender(
            OtlpSettings(endpoint=collector.url), "1", lambda outcome, number: counted.update({outcome: number})
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
    with pytest.raises(OtlpUnavailableError, match=r"\[otlp\]"):
        EvaluationSender(OtlpSettings(endpoint="http://127.0.0.1:1/v1/logs"), "1", lambda *_: None)
