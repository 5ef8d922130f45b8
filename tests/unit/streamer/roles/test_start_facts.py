"""The start of `run` reports goals, judge, transcripts and redaction, and the reason why one of them is off."""

from pathlib import Path

import pytest

from schemas.closed_sets import ROLE_NAMES, RoleName
from streamer.roles.running import start_facts
from streamer.settings.all_settings import load_settings

ALL: tuple[RoleName, ...] = ("evaluator", "exporter", "judge")
KEY = {"OPENAI_API_KEY": "key"}
GOALS = "id: one\nsubgoals:\n  - id: booked\n    details: d\n    check: {kind: tool_called, tool: book}\n"


def facts(environment: dict[str, str] | None = None, roles: tuple[RoleName, ...] = ALL) -> dict[str, str]:
    return start_facts(load_settings(None, {}, environment or {}), roles)


def test_with_the_defaults_it_says_what_is_off_and_how_to_switch_it_on() -> None:
    assert facts() == {
        "goals": "none (set goals.folder or goals.reads_topic)",
        "judge": "off (no key: set OPENAI_API_KEY or CALLGAUGE_JUDGE__API_KEY_FILE)",
        "transcripts": "on (the topic transcripts)",
        "redaction": "on (card, phone, email, iban, birth_date)",
    }


def test_goal_sets_are_counted_and_broken_files_are_named(tmp_path: Path) -> None:
    environment = {"CALLGAUGE_GOALS__FOLDER": str(tmp_path), "CALLGAUGE_TOPIC_PREFIX": "x."}
    assert facts(environment)["goals"] == f"0 sets in the folder {tmp_path}"
    (tmp_path / "one.yaml").write_text(GOALS)
    assert facts(environment)["goals"] == f"1 set in the folder {tmp_path}"
    (tmp_path / "two.yaml").write_text("id: [")
    assert facts(environment | {"CALLGAUGE_GOALS__READS_TOPIC": "true"})["goals"] == (
        f"1 set (1 broken, see `callgauge goals check {tmp_path}`) in the folder {tmp_path} and the topic x.goals"
    )
    (tmp_path / "one.yaml").unlink()
    missing = {"CALLGAUGE_GOALS__FOLDER": str(tmp_path / "none")}
    assert facts(missing)["goals"].startswith("unreadable goal sets")


@pytest.mark.parametrize(
    ("environment", "roles", "fact"),
    [
        (KEY, ALL, "on (gpt-4.1 at https://api.openai.com/v1)"),
        (KEY, ("judge",), "on (gpt-4.1 at https://api.openai.com/v1)"),
        (KEY | {"CALLGAUGE_JUDGE__ENABLED": "false"}, ALL, "off (judge.enabled is false)"),
        (KEY, ("evaluator",), "off (no role judge in this process, and goals.asks_judge is false)"),
        (
            {"CALLGAUGE_GOALS__ASKS_JUDGE": "true"}, ("evaluator",),
            "in another process: questions go to the topic judge.requests",
        ),
    ],
)  # fmt: skip
def test_the_judge_is_on_or_it_says_why_not(
    environment: dict[str, str], roles: tuple[RoleName, ...], fact: str
) -> None:
    assert facts(environment, roles)["judge"] == fact


def test_what_is_switched_off_is_said() -> None:
    off = {"CALLGAUGE_TRANSCRIPTS__ENABLED": "false", "CALLGAUGE_REDACTION__ENABLED": "false"}
    assert facts(off)["transcripts"] == "off (transcripts.enabled is false)"
    assert facts(off)["redaction"].startswith("off (redaction.enabled is false)")
    files = facts({"CALLGAUGE_TRANSCRIPTS__FOLDER": "here"})["transcripts"]
    assert files == "on (the topic transcripts and files in the folder here)"
    patterns = {"CALLGAUGE_REDACTION__PATTERNS": '{"ORDER": "A[0-9]{5}"}', "CALLGAUGE_REDACTION__DETECTORS": "card"}
    assert facts(patterns)["redaction"] == "on (card, pattern ORDER)"


def test_a_role_states_only_what_concerns_it() -> None:
    by_role = {role: set(facts(roles=(role,))) for role in ROLE_NAMES}
    assert by_role["evaluator"] == {"goals", "judge", "transcripts", "redaction"}
    assert by_role["judge"] == {"judge", "redaction"}
    assert by_role["exporter"] == {"redaction"}
