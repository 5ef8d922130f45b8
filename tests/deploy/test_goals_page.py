"""The page about goals: every kind of check is on it, and each example gives the page's result on the sample call."""

import re
from pathlib import Path

import yaml

from schemas.goals.checks import CHECKS
from schemas.goals.goal_set import GoalSet
from schemas.judging import PLACES
from tests.integration.processes import ran_here

PAGE = (Path(__file__).parents[2] / "docs" / "goals.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^### `(\w+)`\n.*?^```yaml\n(.*?)^```\n\nOn the sample call: (.*?)\.$", PAGE, re.M | re.S)


def test_every_check_has_an_example() -> None:
    assert [kind for kind, _, _ in EXAMPLES] == re.findall(r"^### `(\w+)`$", PAGE, re.M)
    assert {kind for kind, _, _ in EXAMPLES} == CHECKS.keys()
    for kind, text, _ in EXAMPLES:
        (subgoal,) = yaml.safe_load(text)
        assert subgoal["check"]["kind"] == kind


def test_the_examples_do_what_the_page_says(tmp_path: Path) -> None:
    file = tmp_path / "goals.yaml"
    file.write_text("id: page\nsubgoals:\n" + "".join(text for _, text, _ in EXAMPLES))
    ended = ran_here("goals", "check", str(file), "--call", "sample")
    assert ended.code == 0, ended.err
    for _, text, result in EXAMPLES:
        (subgoal,) = yaml.safe_load(text)
        assert f"  {subgoal['id']}: {result}\n" in ended.out


def test_the_sets_can_be_read_and_the_table_has_every_field(tmp_path: Path) -> None:
    texts = re.findall(r"^```yaml\n(id: .*?)^```$", PAGE, re.M | re.S)
    assert len(texts) == 2
    for text in texts:
        file = tmp_path / "goals.yaml"
        file.write_text(text)
        assert ran_here("goals", "check", str(file)).code == 0
    rows = re.findall(r"^\| (`.*?) \|", PAGE[PAGE.index("| field | meaning |") :].split("\n\n")[0], re.M)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == GoalSet.model_fields.keys()


def test_every_place_of_a_template_is_in_its_table() -> None:
    table = PAGE[PAGE.index("| place | becomes |") :].split("\n\n")[0]
    assert set(re.findall(r"^\| `\{(\w+)\}` \|", table, re.M)) == set(PLACES)


def test_every_matcher_of_the_table_is_one() -> None:
    table = PAGE[PAGE.index("| matcher |") :].split("\n\n")[0]
    matchers = [yaml.safe_load(each) for each in re.findall(r"`(\{.*?\})`", table)]
    names = {name for matcher in matchers for name in matcher}
    assert names == {"equals", "one_of", "matches", "at_least", "at_most", "present"}
    for matcher in matchers:
        check = {"kind": "tool_called", "tool": "rebook", "arguments": {"flight": matcher}}
        GoalSet.model_validate({"id": "x", "subgoals": [{"id": "x", "details": "x", "check": check}]})
