"""EVA's checks of uses of tools: arguments by their schema, and words before a tool is called."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from consumers.engine.goals.checks import is_same
from consumers.engine.measures.eva_timing import SCORE_DIGITS
from consumers.engine.measures.results import MetricResult, scored, skipped
from consumers.engine.sources.facts import AgentTool
from consumers.engine.turns.timeline import ElementKind
from schemas.goals.patterns import MAX_SEARCHED_CHARS, PatternError, worst_steps
from schemas.metric_context import MetricContext

# EVA's `tool_call_validity`: the share of tool answers that do not blame the call itself.

DIGITS: Final = 4
CALL_ERRORS: Final = frozenset(
    {
        *("tool_not_found", "function_not_found", "execution_error", "invalid_parameter"),
        *(
            "invalid_rebooking_type",
            "invalid_fare_class",
            "invalid_meal_type",
            "invalid_credit_reason",
        ),
        *(
            "invalid_voucher_reason",
            "invalid_refund_type",
            "invalid_seat_preference",
            "invalid_cancellation_reason",
        ),
        *(
            "invalid_confirmation_number_format",
            "invalid_flight_number_format",
            "invalid_date_format",
        ),
        *(
            "invalid_journey_id_format",
            "invalid_passenger_id_format",
            "invalid_airport_code_format",
        ),
        "invalid_bag_count",
    }
)
"""Error types that blame the call. Other domains than the airline have more, and EVA does not count
them.
"""


def tool_call_validity(context: MetricContext) -> MetricResult:
    """The metric with a rate for each error type. EVA calls the number of answers
    `num_tool_calls`.
    """
    return validity_of(context.tool_responses, context.tool_params)


def validity_of(
    responses: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]
) -> MetricResult:
    """The metric of these tool answers; as EVA does, the parameters shown are those of the call at
    the same place.
    """
    total = len(responses)
    if not total:
        details = {"note": "No tool calls to evaluate", "total_tool_calls": 0}
        return scored(1.0, details, {"num_tool_calls": 0.0})
    errors = []
    for place, each in enumerate(responses):
        response = each["tool_response"]
        error_type = call_error_of(response)
        if error_type is not None:
            errors.append(
                {
                    "error_type": error_type,
                    "message": response.get("message", ""),
                    "parameters": calls[place]["tool_parameters"] if place < len(calls) else {},
                    "tool_name": each["tool_name"],
                }
            )
    counts = [error["error_type"] for error in errors]
    parts: dict[str, float | None] = {
        f"{error_type}_rate": round(counts.count(error_type) / total, DIGITS)
        for error_type in sorted(CALL_ERRORS)
    }
    parts["num_tool_calls"] = float(total)
    valid = total - len(errors)
    details = {
        "errors": errors,
        "invalid_tool_calls": len(errors),
        "total_tool_calls": total,
        "valid_tool_calls": valid,
    }
    return scored(round(valid / total, DIGITS), details, parts)


def call_error_of(response: object) -> str | None:
    """The error type of an answer that blames the call; None for every other answer."""
    error_type = response.get("error_type") if isinstance(response, Mapping) else None
    return error_type if isinstance(error_type, str) and error_type in CALL_ERRORS else None


# Checks a value against a JSON schema: the part of JSON Schema 2020-12 that descriptions of an
# agent's tools use.
#
# An unknown keyword forbids nothing, as the standard wants it; nor does `format`, a pattern that
# could keep the evaluator busy, or a reference that leads nowhere. The size of a record bounds
# values and schemas; depth and number of comparisons are bounded here.

MAX_SCHEMA_DEPTH: Final = 32
"""Depth of schemas inside schemas and of references; anything deeper forbids nothing."""
MAX_CHECKS: Final = 10_000
"""Comparisons of a value with a schema for one answer; anything beyond forbids nothing."""
_KEPT_PATTERNS: Final = 256

_TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: _is_number(value) and _is_whole(value),
}


def fits(value: object, schema: object) -> bool:
    """Whether the schema allows the value.

    Example:
        >>> schema = {"type": "object", "properties": {"bags": {"type": "integer", "maximum": 3}}, "required": ["bags"]}
        >>> fits({"bags": 2}, schema), fits({"bags": 4}, schema), fits({"bags": "2"}, schema), fits({}, schema)
        (True, False, False, False)
    """
    return _Check(schema).fits(value, schema, 0)


class _Check:
    """One check; references start from `root`."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._left = MAX_CHECKS

    def fits(self, value: object, schema: object, depth: int) -> bool:
        self._left -= 1
        if depth > MAX_SCHEMA_DEPTH or self._left < 0:
            return True
        if not isinstance(schema, dict):
            return schema is not False
        return (
            _is_of_type(value, schema.get("type"))
            and _is_one_of(value, schema)
            and self._combines(value, schema, depth + 1)
            and (not isinstance(value, dict) or self._fits_object(value, schema, depth + 1))
            and (not isinstance(value, list) or self._fits_array(value, schema, depth + 1))
            and (not isinstance(value, str) or _fits_text(value, schema))
            and (not _is_number(value) or _fits_number(value, schema))
        )

    def _combines(self, value: object, schema: dict[str, Any], depth: int) -> bool:
        target = self._target(schema.get("$ref"))
        if target is not None and not self.fits(value, target, depth):
            return False
        if not all(self.fits(value, each, depth) for each in _list(schema.get("allOf"))):
            return False
        if "anyOf" in schema and not any(
            self.fits(value, each, depth) for each in _list(schema["anyOf"])
        ):
            return False
        if (
            "oneOf" in schema
            and sum(self.fits(value, each, depth) for each in _list(schema["oneOf"])) != 1
        ):
            return False
        return "not" not in schema or not self.fits(value, schema["not"], depth)

    def _target(self, reference: object) -> object:
        """The target of a reference inside the schema; None without one."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: object = self._root
        for name in reference[1:].split("/")[1:]:
            found = (
                found.get(name.replace("~1", "/").replace("~0", "~"))
                if isinstance(found, dict)
                else None
            )
        return found

    def _fits_object(self, value: dict[str, Any], schema: dict[str, Any], depth: int) -> bool:
        properties = schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        if not all(
            name in value for name in _list(schema.get("required")) if isinstance(name, str)
        ):
            return False
        if not all(
            self.fits(value[name], each, depth) for name, each in known.items() if name in value
        ):
            return False
        others = schema.get("additionalProperties", True)
        return others is True or all(
            self.fits(value[name], others, depth) for name in value if name not in known
        )

    def _fits_array(self, value: list[Any], schema: dict[str, Any], depth: int) -> bool:
        if not _is_within(len(value), schema, "minItems", "maxItems"):
            return False
        items = schema.get("items", True)
        return items is True or all(self.fits(each, items, depth) for each in value)


def _is_of_type(value: object, types: object) -> bool:
    names = [types] if isinstance(types, str) else _list(types)
    checks = [_TYPES[name] for name in names if isinstance(name, str) and name in _TYPES]
    return not checks or any(check(value) for check in checks)


def _is_one_of(value: object, schema: dict[str, Any]) -> bool:
    if "const" in schema and not is_same(value, schema["const"]):
        return False
    return "enum" not in schema or any(is_same(value, each) for each in _list(schema["enum"]))


def _fits_text(value: str, schema: dict[str, Any]) -> bool:
    if not _is_within(len(value), schema, "minLength", "maxLength"):
        return False
    pattern = schema.get("pattern")
    searched = _searched(pattern) if isinstance(pattern, str) else None
    return searched is None or searched.search(value[:MAX_SEARCHED_CHARS]) is not None


def _fits_number(value: Any, schema: dict[str, Any]) -> bool:
    above: Any = schema.get("exclusiveMinimum")
    below: Any = schema.get("exclusiveMaximum")
    step: Any = schema.get("multipleOf")
    return (
        _is_within(value, schema, "minimum", "maximum")
        and (not _is_number(above) or value > above)
        and (not _is_number(below) or value < below)
        and (not _is_number(step) or step <= 0 or _is_multiple(value, step))
    )


def _is_multiple(value: Any, step: Any) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    try:
        return _is_whole(value / step)
    except OverflowError:  # no float is that large
        return True


def _is_within(size: Any, schema: dict[str, Any], least_name: str, most_name: str) -> bool:
    least: Any = schema.get(least_name)
    most: Any = schema.get(most_name)
    if _is_number(least) and size < least:
        return False
    return not (_is_number(most) and size > most)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) or (math.isfinite(number) and number.is_integer())


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


@lru_cache(_KEPT_PATTERNS)
def _searched(pattern: str) -> re.Pattern[str] | None:
    """The compiled pattern; None if it could keep the evaluator busy."""
    try:
        worst_steps(pattern)
        return re.compile(pattern)
    except (PatternError, re.error):
        return None


# The share of tool calls that fit the agent's tool descriptions, for agents whose tools do not name
# errors as EVA's do.

MAX_CHECKED_CALLS: Final = 200
"""Tool calls of a call that are checked, the first ones; a call makes some five, a loop of the
agent more.
"""


def tool_schema_validity(
    calls: Sequence[Mapping[str, Any]], tools: Sequence[AgentTool]
) -> MetricResult:
    """The share of tool calls whose tool is one of these and whose arguments fit its schema.

    Args:
        calls: The tool calls, as in EVA's context.
        tools: The agent's tools; one without a schema accepts any arguments.
    """
    checked = calls[:MAX_CHECKED_CALLS]
    if not checked:
        return skipped({"num_tool_calls": 0})
    schemas = {tool.name: True if tool.parameters is None else tool.parameters for tool in tools}
    unknown = [call for call in checked if call["tool_name"] not in schemas]
    unfit = [
        call
        for call in checked
        if call["tool_name"] in schemas
        and not fits(call["tool_parameters"], schemas[call["tool_name"]])
    ]
    total = len(checked)
    parts: dict[str, float | None] = {
        "num_tool_calls": float(total),
        "unknown_tool_rate": round(len(unknown) / total, DIGITS),
        "unfit_arguments_rate": round(len(unfit) / total, DIGITS),
    }
    details = {
        "unknown_tools": [call["tool_name"] for call in unknown],
        "unfit": [call["tool_name"] for call in unfit],
    }
    return scored(round((total - len(unknown) - len(unfit)) / total, DIGITS), details, parts)


# The share of tool groups that the assistant announced (`pretoolspeech_rate`).

_TOOLS = frozenset({ElementKind.TOOL_CALL, ElementKind.TOOL_RESPONSE})


def pre_tool_speech_rate(history: Iterable[tuple[int, int, object]]) -> float | None:
    """Share of tool groups that began after the assistant had answered the user's last words.

    A group is a run of tool calls and answers with no words of either side between them.

    Args:
        history: The merged history, (key, kind, payload) in its order; only entries of the audit
            log are read.

    Returns:
        The share, from 0 to 1; None without tools.
    """
    groups = announced = 0
    has_spoken = is_in_group = False
    for _, kind, payload in history:
        if kind in _TOOLS:
            groups += not is_in_group
            announced += has_spoken and not is_in_group
            is_in_group = True
        elif kind == ElementKind.AUDIT_USER:
            has_spoken = is_in_group = False
        elif kind == ElementKind.AUDIT_ASSISTANT:
            is_in_group = False
            has_spoken = has_spoken or (isinstance(payload, str) and bool(payload.strip()))
    return round(announced / groups, SCORE_DIGITS) if groups else None
