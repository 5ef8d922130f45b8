"""The table of agent-inspect's options has every option that the code knows, and says where each may be set."""

import re
from pathlib import Path

from schemas.goals.goal_set import GoalSet, JudgeOptions
from streamer.agent_inspect.traces import OPTIONS
from streamer.settings.all_settings import AGENT_INSPECT_NAMES, GoalSettings

DOCS = Path(__file__).parents[2] / "docs"
ROWS = re.findall(
    r"^\| (`\w+`[^|]*) \|", (DOCS / "sources" / "agent-inspect.md").read_text().split("## The options")[1], re.M
)
NAMED = {name for row in ROWS for name in re.findall(r"`(\w+)`", row)}


def test_the_table_has_every_option() -> None:
    ours = {"max_turns", *JudgeOptions.model_fields}
    assert ours <= set(OPTIONS) <= NAMED
    assert {*OPTIONS} == NAMED


def test_every_option_of_calls_is_a_field_of_goal_sets_and_a_setting() -> None:
    assert JudgeOptions.model_fields.keys() <= GoalSet.model_fields.keys()
    settings = {AGENT_INSPECT_NAMES.get(name, name) for name in JudgeOptions.model_fields}
    assert settings <= GoalSettings.model_fields.keys()
