"""The share of tool calls that fit the agent's tool descriptions, for agents whose tools do not name errors as EVA's do."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from consumers.engine.measures.eva.tools.json_schema import fits
from consumers.engine.measures.eva.tools.tool_call_validity import DIGITS
from consumers.engine.records.eva_result import MetricResult, scored, skipped
from schemas.events.call import AgentTool

MAX_CHECKED_CALLS: Final = 200
"""Tool calls of a call that are checked, the first ones; a call makes some five, a loop of the agent more."""


def tool_schema_validity(calls: Sequence[Mapping[str, Any]], tools: Sequence[AgentTool]) -> MetricResult:
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
        if call["tool_name"] in schemas and not fits(call["tool_parameters"], schemas[call["tool_name"]])
    ]
    total = len(checked)
    parts: dict[str, float | None] = {
        "num_tool_calls": float(total),
        "unknown_tool_rate": round(len(unknown) / total, DIGITS),
        "unfit_arguments_rate": round(len(unfit) / total, DIGITS),
    }
    details = {"unknown_tools": [call["tool_name"] for call in unknown], "unfit": [call["tool_name"] for call in unfit]}
    return scored(round((total - len(unknown) - len(unfit)) / total, DIGITS), details, parts)
