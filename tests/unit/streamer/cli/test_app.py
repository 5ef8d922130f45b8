"""The command line teaches, prints results on standard output only, and reports faults in plain
words.
"""

import io
import json
import os
import pty
import re
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError
from schemas.json_schemas import SCHEMA_NAMES
from schemas.topics import INPUT_TOPICS, TOPICS
from streamer.cli import app as cli_app
from streamer.cluster.topic_admin import judged
from streamer.event_check import check_events
from streamer.facts import installed_version
from streamer.roles import running as run_command
from streamer.roles.running import STOP_SECONDS
from streamer.sources.simulator.traffic import simulate_call
from tests.support.fakes.embedded_broker import PARTITIONS, embedded_broker
from tests.support.patience import patient
from tests.unit.streamer.command_line import Command

COMMANDS = [
    *(
        "demo",
        "run",
        "replay",
        "simulate",
        "context",
        "topics",
        "topics create",
        "topics check",
        "schema",
    ),
    *("quarantine", "quarantine list", "quarantine show", "quarantine replay", "doctor"),
    *("goals", "goals check", "score", "report", "transcript", "serve", "events", "events check"),
    *(
        "settings",
        "call",
        "top",
        "trials",
        "history",
        "history find",
        "history compare",
        "history import",
        "deploy-files",
        "mcp",
    ),
]
ROOT = Path(__file__).parents[4]
NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _log_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    # it would take the log away
    monkeypatch.setattr(run_command, "configure_logging", lambda *_, **__: None)
    monkeypatch.setenv("TERMINAL_WIDTH", "200")


def write_calls(path: Path, *seeds: int) -> list[str]:
    """Writes a wire-level file of simulated calls; returns their ids."""
    lines = []
    for seed in seeds:
        call = simulate_call(seed, start_ms=1_790_000_000_000, kind="cascade").call
        line = {
            "id": call.conversation_id,
            "audit": call.audit,
            "pipecat": call.pipecat,
            "user_sim": call.elevenlabs,
        }
        lines.append({**line, "control": call.control})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [str(line["id"]) for line in lines]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_ends_with_an_example_of_that_command(callgauge: Command, command: str) -> None:
    code, out, err = callgauge(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert "Example" in out
    assert f"callgauge {command}" in out.split("Example", 1)[1]


@pytest.mark.parametrize("name", cli_app.COMMANDS)
def test_each_line_of_the_examples_is_one_call(name: str) -> None:
    command = cli_app.loaded(name)
    for each in (command, *getattr(command, "commands", {}).values()):
        *_, examples = each.help.split("\n\n")
        for line in examples.splitlines()[1:]:
            assert re.match(
                r" +(?:[A-Z_]+=(?:\$\(.*\)|\S+) |[\w-]+ .*\| )*callgauge [a-z]", line
            ), line
            assert len(re.findall(r"(?<!\| )callgauge [a-z]", line)) <= 1, line


def test_the_list_of_commands_is_complete(callgauge: Command) -> None:
    assert set(cli_app.COMMANDS) == {command.split()[0] for command in COMMANDS}
    modules = {
        path.stem.replace("_", "-")
        for path in (ROOT / "streamer" / "cli").glob("*.py")
        if "app = typer.Typer(" in path.read_text()
    }
    assert modules - {"app"} == set(cli_app.COMMANDS)
    assert callgauge("--version") == (0, f"callgauge {installed_version()}\n", "")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_list_fits_a_small_terminal_a_line_for_each_command(
    callgauge: Command, option: str
) -> None:
    lines = callgauge(option).out.splitlines()
    assert len(lines) < 24, "the prompt comes after it"
    assert max(map(len, lines)) <= 80
    for group, commands in cli_app.GROUPS.items():
        (first,) = [number for number, line in enumerate(lines) if line.startswith(f"{group} ")]
        shown = [
            line.removeprefix(group).split(maxsplit=1)
            for line in lines[first : first + len(commands)]
        ]
        assert shown == [list(command) for command in commands.items()]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--watch sample --speed 2", "--speed cannot be combined with --watch"),
        ("sample --run-name monday", "--run-name is of use only with --watch"),
        ("--from-topics --watch", "--watch cannot be combined with --from-topics"),
        ("sample --since 2h", "--since is of use only with --from-topics"),
        ("--watch nowhere", "nowhere: there is no such file or folder, so nothing is watched"),
        ("--watch a b", "2 paths were named, so nothing is watched"),
    ],
)
def test_a_replay_of_one_kind_takes_no_options_of_another(
    callgauge: Command, options: str, told: str
) -> None:
    ended = callgauge("replay", *options.split())
    assert ended.code in (1, 2)
    assert told in " ".join(ended.err.replace("│", " ").split())


@pytest.mark.parametrize("command", cli_app.COMMANDS)
def test_the_list_says_of_a_command_what_its_help_says_first(command: str) -> None:
    assert cli_app.loaded(command).help.split("\n\n")[0] == cli_app.COMMANDS[command]


def test_a_docstring_becomes_help_that_the_terminal_wraps() -> None:
    docstring = (
        "Prints\nit.\n\nIn one\nline.\n\nExamples:\n    callgauge it\n    callgauge it again"
    )
    assert (
        cli_app.help_text(docstring)
        == "Prints it.\n\nIn one line.\n\nExamples:\n    callgauge it\n    callgauge it again"
    )


def test_the_help_of_run_says_how_long_stopping_may_take() -> None:
    assert f"may take {STOP_SECONDS:.0f} s;" in cli_app.loaded("run").help


def test_a_context_is_printed_for_each_call_and_does_not_depend_on_the_arrival(
    callgauge: Command, tmp_path: Path
) -> None:
    path = tmp_path / "calls.jsonl"
    ids = write_calls(path, 1, 2, 3)
    code, out, err = callgauge("context", path)
    assert (code, err) == (0, "")
    printed = [json.loads(line) for line in out.splitlines()]
    assert [line["id"] for line in printed] == ids
    assert all(
        list(line) == ["id", "turns_by", "context"] and line["turns_by"] == "eva"
        for line in printed
    )
    assert all(line["context"]["transcribed_user_turns"] for line in printed)
    assert callgauge("context", path, "--arrival", 7).out == out


def test_results_go_to_standard_output_also_while_progress_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    ids = write_calls(path, *range(1, 13))
    ours, terminal = pty.openpty()
    try:
        command = [sys.executable, "-m", "streamer.cli.main", "context", str(path)]
        environment = {**os.environ, "TERM": "xterm"}
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=terminal,
            timeout=patient(60),
        )
        shown = os.read(ours, 65_536)
    finally:
        os.close(ours)
        os.close(terminal)
    assert ended.returncode == 0
    assert [json.loads(line)["id"] for line in ended.stdout.splitlines()] == ids
    assert b" calls, " in shown
    assert b"context" not in shown


def test_an_event_the_evaluator_would_refuse_is_told_and_left_out(
    callgauge: Command, tmp_path: Path
) -> None:
    def line(*audit: object) -> str:
        return json.dumps({"id": "c", "audit": list(audit)}) + "\n"

    good = {"value": "hi", "timestamp": 1, "message_type": "user"}
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    whole.write_text(line(good))
    broken.write_text(line(good, *[{"value": "hi", "message_type": "user"}] * 5))
    code, out, err = callgauge("context", broken)
    assert (code, out) == (0, callgauge("context", whole).out)
    told = err.splitlines()
    assert told[0].startswith("Call c, event 2 of audit.events: ")
    assert told[3:] == ["Call c: 2 more events left out."]


def test_the_topic_table_lists_every_topic_in_one_line(callgauge: Command) -> None:
    code, out, _ = callgauge("topics")
    assert code == 0
    rows = out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [topic.name for topic in TOPICS]
    assert all(topic.what in row for topic, row in zip(TOPICS, rows, strict=True))


def test_schemas_are_listed_and_printed(callgauge: Command) -> None:
    assert callgauge("schema") == (0, "\n".join(SCHEMA_NAMES) + "\n", "")
    assert "TurnRow" in json.loads(callgauge("schema", "turn-row").out)["$defs"]
    code, out, err = callgauge("schema", "nothing")
    assert (code, out) == (2, "")
    assert "'nothing' is no record type" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["replay"], "Missing argument"),
        (["replay", "x.jsonl", "--speed", "0"], "'0' is no speed"),
        (["replay", "x.jsonl", "--speed", "inf"], "'inf' is no speed"),
        (["score"], "Missing argument"),
        (["score", "x.jsonl", "--judge", "maybe"], "'maybe' is not one of 'off', 'on'"),
        (["run", "--roles", "evaluator,exporteur"], "'exporteur' is no role"),
        (["run", "--roles", ""], "'' is no role"),
        (["run", "--http-port", "70000"], "--http-port is 70000"),
        (["run", "--config", "missing.toml"], "missing.toml: the settings file cannot be read"),
        (["simulate", "--calls", "0"], "--calls"),
        (["quarantine", "show", "pipecat.events"], "TOPIC[PARTITION]@OFFSET"),
        (["quarantine", "show", "scores[0]@1"], "'scores' is no input topic"),
        (["quarantine", "list", "--since", "noon"], "'noon' is no moment"),
        (["quarantine", "list", "--reason", "nonsense"], "invalid_event"),
        (["quarantine", "replay"], "say which records"),
        (["quarantine", "replay", "--since", "2h"], "say which records"),
        (["quarantine", "replay", "--all", "pipecat.events[0]@1"], "say which records"),
        (
            ["quarantine", "replay", "pipecat.events[0]@1", "--topic", "audit.events"],
            "leave them out",
        ),
        (["nonsense"], "No such command"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_why(
    callgauge: Command, arguments: list[str], told: str
) -> None:
    code, out, err = callgauge(*arguments)
    assert (code, out) == (2, "")
    assert told in err


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "check"],
        ["topics", "create"],
        ["simulate", "--seconds", "1"],
        ["quarantine", "list"],
        ["quarantine", "show", "pipecat.events[0]@1"],
        ["quarantine", "replay", "--all"],
    ],
)
def test_a_broker_that_is_away_is_told_in_plain_words(
    callgauge: Command, command: list[str]
) -> None:
    code, out, err = callgauge(*command, "--bootstrap", NOBODY)
    assert (code, out) == (1, "")
    assert f"no broker answers at {NOBODY}" in err
    assert "Traceback" not in err
    # which says where to look without Kafka, unless the command is for Kafka alone
    assert ("need no Kafka: add --folder" in err) == (command[0] != "topics")


@pytest.mark.parametrize("exit_code", [1, 2])
def test_an_error_that_a_person_can_fix_is_printed_and_sets_the_exit_code(
    callgauge: Command, monkeypatch: pytest.MonkeyPatch, exit_code: int
) -> None:
    class OutOfPaperError(OperatorError):
        pass

    def app(prog_name: str) -> None:
        raise OutOfPaperError("no paper: put some in")

    OutOfPaperError.exit_code = exit_code
    monkeypatch.setattr(cli_app, "app", app)
    assert callgauge("demo") == (exit_code, "", "no paper: put some in\n")


def test_every_other_error_is_a_defect_and_keeps_its_traceback(
    callgauge: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_app, "app", lambda prog_name: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        callgauge("demo")


def test_a_broken_recording_is_found_before_a_broker_is_asked(
    callgauge: Command, tmp_path: Path
) -> None:
    path = tmp_path / "calls.jsonl"
    write_calls(path, 1)
    path.write_text(path.read_text() + "{\n")
    code, _, err = callgauge("replay", path, "--bootstrap", NOBODY)
    assert code == 1
    assert f"{path}:2: this is not JSON" in err


def test_a_taken_port_is_told_in_plain_words(callgauge: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = callgauge("run", "--http-port", port, "--bootstrap", NOBODY)
    assert (code, out) == (1, "")
    assert f"127.0.0.1:{port}" in err
    assert "Choose another port" in err


def test_a_variable_that_looks_like_a_slip_is_mentioned(
    callgauge: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLGAUGE_BOOTSTRAPS", "a:1")
    assert (
        "did you mean CALLGAUGE_BOOTSTRAP?"
        in callgauge("topics", "check", "--bootstrap", NOBODY).err
    )


def test_ctrl_c_while_loading_leaves_no_traceback(
    callgauge: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    for module in ("streamer.cli.app", "streamer.cli.demo"):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, module, Interrupted())
            assert callgauge("demo") == (130, "", "")


@pytest.fixture
def embedded() -> Iterator[str]:
    with embedded_broker(INPUT_TOPICS) as bootstrap:
        yield bootstrap


class Record(NamedTuple):
    key: str
    event: dict[str, Any]


def records(bootstrap: str) -> list[Record]:
    """All records of the input topics, in the order of each partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True}
    )
    try:
        partitions = [
            TopicPartition(topic, number, 0)
            for topic in INPUT_TOPICS
            for number in range(PARTITIONS)
        ]
        consumer.assign(partitions)
        found: list[Record] = []
        ends = 0
        deadline_seconds = time.monotonic() + patient(20)
        while ends < len(partitions):
            assert time.monotonic() < deadline_seconds, "the records could not be read"
            for message in consumer.consume(num_messages=500, timeout=1):
                if message.error():
                    ends += 1  # the end of a partition
                else:
                    found.append(
                        Record((message.key() or b"").decode(), json.loads(message.value() or b""))
                    )
        return found
    finally:
        consumer.close()


def test_a_replay_is_fresh_each_time_and_happens_now(
    callgauge: Command, embedded: str, tmp_path: Path
) -> None:
    path = tmp_path / "calls.jsonl"
    ids = write_calls(path, 1, 2)
    began_ms = time.time_ns() // 1_000_000
    for _ in range(2):
        code, out, err = callgauge("replay", path, "--speed", "max", "--bootstrap", embedded)
        assert (code, out) == (0, "")
    found = records(embedded)
    assert f"Played 2 calls, {len(found) // 2} events" in err
    keys = {record.key for record in found}
    assert len(keys) == 4
    end = err.split("callgauge call ")[1].split()[0]
    assert f"--bootstrap {embedded}; the others end with {end[:-1]}2 and so on" in err
    assert sum(key.startswith(ids[0]) and key.endswith(end) for key in keys) == 1
    assert all(sum(key.startswith(f"{name}-") for key in keys) == 2 for name in ids)
    times_ms = [int(record.event["timestamp"]) for record in found]
    assert max(times_ms) <= time.time_ns() // 1_000_000
    assert min(times_ms) > began_ms - 300_000  # the calls are shorter than that, and end now


def test_ids_and_times_are_kept_when_asked(
    callgauge: Command, embedded: str, tmp_path: Path
) -> None:
    path = tmp_path / "calls.jsonl"
    (name,) = write_calls(path, 1)
    arguments = ("--keep-ids", "--keep-times", "--speed", "max", "--bootstrap", embedded)
    code, _, err = callgauge("replay", path, *arguments)
    assert code == 0
    assert "callgauge call" not in err
    found = records(embedded)
    assert {record.key for record in found} == {name}
    assert min(int(record.event["timestamp"]) for record in found) == 1_790_000_000_000


def test_the_agent_and_goals_of_the_recorded_id_are_named_where_the_recording_has_none(
    callgauge: Command, embedded: str, tmp_path: Path
) -> None:
    path = tmp_path / "calls.jsonl"
    said = {"value": "hi", "timestamp": 5000, "message_type": "user"}
    named = {"type": "call_started", "timestamp": 5000, "goals": "its own", "agent": "its own"}
    calls = ({"id": "1.1.2", "audit": [said]}, {"id": "1.1.3", "audit": [said], "control": [named]})
    path.write_text("".join(json.dumps(call) + "\n" for call in calls))
    options = ("--agent", "bot-7", "--goals", "airline-{id}", "--bootstrap", embedded)
    assert callgauge("replay", path, *options).code == 0
    found = records(embedded)
    started = [record for record in found if record.event.get("type") == "call_started"]
    assert {
        record.key.split("-")[0]: (record.event["agent"], record.event["goals"])
        for record in started
    } == {
        "1.1.2": ("bot-7", "airline-1.1.2"),
        "1.1.3": ("its own", "its own"),
    }
    kinds = [record.event.get("type") for record in found if record.key.startswith("1.1.2")]
    assert kinds == ["call_started", None, "call_ended"]


def test_simulated_calls_flow_until_the_time_is_over(callgauge: Command, embedded: str) -> None:
    code, out, err = callgauge(
        "simulate", "--calls", 3, "--seconds", 0.5, "--seed", 1, "--bootstrap", embedded
    )
    assert (code, out) == (0, "")
    assert "seed 1" in err
    kinds = {record.event.get("type") for record in records(embedded)}
    assert "call_started" in kinds
    assert "call_ended" not in kinds, "no call is waited for: each takes a minute"


def test_partitions_that_do_not_fit_are_named() -> None:
    counts = {f"x.{topic.name}": 4 for topic in TOPICS} | {
        "x.scores": 8,
        "x.goals": 1,
        "elsewhere": 3,
    }
    del counts["x.audit.events"]
    kafka = KafkaSettings(topic_prefix="x.")
    assert {state.name: state.problem for state in judged(counts, kafka) if state.problem} == {
        "x.audit.events": "does not exist",
        "x.scores": "has 8 partitions, not 4 as x.events",
    }
    assert all(state.problem == "does not exist" for state in judged({}, kafka))


def test_printed_events_of_simulated_calls_are_all_understood(callgauge: Command) -> None:
    code, out, err = callgauge(
        "simulate", "--print", "--calls", 2, "--seed", 3, "--bootstrap", NOBODY
    )
    assert (code, err) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    assert len({event["conversation_id"] for event in events}) == 2
    findings = check_events(io.BytesIO(out.encode()))
    assert (findings.refused, findings.not_understood, findings.in_seconds) == ([], {}, [])
    assert sum(findings.read.values()) == len(events)


def test_without_a_command_the_list_is_printed(callgauge: Command) -> None:
    code, out, err = callgauge()
    assert (code, err) == (2, "")
    assert out == callgauge("--help").out


def test_a_program_reads_the_topics_and_their_faults(callgauge: Command) -> None:
    code, out, err = callgauge("topics", "--json")
    assert (code, err) == (0, "")
    assert [row["name"] for row in json.loads(out)] == [topic.name for topic in TOPICS]
    with embedded_broker([topic.name for topic in TOPICS[1:]]) as bootstrap:
        code, out, err = callgauge("topics", "check", "--json", "--bootstrap", bootstrap)
    rows = {row["topic"]: row for row in json.loads(out)}
    assert rows.keys() == {topic.name for topic in TOPICS}
    assert code == 1
    assert rows[TOPICS[0].name]["partitions"] is None
    assert rows[TOPICS[0].name]["faults"] != []
    assert rows["scores"]["partitions"] == PARTITIONS


@pytest.mark.parametrize("command", ["topics", "settings"])
def test_a_table_in_a_pipe_has_no_padding(callgauge: Command, command: str) -> None:
    lines = callgauge(command).out.splitlines()
    assert len(lines) > len(INPUT_TOPICS)
    assert [line for line in lines if line.endswith(" ")] == []


ASK = """
import json, sys
from streamer.cli.main import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
sys.stderr.write(json.dumps(sorted(sys.modules)))
"""


def completed(shell: str, words: str) -> tuple[str, set[str]]:
    """Returns the completions of a line with an unfinished last word, and the modules that were
    loaded.
    """
    asked = {
        "_CALLGAUGE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    others = {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    ended = subprocess.run(
        [sys.executable, "-c", ASK],
        cwd=ROOT,
        env={**os.environ, **asked, **others},
        capture_output=True,
        text=True,
        timeout=patient(30),
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, set(json.loads(ended.stderr))


def test_bash_completes_commands_without_loading_them() -> None:
    answer, modules = completed("bash", "callgauge ")
    assert answer.split() == list(cli_app.COMMANDS)
    assert (
        modules & {"aiokafka", "consumers.engine", "faststream", "schemas.topics", "structlog"}
        == set()
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("callgauge sc", ["score", "schema"]),
        ("callgauge topics c", ["create", "check"]),
        ("callgauge quarantine list --js", ["--json"]),
        ("callgauge context --arr", ["--arrival"]),
        ("callgauge nothing", []),
    ],
)
def test_bash_completes_subcommands_and_options(words: str, expected: list[str]) -> None:
    assert completed("bash", words)[0].split() == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_show_a_summary_beside_the_command(shell: str) -> None:
    answer, _ = completed(shell, "callgauge sche")
    assert "schema" in answer
    assert "Prints the JSON Schema" in answer


def test_the_script_for_a_shell_is_printed() -> None:
    command = (
        f"{sys.executable} -c 'from streamer.cli.main import main; main()' --show-completion; exit "
        "$?"
    )
    ended = subprocess.run(  # the script is for the shell that starts the command
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=patient(30)
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "complete -o default -F _callgauge_completion callgauge" in ended.stdout


def test_help_names_no_type_of_python_and_each_option_once(callgauge: Command) -> None:
    for command in COMMANDS:
        text = callgauge(*command.split(), "--help").out
        assert not re.search(r"<(bool|str|int|float|list|Path|path)\b", text), command
        for line in re.findall(r"^│ \*?\s*(--\S+)", text, re.MULTILINE):
            assert "," not in line, (command, line)


def test_an_error_about_an_option_is_in_our_words(callgauge: Command) -> None:
    told = callgauge("score", "sample", "--format", "csv").err
    assert "Invalid value for '--format': 'csv' is not one of" in told


PRINTING = (
    *(
        "--help",
        "--version",
        "",
        "schema",
        "schema turn-row",
        "score sample",
        "score sample --format table",
    ),
    *("transcript sample", "trials sample", "settings", "settings --toml"),
    *("simulate --print", "topics", "events --help", "run --help"),
)
FORK = """
import json, os, sys
from streamer.cli.app import loaded
from streamer.cli.main import main
for command in ("schema", "score", "transcript", "trials", "settings", "simulate", "topics"):
    loaded(command)
ends = {}
for line in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    os.close(reading)
    errors, said = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writing, 1)
        os.dup2(said, 2)
        sys.argv = ["callgauge", *line.split()]
        main()
        raise AssertionError("no exit")
    os.close(writing)
    os.close(said)
    with os.fdopen(errors) as heard:
        text = heard.read()
    ends[line] = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text]
print(json.dumps(ends))
"""
"""Imports the commands once, and runs each line in a child that writes to a pipe
without a reader.
"""


@pytest.fixture(scope="module")
def ends() -> dict[str, list[object]]:
    ended = subprocess.run(
        [sys.executable, "-c", FORK, json.dumps(PRINTING)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, list[object]] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("line", PRINTING)
def test_a_command_without_a_reader_ends_quietly(ends: dict[str, list[object]], line: str) -> None:
    """A shell shows 141 for SIGPIPE."""
    assert ends[line] == [141, ""]


@pytest.mark.parametrize(
    "arguments", [["--version"], ["schema", "turn-row"], ["score", "sample", "--processes", "2"]]
)
def test_a_command_finds_our_packages_behind_others_of_their_names(
    tmp_path: Path, arguments: list[str]
) -> None:
    for name in ("schemas", "consumers", "streamer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('of somebody else')\n")
    start = "from callgauge import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", start, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f".{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout


def test_the_installed_command_and_the_module_start_there(tmp_path: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"callgauge": "callgauge:main"}
    ended = subprocess.run(
        [sys.executable, "-m", "callgauge", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=patient(30),
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("callgauge ")
