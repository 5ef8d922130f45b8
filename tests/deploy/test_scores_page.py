"""The page about scores: every record is on it, with an example that a reader of the topic can read."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from docs.score_examples import RECORDS, example_of
from schemas.closed_sets import Anchor
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord, CallRecord, Result, TurnStatus

PAGE = (Path(__file__).parents[2] / "docs" / "scores.md").read_text(encoding="utf-8")
NAMES = {
    name for model in get_args(AnyScoreRecord) for name in get_args(model.model_fields["name"].annotation)
}  # fmt: skip


def _shown(name: str) -> dict[str, object]:
    part = PAGE[PAGE.index(f"\n### `{name}`\n") :]
    block = re.search(r"^```json\n(.*?)^```$", part, re.M | re.S)
    assert block is not None
    return dict(json.loads(block[1]))


def test_every_record_is_on_the_page() -> None:
    assert RECORDS.keys() == NAMES
    assert set(re.findall(r"^### `(\w+)`$", PAGE, re.M)) == NAMES
    published = PAGE[PAGE.index("| record | published |") :].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", published)) >= NAMES


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_an_example_is_a_record_of_the_topic(name: str) -> None:
    common = example_of(name).model_dump(mode="json", include=set(CallRecord.model_fields))
    record = SCORE_RECORD.validate_json(json.dumps({**common, **_shown(name)}))
    assert record.name == name
    assert record == example_of(name)


def test_the_three_outcomes_are_shown() -> None:
    block = PAGE[PAGE.index("## Scored, unscored") :].split("```")[1].removeprefix("json\n")
    outcomes = [json.loads(line)["outcome"] for line in block.splitlines()]
    models = get_args(get_args(Result)[0])
    assert outcomes == [model.model_fields["outcome"].default for model in models]
    for line, model in zip(block.splitlines(), models, strict=True):
        model.model_validate_json(line)


def test_every_anchor_and_status_is_named() -> None:
    rows = PAGE[PAGE.index("| anchor |") :].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", rows, re.M)) == {anchor.value for anchor in Anchor}
    for status in TurnStatus:
        assert f"`{status.value}`" in PAGE
