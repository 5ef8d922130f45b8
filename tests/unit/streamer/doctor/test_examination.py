"""The doctor looks at goals, judge, ports, sources, keys, groups and the newest records."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from starlette.routing import Route

from consumers.runtime.http import HttpListener
from schemas.closed_sets import InputSource
from streamer.cluster.facts import LogBounds
from streamer.doctor.examination import (
    Understanding,
    address_finding,
    counter_findings,
    metrics_findings,
    quarantine_finding,
    reach_finding,
    sampled_offsets,
    secret_findings,
    source_findings,
    start_findings,
)
from streamer.doctor.findings import Finding, Verdict
from streamer.settings.all_settings import Settings, load_settings
from tests.support.fakes.http_answers import Answer, Request, answering

JUDGE_KEY = {"OPENAI_API_KEY": "key"}
JUDGED = "id: one\nsubgoals:\n  - {id: a, details: d, check: {kind: judge}}\n"
CODED = "id: two\nsubgoals:\n  - {id: a, details: d, check: {kind: tool_called, tool: t}}\n"


def found(environment: dict[str, str] | None = None) -> dict[str, Finding]:
    settings = load_settings(None, {"http_port": 0}, environment or {})
    return {finding.check: finding for finding in start_findings(settings)}


def goals_in(folder: Path, **files: str) -> dict[str, str]:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return {"CALLGAUGE_GOALS__FOLDER": str(folder)}


def test_without_goals_and_judge_all_is_well() -> None:
    findings = found()
    assert {check: finding.verdict for check, finding in findings.items()} == {
        "goals": Verdict.OK, "judge": Verdict.OK, "metrics address": Verdict.OK,
    }  # fmt: skip
    assert findings["judge"].seen == "off: it has no key"
    assert found({"CALLGAUGE_GOALS__READS_TOPIC": "true"})["goals"].seen == "the topic goals is read"


def test_a_folder_with_which_run_would_not_start_is_wrong(tmp_path: Path) -> None:
    finding = found({"CALLGAUGE_GOALS__FOLDER": str(tmp_path / "none")})["goals"]
    assert finding.verdict is Verdict.WRONG
    assert str(tmp_path / "none") in finding.seen
    assert "The evaluator would not start" in finding.seen


def test_broken_doubled_and_missing_goals_are_warnings(tmp_path: Path) -> None:
    environment = goals_in(tmp_path)
    assert found(environment)["goals"].seen == f"no goal file in {tmp_path}"
    goals_in(tmp_path, one=CODED)
    assert (found(environment)["goals"].verdict, found(environment)["goals"].seen) == (
        Verdict.OK, f"1 goal set in {tmp_path}",
    )  # fmt: skip
    goals_in(tmp_path, same=CODED)
    assert found(environment)["goals"].verdict is Verdict.WARNING
    goals_in(tmp_path, same="id: [")
    finding = found(environment)["goals"]
    assert finding.verdict is Verdict.WARNING
    assert f"broken and not used: {tmp_path / 'same.yaml'}" in finding.seen
    assert "callgauge goals check" in finding.what_to_do


def test_a_judge_that_is_waited_for_and_off_is_a_warning(tmp_path: Path) -> None:
    judged = goals_in(tmp_path, one=JUDGED)
    assert found(judged)["judge"].seen == "1 subgoal can only be judged by a model, and it has no key"
    assert found({"CALLGAUGE_GOALS__ASKS_JUDGE": "true"})["judge"].verdict is Verdict.WARNING
    off = judged | JUDGE_KEY | {"CALLGAUGE_JUDGE__ENABLED": "false"}
    assert found(off)["judge"].what_to_do == "Set judge.enabled=true."
    assert found(judged | JUDGE_KEY)["judge"] == Finding(
        "judge", Verdict.OK, "on: gpt-4.1 at https://api.openai.com/v1"
    )


def test_a_port_that_another_program_holds_is_a_warning() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (finding,) = metrics_findings(Settings(http_port=taken.getsockname()[1]))
    assert finding.verdict is Verdict.WARNING
    assert "could not start here" in finding.seen


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (Answer(200, b"# TYPE callgauge_build_info gauge"), Verdict.OK),
        (Answer(401, b"", {"WWW-Authenticate": "Bearer"}), Verdict.OK),
        (Answer(200, b"hello"), Verdict.WARNING),
    ],
)
def test_a_callgauge_that_runs_already_is_recognised(answer: Answer, verdict: Verdict) -> None:
    with answering(lambda _request: answer) as address:
        (finding,) = metrics_findings(Settings(http_port=int(address.rpartition(":")[2].strip("/"))))
    assert finding.verdict is verdict


NOW_MS = 1_790_000_000_000
COUNTED = """\
# TYPE callgauge_quarantined_total counter
callgauge_quarantined_total{reason="invalid_event",source="pipecat"} 7.0
callgauge_quarantined_total{reason="time_out_of_bounds",source="audit"} 1.0
callgauge_misread_records_total{reason="kind",source="pipecat"} 2e+06
callgauge_misread_records_total{reason="type",source="pipecat"} 0.0
callgauge_agent_errors_total{source="pipecat"} 0.0
process_start_time_seconds 1.7899928e+09
"""


def test_the_counters_of_an_evaluator_say_what_it_refused_since_its_start() -> None:
    refused, misread = counter_findings("callgauge_events_total{} 9\n" + COUNTED, NOW_MS)
    assert (refused.check, refused.verdict) == ("counters", Verdict.WARNING)
    assert refused.seen.startswith("8 records refused since it started 2 h ago: ")
    assert "invalid_event pipecat 7, time_out_of_bounds audit 1" in refused.seen
    assert misread.seen == "2000000 records not understood since it started 2 h ago: kind pipecat 2000000"
    (calm,) = counter_findings("callgauge_events_total{} 9\nprocess_start_time_seconds 1.79e+09\n", NOW_MS)
    assert calm.verdict is Verdict.OK
    assert list(counter_findings(COUNTED, NOW_MS)) == [], "a page of another role"


def test_the_counters_of_a_sequencer_say_what_it_refused_for_its_bytes() -> None:
    page = 'callgauge_sequencer_events_total{source="pipecat"} 9.0\nprocess_start_time_seconds 1.7899928e+09\n'
    refused = 'callgauge_sequencer_refused_total{reason="empty_key",source="pipecat"} 8.0\n'
    (finding,) = counter_findings(page + refused, NOW_MS)
    assert (finding.check, finding.verdict) == ("counters", Verdict.WARNING)
    assert finding.seen == "8 records refused for their bytes since it started 2 h ago: empty_key pipecat 8"
    assert "callgauge quarantine list" in (finding.what_to_do or "")
    (calm,) = counter_findings(page, NOW_MS)
    assert (calm.verdict, calm.seen) == (Verdict.OK, "the sequencer here has refused nothing since it started 2 h ago")


def test_the_counters_of_a_receiver_of_events_say_what_it_refused_since_its_start() -> None:
    page = """\
callgauge_ingest_events_refused_total{tenant="acme"} 12.0
callgauge_ingest_requests_total{outcome="accepted",tenant="acme"} 90.0
callgauge_ingest_requests_total{outcome="limited",tenant="acme"} 3.0
callgauge_ingest_requests_total{outcome="too_large",tenant=""} 4.0
callgauge_ingest_requests_total{outcome="unwritten",tenant="acme"} 5.0
process_start_time_seconds 1.7899928e+09
"""
    events, requests = counter_findings(page, NOW_MS)
    assert (events.check, events.verdict) == (requests.check, requests.verdict) == ("ingest refusals", Verdict.WARNING)
    assert events.seen == "12 posted events refused since it started 2 h ago: acme 12"
    assert requests.seen == "7 requests refused since it started 2 h ago: too_large 4, acme limited 3"
    assert "events_refused" in (events.what_to_do or "")
    (calm,) = counter_findings('callgauge_ingest_requests_total{outcome="accepted",tenant=""} 9.0\n', NOW_MS)
    assert (calm.verdict, calm.check) == (Verdict.OK, "ingest refusals")


def test_the_page_is_read_with_the_token_of_the_settings() -> None:
    def answer(request: Request) -> Answer:
        allowed = request.headers.get("authorization") == "Bearer of-tests"
        return (
            Answer(200, f"callgauge_build_info 1\ncallgauge_events_total 1\n{COUNTED}".encode())
            if allowed
            else Answer(403, b"")
        )

    with answering(answer) as address:
        port = int(address.rpartition(":")[2].strip("/"))
        found = list(metrics_findings(Settings.model_validate({"http_port": port, "http_token": "of-tests"})))
    assert [finding.check for finding in found] == ["metrics address", "counters", "counters"]


def test_records_that_were_refused_lately_are_a_warning() -> None:
    one, two = TopicPartition("quarantine", 0), TopicPartition("quarantine", 1)
    bounds = {one: LogBounds(10, 40), two: LogBounds(0, 5)}
    calm = quarantine_finding(bounds, {one: None, two: None})
    assert (calm.verdict, calm.seen) == (Verdict.OK, "nothing refused in the last hour, 35 kept in all")
    lately = quarantine_finding(bounds, {one: 38, two: None})
    assert (lately.verdict, lately.seen) == (Verdict.WARNING, "2 records refused in the last hour, 35 kept in all")


KEY = "key-of-tests"


def settings_of(ingest: dict[str, Any] | None = None, monitor: dict[str, Any] | None = None, **more: Any) -> Settings:
    return Settings.model_validate({"ingest": ingest or {}, "monitor": monitor or {}, **more})


def told(finding: Finding) -> tuple[str, Verdict]:
    return finding.check, finding.verdict


@contextmanager
def held_port() -> Iterator[int]:
    """A port with a program that listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def free_port() -> int:
    with held_port() as port:
        return port


@contextmanager
def elevenlabs(status: int, body: object) -> Iterator[tuple[str, list[str]]]:
    """A server that answers the request for calls; yields its address and the keys that it saw."""
    keys: list[str] = []

    def answer(request: Request) -> Answer:
        keys.append(request.headers["xi-api-key"])
        return Answer(status, json.dumps(body).encode())

    with answering(answer) as address:
        yield address, keys


async def test_roles_that_are_off_are_said_to_be_off_and_nothing_is_asked() -> None:
    found = [finding async for finding in source_findings(settings_of())]
    assert [told(finding) for finding in found] == [("ingest", Verdict.OK), ("monitor", Verdict.OK)]
    assert all(finding.seen.startswith("off: ") for finding in found)


def test_who_may_send_is_told_without_a_secret() -> None:
    ingest, _ = secret_findings(settings_of({"token": "of-tests"}))
    assert ingest.seen == "POST /events has 1 token; ElevenLabs' webhook is off"
    ingest, monitor = secret_findings(settings_of({"elevenlabs_secret": "wsec"}, {"agents": "a,b"}))
    assert ingest.seen == "POST /events is off, without a token; ElevenLabs' webhook has 1 secret"
    assert monitor.seen.startswith("off: ")


def test_the_monitor_and_the_webhook_may_have_the_same_calls() -> None:
    monitor = {"api_key": KEY, "agents": "a,b"}
    *_, last = secret_findings(settings_of({"elevenlabs_secret": "wsec"}, monitor))
    assert (last.verdict, last.seen) == (Verdict.OK, "follows the calls of 2 agents at https://api.elevenlabs.io")


def test_a_free_port_is_free_and_stays_free() -> None:
    settings = settings_of({"token": "t", "port": free_port()})
    for _ in range(2):
        finding = address_finding(settings)
        assert (finding.verdict, "is free on this machine" in finding.seen) == (Verdict.OK, True)


def test_a_port_of_another_program_is_wrong() -> None:
    with held_port() as port:
        finding = address_finding(settings_of({"token": "t", "port": port}))
    assert (finding.verdict, "nobody can listen on" in finding.seen) == (Verdict.WRONG, True)
    assert "ingest.port" in finding.what_to_do


@pytest.mark.parametrize(("path", "verdict"), [("/events", Verdict.OK), ("/other", Verdict.WRONG)])
async def test_a_port_is_ours_if_events_may_be_posted_there(path: str, verdict: Verdict) -> None:
    async def refuse(_: Any) -> Any:
        raise AssertionError("the doctor posts nothing")

    route = Route(path, refuse, methods=["POST"])
    listener = HttpListener("127.0.0.1", 0, [route], lambda _: None, without_it="Nothing")
    await listener.start()
    try:
        settings = settings_of({"token": "t", "port": int(listener.address.rpartition(":")[2])})
        found = [finding async for finding in source_findings(settings)]
    finally:
        await listener.stop()
    assert [told(finding) for finding in found if finding.check == "ingest address"] == [("ingest address", verdict)]


def test_an_address_that_is_not_of_this_machine_is_wrong() -> None:
    finding = address_finding(settings_of({"token": "t", "host": "192.0.2.1", "port": 0}))
    assert finding.verdict is Verdict.WRONG


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - as in a container
def test_events_and_metrics_need_two_ports(host: str) -> None:
    port = free_port()
    finding = address_finding(settings_of({"token": "t", "host": host, "port": port}, http_port=port))
    assert (finding.verdict, "also the address of /metrics" in finding.seen) == (Verdict.WRONG, True)


async def test_the_monitor_reaches_elevenlabs_with_its_key() -> None:
    listed = {"conversations": [{"conversation_id": "c", "status": "in-progress"}], "has_more": False}
    with elevenlabs(200, listed) as (url, keys):
        finding = await reach_finding(settings_of(monitor={"api_key": KEY, "base_url": url}))
    assert (finding.verdict, keys) == (Verdict.OK, [KEY])
    assert "1 call in progress" in finding.seen


@pytest.mark.parametrize(("status", "body"), [(401, {"detail": "no"}), (200, ["another service"])])
async def test_an_answer_that_is_no_list_of_calls_is_wrong(status: int, body: object) -> None:
    with elevenlabs(status, body) as (url, _):
        finding = await reach_finding(settings_of(monitor={"api_key": KEY, "base_url": url}))
    assert finding.verdict is Verdict.WRONG
    assert KEY not in finding.seen + finding.what_to_do


async def test_an_api_that_is_away_is_wrong() -> None:
    settings = settings_of(monitor={"api_key": KEY, "base_url": f"http://127.0.0.1:{free_port()}"})
    found = [finding async for finding in source_findings(settings)]
    assert told(found[-1]) == ("monitor reach", Verdict.WRONG)


PIPECAT, ELEVENLABS, AUDIT = "x.pipecat.events", "x.elevenlabs.events", "x.audit.events"

SOURCES = {PIPECAT: InputSource.PIPECAT, ELEVENLABS: InputSource.ELEVENLABS}
WORD = {"type": "tts_text", "timestamp": 1, "data": {"frame": "Hello"}}
WRONG_KIND = {"type": "speech_event", "timestamp": 1, "data": {"kind": "bot_stopped", "timestamp": 1.0}}


class Record(NamedTuple):
    topic: str
    value: bytes | None
    timestamp: int = NOW_MS
    headers: tuple[tuple[str, bytes], ...] = ()


def _findings(*records: tuple[str, Any]) -> list[tuple[Verdict, str, str]]:
    """What is said of the records, after the line that says whether events come."""
    understanding = Understanding(SOURCES)
    for topic, event in records:
        understanding.look(Record(topic, None if event is None else json.dumps(event).encode()))
    _, *found = understanding.findings(NOW_MS)
    return [(finding.verdict, finding.seen, finding.what_to_do) for finding in found]


@pytest.mark.parametrize(
    ("ages_s", "verdict", "said"),
    [
        ({}, Verdict.WARNING, f"no event in {ELEVENLABS}, {PIPECAT}: none was sent"),
        ({PIPECAT: 3.4}, Verdict.OK, f"the last event came 3 s ago in {PIPECAT}"),
        ({PIPECAT: -2}, Verdict.OK, "0 s ago"),
        ({PIPECAT: 3, ELEVENLABS: 2_840}, Verdict.WARNING, f"no event in {ELEVENLABS} for 47 min"),
    ],
)
def test_an_input_without_events_is_told(ages_s: dict[str, float], verdict: Verdict, said: str) -> None:
    understanding = Understanding(SOURCES)
    for topic, age_s in ages_s.items():
        for older_ms in (0, 9_000):  # the newest of a topic counts, whichever comes last
            understanding.look(Record(topic, b"{}", NOW_MS - int(age_s * 1_000) - older_ms))
    finding = next(understanding.findings(NOW_MS))
    assert (finding.check, finding.verdict, said in finding.seen) == ("producers", verdict, True), finding


@pytest.mark.parametrize(
    ("begin", "end", "most"), [(0, 0, 5), (3, 10, 7), (0, 1_000_000, 1_000), (5, 16, 10), (0, 13, 12)]
)
def test_a_sample_is_bounded_has_no_record_twice_and_begins_with_the_newest(begin: int, end: int, most: int) -> None:
    pieces = sampled_offsets(begin, end, most)
    offsets = [offset for piece in pieces for offset in piece]
    assert (
        len(offsets) == len(set(offsets)) == min(most, end - begin) - (0 if end - begin <= most else most % len(pieces))
    )
    assert all(begin <= offset < end for offset in offsets)
    assert end == begin or end - 1 in pieces[0]
    assert end - begin <= most or min(offsets) - begin < 2 * (end - begin) / len(pieces)


def test_nothing_to_say_without_records() -> None:
    assert _findings((PIPECAT, None), ("another", WORD)) == []


def test_all_understood() -> None:
    assert [each[:2] for each in _findings((PIPECAT, WORD), (PIPECAT, WORD))] == [
        (Verdict.OK, "all 2 records looked at are understood")
    ]


def test_errors_of_agents_are_a_warning() -> None:
    failed = {"type": "error", "timestamp": 1, "data": {"message": "the model is down"}}
    of_the_agent = {"type": "client_error", "timestamp": 1, "error_event": {"code": 1008}}
    found = _findings((PIPECAT, WORD), (PIPECAT, failed), (PIPECAT, failed), (ELEVENLABS, of_the_agent))
    assert [each[:2] for each in found] == [
        (Verdict.WARNING, f"1 of 1 record looked at in {ELEVENLABS} are errors that agents report"),
        (Verdict.WARNING, f"2 of 3 records looked at in {PIPECAT} are errors that agents report"),
        (Verdict.OK, "all 4 records looked at are understood"),
    ]


def test_what_is_refused_and_what_is_not_understood_with_the_remedy() -> None:
    bad = {"type": "tts_text", "timestamp": 1}
    refused, misread = _findings((PIPECAT, WORD), (PIPECAT, bad), (PIPECAT, WRONG_KIND), (PIPECAT, WRONG_KIND))
    assert refused[:2] == (
        Verdict.WARNING,
        f"1 of 4 records looked at in {PIPECAT} cannot be read and go to quarantine",
    )
    assert misread[:2] == (
        Verdict.WARNING,
        f"2 of 4 records looked at in {PIPECAT} are not understood: speech_event of kind 'bot_stopped'",
    )
    assert "bot_speech_stopped" in misread[2]
