"""EVA's metrics of a call's final state: whether the user was identified, and whether the records are as expected."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from consumers.engine.records.eva_result import MetricResult, scored, skipped

State = Mapping[str, Any]
"""A scenario's records by table; facts about the user are under `session`."""

SESSION: Final = "session"
DIGITS: Final = 4
MAX_LISTED_TABLES: Final = 50
_UNORDERED: Final = frozenset(
    {"standby_list", "notifications", "bookings", "system_accounts", "group_memberships", "asset_recoveries"}
)
"""Lists whose order has no meaning."""
_NOTHING: Final = frozenset({"none", "null"})


def authentication_success(
    expected: State,
    final: State,
    tool_responses: Sequence[Mapping[str, Any]] = (),
    agent_tools: Sequence[Mapping[str, Any]] = (),
) -> MetricResult:
    """1 when the final session has every expected value, otherwise 0; skipped when nothing is expected.

    Args:
        expected: Expected records after the call.
        final: Actual records after the call.
        tool_responses: The answers of the tools, as in EVA's context.
        agent_tools: The agent's tools; those of type `auth` identify the user.
    """
    wanted = _session(expected)
    if not wanted:
        return skipped({"reason": "No expected session to verify"})
    mismatches = session_mismatches(expected, final)
    explanation = f"Session mismatch on keys: {list(mismatches)}" if mismatches else "Authentication successful"
    details = {
        "actual_session": _session(final), "expected_session": wanted, "mismatches": mismatches, "reason": explanation
    }  # fmt: skip
    names = {tool.get("name") for tool in agent_tools if tool.get("tool_type") == "auth"}
    calls = Counter(str(each["tool_name"]) for each in tool_responses if each["tool_name"] in names)
    parts: dict[str, float | None] = {}
    # Calls of each tool on average: an agent with two of them calls both once when nothing goes wrong.
    average = round(calls.total() / len(calls), DIGITS) if calls else 0.0
    if calls and mismatches:
        parts["num_auth_calls_on_failure"] = average
    elif calls:
        parts["auth_first_try_success"] = float(all(count == 1 for count in calls.values()))
        parts["num_auth_calls"] = average
        parts["authentication_success_rate"] = round(len(calls) / calls.total(), DIGITS)
    return scored(0.0 if mismatches else 1.0, details, parts)


def task_completion(expected: State, final: State, final_hash: str | None = None) -> MetricResult:
    """1 when the user was identified and the records are as expected, otherwise 0.

    Args:
        expected: Expected records after the call.
        final: Actual records after the call.
        final_hash: Hash of the actual records as the run computed it; takes precedence over `final`.
    """
    mismatches = session_mismatches(expected, final)
    if mismatches:
        explanation = f"Authentication failed: session mismatch on keys: {list(mismatches)}"
        return scored(0.0, {"auth_failed": True, "auth_mismatches": mismatches, "match": False, "message": explanation})
    expected_hash = state_hash(expected)
    actual_hash = state_hash(final) if final_hash is None else final_hash
    details: dict[str, Any] = {"actual_hash": actual_hash, "expected_hash": expected_hash}
    if expected_hash == actual_hash:
        return scored(1.0, {**details, "match": True, "message": "Final state is as expected"})
    tables = [
        table
        for table in sorted({*expected, *final} - {SESSION})
        if (table in expected) is not (table in final) or _plain(expected[table], table) != _plain(final[table], table)
    ]
    explanation = f"{len(tables)} tables differ" if tables else "the hash of the run is of another state"
    return scored(
        0.0, {**details, "differing_tables": tables[:MAX_LISTED_TABLES], "match": False, "message": explanation}
    )


def session_mismatches(expected: State, final: State) -> dict[str, dict[str, Any]]:
    """Session values that are missing or differ from the expected ones; texts are compared without regard to case."""
    actual = _session(final)
    return {
        name: {"actual": actual.get(name), "expected": value}
        for name, value in _session(expected).items()
        if _caseless(actual.get(name)) != _caseless(value)
    }


def state_hash(state: State) -> str:
    """SHA-256 of the records as canonical JSON, without the session.

    Example:
        >>> state_hash({"fees": {"total": 20.0}, "session": {}}) == state_hash({"fees": {"total": 20}})
        True
    """
    kept = {table: _plain(records, table) for table, records in state.items() if table != SESSION}
    return hashlib.sha256(_canonical(kept).encode()).hexdigest()


def _session(state: State) -> Mapping[str, Any]:
    session = state.get(SESSION)
    return session if isinstance(session, Mapping) else {}


def _caseless(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _plain(value: object, name: str = "") -> object:
    """The value in a normal form: whole numbers are integers, and a spelled-out nothing is None."""
    if isinstance(value, Mapping):
        return {key: _plain(each, key) for key, each in value.items()}
    if isinstance(value, list):
        values = [_plain(each) for each in value]
        return sorted(values, key=_canonical) if name in _UNORDERED else values
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().lower() in _NOTHING:
        return None
    return value


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
