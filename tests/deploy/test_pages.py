"""The pages for people: generated ones are of today, links lead somewhere, tables are complete, and
figures and examples are true.
"""

import argparse
import functools
import math
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import typer
import yaml
from pydantic import TypeAdapter

from consumers.runtime.kafka.connection import READ, WRITE, Needs
from consumers.runtime.kafka.security import SecuritySettings
from docs.generate_pages import pages
from docs.metric_uses import uses
from schemas.closed_sets import LATENCY_REASONS, Detector, UnscoredReason
from schemas.goals.checks import CHECKS
from schemas.goals.goal_set import GoalSet, JudgeOptions
from schemas.json_schemas import ROWS, TYPES
from schemas.judging import PLACES
from schemas.metrics.catalogue import METRICS
from schemas.redaction import tag_of
from schemas.topics import TOPICS
from streamer.agent_inspect import OPTIONS
from streamer.cli.app import COMMANDS, loaded
from streamer.cluster.facts import TRAFFIC_NEEDS, needs_of
from streamer.settings.all_settings import Settings, setting_names
from tests.integration.processes import ran_here
from tests.support.fakes.engine_feed import Feed
from tests.support.pages import PAGES, ROOT

# -- generated pages
# ---------------------------------------------------------------------------------------------------

# Made when a test asks, not by each worker that collects: to make them takes seconds.
generated = functools.cache(pages)


def test_each_generated_page_is_up_to_date() -> None:
    outdated = [
        path.name for path, text in generated().items() if path.read_text(encoding="utf-8") != text
    ]
    assert outdated == [], "run `python docs/generate_pages.py`"


def test_every_setting_and_every_metric_has_its_row() -> None:
    text = {path.name: text for path, text in generated().items()}
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \|", text["settings.md"], re.M)
    assert rows == [".".join(names) for names in setting_names()]
    assert {metric.name for metric in METRICS} <= set(
        re.findall(r"^\| `(\w+)` \|", text["metrics.md"], re.M)
    )


def test_each_score_of_quality_is_on_a_dashboard_and_each_alert_is_named_beside_its_metrics() -> (
    None
):
    used_by = {name: set(users.split("; ")) for name, users in uses().items()}
    quality = {
        metric.name
        for metric in METRICS
        if metric.role == "exporter" and metric.unit in {"ratio", "words"}
    }
    assert {
        name for name in quality if not any(user.startswith("quality: ") for user in used_by[name])
    } == set()
    # The alert reads recordings of the metric, and one of them reads another.
    assert {"`CallgaugeGoalSuccessFalling`", "quality: Success of goal sets"} <= used_by[
        "callgauge_goal_set_calls_total"
    ]
    assert (
        "`goal_set:callgauge_goal_progress:ratio_rate1h`"
        in used_by["callgauge_goal_set_progress_ratio"]
    )
    rules = yaml.safe_load(
        (ROOT / "deploy/prometheus/rules/callgauge.rules.yml").read_text(encoding="utf-8")
    )
    alerts = {
        f"`{rule['alert']}`"
        for group in rules["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert alerts - set().union(*used_by.values()) == {"`CallgaugeWatchdog`"}  # it reads nothing


@pytest.mark.parametrize("page", ["README.md", "docs/alerts.md", "CHANGELOG.md"])
def test_a_page_that_counts_alerts_counts_right(page: str) -> None:
    rules = (ROOT / "deploy/prometheus/rules/callgauge.rules.yml").read_text(encoding="utf-8")
    alerts = set(re.findall(r"- alert: (\w+)", rules))
    text = (ROOT / page).read_text(encoding="utf-8")
    said = re.findall(r"(\d+) (?:Prometheus )?\[?alerts", text)
    assert said == [str(len(alerts))]


def test_the_asyncapi_document_has_every_topic_and_one_schema_for_each_name() -> None:
    document = yaml.safe_load((ROOT / "docs/asyncapi.yaml").read_text(encoding="utf-8"))
    addresses = {name: channel["address"] for name, channel in document["channels"].items()}
    by_roles = {
        "scores:exporter": "scores",
        "scores:measures": "scores",
        "judge.requests:judge": "judge.requests",
        "transcripts:transcript-files": "transcripts",
    }
    assert addresses == {topic.name: topic.name for topic in TOPICS} | by_roles
    assert {document["operations"][name]["action"] for name in by_roles} == {"receive"}
    payloads = document["components"]["schemas"]
    assert payloads["scores:exporter:Message:Payload"]["type"] == "object", "a record, not a batch"
    sent = payloads["scores:Message:Payload"]["anyOf"]
    assert sent == [
        {"$ref": f"#/components/schemas/{name}"} for name in ("TurnRow", "CallRow", "GoalsRow")
    ]
    assert payloads["words:Message:Payload"] == {"$ref": "#/components/schemas/WordsRow"}
    pointers = set(re.findall(r"\$ref: '#/([^']+)'", generated()[ROOT / "docs/asyncapi.yaml"]))
    for pointer in pointers:
        place = document
        for step in unquote(pointer).split("/"):
            place = place[step]
    defined: dict[str, Any] = {}
    for name_of_kind in TYPES.keys() - ROWS:  # FastStream keeps one schema of each name
        for name, schema in TypeAdapter(TYPES[name_of_kind]).json_schema().get("$defs", {}).items():
            assert defined.setdefault(name, schema) == schema, name


def test_no_page_depends_on_the_environment_of_its_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLGAUGE_HTTP_PORT", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert pages() == generated()


# -- links
# -------------------------------------------------------------------------------------------------------------

RUNBOOKS = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "deploy" / "runbooks").glob("*.md"))
]
OBSERVERS = [
    page.relative_to(ROOT).as_posix()
    for page in sorted((ROOT / "streamer/observers").glob("*/README.md"))
]
_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: str) -> list[str]:
    """The links of a page that lead nowhere."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    found = []
    for path, anchor in _LINK.findall(text):
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            found.append(f"{path}#{anchor}")
    return found


@pytest.mark.parametrize("page", [*PAGES, *RUNBOOKS, *OBSERVERS, "ARCHITECTURE.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    assert broken(page) == []


PATHS_ARE_FROM = (
    *("", "schemas", "consumers", "consumers/engine", "consumers/engine/sources"),
    *("consumers/console", "consumers/console/page", "consumers/runtime"),
    *("streamer", "streamer/observers", "streamer/trials", "tests"),
)
"""The folders that the page of the architecture leaves out where it is clear which one is meant."""


def is_a_path(name: str) -> bool:
    """Whether a file, a module or a folder has this name."""
    return any(
        (ROOT / folder / f"{name}{ending}").exists()
        for folder in PATHS_ARE_FROM
        for ending in ("", ".py", ".html")
    )


def test_the_page_of_the_architecture_names_only_what_there_is() -> None:
    text = re.sub(
        r"```.*?```", "", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), flags=re.S
    )
    words = {
        word
        for folder in ("schemas", "consumers", "streamer", "docs", "deploy")
        for path in (ROOT / folder).rglob("*.py")
        for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
    }
    unknown = []
    for name in re.findall(r"`(\w[\w./-]+)`", text.replace("NAME", "call")):
        module, _, member = name.rpartition(".")
        if not is_a_path(name) and not (
            is_a_path(module) and member in words if "/" in name else set(name.split(".")) <= words
        ):
            unknown.append(name)
    assert unknown == []


def test_the_index_has_every_page_with_what_is_in_it() -> None:
    """Its links are tested with those of all pages."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*) \| (\S.*) \|$", index, re.M)
    linked = {
        ((ROOT / "docs") / path).resolve().relative_to(ROOT).as_posix()
        for cells in rows
        for cell in cells
        for path, _ in _LINK.findall(cell)
    }
    assert {*PAGES, *OBSERVERS} - {"README.md", "docs/README.md"} <= linked
    assert {"deploy/runbooks", "ARCHITECTURE.md", "CHANGELOG.md"} <= linked


# -- tables of commands, checks and data
# -------------------------------------------------------------------------------

COMMANDS_PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
GOALS_PAGE = (ROOT / "docs" / "goals.md").read_text(encoding="utf-8")
REDACTION_PAGE = (ROOT / "deploy" / "redaction.md").read_text(encoding="utf-8")
SECURITY_PAGE = (ROOT / "deploy" / "security.md").read_text(encoding="utf-8")


def rows_of(page: str, first_header: str) -> list[list[str]]:
    """The cells of a table's rows, by the header of its first column."""
    rows = page[page.index(f"| {first_header} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def column(page: str, first_header: str, number: int = 0) -> str:
    return "\n".join(row[number] for row in rows_of(page, first_header))


def first_words(text: str) -> set[str]:
    """The first words of inline code, without the name of the program."""
    return set(re.findall(r"`(?:callgauge )?([\w-]+)", text))


SECTIONS = dict(
    re.findall(r"^### `callgauge ([^`]+)`\n(.*?)(?=^##|\Z)", COMMANDS_PAGE, re.M | re.S)
)


def test_the_page_of_commands_has_each_of_them() -> None:
    commands = {name: loaded(name) for name in COMMANDS}
    parts = {
        f"{name} {part}"
        for name, command in commands.items()
        for part in getattr(command, "commands", {})
    }
    assert SECTIONS.keys() == commands.keys() | parts


@pytest.mark.parametrize("name", ["score", "replay", "history find", "topics create", "report"])
def test_a_section_has_every_option_of_its_command(name: str) -> None:
    name_of_group, _, part = name.partition(" ")
    command = loaded(name_of_group)
    command = command.commands[part] if part else command
    rows = re.findall(r"^\| `(-.*?)` \|", SECTIONS[name], re.M)
    (also,) = re.findall(r"^Also (.*)\.$", SECTIONS[name], re.M)
    named = re.findall(r"(?<![\w-])--?[a-z][\w-]*", " ".join([*rows, also]))
    options = [name for each in command.get_params(typer.Context(command)) for name in each.opts]
    assert {*named, "--help"} == {option for option in options if option.startswith("-")}


def test_of_every_command_a_page_has_its_rights_or_that_it_needs_none() -> None:
    (offline,) = re.findall(r"^(.*) need no broker\.", COMMANDS_PAGE, re.M | re.S)
    offline = offline.rpartition("\n\n")[2]
    assert (
        first_words(offline)
        | first_words(column(SECURITY_PAGE, "what runs"))
        | first_words(column(SECURITY_PAGE, "command"))
        >= COMMANDS.keys()
    )


def test_the_page_about_goals_has_every_kind_of_check() -> None:
    assert first_words(column(GOALS_PAGE, "check")) == CHECKS.keys()


def test_the_page_about_redaction_has_every_type() -> None:
    assert set(re.findall(r"`(.+?)`", column(REDACTION_PAGE, "data", 1))) == {
        tag_of(detector) for detector in Detector
    }
    (settings,) = re.findall(r"```toml\n(.*?)```", REDACTION_PAGE, re.S)
    assert tomllib.loads(settings)["redaction"]["detectors"] == [
        detector.value for detector in Detector
    ]


# -- docs/goals.md
# -----------------------------------------------------------------------------------------------------

GOAL_EXAMPLES = re.findall(
    r"^### `(\w+)`\n.*?^```yaml\n(.*?)^```\n\nOn the sample call: (.*?)\.$", GOALS_PAGE, re.M | re.S
)


def test_every_check_has_an_example() -> None:
    assert [kind for kind, _, _ in GOAL_EXAMPLES] == re.findall(r"^### `(\w+)`$", GOALS_PAGE, re.M)
    assert {kind for kind, _, _ in GOAL_EXAMPLES} == CHECKS.keys()
    for kind, text, _ in GOAL_EXAMPLES:
        (subgoal,) = yaml.safe_load(text)
        assert subgoal["check"]["kind"] == kind


def test_the_examples_do_what_the_page_says(tmp_path: Path) -> None:
    file = tmp_path / "goals.yaml"
    file.write_text("id: page\nsubgoals:\n" + "".join(text for _, text, _ in GOAL_EXAMPLES))
    ended = ran_here("goals", "check", str(file), "--call", "sample")
    assert ended.code == 0, ended.err
    for _, text, result in GOAL_EXAMPLES:
        (subgoal,) = yaml.safe_load(text)
        assert f"  {subgoal['id']}: {result}\n" in ended.out


def test_the_expected_tool_calls_come_out_as_the_page_says(tmp_path: Path) -> None:
    example = re.search(
        r"^```yaml\n(expected_tool_calls:\n.*?)^```\n\nOn the sample call:\n\n(.*?)\n\n",
        GOALS_PAGE,
        re.M | re.S,
    )
    assert example is not None
    file = tmp_path / "goals.yaml"
    file.write_text("id: page\nsubgoals:\n" + GOAL_EXAMPLES[0][1] + example[1])
    ended = ran_here("goals", "check", str(file), "--call", "sample")
    assert ended.code == 0, ended.err
    found = [
        line.strip() for line in ended.out.splitlines() if line.startswith("  expected tool call ")
    ]
    assert found == [line.strip() for line in example[2].splitlines()]


def test_the_sets_can_be_read_and_the_table_has_every_field(tmp_path: Path) -> None:
    texts = re.findall(r"^```yaml\n(id: .*?)^```$", GOALS_PAGE, re.M | re.S)
    assert len(texts) == 2
    for text in texts:
        file = tmp_path / "goals.yaml"
        file.write_text(text)
        assert ran_here("goals", "check", str(file)).code == 0
    rows = re.findall(
        r"^\| (`.*?) \|",
        GOALS_PAGE[GOALS_PAGE.index("| field | meaning |") :].split("\n\n")[0],
        re.M,
    )
    assert {
        name for row in rows for name in re.findall(r"`(\w+)`", row)
    } == GoalSet.model_fields.keys()


def test_every_place_of_a_template_is_in_its_table() -> None:
    table = GOALS_PAGE[GOALS_PAGE.index("| place | becomes |") :].split("\n\n")[0]
    assert set(re.findall(r"^\| `\{(\w+)\}` \|", table, re.M)) == set(PLACES)


def test_every_matcher_of_the_table_is_one() -> None:
    table = GOALS_PAGE[GOALS_PAGE.index("| matcher |") :].split("\n\n")[0]
    matchers = [yaml.safe_load(each) for each in re.findall(r"`(\{.*?\})`", table)]
    names = {name for matcher in matchers for name in matcher}
    assert names == {"equals", "one_of", "matches", "at_least", "at_most", "present"}
    for matcher in matchers:
        check = {"kind": "tool_called", "tool": "rebook", "arguments": {"flight": matcher}}
        GoalSet.model_validate(
            {"id": "x", "subgoals": [{"id": "x", "details": "x", "check": check}]}
        )


# -- docs/sources/agent-inspect.md
# -------------------------------------------------------------------------------------

OPTION_ROWS = re.findall(
    r"^\| (`\w+`[^|]*) \|",
    (ROOT / "docs" / "sources" / "agent-inspect.md").read_text().split("## The options")[1],
    re.M,
)
NAMED_OPTIONS = {name for row in OPTION_ROWS for name in re.findall(r"`(\w+)`", row)}


def test_the_table_has_every_option() -> None:
    ours = {"max_turns", *JudgeOptions.model_fields}
    assert ours <= set(OPTIONS) <= NAMED_OPTIONS
    assert {*OPTIONS} == NAMED_OPTIONS


def test_every_option_of_calls_is_a_field_of_goal_sets() -> None:
    assert JudgeOptions.model_fields.keys() <= GoalSet.model_fields.keys()


# -- docs/questions.md
# -------------------------------------------------------------------------------------------------

QUESTIONS_PAGE = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
EXCHANGE = (
    ("user_speech_started", 3_000),
    ("user_speech_stopped", 5_000),
    ("bot_speech_started", 5_900),
    ("bot_speech_stopped", 8_000),
)


def reasons_under(title: str) -> dict[str, str]:
    """The rows of the table of reasons under a heading, by their reason."""
    part = QUESTIONS_PAGE[QUESTIONS_PAGE.index(f"\n## {title}\n") + 1 :].split("\n## ")[0]
    return {match[1]: match[2] for match in re.finditer(r"^\| `(\w+)` \| (.*) \|$", part, re.M)}


OF_LATENCIES = reasons_under("Why is my latency unscored?")


def test_every_reason_has_a_row() -> None:
    others = reasons_under("Why is another value unscored?")
    assert OF_LATENCIES.keys() == {reason.value for reason in LATENCY_REASONS}
    assert OF_LATENCIES.keys() | others.keys() == {reason.value for reason in UnscoredReason}
    assert not OF_LATENCIES.keys() & others.keys()


@pytest.mark.parametrize("missing", ["user_speech_stopped", "bot_speech_started", "bot_speech_st"])
def test_the_remedy_names_the_missing_event(missing: str) -> None:
    feed = Feed()
    for turn in range(2):
        for kind, at_ms in EXCHANGE:
            if not kind.startswith(missing):
                feed.speech(kind, 10_000 * turn + at_ms)
        feed.heard("Hello", 10_000 * turn + 5_100)
        feed.send(
            "audit", {"message_type": "assistant", "value": "Welcome."}, 10_000 * turn + 8_000
        )
    feed.send("audit", {"type": "call_ended"}, 19_000)
    feed.advance(3_600_000)
    reasons = set(feed.latencies().values())
    assert reasons
    for reason in reasons:
        assert f"`{missing}" in OF_LATENCIES[str(reason)]


def test_the_page_names_metrics_and_settings_that_there_are() -> None:
    metrics = {name.partition("{")[0] for name in re.findall(r"`(callgauge_\w+)", QUESTIONS_PAGE)}
    assert metrics <= {metric.name for metric in METRICS}
    blocks = {names[0] for names in setting_names() if len(names) > 1}
    named = {
        name
        for name in re.findall(r"`([a-z]+\.[a-z_]+)`", QUESTIONS_PAGE)
        if name.partition(".")[0] in blocks
    }
    assert named <= {".".join(names) for names in setting_names()}
    assert len(named) > 5


# -- deploy/security.md
# ------------------------------------------------------------------------------------------------


def names_in(cell: str) -> frozenset[str]:
    return frozenset(re.findall(r"`([^`]+)`", cell))


def rights() -> dict[str, list[frozenset[str]]]:
    """By what runs, the names in each of the other cells."""
    return {
        first: [names_in(cell) for cell in others]
        for first, *others in rows_of(SECURITY_PAGE, "what runs")
    }


def row_of(needs: Needs) -> list[frozenset[str]]:
    """The row of the page with the same."""
    topics = [
        frozenset(name for name, operations in needs.operations.items() if operation in operations)
        for operation in (READ, WRITE)
    ]
    prefixes = frozenset(name.removesuffix("0") for name in needs.transactional_ids)
    return [*topics, frozenset(needs.groups), prefixes]


def test_the_page_tells_the_rights_that_are_asked_for() -> None:
    settings = Settings()
    table = rights()
    assert table["`run --roles sequencer`"] == row_of(needs_of(["sequencer"], settings))
    assert table["`run --roles evaluator`"] == row_of(needs_of(["evaluator"], settings))
    assert table["`run --roles exporter`"] == row_of(needs_of(["exporter"], settings))
    assert table["`run --roles judge`"] == row_of(needs_of(["judge"], settings))
    assert table["`run --roles history`"] == row_of(needs_of(["history"], settings))
    assert table["`run --roles measures`"] == row_of(needs_of(["measures"], settings))
    assert table["`run --roles console`"] == row_of(needs_of(["console"], settings))
    for role in ("console", "history"):
        needed = needs_of([role], Settings(measures={"folder": "measures"}))
        own = needed.operations.keys() - needs_of([role], settings).operations.keys()
        assert table["also with measures of one's own, `console` and `history`"] == [
            own,
            set(),
            set(),
            set(),
        ]
    assert table["`run --roles monitor`"] == row_of(needs_of(["monitor"], settings))
    assert (
        table["`run --roles ingest`"]
        == row_of(needs_of(["ingest"], settings))
        == row_of(TRAFFIC_NEEDS)
    )
    assert table["`replay`, `simulate`"] == row_of(TRAFFIC_NEEDS)
    assert table["also with `goals.reads_topic`"] == more_rights({"reads_topic": True})
    assert table["also when it asks the judge"] == more_rights({"asks_judge": True})
    assert table["also with `transcripts.folder`"] == more_rights(transcripts={"folder": "files"})
    assert len(table) == 14


def test_only_the_sequencer_may_write_the_log_of_events() -> None:
    """The page says so in words, and whoever may write there decides every score."""
    may_write = {what for what, (_, written, *_) in rights().items() if "events" in written}
    assert may_write == {"`run --roles sequencer`"}
    evaluator = needs_of(["evaluator"], Settings()).operations
    assert {topic for topic, operations in evaluator.items() if READ in operations} == {
        "events",
        "scores",
    }


def more_rights(goals: dict[str, object] | None = None, **blocks: Any) -> list[frozenset[str]]:
    """Further rights of an evaluator with these settings."""
    wanted_settings = Settings(goals=goals or {}, **blocks)
    usual, needed = (
        row_of(needs_of(["evaluator"], settings)) for settings in (Settings(), wanted_settings)
    )
    return [wanted - had for wanted, had in zip(needed, usual, strict=True)]


def given_by_the_commands(folder: Path) -> dict[str, list[frozenset[str]]]:
    """By user, the row of the rights that the page's commands give, from running them with a
    stand-in for Kafka's tool.
    """
    (commands,) = re.findall(r"```sh\n(acls=.*?)```", SECURITY_PAGE, re.DOTALL)
    tool = folder / "kafka-acls.sh"
    tool.write_text('#!/bin/sh\necho "$@"\n')
    tool.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-eu", "-c", commands], capture_output=True, text=True, env=environment, check=True
    )
    parser = argparse.ArgumentParser()
    parser.add_argument("--add", action="store_true", required=True)
    for option in ("--bootstrap-server", "--command-config", "--allow-principal"):
        parser.add_argument(option, required=True)
    parser.add_argument("--operation", action="append", required=True)
    parser.add_argument(
        "--resource-pattern-type", choices=["literal", "prefixed"], default="literal"
    )
    kinds = parser.add_mutually_exclusive_group(required=True)
    for option in ("--topic", "--group", "--transactional-id"):
        kinds.add_argument(option)
    calls = [parser.parse_args(line.split()) for line in done.stdout.splitlines()]
    assert all(
        (call.transactional_id is not None) == (call.resource_pattern_type == "prefixed")
        for call in calls
    )

    def names_of(user: str, kind: str, operation: str) -> frozenset[str]:
        given = (
            call for call in calls if call.allow_principal == user and operation in call.operation
        )
        return frozenset(getattr(call, kind) for call in given) - {None}

    kinds_and_operations = (
        ("topic", "Read"),
        ("topic", "Write"),
        ("group", "Read"),
        ("transactional_id", "Write"),
    )
    return {
        user: [names_of(user, kind, operation) for kind, operation in kinds_and_operations]
        for user in {call.allow_principal for call in calls}
    }


def test_the_commands_give_what_the_table_says(tmp_path: Path) -> None:
    given, table = given_by_the_commands(tmp_path), rights()
    assert given == {
        f"User:{role}": table[f"`run --roles {role}`"] for role in ("sequencer", "evaluator")
    }


def test_the_judge_is_asked_without_a_word_only_where_it_runs_with_a_key() -> None:
    def asks(roles: list[str], **judge: object) -> bool:
        return WRITE in needs_of(roles, Settings(judge=judge)).operations.get("judge.requests", ())

    assert asks(["evaluator", "judge"], api_key="key")
    assert not asks(["evaluator", "judge"])
    assert not asks(["evaluator", "judge"], api_key="key", enabled=False)
    assert not asks(["evaluator"], api_key="key")
    assert not asks(["judge"], api_key="key")


def test_without_transcripts_nothing_is_written_to_their_topic() -> None:
    assert (
        "transcripts"
        not in needs_of(["evaluator"], Settings(transcripts={"enabled": False})).operations
    )


def test_a_process_with_both_roles_needs_the_rights_of_both() -> None:
    settings = Settings()
    both = needs_of(["evaluator", "exporter"], settings)
    assert both.operations == needs_of(["evaluator"], settings).operations
    assert both.groups == ("callgauge-evaluator", "callgauge-exporter")


def test_every_setting_of_security_is_on_the_page() -> None:
    assert [name for name in SecuritySettings.model_fields if name not in SECURITY_PAGE] == []
    assert set(re.findall(r"`security\.(\w+)`", SECURITY_PAGE)) <= set(
        SecuritySettings.model_fields
    )


# -- deploy/sizing.md
# --------------------------------------------------------------------------------------------------

SIZING_PAGE = (ROOT / "deploy" / "sizing.md").read_text(encoding="utf-8")
CHART_VALUES = yaml.safe_load(
    (ROOT / "deploy/helm/callgauge/values.yaml").read_text(encoding="utf-8")
)


def number_in(text: str) -> float:
    return float(re.findall(r"[\d,.]+", text)[0].replace(",", ""))


FIGURES = {name: number_in(figure) for name, figure in rows_of(SIZING_PAGE, "what")}


def figure(beginning: str) -> float:
    (found,) = [figure for name, figure in FIGURES.items() if name.startswith(beginning)]
    return found


def test_the_rows_follow_from_the_figures() -> None:
    events_of_a_call, planned = figure("events of a running call"), figure("the same, planned")
    empty_mb, call_mb = figure("memory of an evaluator"), figure("memory of an open call") / 1_000
    (sent,) = [
        figure
        for name, figure in rows_of(SIZING_PAGE, "what")
        if name.startswith("events of a bot")
    ]
    bytes_of_a_call = float(re.findall(r"(\d+) kB", sent)[0]) * 1_000 / 60
    added = (
        float(re.findall(r"(\d+) events", sent)[0])
        * figure("the header that the sequencer adds")
        / 60
    )
    for row in rows_of(SIZING_PAGE, "calls at a time"):
        calls, events, evaluators, memory_mb, kafka_mb = map(number_in, row)
        assert events == calls * events_of_a_call
        assert evaluators == max(2, math.ceil(events / planned))
        taken_over = calls / (evaluators - 1)
        assert abs(memory_mb - empty_mb - call_mb * taken_over) <= 5 + memory_mb * 0.03
        assert abs(kafka_mb - calls * (2 * bytes_of_a_call + added) / 1e6) <= max(
            0.06, kafka_mb * 0.01
        )


def test_the_figures_are_those_of_the_chart() -> None:
    assert CHART_VALUES["autoscaling"]["eventsPerSecond"] == figure("the same, planned")
    requested = CHART_VALUES["roles"]["evaluator"]["resources"]["requests"]["memory"]
    assert requested.endswith("Mi")
    for row in rows_of(SIZING_PAGE, "calls at a time"):
        assert number_in(row[3]) < number_in(requested) * 2**20 / 1e6
