"""EVA's `tool_call_validity`: the share of tool answers that do not blame the call itself."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from consumers.engine.records.eva_result import MetricResult, scored
from schemas.metric_context import MetricContext

DIGITS: Final = 4
CALL_ERRORS: Final = frozenset(
    {
        *("tool_not_found", "function_not_found", "execution_error", "invalid_parameter"),
        *("invalid_rebooking_type", "invalid_fare_class", "invalid_meal_type", "invalid_credit_reason"),
        *("invalid_voucher_reason", "invalid_refund_type", "invalid_seat_preference", "invalid_cancellation_reason"),
        *("invalid_confirmation_number_format", "invalid_flight_number_format", "invalid_date_format"),
        *("invalid_journey_id_format", "invalid_passenger_id_format", "invalid_airport_code_format"),
        "invalid_bag_count",
    }
)
"""Error types that blame the call. Other domains than the airline have more, and EVA does not count them."""


def tool_call_validity(context: MetricContext) -> MetricResult:
    """The metric with a rate for each error type. EVA calls the number of answers `num_tool_calls`."""
    return validity_of(context.tool_responses, context.tool_params)


def validity_of(responses: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]) -> MetricResult:
    """The metric of these tool answers; as EVA does, the parameters shown are those of the call at the same place."""
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
        f"{error_type}_rate": round(counts.count(error_type) / total, DIGITS) for error_type in sorted(CALL_ERRORS)
    }
    parts["num_tool_calls"] = float(total)
    valid = total - len(errors)
    details = {
        "errors": errors, "invalid_tool_calls": len(errors), "total_tool_calls": total, "valid_tool_calls": valid
    }  # fmt: skip
    return scored(round(valid / total, DIGITS), details, parts)


def call_error_of(response: object) -> str | None:
    """The error type of an answer that blames the call; None for every other answer."""
    error_type = response.get("error_type") if isinstance(response, Mapping) else None
    return error_type if isinstance(error_type, str) and error_type in CALL_ERRORS else None
