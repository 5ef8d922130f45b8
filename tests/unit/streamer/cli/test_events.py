"""`callgauge events check` reports the events of a bot that are understood, and those that are
missing.
"""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from streamer.event_check import check_events
from tests.integration.processes import Ended, ran_here
from tests.support.calls.rows_of_calls import turns_of
from tests.support.fakes.engine_feed import Feed, rows_of

T0_MS = 1_790_000_000_000
CALL: list[dict[str, Any]] = [
    {"type": "call_started", "timestamp": T0_MS, "agent": "desk"},
    *(
        {
            "type": "speech_event",
            "timestamp": T0_MS + at_ms,
            "data": {"kind": kind, "timestamp": (T0_MS + at_ms) / 1000},
        }
        for kind, at_ms in (
            ("user_speech_started", 3_000),
            ("user_speech_stopped", 5_000),
            ("bot_speech_started", 5_900),
            ("bot_speech_stopped", 8_000),
        )
    ),
    {"type": "call_ended", "timestamp": T0_MS + 9_000},
]


def check(folder: Path, *events: object, name: str = "events.jsonl") -> Ended:
    path = folder / name
    path.write_text(
        "\n".join(each if isinstance(each, str) else json.dumps(each) for each in events)
    )
    return ran_here("events", "check", str(path))


def test_a_good_call_is_understood_and_what_it_lacks_is_named(tmp_path: Path) -> None:
    ended = check(tmp_path, *[{"conversation_id": "c1", **event} for event in CALL])
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "6 events of 1 call understood, 0 refused."
    assert "        4  pipecat speech_event" in lines
    assert "  yes  voice-to-voice latency of each turn" in lines
    (words,) = [line for line in lines if "words of the user" in line]
    assert words.endswith("for want of user_message")


def test_faults_are_named_with_their_lines(tmp_path: Path) -> None:
    in_seconds = {"type": "call_ended", "timestamp": 1_790_000_000, "conversation_id": "c1"}
    ended = check(
        tmp_path, *CALL, '{"type": ', {"type": "of_tomorrow", "conversation_id": "c1"}, in_seconds
    )
    assert ended.code == 1
    assert "events.jsonl:7: this is not JSON" in ended.out
    assert "events.jsonl:8: its type is not known" in ended.out
    assert (
        "look like seconds: `timestamp` is in milliseconds since 1970. At "
        f"{tmp_path / 'events.jsonl'}:9." in ended.out
    )
    assert "6 events without `conversation_id`" in ended.out


def test_a_type_of_tomorrow_on_a_named_stream_is_told(tmp_path: Path) -> None:
    ended = check(tmp_path, {"type": "of_tomorrow", "stream": "pipecat", "conversation_id": "c1"})
    assert (ended.code, "of_tomorrow" in ended.out) == (1, True)


def test_a_wrong_kind_is_named_with_the_known_ones(tmp_path: Path) -> None:
    wrong = {**CALL[1], "data": {"kind": "user_started_speaking", "timestamp": T0_MS / 1000}}
    ended = check(tmp_path, wrong, CALL[2])
    assert ended.code == 1
    assert ended.out.startswith("1 event of 1 call understood, 0 refused, 1 not understood.\n")
    (line,) = [each for each in ended.out.splitlines() if "user_started_speaking" in each]
    assert "Known kinds: user_speech_started" in line
    (listed,) = json.loads(
        ran_here("events", "check", str(tmp_path / "events.jsonl"), "--json").out
    )["not_understood"]
    assert (listed["events"], "user_speech_started" in listed["what_to_do"]) == (1, True)


def test_lines_that_no_rule_reads_are_listed_apart_from_errors_which_are_counted(
    tmp_path: Path,
) -> None:
    lines = (
        {"type": kind, "timestamp": T0_MS, "conversation_id": "c", "data": {"frame": "x"}}
        for kind in ("transcript", "error")
    )
    out = check(tmp_path, *lines).out
    understood, _, unread = out.partition("no rule reads them")
    assert (
        "pipecat error" in understood,
        "pipecat transcript" in understood,
        "transcript" in unread,
    ) == (
        True,
        False,
        True,
    )


def test_standard_input_and_arrays_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(CALL).encode())))
    assert ran_here("events", "check", "-").out.startswith("6 events of 1 call understood")
    assert check(tmp_path, CALL, name="events.json").out.startswith("6 events of 1 call understood")


def test_files_that_cannot_be_checked_say_so(tmp_path: Path) -> None:
    assert "no such file" in ran_here("events", "check", str(tmp_path / "missing")).err
    assert "this is not JSON" in check(tmp_path, "hello", name="events.json").err


def measures_latency(events: list[dict[str, Any]]) -> bool:
    """Whether the engine gives the first turn of the call a latency."""
    feed = Feed()
    for number, event in enumerate(events):
        feed.send("pipecat", event, number)
    feed.advance(3_600_000)
    turns = turns_of(rows_of(feed.effects))
    return 1 in turns and isinstance(turns[1].wait_ms, float)


@pytest.mark.parametrize("left_out", range(len(CALL) + 1))
def test_latency_is_promised_only_where_the_engine_measures_it(left_out: int) -> None:
    events = CALL[:left_out] + CALL[left_out + 1 :]
    findings = check_events(io.BytesIO(json.dumps(events).encode()))
    found = {result.name: measured for result, measured, _ in findings.missing()}
    is_promised = bool(found["voice-to-voice latency of each turn"])
    assert is_promised == (left_out not in (1, 2, 3))
    assert measures_latency(events) or not is_promised


def test_a_program_reads_the_findings(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(
        "\n".join(json.dumps({"conversation_id": "c1", **event}) for event in CALL)
        + '\n{"type": "nothing"}\n'
    )
    ended = ran_here("events", "check", str(path), "--json")
    document = json.loads(ended.out)
    assert (ended.code, ended.err) == (1, "")
    assert (document["calls"], document["read"]["pipecat speech_event"]) == (1, 4)
    assert document["refused"][0]["where"] == f"{path}:7"
    results = {each["result"]: each for each in document["results"]}
    assert results["voice-to-voice latency of each turn"]["calls_with_it"] == 1
    assert results["words of the user"]["missing_events"] == ["pipecat user_message"]


def test_a_stage_that_the_sounds_contradict_is_named_with_its_source(tmp_path: Path) -> None:
    seconds = {
        "kind": "ttfb",
        "processor": "OneLLMService#0",
        "seconds": 203.0,
        "timestamp": (T0_MS + 5_800) / 1000,
    }
    latency = {"type": "service_latency", "timestamp": T0_MS + 5_800, "data": seconds}
    events = [{"conversation_id": "c1", **event} for event in (*CALL[:3], latency, *CALL[3:])]
    ended = check(tmp_path, *events)
    assert ended.code == 1
    lines = ended.out.splitlines()
    assert "        1  llm_first_token of pipecat" in lines
    assert any(
        line.startswith("Latencies that the sounds of their turn contradict") for line in lines
    )
    listed = json.loads(ran_here("events", "check", str(tmp_path / "events.jsonl"), "--json").out)[
        "contradicted"
    ]
    assert listed == [{"source": "pipecat", "stage": "llm_first_token", "values": 1}]
    seconds["seconds"] = 0.203
    assert check(tmp_path, *events).code == 0
