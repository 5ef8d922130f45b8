"""The pages about events and tables: every event and column is on its page, an event with an
example that its readers take.
"""

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from consumers.engine.admission import Arrival, admit
from consumers.engine.limits import Limits
from docs.event_tables import SOURCES, WHEN, EventSource, kinds_of
from docs.table_columns import SOURCES as COLUMN_SOURCES
from schemas.closed_sets import TEXT_JUDGES, Anchor, InputSource
from schemas.columns import CALL_COLUMNS, TURN_COLUMNS, Column
from schemas.events.codec import misread_of
from schemas.json_schemas import json_schema
from schemas.quarantine import QuarantineRecord
from schemas.rows import GoalsRow, TurnStatus, WordsRow
from streamer.event_check import check_events
from tests.support.fakes.broker_records import BrokerRecord

# -- docs/events.md
# ----------------------------------------------------------------------------------------------------

EVENTS_PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
T0_MS = 1_790_000_000_000
SOURCE_OF = {"pipecat": InputSource.PIPECAT, "audit": InputSource.AUDIT}


def examples_of(source: EventSource) -> list[str]:
    """The examples of one group of events, in the order of the page."""
    begin = EVENTS_PAGE.index(f"\n## {source.title}\n")
    part = EVENTS_PAGE[begin + 1 :].split("\n## ")[0]
    return re.findall(r"^```json\n(.*?)\n```$", part, re.M | re.S)


def admitted(source: EventSource, value: str) -> Arrival | QuarantineRecord:
    return admit(
        SOURCE_OF.get(source.stream, InputSource.ELEVENLABS),
        BrokerRecord("topic", 0, T0_MS, b"call", value.encode()),
        Limits(),
    )


EXAMPLES = [
    pytest.param(source, model, example, id=f"{source.stream}-{model.__name__}")
    for source in SOURCES
    for model, example in zip(source.models, examples_of(source), strict=True)
]


@pytest.mark.parametrize(("source", "model", "example"), EXAMPLES)
def test_an_example_is_admitted_as_its_event(
    source: EventSource, model: type, example: str
) -> None:
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
    assert {
        "voice-to-voice latency of each turn",
        "interruptions",
        "dead air",
        "words of the user",
    } <= measured


def test_each_kind_of_the_table_matters() -> None:
    kinds = set(
        re.findall(
            r"`((?:user|bot)_(?:speech|turn)_\w+)`",
            EVENTS_PAGE.split("| `data.kind` |")[1].split("\n\n")[0],
        )
    )
    assert len(kinds) == 6
    for kind in kinds:
        event = {
            "type": "speech_event",
            "timestamp": T0_MS,
            "data": {"kind": kind, "timestamp": T0_MS / 1_000},
        }
        arrival = admitted(SOURCES[1], json.dumps(event))
        assert isinstance(arrival, Arrival)
        assert misread_of(arrival.event) is None


# -- docs/tables.md
# ----------------------------------------------------------------------------------------------------

TABLES_PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")


def names_in(part: str) -> set[str]:
    """The names in a generated part of the page."""
    lines = TABLES_PAGE.split(f"<!-- begin {part} -->")[1].split(f"<!-- end {part} -->")[0]
    return set(re.findall(r"^\| `([^`]+)`", lines, re.M))


@pytest.mark.parametrize(("part", "columns"), [("calls", CALL_COLUMNS), ("turns", TURN_COLUMNS)])
def test_every_column_is_on_the_page_with_its_meaning(part: str, columns: Sequence[Column]) -> None:
    shown = names_in(part) | names_in("both")
    for column in columns:
        if column.shape == "reason":
            continue
        name = re.sub(
            r"^(eva|waits|stages)\.\w+", lambda each: f"{each[1]}.{WILD[each[1]]}", column.name
        )
        name = re.sub(r"^(speech|talk)\.(user|assistant)\.", r"\1.SIDE.", name)
        name = name.replace("user_disagreement", "SIDE_disagreement")
        name = name.replace("assistant_disagreement", "SIDE_disagreement")
        if (judged := name.partition("."))[0] in TEXT_JUDGES:
            name = f"RATING.{judged[2]}"
        assert name in shown, column.name
        assert column.meaning, column.name


WILD = {"eva": "NAME", "waits": "ANCHOR", "stages": "STAGE"}


def test_every_field_of_a_row_has_a_source() -> None:
    named = [name for names in COLUMN_SOURCES.values() for name in names.split()]
    assert len(named) == len({*named})
    assert {*named} == {column.path[0] for column in (*CALL_COLUMNS, *TURN_COLUMNS)}


def test_words_and_goal_sets_are_on_the_page() -> None:
    assert names_in("goals") == {*GoalsRow.__struct_fields__}
    assert names_in("words") >= {*WordsRow.__struct_fields__}


def test_every_anchor_and_status_is_named() -> None:
    rows = TABLES_PAGE[TABLES_PAGE.index("| anchor |") :].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", rows, re.M)) == {anchor.value for anchor in Anchor}
    for status in get_args(TurnStatus):
        assert f"`{status}`" in TABLES_PAGE
