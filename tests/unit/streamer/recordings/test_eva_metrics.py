"""Measurements that EVA stores beside a call's events go where a running bot would send them."""

import json
from pathlib import Path
from typing import Any

import pytest

from streamer.recordings.files import RecordingError, UnplacedMetricsError, with_llm_latencies, with_metrics
from streamer.recordings.reader import read_recordings

T0_MS = 1_790_000_000_000


def line(at_ms: int, kind: str = "tts_text") -> dict[str, Any]:
    return {"type": kind, "timestamp": T0_MS + at_ms}


def metric(stamp: float, value: float = 0.3) -> dict[str, Any]:
    return {
        "timestamp": stamp,
        "type": "TTFBMetricsData",
        "processor": "OneTTSService#0",
        "model": None,
        "value": value,
    }


def order(events: Any) -> list[tuple[str, int]]:
    return [(event["type"], event["timestamp"] - T0_MS) for event in events]


def test_metrics_go_in_behind_everything_of_their_time_and_the_log_keeps_its_order() -> None:
    log = (line(0), line(500), line(400), line(500), line(900))
    merged = with_metrics(log, (metric(T0_MS + 500), metric(T0_MS + 600), metric(T0_MS + 550)))
    assert order(merged) == [
        ("tts_text", 0),
        ("tts_text", 500),
        ("tts_text", 400),
        ("tts_text", 500),
        ("TTFBMetricsData", 500),
        ("TTFBMetricsData", 600),
        ("TTFBMetricsData", 550),
        ("tts_text", 900),
    ]


def test_old_metrics_count_from_the_first_line_of_the_log() -> None:
    merged = with_metrics((line(100), line(900)), (metric(0.5), metric(5)))
    assert order(merged) == [("tts_text", 100), ("TTFBMetricsData", 600), ("tts_text", 900), ("TTFBMetricsData", 5100)]


def test_old_metrics_without_a_log_have_no_time() -> None:
    for log in (None, (), ({"type": "tts_text"},)):
        with pytest.raises(UnplacedMetricsError):
            with_metrics(log, (metric(0.5),))
        assert with_metrics(log, (metric(T0_MS),))[-1] == metric(T0_MS), "new ones have"


@pytest.mark.parametrize("stamp", [None, "soon", True])
def test_what_has_no_readable_time_stays_where_it_is(stamp: Any) -> None:
    merged = with_metrics(
        (line(0), line(900)), (metric(T0_MS + 100), metric(1) | {"timestamp": stamp}, metric(T0_MS + 950))
    )
    assert [event["timestamp"] for event in merged] == [T0_MS, T0_MS + 100, stamp, T0_MS + 900, T0_MS + 950]


def call(at_ms: int, **fields: Any) -> dict[str, Any]:
    return {"message_type": "llm_call", "value": {"response": ""}, "timestamp": str(T0_MS + at_ms), **fields}


def prompt(end_ms: int, latency_ms: float) -> dict[str, Any]:
    return {"end_time": str(T0_MS + end_ms), "latency_ms": latency_ms, "model": None, "response": "text"}


def test_a_step_gets_the_latency_of_its_prompt() -> None:
    other = {"message_type": "assistant", "value": "Yes", "timestamp": str(T0_MS)}
    failed_and_repeated = [prompt(999, 900.0), prompt(5000, 700.0)]
    told = with_llm_latencies((call(1000), other, call(5003)), failed_and_repeated)
    assert told == (call(1000, latency_ms=900.0), other, call(5003, latency_ms=700.0))


def test_a_step_without_a_prompt_of_its_time_stays_as_it_is() -> None:
    entries = (call(1000), call(9000, latency_ms=5.0), call(20_000))
    assert with_llm_latencies(entries, [prompt(4000, 1.0), prompt(9000, 2.0), prompt(22_000, 3.0)]) == entries
    strange: list[Any] = [None, {}, [], ["x"], [{"latency_ms": 1.0}], [{"end_time": "soon", "latency_ms": 1.0}]]
    for prompts in strange:
        assert with_llm_latencies(entries, prompts) == entries


def record(directory: Path, *, log: list[dict[str, Any]] | None, metrics: list[dict[str, Any]]) -> Path:
    entry = call(1000)
    (directory / "audit_log.json").write_text(
        json.dumps({"transcript": [entry], "llm_prompts": [prompt(1000, 643.0) | {"model": "gpt"}]})
    )
    for name, events in (("pipecat_logs.jsonl", log), ("pipecat_metrics.jsonl", metrics)):
        if events is not None:
            (directory / name).write_text("".join(json.dumps(event) + "\n" for event in events))
    return directory


def test_a_record_directory_is_read_with_its_metrics(tmp_path: Path) -> None:
    (read,) = read_recordings(record(tmp_path, log=[line(0), line(900)], metrics=[metric(0.25)]))
    assert order(read.pipecat) == [("tts_text", 0), ("TTFBMetricsData", 250), ("tts_text", 900)]
    assert read.audit == (call(1000, latency_ms=643.0, model="gpt"),)


def test_a_record_whose_metrics_have_no_start_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="nothing says when these metrics were taken") as refused:
        list(read_recordings(record(tmp_path, log=None, metrics=[metric(0.25)])))
    assert refused.value.where == str(tmp_path / "pipecat_metrics.jsonl")
    assert "Remove the file of metrics" in refused.value.remedy
