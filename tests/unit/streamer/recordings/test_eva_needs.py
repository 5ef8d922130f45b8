"""What EVA's rules miss in a call is named, with what becomes of the call: `score` and `events
check` say the same, and it is true.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes import ran_here
from tests.unit.streamer.cli.test_score import T0_MS, call, write_calls

Json = dict[str, Any]
Context = dict[str, Any]
WHOLE = call("c", "hello", "and now", "thanks")


def kind_of(event: Json) -> object:
    """The kind of an event, whichever source sends it; of a sound with its side."""
    if "event_type" in event:
        return f"{event['user']} {event['event_type']}"
    return event.get("message_type", event.get("type"))


def without(*kinds: str, first: int | None = None) -> Json:
    """The whole call without events of these kinds, or without the first ones only."""
    made: Json = json.loads(json.dumps(WHOLE))
    left = len(str(WHOLE)) if first is None else first
    for stream in ("audit", "pipecat", "user_sim", "control"):
        kept = []
        for event in made[stream]:
            if kind_of(event) in kinds and left:
                left -= 1
            else:
                kept.append(event)
        made[stream] = kept
    return made


def told(folder: Path, made: Json, *command: str) -> list[str]:
    """What a command says of a call on standard error: what is missing, without its effect and
    remedy.
    """
    path = write_calls(folder / "calls.jsonl", made)
    lines = ran_here(*(command or ("score",)), str(path)).err.splitlines()
    return [line.partition(": no ")[2].partition(". ")[0] for line in lines]


def checked(folder: Path, made: Json) -> Json:
    """What `events check` says of EVA's rules."""
    path = write_calls(folder / "calls.jsonl", made)
    found: Json = json.loads(ran_here("events", "check", str(path), "--json").out)["eva"]
    return found


def context_of(folder: Path, made: Json) -> Context:
    path = write_calls(folder / "calls.jsonl", made)
    context: Context = json.loads(ran_here("context", str(path)).out)["context"]
    return context


def texts(turns: Json) -> list[str]:
    return [text for text in turns.values() if text]


def test_a_whole_call_misses_nothing(tmp_path: Path) -> None:
    assert told(tmp_path, WHOLE) == told(tmp_path, WHOLE, "score", "--format", "eva") == []
    assert checked(tmp_path, WHOLE) == {"calls": 1, "missing": []}
    context = context_of(tmp_path, WHOLE)
    assert (context["num_user_turns"], context["num_assistant_turns"]) == (3, 4)
    assert len(context["latency_assistant_turns"]) == 3
    assert context["assistant_interrupted_turns"] == context["user_interrupted_turns"] == []


MARKERS = "`turn_start` or `turn_end` in the bot's log"
CASES: list[tuple[Json, str, Callable[[Context], object], object]] = [
    (without("turn_start"), MARKERS, lambda made: made["num_assistant_turns"], 1),
    (
        without("user_speech"),
        "`user_speech` with words",
        lambda made: texts(made["intended_user_turns"]),
        [],
    ),
    (
        without("assistant_speech"),
        "`assistant_speech`",
        lambda made: texts(made["transcribed_assistant_turns"])[:-1],
        [],
    ),
    (without("user"), "`user` entry in the audit log", lambda made: made["num_user_turns"], 0),
    (
        without("assistant"),
        "`assistant` entry in the audit log",
        lambda made: [
            each["turn_id"]
            for each in made["conversation_trace"]
            if each.get("role") == "assistant"
        ],
        [0, 3],
    ),
    (
        without("tts_text"),
        "event `tts_text` or `llm_response` in the bot's log",
        lambda made: made["num_assistant_turns"],
        0,
    ),
    (
        without("assistant audio_start", "assistant audio_end"),
        "`audio_start` of the assistant",
        lambda made: made["latency_assistant_turns"],
        {},
    ),
    (
        without("simulated_user audio_start", "simulated_user audio_end"),
        "`audio_start` of the user",
        lambda made: made["latency_assistant_turns"],
        {},
    ),
    (
        without("simulated_user audio_end"),
        "`audio_end` of the user",
        lambda made: made["assistant_interrupted_turns"],
        [1, 2, 3],
    ),
    (
        without("assistant audio_end"),
        "`audio_end` of the assistant",
        lambda made: made["user_interrupted_turns"],
        [1, 2, 3],
    ),
]


@pytest.mark.parametrize(
    ("made", "missing", "seen", "effect"), CASES, ids=[each[1] for each in CASES]
)
def test_what_is_missing_is_named_and_its_effect_is_true(
    tmp_path: Path,
    made: Json,
    missing: str,
    seen: Callable[[Context], object],
    effect: object,
) -> None:
    assert told(tmp_path, made) == told(tmp_path, made, "score", "--format", "eva") == [missing]
    (found,) = checked(tmp_path, made)["missing"]
    assert (found["what"], found["calls"], found["conversations"]) == (missing, 1, ["c"])
    assert found["what_happens"]
    assert found["what_to_do"]
    assert seen(context_of(tmp_path, made)) == effect


def test_without_markers_and_what_was_understood_turns_are_one(tmp_path: Path) -> None:
    made = without("turn_start", "assistant_speech")
    lines = ran_here("score", str(write_calls(tmp_path / "calls.jsonl", made))).err.splitlines()
    assert "without `assistant_speech` the turns are one" in lines[0]
    assert context_of(tmp_path, made)["num_user_turns"] == 1


def test_a_sound_that_the_end_of_the_call_cut_off_misses_no_end(tmp_path: Path) -> None:
    made = without()
    ends = [event for event in made["user_sim"] if event.get("event_type") == "audio_end"]
    made["user_sim"].remove(ends[-1])
    assert checked(tmp_path, made)["missing"] == []


def test_utterances_without_words_are_no_words(tmp_path: Path) -> None:
    made = without()
    for event in made["user_sim"]:
        if event.get("type") == "user_speech":
            event["data"]["text"] = "..."
    assert [each["what"] for each in checked(tmp_path, made)["missing"]] == [
        "`user_speech` with words"
    ]


def test_a_call_without_the_end_of_its_session_is_told_and_one_without_its_reason_where_eva_s_results_are_wanted(
    tmp_path: Path,
) -> None:
    made = without("connection_state", "call_ended")
    assert told(tmp_path, made) == ["`connection_state` with `session_ended`"]
    assert told(tmp_path, made, "score", "--format", "eva")[1:] == ["reason of the end"]
    assert [each["what"] for each in checked(tmp_path, made)["missing"]][1:] == [
        "reason of the end"
    ]


def test_a_call_of_a_real_caller_is_told_of_only_where_eva_s_results_are_wanted(
    tmp_path: Path,
) -> None:
    made = {**WHOLE, "user_sim": None}
    assert told(tmp_path, made) == []
    assert checked(tmp_path, made) == {"calls": 0, "missing": []}
    assert told(tmp_path, made, "score", "--format", "eva") == ["event of a simulated caller"]


def test_without_an_audit_log_eva_has_no_result_and_it_is_said(tmp_path: Path) -> None:
    assert told(tmp_path, {**WHOLE, "audit": None}) == ["entry of the audit log"]


def test_of_a_speech_model_the_bot_s_log_is_not_missed_and_what_was_understood_is_its_text(
    tmp_path: Path,
) -> None:
    made = {**without("tts_text", "turn_start", "assistant_speech"), "pipeline_type": "s2s"}
    (line,) = ran_here("score", str(write_calls(tmp_path / "calls.jsonl", made))).err.splitlines()
    assert "nothing that the assistant said: EVA counts no turn of the assistant" in line
    assert context_of(tmp_path, made)["num_assistant_turns"] == 0


def test_the_same_of_many_calls_is_named_three_times_and_counted(tmp_path: Path) -> None:
    calls = [{**without("turn_start"), "id": f"c{number}"} for number in range(5)]
    path = write_calls(tmp_path / "calls.jsonl", *calls)
    lines = ran_here("score", str(path)).err.splitlines()
    assert [line.partition(f": no {MARKERS}")[0] for line in lines] == [
        "Call c0",
        "Call c1",
        "Call c2",
        "And 2 more",
    ]
    out = ran_here("events", "check", str(path)).out
    assert f"  in 5 calls (c0, c1, c2, c3, c4): no {MARKERS}. EVA takes" in out
    assert (
        "Missing for EVA's rules, which make the turns of 5 calls with a simulated caller:" in out
    )


# -- records of a run, and files of events
# ------------------------------------------------------------------------------


def as_lines(events: Iterable[Json]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A record in its run, with every file that EVA's rules need."""
    folder = tmp_path / "run" / "records" / "7.1"
    folder.mkdir(parents=True)
    entries = [{**each, "timestamp": str(each["timestamp"])} for each in WHOLE["audit"]]
    (folder / "audit_log.json").write_text(json.dumps({"transcript": entries}))
    (folder / "framework_logs.jsonl").write_text(as_lines(WHOLE["pipecat"]))
    (folder / "user_simulator_events.jsonl").write_text(as_lines(WHOLE["user_sim"]))
    (folder / "result.json").write_text('{"conversation_ended_reason": "goodbye"}')
    (tmp_path / "run" / "config.json").write_text('{"model": {"llm": "x"}}')
    return folder


@pytest.mark.parametrize(
    ("file", "missing"),
    [
        (
            "framework_logs.jsonl",
            "event `tts_text` or `llm_response` in the bot's log",
        ),
        (
            "user_simulator_events.jsonl",
            "event of a simulated caller",
        ),
        ("result.json", "reason of the end"),
        ("../../config.json", "type of the agent"),
    ],
)
def test_a_missing_file_of_a_record_is_told(record: Path, file: str, missing: str) -> None:
    assert ran_here("score", str(record), "--format", "eva").err == ""
    (record / file).unlink()
    (line,) = ran_here("score", str(record), "--format", "eva").err.splitlines()
    assert line.startswith(f"Call 7.1 in {record}: no {missing}. ")
    found = json.loads(ran_here("events", "check", str(record), "--json").out)["eva"]["missing"]
    assert [each["what"] for each in found] == [missing]
    said = ran_here("score", str(record)).err
    assert said == ("" if file == "result.json" else line + "\n")


def test_numbers_of_the_bot_are_no_texts_and_a_speech_model_needs_none(record: Path) -> None:
    (record / "framework_logs.jsonl").unlink()
    (record / "pipecat_metrics.jsonl").write_text(
        '{"type": "TTFBMetricsData", "timestamp": 1790000000100}\n'
    )
    assert ": no event `tts_text` " in ran_here("score", str(record)).err
    (record.parents[1] / "config.json").write_text('{"model": {"s2s": "gpt-realtime"}}')
    assert ran_here("score", str(record)).err == ""


def test_a_file_of_events_that_does_not_say_the_type_of_its_agent_is_told(tmp_path: Path) -> None:
    def written(**started: str) -> Path:
        names = (("audit", "audit"), ("pipecat", "pipecat"), ("user_sim", "user_sim"))
        events = [{**each, "stream": stream} for name, stream in names for each in WHOLE[name]]
        path = tmp_path / "events.jsonl"
        start = {"type": "call_started", "timestamp": T0_MS, **started}
        path.write_text(
            as_lines(
                {**each, "conversation_id": "c"} for each in [start, *events, *WHOLE["control"]]
            )
        )
        return path

    (found,) = json.loads(ran_here("events", "check", str(written()), "--json").out)["eva"][
        "missing"
    ]
    assert found["what"] == "type of the agent"
    assert json.loads(
        ran_here("events", "check", str(written(pipeline_type="cascade")), "--json").out
    )["eva"] == {
        "calls": 1,
        "missing": [],
    }
