"""Recorded calls are read whole and exactly, or refused with the place of the fault."""

import gzip
import json
from pathlib import Path

import pytest

from streamer.recordings.files import (
    MAX_LINE_BYTES,
    PIPECAT_FILES,
    RecordedCall,
    RecordingError,
    without_trial,
)
from streamer.recordings.reader import read_recordings

CARD = "4111 1111 1111 1111"
ENTRY = {"value": "hello", "timestamp": "1790000000100", "message_type": "user"}
WORD = {"type": "tts_text", "data": {"frame": "Hello"}, "timestamp": 1790000000200}
SOUND = {
    "timestamp": 1790000000300,
    "event_type": "audio_start",
    "user": "assistant",
    "audio_timestamp": 1790000000.3,
}


def write_lines(path: Path, *lines: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)
    return path


def write_record(directory: Path, **result: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "audit_log.json").write_text(
        json.dumps({"transcript": [ENTRY], "llm_prompts": []})
    )
    if result:
        (directory / "result.json").write_text(json.dumps(result))
    return directory


def the_call(path: Path) -> RecordedCall:
    (call,) = read_recordings(path)
    return call


def refusal(path: Path) -> RecordingError:
    with pytest.raises(RecordingError) as caught:
        list(read_recordings(path))
    return caught.value


def test_a_record_directory_is_read_whole(tmp_path: Path) -> None:
    directory = write_record(
        tmp_path / "7.1", record_id="rec-7", conversation_ended_reason="goodbye"
    )
    write_lines(directory / "pipecat_logs.jsonl", WORD, WORD)
    write_lines(directory / "elevenlabs_events.jsonl", SOUND)
    assert the_call(directory) == RecordedCall(
        "rec-7", "cascade", "goodbye", (ENTRY,), (WORD, WORD), (SOUND,)
    )


def test_without_a_result_the_directory_names_the_call_and_missing_files_are_absent_sources(
    tmp_path: Path,
) -> None:
    assert the_call(write_record(tmp_path / "7.1")) == RecordedCall(
        "7.1", "cascade", None, (ENTRY,), None, None
    )


def test_the_file_name_of_eva_s_documentation_is_read(tmp_path: Path) -> None:
    directory = write_record(tmp_path / "a")
    write_lines(directory / "pipecat_events.jsonl", WORD)
    assert the_call(directory).pipecat == (WORD,)


def test_newer_file_names_win(tmp_path: Path) -> None:
    directory = write_record(tmp_path / "a")
    write_lines(directory / "pipecat_logs.jsonl", {"old": 1})
    write_lines(directory / "framework_logs.jsonl", WORD)
    write_lines(directory / "elevenlabs_events.jsonl", {"old": 1})
    write_lines(directory / "user_simulator_events.jsonl", SOUND)
    call = the_call(directory)
    assert (call.pipecat, call.elevenlabs) == ((WORD,), (SOUND,))


@pytest.mark.parametrize(
    ("model", "pipeline_type"),
    [
        ({"llm": "x", "stt": "y"}, "cascade"),
        ({"s2s": "gemini"}, "s2s"),
        ({"s2s": "elevenlabs"}, "cascade"),
        ({"s2s": "ultravox"}, "audio_llm"),
        ({"audio_llm": "x"}, "audio_llm"),
        ({"realtime_model": "x", "llm_model": "y"}, "s2s"),
        (None, "cascade"),
    ],
)
def test_the_config_of_the_run_decides_the_pipeline(
    tmp_path: Path, model: object, pipeline_type: str
) -> None:
    directory = write_record(tmp_path / "run" / "records" / "1" / "trial_0")
    (tmp_path / "run" / "config.json").write_text(json.dumps({"model": model}))
    assert the_call(directory).pipeline_type == pipeline_type


def test_trials_in_the_flat_folders_of_older_runs_are_calls_of_their_own(tmp_path: Path) -> None:
    records = tmp_path / "run" / "records"
    write_record(records / "1.2.1_trial_0", record_id="1.2.1")
    write_record(records / "1.2.1_trial_1", record_id="1.2.1_trial_1")
    write_record(records / "my_call_trial_12")
    write_record(records / "1.2.1_trial_2_failed_attempt_1", record_id="1.2.1")
    ids = [call.conversation_id for call in read_recordings(tmp_path / "run")]
    assert ids == ["1.2.1/trial_0", "1.2.1/trial_1", "my_call/trial_12"]
    assert [without_trial(each) for each in ids] == ["1.2.1", "1.2.1", "my_call"]


@pytest.mark.parametrize("broken", [b"\n", b"{\n", b'{"type": "tts_text"}\n[1]\n', b"\xff\n"])
@pytest.mark.parametrize("name", PIPECAT_FILES)
def test_a_broken_framework_log_refuses_no_record_that_does_not_need_it(
    tmp_path: Path, name: str, broken: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_record(tmp_path / "run" / "records" / "1")
    write_lines(directory / "user_simulator_events.jsonl", SOUND)
    (directory / name).write_bytes(broken)
    (tmp_path / "run" / "config.json").write_text(json.dumps({"model": {"s2s": "openai"}}))
    assert the_call(directory) == RecordedCall("1", "s2s", None, (ENTRY,), None, (SOUND,))
    assert "The file is left out" in capsys.readouterr().err
    (tmp_path / "run" / "config.json").write_text(json.dumps({"model": {"llm": "x"}}))
    assert name in refusal(directory).where


def test_a_run_directory_yields_its_records_in_name_order(tmp_path: Path) -> None:
    for name in ("2", "1"):
        write_record(tmp_path / "run" / "records" / name)
    write_record(tmp_path / "run" / "too" / "far" / "down" / "3")
    assert [call.conversation_id for call in read_recordings(tmp_path / "run")] == ["1", "2"]


@pytest.mark.parametrize("name", ["calls.jsonl", "calls.jsonl.gz"])
def test_wire_level_files(tmp_path: Path, name: str) -> None:
    control = {"type": "call_started", "timestamp": 1}
    first = {
        "id": "a",
        "pipeline_type": "s2s",
        "conversation_ended_reason": "error",
        "audit": [ENTRY],
        "pipecat": None,
    }
    second = {"id": "b", "user_sim": [SOUND], "pipecat": [], "control": [control], "expected": {}}
    assert list(read_recordings(write_lines(tmp_path / name, first, second))) == [
        RecordedCall("a", "s2s", "error", (ENTRY,), None, None),
        RecordedCall("b", "cascade", None, None, (), (SOUND,), (control,)),
    ]


def test_calls_before_a_broken_line_are_read(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "calls.jsonl", {"id": "a", "audit": []})
    path.write_bytes(path.read_bytes() + b'{"id": "b", \n')
    calls = read_recordings(path)
    assert next(calls).conversation_id == "a"
    with pytest.raises(RecordingError) as caught:
        next(calls)
    assert caught.value.where == f"{path}:2"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_does_not_have_is_null_and_the_rest_is_read(
    tmp_path: Path, number: str
) -> None:
    path = write_lines(tmp_path / "calls.jsonl", {"id": "a", "audit": []})
    path.write_text(
        f'{{"id": "a", "audit": [{{"fee": {number}, "said": "NaN"}}]}}\n{{"id": "b", "audit": '
        f"[]}}\n"
    )
    first, second = read_recordings(path)
    assert (first.audit, second.conversation_id) == (({"fee": None, "said": "NaN"},), "b")


@pytest.mark.parametrize(
    ("line", "expected", "seen"),
    [
        (b'{"id": \n', "a JSON object", "Expecting value"),
        (b'{"id": "\xff"}\n', "a JSON object", "utf-8"),
        (b"[" * 100_000, "a JSON object", "recursion"),
        (b"[1]\n", "a JSON object", "a list"),
        (b'{"audit": []}\n', '"id"', "nothing"),
        (b'{"id": "", "audit": []}\n', '"id"', "an empty text"),
        (b'{"id": "a"}\n', "audit, pipecat, user_sim", "none of them"),
        (b'{"id": "a", "audit": {}}\n', "a list of events", "an object"),
        (b'{"id": "a", "audit": [{}, 3]}\n', "an event as a JSON object", "a number"),
        (
            b'{"id": "a", "audit": [], "pipeline_type": "duplex"}\n',
            "cascade, audio_llm, s2s",
            "'duplex'",
        ),
        (b'{"id": "a", "audit": [], "pipeline_type": []}\n', "cascade, audio_llm, s2s", "a list"),
        (
            b'{"id": "a", "audit": [], "conversation_ended_reason": 3}\n',
            "a text or null",
            "a number",
        ),
    ],
)
def test_a_wrong_line_is_named_and_never_skipped(
    tmp_path: Path, line: bytes, expected: str, seen: str
) -> None:
    path = write_lines(tmp_path / "calls.jsonl", {"id": "first", "audit": []})
    path.write_bytes(path.read_bytes() + line)
    refused = refusal(path)
    assert refused.where.startswith(f"{path}:2")
    assert expected in refused.expected
    assert seen in refused.seen


def test_a_line_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl.gz"
    first = b'{"id": "a", "audit": []}\n'
    path.write_bytes(gzip.compress(first + b" " * (MAX_LINE_BYTES + 10), compresslevel=1))
    with pytest.raises(RecordingError, match="a longer one"):
        list(read_recordings(path))


def test_a_blank_line_in_a_record_is_named(tmp_path: Path) -> None:
    directory = write_record(tmp_path / "a")
    (directory / "pipecat_logs.jsonl").write_text(json.dumps(WORD) + "\n\n")
    refused = refusal(directory)
    assert refused.where == f"{directory / 'pipecat_logs.jsonl'}:2"


def test_files_that_are_missing_or_no_recordings(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_lines(tmp_path / "crashed" / "pipecat_logs.jsonl", WORD)
    (tmp_path / "shape").mkdir()
    (tmp_path / "shape" / "audit_log.json").write_text('{"entries": []}')
    write_record(tmp_path / "number", record_id=7)
    (tmp_path / "none.jsonl").write_bytes(b"")
    (tmp_path / "calls.csv").write_bytes(b"")
    cut = write_lines(tmp_path / "cut.jsonl.gz", {"id": "a", "audit": [ENTRY]})
    cut.write_bytes(cut.read_bytes()[:-10])
    (tmp_path / "plain.jsonl.gz").write_bytes(b"{}")
    seen = {}
    for name in (
        "gone",
        "empty",
        "crashed",
        "shape",
        "number",
        "none.jsonl",
        "calls.csv",
        "cut.jsonl.gz",
        "plain.jsonl.gz",
    ):
        seen[name] = refusal(tmp_path / name).seen
    assert (seen["gone"], seen["empty"]) == ("no such file or directory", "none")
    assert (seen["crashed"], seen["shape"]) == ("no such file", "no such key")
    assert (seen["number"], seen["none.jsonl"]) == ("a number", "an empty file")
    assert seen["calls.csv"] == "an empty file"
    assert "ended" in seen["cut.jsonl.gz"]
    assert "gzip" in seen["plain.jsonl.gz"].lower()


def test_the_message_has_five_parts(tmp_path: Path) -> None:
    refused = refusal(tmp_path / "gone")
    assert str(refused) == (
        f"{tmp_path / 'gone'}: there is no recorded call:\n"
        "  expected a file, or a directory of recorded calls; seen no such file or directory.\n"
        "  Nothing is read from it.\n"
        "  Check the spelling of the path; `sample` is a call that comes with callgauge."
    )


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"message": f"my card {CARD}" + " x" * 20_000}, "'my card [CARD] x x"),
        # the limit would cut this number in two
        ({"message": "x" * 70 + f" {CARD}" + " y" * 20_000}, "x [CARD]"),
        ({"message": f"so\n{CARD}" + "\n" * 40_000}, "'so\\n[CARD]\\n"),
        ({"time_in_call_secs": "jane.doe@example.com"}, "'[EMAIL]'"),
        ({"message": 4111111111111111}, "[CARD]"),
        ({"message": {"jane@example.com": CARD}}, "an object with [EMAIL]"),
        ({"message": [CARD]}, "a list"),
    ],
)
def test_no_personal_data_is_told_of_a_record_that_cannot_be_read(
    tmp_path: Path, change: dict[str, object], shown: str
) -> None:
    path = tmp_path / "call.json"
    path.write_text(json.dumps({"transcript": [{"role": "user", "message": "hi"} | change]}))
    refused = refusal(path)
    assert shown in refused.seen
    assert len(refused.seen) < 200
    assert not [
        part for part in ("4111", "1111", "jane") if part in str(refused).replace(str(path), "")
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("call.json", f'{{"{CARD}": 1, "jane@example.com": 2}}'),
        ("calls.jsonl", f'{{"id": "a", "audit": [], "pipeline_type": "{CARD}"}}\n'),
        ("calls.jsonl", '{"id": "a", "audit": [4111111111111111e999]}\n'),
    ],
)
def test_nor_of_any_other_file(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    refused = refusal(path)
    told = str(refused).replace(str(path), "")
    assert "1111" not in told
    assert "jane" not in told


def test_whoever_says_what_was_seen_need_not_think_of_it() -> None:
    error = RecordingError(
        what="w", where="f:1", expected="e", seen=f"a line with {CARD}", remedy="r"
    )
    assert error.seen == "a line with [CARD]"
    assert "seen a line with [CARD].\n" in str(error)
