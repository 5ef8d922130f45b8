"""The sample call, files of events, which are read as the same calls in another format, and EVA's
measurements.
"""

import itertools
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import ToolOutcome
from streamer.offline.scoring import plan_from, scored
from streamer.recordings import reader
from streamer.recordings.files import (
    SAMPLE,
    RecordedCall,
    RecordingError,
    UnplacedMetricsError,
    with_llm_latencies,
    with_metrics,
)
from streamer.recordings.places import RecordedPath
from streamer.recordings.reader import goals_for, read_recordings
from streamer.settings.all_settings import Settings
from tests.integration.processes import ran_here
from tests.support.calls.rows_of_calls import call_of, tools_of, turns_of
from tests.support.known import some

MOST_BYTES = 100_000


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_is_small_and_has_no_personal_data() -> None:
    path = RecordedPath(SAMPLE).path
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    texts: list[str] = []

    def collect(value: object) -> None:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                collect(each)

    collect(json.loads(text))
    redact = Redactor().redact
    assert len(texts) > 100
    assert [each for each in texts if redact(each) != each] == []


def test_it_has_goals_an_interruption_dead_air_and_a_failed_tool() -> None:
    (sample,) = read_recordings(SAMPLE)
    scoring = scored(sample, plan_from(Settings(), goals_for([SAMPLE], None)))
    assert scoring.refused == []
    call, turns = call_of(scoring.rows), turns_of(scoring.rows)
    assert call.labels.environment == "test", "its dead air wakes nobody where it is replayed"
    assert call.dead_airs >= 1
    assert call.interrupted_turns != ()
    assert ToolOutcome.ERROR in {use.outcome for use in tools_of(scoring.rows)}
    progress = [row.progress for row in turns.values() if row.progress is not None]
    assert [each.reached for each in progress] == [1, 2, 3, 4, 5, 6, 6]
    assert all(isinstance(each.result, float) for each in progress)


def test_a_folder_of_this_name_is_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "sample").mkdir()
    with pytest.raises(RecordingError, match="there is no recorded call"):
        RecordedPath(SAMPLE)
    assert goals_for([SAMPLE], None) is None


def test_the_sample_brings_its_goals_only_where_nobody_names_others(tmp_path: Path) -> None:
    (call,) = read_recordings(SAMPLE)
    own = some(goals_for([SAMPLE], None))
    assert (found := own.of(call)) is not None
    assert found.id == "sample"
    assert goals_for([SAMPLE, tmp_path], None) is None
    (tmp_path / "other.yaml").write_text(
        "id: other\nsubgoals:\n  - {id: a, details: d, check: {kind: tool_called, tool: t}}\n"
    )
    other = some(goals_for([SAMPLE], tmp_path / "other.yaml"))
    assert (found := other.of(call)) is not None
    assert found.id == "other"


GOALS = Path(reader.__file__).parent / "sample" / "goals.yaml"


def write(path: Path, events: Iterable[Mapping[str, Any] | str]) -> Path:
    path.write_text(
        "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in events)
    )
    return path


def streams_of(call: RecordedCall) -> dict[str, list[dict[str, Any]]]:
    """The events of a call as lines of a file, by their stream."""
    streams = {
        "audit": call.audit,
        "pipecat": call.pipecat,
        "user_sim": call.elevenlabs,
        "elevenlabs": call.agent,
        None: call.control,
    }
    return {
        str(name): [
            {**event, "conversation_id": call.conversation_id, **({"stream": name} if name else {})}
            for event in events or ()
        ]
        for name, events in streams.items()
    }


def test_the_streams_of_a_call_may_be_mixed_in_any_way(tmp_path: Path) -> None:
    (sample,) = read_recordings(SAMPLE)
    by_stream = {name: list(events) for name, events in streams_of(sample).items()}
    draw = random.Random(3)  # noqa: S311 - the same order each time
    mixed = []
    while waiting := [name for name, events in by_stream.items() if events]:
        mixed.append(by_stream[draw.choice(waiting)].pop(0))
    (call,) = read_recordings(write(tmp_path / "calls.jsonl", mixed))
    assert (call.control, call.audit, call.elevenlabs) == (
        sample.control,
        sample.audit,
        sample.elevenlabs,
    )
    kept = [
        {key: value for key, value in event.items() if key != "conversation_id"}
        for event in sample.pipecat or ()
    ]
    assert call.pipecat == tuple(kept)


def test_a_file_of_events_scores_as_the_call_does(tmp_path: Path) -> None:
    (sample,) = read_recordings(SAMPLE)
    path = write(
        tmp_path / "calls.jsonl", itertools.chain.from_iterable(streams_of(sample).values())
    )
    options = ("--goals", str(GOALS))
    assert ran_here("score", str(path), *options).out == ran_here("score", "sample", *options).out


def test_calls_are_told_apart_and_come_in_the_order_in_which_they_begin(tmp_path: Path) -> None:
    path = write(
        tmp_path / "desk.jsonl",
        [
            {
                "type": "call_started",
                "timestamp": 1,
                "conversation_id": "b",
                "pipeline_type": "s2s",
            },
            "",
            {"type": "call_started", "timestamp": 2, "conversation_id": 7},
            {"type": "tts_text", "timestamp": 3, "conversation_id": "b", "data": {"frame": "x"}},
            {"type": "call_ended", "timestamp": 4},
        ],
    )
    calls = list(read_recordings(path))
    assert [(call.conversation_id, call.pipeline_type) for call in calls] == [
        ("b", "s2s"),
        ("7", "cascade"),
        ("desk", "cascade"),
    ]
    assert calls[0].pipecat == ({"type": "tts_text", "timestamp": 3, "data": {"frame": "x"}},)
    assert calls[1].pipecat is None


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (
            {"type": "nothing_of_ours", "timestamp": 1},
            ["a known `type`", "'nothing_of_ours'", "docs/sources/other.md"],
        ),
        ({"type": "tts_text", "stream": "telephone"}, ["`stream`: one of", "'telephone'"]),
        ({"type": "tts_text", "conversation_id": {}}, ['"conversation_id" as a text']),
        ({"type": "tts_text", "conversation_id": "a\nb"}, ['"conversation_id" as a text']),
        ("[]", ["a JSON object", "a list"]),
        ("{", ["this is not JSON"]),
    ],
    ids=[
        "unknown type",
        "unknown stream",
        "no name",
        "line break in the name",
        "a list",
        "no JSON",
    ],
)
def test_a_line_that_is_no_event_is_named(
    tmp_path: Path, line: Mapping[str, Any] | str, names: list[str]
) -> None:
    path = write(tmp_path / "calls.jsonl", [{"type": "call_started", "timestamp": 1}, line])
    with pytest.raises(RecordingError) as error:
        list(read_recordings(path))
    assert f"{path}:2" in str(error.value)
    assert [name for name in names if name not in str(error.value)] == []


def test_printed_events_of_simulated_calls_can_be_scored(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text(ran_here("simulate", "--print", "--calls", "2", "--seed", "5").out)
    shown = ran_here("score", str(path), "--format", "table").out
    assert shown.count("\nsim-") == 2


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
    assert order(merged) == [
        ("tts_text", 100),
        ("TTFBMetricsData", 600),
        ("tts_text", 900),
        ("TTFBMetricsData", 5100),
    ]


def test_old_metrics_without_a_log_have_no_time() -> None:
    for log in (None, (), ({"type": "tts_text"},)):
        with pytest.raises(UnplacedMetricsError):
            with_metrics(log, (metric(0.5),))
        assert with_metrics(log, (metric(T0_MS),))[-1] == metric(T0_MS), "new ones have"


@pytest.mark.parametrize("stamp", [None, "soon", True])
def test_what_has_no_readable_time_stays_where_it_is(stamp: Any) -> None:
    merged = with_metrics(
        (line(0), line(900)),
        (metric(T0_MS + 100), metric(1) | {"timestamp": stamp}, metric(T0_MS + 950)),
    )
    assert [event["timestamp"] for event in merged] == [
        T0_MS,
        T0_MS + 100,
        stamp,
        T0_MS + 900,
        T0_MS + 950,
    ]


def call(at_ms: int, **fields: Any) -> dict[str, Any]:
    return {
        "message_type": "llm_call",
        "value": {"response": ""},
        "timestamp": str(T0_MS + at_ms),
        **fields,
    }


def prompt(end_ms: int, latency_ms: float) -> dict[str, Any]:
    return {
        "end_time": str(T0_MS + end_ms),
        "latency_ms": latency_ms,
        "model": None,
        "response": "text",
    }


def test_a_step_gets_the_latency_of_its_prompt() -> None:
    other = {"message_type": "assistant", "value": "Yes", "timestamp": str(T0_MS)}
    failed_and_repeated = [prompt(999, 900.0), prompt(5000, 700.0)]
    told = with_llm_latencies((call(1000), other, call(5003)), failed_and_repeated)
    assert told == (call(1000, latency_ms=900.0), other, call(5003, latency_ms=700.0))


def test_a_step_without_a_prompt_of_its_time_stays_as_it_is() -> None:
    entries = (call(1000), call(9000, latency_ms=5.0), call(20_000))
    assert (
        with_llm_latencies(entries, [prompt(4000, 1.0), prompt(9000, 2.0), prompt(22_000, 3.0)])
        == entries
    )
    strange: list[Any] = [
        None,
        {},
        [],
        ["x"],
        [{"latency_ms": 1.0}],
        [{"end_time": "soon", "latency_ms": 1.0}],
    ]
    for prompts in strange:
        assert with_llm_latencies(entries, prompts) == entries


def record_with_metrics(
    directory: Path, *, log: list[dict[str, Any]] | None, metrics: list[dict[str, Any]]
) -> Path:
    entry = call(1000)
    (directory / "audit_log.json").write_text(
        json.dumps({"transcript": [entry], "llm_prompts": [prompt(1000, 643.0) | {"model": "gpt"}]})
    )
    for name, events in (("pipecat_logs.jsonl", log), ("pipecat_metrics.jsonl", metrics)):
        if events is not None:
            (directory / name).write_text("".join(json.dumps(event) + "\n" for event in events))
    return directory


def test_a_record_directory_is_read_with_its_metrics(tmp_path: Path) -> None:
    (read,) = read_recordings(
        record_with_metrics(tmp_path, log=[line(0), line(900)], metrics=[metric(0.25)])
    )
    assert order(read.pipecat) == [("tts_text", 0), ("TTFBMetricsData", 250), ("tts_text", 900)]
    assert read.audit == (call(1000, latency_ms=643.0, model="gpt"),)


def test_a_record_whose_metrics_have_no_start_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        RecordingError, match="nothing says when these metrics were taken"
    ) as refused:
        list(read_recordings(record_with_metrics(tmp_path, log=None, metrics=[metric(0.25)])))
    assert refused.value.where == str(tmp_path / "pipecat_metrics.jsonl")
    assert "Remove the file of metrics" in refused.value.remedy
