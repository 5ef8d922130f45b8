"""The pages about events and scores: every event and record is on its page, with an example that their readers take."""

import io
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest

from consumers.engine.admission import Arrival, admit
from consumers.engine.limits import Limits
from docs.event_tables import SOURCES, WHEN, EventSource, kinds_of
from docs.score_examples import RECORDS, example_of
from schemas.closed_sets import Anchor, InputSource
from schemas.events.codec import misread_of
from schemas.json_schemas import json_schema
from schemas.quarantine import QuarantineRecord
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord, CallRecord, Result, TurnStatus
from streamer.event_check import check_events

# -- docs/events.md ----------------------------------------------------------------------------------------------------

EVENTS_PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
T0_MS = 1_790_000_000_000
SOURCE_OF = {"pipecat": InputSource.PIPECAT, "audit": InputSource.AUDIT}


@dataclass
class Record:
    """A record as the broker has it."""

    value: bytes
    topic: str = "topic"
    partition: int = 0
    offset: int = 0
    timestamp: int = T0_MS
    key: bytes = b"call"
    headers: list[tuple[str, bytes]] = field(default_factory=list)


def examples_of(source: EventSource) -> list[str]:
    """The examples of one group of events, in the order of the page."""
    begin = EVENTS_PAGE.index(f"\n## {source.title}\n")
    part = EVENTS_PAGE[begin + 1 :].split("\n## ")[0]
    return re.findall(r"^```json\n(.*?)\n```$", part, re.M | re.S)


def admitted(source: EventSource, value: str) -> Arrival | QuarantineRecord:
    return admit(SOURCE_OF.get(source.stream, InputSource.ELEVENLABS), Record(value.encode()), Limits())


EXAMPLES = [
    pytest.param(source, model, example, id=f"{source.stream}-{model.__name__}")
    for source in SOURCES
    for model, example in zip(source.models, examples_of(source), strict=True)
]


@pytest.mark.parametrize(("source", "model", "example"), EXAMPLES)
def test_an_example_is_admitted_as_its_event(source: EventSource, model: type, example: str) -> None:
    arrival = admitted(source, example)
    assert isinstance(arrival, Arrival), arrival
    # `ping` of an agent is in no other catalogue; its own model ignores fields.
    if model.__name__ != "CarriedAgentEvent":
        assert misread_of(arrival.event) is None
    assert type(arrival.event) is model


def test_every_event_has_its_sentence() -> None:
    assert {model.__name__ for source in SOURCES for model in source.models} == WHEN.keys()
    for source in SOURCES:
        for model in source.models:
            for kind in kinds_of(model):
                assert f"`{kind}`" in EVENTS_PAGE, kind


def test_every_event_of_the_contract_is_on_the_page() -> None:
    models = {model.__name__ for source in SOURCES for model in source.models}
    contract: set[str] = set()
    for name in ("pipecat-event", "simulator-event", "agent-event", "audit-event", "control-event"):
        schema: dict[str, Any] = json_schema(name)
        contract |= {one["$ref"].rpartition("/")[2] for one in _alternatives(schema)}
    assert contract <= models
    assert len(contract) > 30


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one in schema.get("oneOf") or schema.get("anyOf") or [schema]:
        found += [one] if "$ref" in one else _alternatives(one)
    return found


def test_the_first_call_is_whole() -> None:
    (block,) = re.findall(r"## The first call.*?```json\n(.*?)```", EVENTS_PAGE, re.S)
    findings = check_events(io.BytesIO(block.encode()))
    assert not findings.refused
    assert not findings.not_understood
    measured = {result.name for result, calls, _ in findings.missing() if calls}
    assert {"voice-to-voice latency of each turn", "interruptions", "dead air", "words of the user"} <= measured


def test_each_kind_of_the_table_matters() -> None:
    kinds = set(
        re.findall(r"`((?:user|bot)_(?:speech|turn)_\w+)`", EVENTS_PAGE.split("| `data.kind` |")[1].split("\n\n")[0])
    )
    assert len(kinds) == 6
    for kind in kinds:
        event = {"type": "speech_event", "timestamp": T0_MS, "data": {"kind": kind, "timestamp": T0_MS / 1_000}}
        arrival = admitted(SOURCES[1], json.dumps(event))
        assert isinstance(arrival, Arrival)
        assert misread_of(arrival.event) is None


# -- docs/scores.md ----------------------------------------------------------------------------------------------------

SCORES_PAGE = (Path(__file__).parents[2] / "docs" / "scores.md").read_text(encoding="utf-8")
NAMES = {
    name for model in get_args(AnyScoreRecord) for name in get_args(model.model_fields["name"].annotation)
}  # fmt: skip


def shown_record(name: str) -> dict[str, object]:
    part = SCORES_PAGE[SCORES_PAGE.index(f"\n### `{name}`\n") :]
    block = re.search(r"^```json\n(.*?)^```$", part, re.M | re.S)
    assert block is not None
    return dict(json.loads(block[1]))


def test_every_record_is_on_the_page() -> None:
    assert RECORDS.keys() == NAMES
    assert set(re.findall(r"^### `(\w+)`$", SCORES_PAGE, re.M)) == NAMES
    published = SCORES_PAGE[SCORES_PAGE.index("| record | published |") :].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", published)) >= NAMES


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_an_example_is_a_record_of_the_topic(name: str) -> None:
    common = example_of(name).model_dump(mode="json", include=set(CallRecord.model_fields))
    record = SCORE_RECORD.validate_json(json.dumps({**common, **shown_record(name)}))
    assert record.name == name
    assert record == example_of(name)


def test_the_three_outcomes_are_shown() -> None:
    block = SCORES_PAGE[SCORES_PAGE.index("## Scored, unscored") :].split("```")[1].removeprefix("json\n")
    outcomes = [json.loads(line)["outcome"] for line in block.splitlines()]
    models = get_args(get_args(Result)[0])
    assert outcomes == [model.model_fields["outcome"].default for model in models]
    for line, model in zip(block.splitlines(), models, strict=True):
        model.model_validate_json(line)


def test_every_anchor_and_status_is_named() -> None:
    rows = SCORES_PAGE[SCORES_PAGE.index("| anchor |") :].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", rows, re.M)) == {anchor.value for anchor in Anchor}
    for status in TurnStatus:
        assert f"`{status.value}`" in SCORES_PAGE
