"""The rights in deploy/security.md are those that callgauge asks for."""

import argparse
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from consumers.runtime.kafka.connection import READ, WRITE, Needs
from consumers.runtime.kafka.security import SecuritySettings
from streamer.cluster.facts import TRAFFIC_NEEDS, needs_of
from streamer.settings.all_settings import Settings

PAGE = (Path(__file__).parents[2] / "deploy" / "security.md").read_text()


def names(cell: str) -> frozenset[str]:
    return frozenset(re.findall(r"`([^`]+)`", cell))


def rows(first_header: str) -> dict[str, list[frozenset[str]]]:
    """By the first cell, the names in each of the others."""
    table = PAGE[PAGE.index(f"| {first_header} |") :].split("\n\n")[0].splitlines()[2:]
    split = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    return {first: [names(cell) for cell in others] for first, *others in split}


def told(needs: Needs) -> list[frozenset[str]]:
    """The row of the page with the same."""
    topics = [
        frozenset(name for name, operations in needs.operations.items() if operation in operations)
        for operation in (READ, WRITE)
    ]
    prefixes = frozenset(name.removesuffix("0") for name in needs.transactional_ids)
    return [*topics, frozenset(needs.groups), prefixes]


def test_the_page_tells_the_rights_that_are_asked_for() -> None:
    settings = Settings()
    table = rows("what runs")
    assert table["`run --roles evaluator`"] == told(needs_of(["evaluator"], settings))
    assert table["`run --roles exporter`"] == told(needs_of(["exporter"], settings))
    assert table["`run --roles judge`"] == told(needs_of(["judge"], settings))
    assert table["`run --roles monitor`"] == told(needs_of(["monitor"], settings))
    assert table["`run --roles ingest`, `ingest`"] == told(needs_of(["ingest"], settings)) == told(TRAFFIC_NEEDS)
    assert table["`replay`, `tail`, `simulate`"] == told(TRAFFIC_NEEDS)
    assert table["also with `goals.reads_topic`"] == more({"reads_topic": True})
    assert table["also when it asks the judge"] == more({"asks_judge": True})
    assert table["also with `transcripts.folder`"] == more(transcripts={"folder": "files"})
    assert len(table) == 9


def more(goals: dict[str, object] | None = None, **blocks: Any) -> list[frozenset[str]]:
    """Further rights of an evaluator with these settings."""
    wanted_settings = Settings(goals=goals or {}, **blocks)
    usual, needed = (told(needs_of(["evaluator"], settings)) for settings in (Settings(), wanted_settings))
    return [wanted - had for wanted, had in zip(needed, usual, strict=True)]


def given_by_the_commands(folder: Path) -> list[frozenset[str]]:
    """The row of the rights that the page's commands give, from running them with a stand-in for Kafka's tool."""
    (commands,) = re.findall(r"```sh\n(acls=.*?)```", PAGE, re.DOTALL)
    tool = folder / "kafka-acls.sh"
    tool.write_text('#!/bin/sh\necho "$@"\n')
    tool.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-eu", "-c", commands], capture_output=True, text=True, env=environment, check=True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--add", action="store_true", required=True)
    for option in ("--bootstrap-server", "--command-config", "--allow-principal"):
        parser.add_argument(option, required=True)
    parser.add_argument("--operation", action="append", required=True)
    parser.add_argument("--resource-pattern-type", choices=["literal", "prefixed"], default="literal")
    kinds = parser.add_mutually_exclusive_group(required=True)
    for option in ("--topic", "--group", "--transactional-id"):
        kinds.add_argument(option)
    calls = [parser.parse_args(line.split()) for line in done.stdout.splitlines()]
    assert all((call.transactional_id is not None) == (call.resource_pattern_type == "prefixed") for call in calls)

    def names_of(kind: str, operation: str) -> frozenset[str]:
        return frozenset(getattr(call, kind) for call in calls if operation in call.operation) - {None}

    assert {call.allow_principal for call in calls} == {"User:callgauge"}
    return [
        names_of("topic", "Read"), names_of("topic", "Write"), names_of("group", "Read"), names_of("transactional_id", "Write"),
    ]  # fmt: skip


def test_the_commands_give_what_the_table_says(tmp_path: Path) -> None:
    assert given_by_the_commands(tmp_path) == rows("what runs")["`run --roles evaluator`"]


def test_the_judge_is_asked_without_a_word_only_where_it_runs_with_a_key() -> None:
    def asks(roles: list[str], **judge: object) -> bool:
        return WRITE in needs_of(roles, Settings(judge=judge)).operations.get("judge.requests", ())

    assert asks(["evaluator", "judge"], api_key="key")
    assert not asks(["evaluator", "judge"])
    assert not asks(["evaluator", "judge"], api_key="key", enabled=False)
    assert not asks(["evaluator"], api_key="key")
    assert not asks(["judge"], api_key="key")


def test_without_transcripts_nothing_is_written_to_their_topic() -> None:
    assert "transcripts" not in needs_of(["evaluator"], Settings(transcripts={"enabled": False})).operations


def test_a_process_with_both_roles_needs_the_rights_of_both() -> None:
    settings = Settings()
    both = needs_of(["evaluator", "exporter"], settings)
    assert both.operations == needs_of(["evaluator"], settings).operations
    assert both.groups == ("callgauge-evaluator", "callgauge-exporter")


def test_every_setting_of_security_is_on_the_page() -> None:
    assert [name for name in SecuritySettings.model_fields if name not in PAGE] == []
    assert set(re.findall(r"`security\.(\w+)`", PAGE)) <= set(SecuritySettings.model_fields)
