"""The API of the console: its models, which are its documentation, and the pieces that make them."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from consumers.console.fleet import Fleet
from consumers.console.pages import names_of
from schemas.closed_sets import SortKey
from schemas.metric_context import TurnsBy
from schemas.scores.running import ListedCall, RunningCalls, WantedCalls
from schemas.transcript import TranscriptTurn

PREFIX: Final = "/api/v1"
MAX_LISTED: Final = 1_000
MAX_QUERY_CHARS: Final = 500
"""Longest value of a field of a query."""
MAX_ID_CHARS: Final = 1_000
MAX_TIME_MS: Final = 9_007_199_254_740_991
"""The largest whole number that every program can hold."""

_Names = Field("", max_length=MAX_QUERY_CHARS, description="Names, separated by commas; empty for all.")


class CallsQuery(BaseModel):
    """Which calls are asked for."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field("", max_length=MAX_QUERY_CHARS, description="Part of the id, of a label, or of what is wrong.")
    agent: str = _Names
    tenant: str = _Names
    environment: str = _Names
    bad: Literal["", "0", "1"] = Field("", description="1 for calls in trouble alone.")
    sort: SortKey = Field(
        "trouble", description="The order: the worst first, the longest quiet, the slowest, the oldest, by agent."
    )

    def wanted(self) -> WantedCalls:
        """The same as a choice of calls."""
        return WantedCalls(
            names_of(self.agent), names_of(self.tenant), names_of(self.environment),
            text=self.text.strip(), only_bad=self.bad == "1", sort=self.sort,
        )  # fmt: skip


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
        description="Broker time in epoch ms: the answer is what was known then; now without it.",
    )


class NoQuery(BaseModel):
    """A request without a query."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """Why a request has no answer (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class CallList(BaseModel):
    """The calls that run now, and those that ended in the last seconds; times in epoch ms, null for unknown values."""

    at_ms: int
    newest_score_ms: int | None
    is_stale: bool
    calls_running: int
    calls_in_trouble: int
    calls_ended: int
    calls_left_out: int
    unreadable_records: int
    calls: list[ListedCall]


class CallDetail(BaseModel):
    """One call as it was known at a moment.

    `context` is the metric context of its events, redacted; null where words are hidden or the topics have no events of it.
    `turns_by` says whose turns it has: `eva` where a simulated caller hears the call, otherwise `bot`.
    `records_not_used` are records that the evaluator refuses too.
    """

    conversation_id: str
    at_ms: int | None
    first_ms: int | None
    last_ms: int | None
    is_closed: bool
    records_not_used: int
    turns_by: TurnsBy | None
    context: dict[str, Any] | None


class CallScores(BaseModel):
    """The scores of a call that counted at a moment: the newest revision of each. `docs/scores.md` has their schema."""

    conversation_id: str
    at_ms: int | None
    records: list[dict[str, Any]]


class CallTranscriptAnswer(BaseModel):
    """The transcript of a call up to a moment, in ElevenLabs' format, redacted."""

    conversation_id: str
    at_ms: int | None
    transcript: list[TranscriptTurn]


class FleetStep(BaseModel):
    """Figures of all calls over ten seconds, whose end is `end_ms`."""

    end_ms: int
    answers: int
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    calls_running: int
    calls_in_trouble: int
    progress: float | None


class FleetAnswer(BaseModel):
    """Figures of all calls, the last quarter of an hour in steps of ten seconds, the newest last."""

    at_ms: int
    newest_score_ms: int | None
    calls_running: int
    calls_in_trouble: int
    steps: list[FleetStep]


def call_list(fleet: Fleet, now: RunningCalls, query: ListQuery, now_ms: int) -> CallList:
    """The answer about running calls."""
    shown = now.chosen(query.wanted())
    return CallList(
        at_ms=now_ms,
        newest_score_ms=fleet.newest_ms,
        is_stale=shown.is_stale,
        calls_running=shown.running,
        calls_in_trouble=shown.bad,
        calls_ended=fleet.table.calls_ended,
        calls_left_out=fleet.table.calls_dropped,
        unreadable_records=fleet.unreadable,
        calls=[ListedCall.of(call, now_ms) for call in shown.calls[: query.limit]],
    )


def fleet_answer(fleet: Fleet, now: RunningCalls, now_ms: int) -> FleetAnswer:
    """The answer about all calls."""
    everything = now.chosen(WantedCalls())
    return FleetAnswer(
        at_ms=now_ms,
        newest_score_ms=fleet.newest_ms,
        calls_running=everything.running,
        calls_in_trouble=everything.bad,
        steps=[
            FleetStep(
                end_ms=step.end_ms,
                answers=len(step.latencies_ms),
                latency_p50_ms=step.percentile_ms(50),
                latency_p95_ms=step.percentile_ms(95),
                calls_running=step.running,
                calls_in_trouble=step.bad,
                progress=step.progress,
            )
            for step in fleet.steps
        ],
    )


# The description of the API, made from the models.

_ID: Final = {
    "name": "id", "in": "path", "required": True, "description": "The conversation id.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS},
}  # fmt: skip
_OPERATIONS: Final[Mapping[str, tuple[str, type[BaseModel], type[BaseModel]]]] = {
    "/calls": ("The calls that run now.", ListQuery, CallList),
    "/calls/{id}": ("One call as it was known at a moment.", MomentQuery, CallDetail),
    "/calls/{id}/scores": ("The scores of a call at a moment.", MomentQuery, CallScores),
    "/calls/{id}/transcript": ("What was said up to a moment.", MomentQuery, CallTranscriptAnswer),
    "/fleet": ("Figures of all calls.", NoQuery, FleetAnswer),
}


def openapi(version: str) -> dict[str, Any]:
    """The description of the API as an OpenAPI 3.1 document."""
    models: list[tuple[type[BaseModel], Literal["serialization"]]] = [(Problem, "serialization")]
    models += [(answer, "serialization") for _, _, answer in _OPERATIONS.values()]
    _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")
    problems = {
        status: {"description": text, "content": {"application/problem+json": {"schema": _ref(Problem)}}}
        for status, text in {
            "401": "The token is missing or wrong.", "404": "There is no such call.", "405": "Only GET is answered.",
            "414": "The id is too long.", "422": "A field of the query is wrong.", "503": "Too many readers, or Kafka is away.",
        }.items()
    }  # fmt: skip
    stream = {
        "description": "Events: each has one score record.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
    paths: dict[str, Any] = {
        f"{PREFIX}{path}": {
            "get": {
                "summary": summary,
                "parameters": [*([_ID] if "{id}" in path else []), *_fields(query)],
                "responses": {"200": {"description": "The answer.", "content": {"application/json": {"schema": _ref(answer)}}}, **problems},
            }
        }
        for path, (summary, query, answer) in _OPERATIONS.items()
    }  # fmt: skip
    paths[f"{PREFIX}/stream"] = {
        "get": {"summary": "Every new score record, as server-sent events.", "responses": {"200": stream, **problems}}
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "callgauge console", "version": version, "description": "Calls while they run. Times are epoch ms."},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }  # fmt: skip


def _ref(model: type[BaseModel]) -> dict[str, str]:
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
            "schema": {key: value for key, value in schema.items() if key not in ("default", "title")},
        }
        for name, schema in properties.items()
    ]
