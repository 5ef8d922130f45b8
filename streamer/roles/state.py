"""What a process of callgauge says of itself at `/state`: `doctor` asks for it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from consumers.runtime.registry import Instruments
from streamer.facts import installed_version
from streamer.settings.all_settings import Settings

COUNTERS: Final = (
    "callgauge_sequencer_refused_total",
    "callgauge_quarantined_total",
    "callgauge_misread_records_total",
    "callgauge_agent_errors_total",
    "callgauge_ingest_events_refused_total",
    "callgauge_ingest_requests_total",
)
"""Counters that show a fault of a producer."""
GAUGES: Final = (
    "callgauge_sequencer_known_behind_seconds",
    "callgauge_sequencer_inputs_left_out",
    "callgauge_sequencer_clock_difference_seconds",
    "callgauge_sequencer_lag_messages",
    "callgauge_consumer_lag_messages",
    "callgauge_history_lag_messages",
)
"""Gauges that show how far a role has come."""
_DECIDING: Final = frozenset({"limits", "goals", "redaction"})


class ProcessState(BaseModel):
    """A process as it is now.

    Attributes:
        version: Of callgauge.
        roles: That it runs.
        started_ms: When it began, in epoch milliseconds.
        problems: Why a role does not work now, as `/readyz` says it.
        settings: Those that decide what is said of calls.
        counts: Of each of `COUNTERS` that it has, what has counted by its labels.
        gauges: The same of each of `GAUGES`, as it is now.
        not_understood: Each kind of events that are not understood, and what to do about it.
    """

    model_config = ConfigDict(frozen=True)

    version: str
    roles: Sequence[str]
    started_ms: int
    problems: Sequence[str]
    settings: Mapping[str, Any]
    counts: Mapping[str, Mapping[str, int]]
    gauges: Mapping[str, Mapping[str, float]]
    not_understood: Mapping[str, str]


def state_of(
    settings: Settings,
    roles: Collection[str],
    instruments: Instruments,
    started_ms: int,
    *,
    problems: Sequence[str] = (),
) -> ProcessState:
    """The state of this process."""
    return ProcessState(
        version=installed_version(),
        roles=sorted(roles),
        started_ms=started_ms,
        problems=problems,
        settings=deciding_settings(settings),
        counts=instruments.counted(COUNTERS),
        gauges=instruments.read(GAUGES),
        not_understood=instruments.not_understood,
    )


def deciding_settings(settings: Settings) -> dict[str, Any]:
    """The settings that decide what is said of calls, by name; they are no secrets."""
    blocks = settings.model_dump(mode="json", include=set(_DECIDING))
    return {
        f"{block}.{name}": value
        for block, values in blocks.items()
        for name, value in values.items()
    }
