"""The API of the console: its models, which are its documentation, and the pieces that
make them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from consumers.console.agents import AgentNow, BadTime, Figures
from consumers.console.fleet import Fleet
from consumers.console.pages import names_of
from consumers.store.rows import StoredCall
from schemas.annotations import Annotation
from schemas.closed_sets import SortKey
from schemas.rows import CallRow, GoalsRow, OwnRow, TurnRow, WordsRow
from schemas.scores.running import EVERY_CALL, CallList, RunningCalls, WantedCalls, call_list

PREFIX: Final = "/api/v1"
MAX_LISTED: Final = 1_000
MAX_QUERY_CHARS: Final = 500
"""Longest value of a field of a query."""
MAX_ID_CHARS: Final = 1_000
MAX_TIME_MS: Final = 9_007_199_254_740_991
"""The largest whole number that every program can hold."""

_Names = Field(
    "", max_length=MAX_QUERY_CHARS, description="Names, separated by commas; empty for all."
)


class CallsQuery(BaseModel):
    """Which calls are asked for."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(
        "",
        max_length=MAX_QUERY_CHARS,
        description="Part of the id, of a label, or of what is wrong.",
    )
    agent: str = _Names
    version: str = _Names
    tenant: str = _Names
    environment: str = _Names
    bad: Literal["", "0", "1"] = Field("", description="1 for calls in trouble alone.")
    sort: SortKey = Field(
        "trouble",
        description=(
            "The order: the worst first, the longest quiet, the slowest, the oldest, by agent."
        ),
    )

    def wanted(self) -> WantedCalls:
        """The same as a choice of calls."""
        return WantedCalls(
            names_of(self.agent),
            names_of(self.tenant),
            names_of(self.environment),
            text=self.text.strip(),
            only_bad=self.bad == "1",
            sort=self.sort,
            versions=names_of(self.version),
        )


class ListQuery(CallsQuery):
    """Which calls are listed."""

    limit: int = Field(200, ge=1, le=MAX_LISTED, description="Most calls of the answer.")


class MomentQuery(BaseModel):
    """A moment of a call."""

    model_config = ConfigDict(extra="forbid")

    at_ms: int | None = Field(
        None,
        ge=0,
        le=MAX_TIME_MS,
        description=(
            "Time of the log in epoch ms: the answer is what was known then; now without it."
        ),
    )


class NoQuery(BaseModel):
    """A request without a query."""

    model_config = ConfigDict(extra="forbid")


class Problem(msgspec.Struct):
    """Why a request has no answer (RFC 9457)."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"


class FleetMinute(Figures, frozen=True, kw_only=True):
    """Figures of all calls in one minute, which begins at `at_ms`."""

    at_ms: int


class FleetAnswer(msgspec.Struct):
    """Figures of all calls in each minute of the last quarter of an hour, the newest last; each
    version of each agent, the worst first; when versions were bad, the newest first.
    """

    at_ms: int
    newest_score_ms: int | None
    calls_running: int
    calls_in_trouble: int
    calls_ended_badly: int
    minutes: list[FleetMinute]
    agents: list[AgentNow]
    bad_times: list[BadTime]


def call_answer(fleet: Fleet, now: RunningCalls, query: ListQuery, now_ms: int) -> CallList:
    """The answer about running calls."""
    return call_list(
        fleet.table,
        now.chosen(query.wanted()),
        now_ms,
        newest_ms=fleet.known.newest_ms,
        ended=fleet.table.calls_ended,
        unreadable=fleet.unreadable,
        most=query.limit,
    )


def fleet_answer(fleet: Fleet, now: RunningCalls, now_ms: int) -> FleetAnswer:
    """The answer about all calls."""
    everything = now.chosen(EVERY_CALL)
    return FleetAnswer(
        at_ms=now_ms,
        newest_score_ms=fleet.known.newest_ms,
        calls_running=everything.running,
        calls_in_trouble=everything.bad,
        calls_ended_badly=everything.ended_badly,
        minutes=[
            FleetMinute(**msgspec.structs.asdict(each), at_ms=begin_ms)
            for begin_ms, each in fleet.agents.figures(EVERY_CALL)[1]
        ],
        agents=fleet.agents.now,
        bad_times=fleet.bad_times.newest_first,
    )


class CallDetail(msgspec.Struct):
    """One call as it was known at a moment: its rows, as `docs/tables.md` has them. A field of a
    row that is not there has its default.

    Attributes:
        call: The row of the call.
        turns: The rows of its turns.
        goals: Its goal set; null without one.
        words: What was said; null where words are hidden.
        annotations: What people say of it.
        own: Values of measures of one's own.
    """

    call: CallRow
    turns: tuple[TurnRow, ...]
    goals: GoalsRow | None
    words: tuple[WordsRow, ...] | None
    annotations: list[dict[str, Any]]
    own: tuple[OwnRow, ...]


def call_detail(call: StoredCall, annotations: Sequence[Annotation], *, words: bool) -> bytes:
    """The answer about one call."""
    said = [each.model_dump(mode="json") for each in annotations]
    shown = call.words if words else None
    return msgspec.json.encode(CallDetail(call.call, call.turns, call.goals, shown, said, call.own))


# The description of the API, made from the models.

_ID: Final = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The conversation id.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS},
}
_OPERATIONS: Final[Mapping[str, tuple[str, type[BaseModel], type[msgspec.Struct]]]] = {
    "/calls": ("The calls that run now.", ListQuery, CallList),
    "/calls/{id}": ("One call as it was known at a moment.", MomentQuery, CallDetail),
    "/fleet": ("Figures of all calls.", NoQuery, FleetAnswer),
}


def openapi(version: str) -> dict[str, Any]:
    """The description of the API as an OpenAPI 3.1 document."""
    answers = [Problem, *(answer for _, _, answer in _OPERATIONS.values())]
    _, schemas = msgspec.json.schema_components(answers, ref_template="#/components/schemas/{name}")
    problems = {
        status: {
            "description": text,
            "content": {"application/problem+json": {"schema": _ref(Problem)}},
        }
        for status, text in {
            "401": "The token is missing or wrong.",
            "404": "There is no such call.",
            "405": "Only GET is answered.",
            "414": "The id is too long.",
            "422": "A field of the query is wrong.",
            "503": "Too many readers, or nothing is written now.",
        }.items()
    }
    stream = {
        "description": "Events: each has one row of `scores`.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
    paths: dict[str, Any] = {
        f"{PREFIX}{path}": {
            "get": {
                "summary": summary,
                "parameters": [*([_ID] if "{id}" in path else []), *_fields(query)],
                "responses": {
                    "200": {
                        "description": "The answer.",
                        "content": {"application/json": {"schema": _ref(answer)}},
                    },
                    **problems,
                },
            }
        }
        for path, (summary, query, answer) in _OPERATIONS.items()
    }
    paths[f"{PREFIX}/stream"] = {
        "get": {
            "summary": "Every new row of `scores`, as server-sent events.",
            "responses": {"200": stream, **problems},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "callgauge console",
            "version": version,
            "description": "Calls while they run. Times are epoch ms.",
        },
        "paths": paths,
        "components": {
            "schemas": msgspec.json.decode(msgspec.json.encode(schemas)),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _ref(model: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _fields(query: type[BaseModel]) -> list[dict[str, Any]]:
    """The fields of a query as parameters."""
    properties = query.model_json_schema()["properties"] if query.model_fields else {}
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": schema.pop("description", ""),
            "schema": {
                key: value for key, value in schema.items() if key not in ("default", "title")
            },
        }
        for name, schema in properties.items()
    ]
