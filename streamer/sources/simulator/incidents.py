"""Incidents: known troubles of agents, made on purpose, so that drills and people can see which alert reports them.

An incident changes the profile of agents while it lasts, also in calls that have begun before it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from streamer.sources.simulator.profile import Profile, ProfileOf, Range

IncidentName = Literal[
    "llm_slow", "tts_slow", "stt_slow", "dead_air", "agent_mute", "talks_over", "tool_backend_fails", "callers_hang_up",
    "stall_after_deploy", "source_silent",
]  # fmt: skip

LLM_SLOW_MS: Final = 5_000
"""Delay of every answer by a model that is out of capacity."""
TTS_SLOW_MS: Final = 1_500
"""Delay by a voice without a warm cache: the answer is late, and not yet dead air."""
STT_SLOW_MS: Final = 1_500
"""Delay by a transcriber that falls behind."""
SILENT_TURNS: Final = 0.5
"""Share of the turns without a tool in which an answer hangs, a fifth to a quarter of all turns."""


def _later(bounds: Range, by_ms: int) -> Range:
    return bounds[0] + by_ms, bounds[1] + by_ms


_CHANGES: Final[Mapping[IncidentName, Callable[[Profile], Profile]]] = {
    "llm_slow": lambda usual: replace(usual, model_ms=_later(usual.model_ms, LLM_SLOW_MS)),
    "tts_slow": lambda usual: replace(usual, voice_ms=_later(usual.voice_ms, TTS_SLOW_MS)),
    "stt_slow": lambda usual: replace(usual, heard_ms=_later(usual.heard_ms, STT_SLOW_MS)),
    "dead_air": lambda usual: replace(usual, silent_turns=SILENT_TURNS, silence_ms=(4_000, 7_000)),
    "agent_mute": lambda usual: replace(usual, is_mute=True, features={}),
    "talks_over": lambda usual: replace(usual, talks_over=True),
    "tool_backend_fails": lambda usual: replace(usual, tools_fail=True),
    "callers_hang_up": lambda usual: replace(usual, most_exchanges=2),
    "stall_after_deploy": lambda usual: replace(usual, is_confused=True),
    "source_silent": lambda usual: replace(usual, sends_audit=False),
}
INCIDENT_NAMES: Final[tuple[IncidentName, ...]] = get_args(IncidentName)


@dataclass(frozen=True, slots=True)
class Incident:
    """One trouble of one agent, or of all.

    Attributes:
        name: The kind of trouble.
        agent: The agent that has it; None for every agent.
        begins_ms: When it begins, in epoch ms.
        ends_ms: When it is over; None for never.
    """

    name: IncidentName
    agent: str | None = None
    begins_ms: int = 0
    ends_ms: int | None = None

    def concerns(self, agent: str, at_ms: int) -> bool:
        """Returns whether this agent has the trouble at this time."""
        is_on = self.begins_ms <= at_ms and (self.ends_ms is None or at_ms < self.ends_ms)
        return is_on and self.agent in (None, agent)


def with_incidents(usual: Profile, incidents: Sequence[Incident]) -> ProfileOf:
    """Returns the usual profile, changed by every incident that concerns an agent at a time."""

    def profile_of(agent: str, at_ms: int) -> Profile:
        profile = usual
        for incident in incidents:
            if incident.concerns(agent, at_ms):
                profile = _CHANGES[incident.name](profile)
        return profile

    return profile_of
