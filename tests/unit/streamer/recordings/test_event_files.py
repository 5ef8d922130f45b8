"""A file of events is read as calls, with the same results as those calls in another format."""

import itertools
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from streamer.recordings import reader
from streamer.recordings.files import SAMPLE, RecordedCall, RecordingError
from streamer.recordings.reader import read_recordings
from tests.integration.processes import ran_here

GOALS = Path(reader.__file__).parent / "sample" / "goals.yaml"


def write(path: Path, events: Iterable[Mapping[str, Any] | str]) -> Path:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in events))
    return path


def streams_of(call: RecordedCall) -> dict[str, list[dict[str, Any]]]:
    """The events of a call as lines of a file, by their stream."""
    streams = {
        "audit": call.audit, "pipecat": call.pipecat, "user_sim": call.elevenlabs, "elevenlabs": call.agent, None: call.control,
    }  # fmt: skip
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
    assert (call.control, call.audit, call.elevenlabs) == (sample.control, sample.audit, sample.elevenlabs)
    kept = [{key: value for key, value in event.items() if key != "conversation_id"} for event in sample.pipecat or ()]
    assert call.pipecat == tuple(kept)


def test_a_file_of_events_scores_as_the_call_does(tmp_path: Path) -> None:
    (sample,) = read_recordings(SAMPLE)
    path = write(tmp_path / "calls.jsonl", itertools.chain.from_iterable(streams_of(sample).values()))
    options = ("--goals", str(GOALS))
    assert ran_here("score", str(path), *options).out == ran_here("score", "sample", *options).out


def test_calls_are_told_apart_and_come_in_the_order_in_which_they_begin(tmp_path: Path) -> None:
    path = write(
        tmp_path / "desk.jsonl",
        [
            {"type": "call_started", "timestamp": 1, "conversation_id": "b", "pipeline_type": "s2s"},
            "",
            {"type": "call_started", "timestamp": 2, "conversation_id": 7},
            {"type": "tts_text", "timestamp": 3, "conversation_id": "b", "data": {"frame": "x"}},
            {"type": "call_ended", "timestamp": 4},
        ],
    )
    calls = list(read_recordings(path))
    assert [(call.conversation_id, call.pipeline_type) for call in calls] == [
        ("b", "s2s"), ("7", "cascade"), ("desk", "cascade"),
    ]  # fmt: skip
    assert calls[0].pipecat == ({"type": "tts_text", "timestamp": 3, "data": {"frame": "x"}},)
    assert calls[1].pipecat is None


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ({"type": "nothing_of_ours", "timestamp": 1}, ["a known `type`", "'nothing_of_ours'", "events check"]),
        ({"type": "tts_text", "stream": "telephone"}, ["`stream` as one of", "'telephone'"]),
        ({"type": "tts_text", "conversation_id": {}}, ['"conversation_id" as a text']),
        ({"type": "tts_text", "conversation_id": "a\nb"}, ['"conversation_id" as a text']),
        ("[]", ["a JSON object", "a list"]),
        ("{", ["this is not JSON"]),
    ],
    ids=["unknown type", "unknown stream", "no name", "line break in the name", "a list", "no JSON"],
)
def test_a_line_that_is_no_event_is_named(tmp_path: Path, line: Mapping[str, Any] | str, names: list[str]) -> None:
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
