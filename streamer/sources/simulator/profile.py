"""Profiles of simulated agents: how fast each step of an answer is, and how often something goes wrong."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

ProfileName = Literal["healthy", "awkward"]
Range = tuple[int, int]
"""Shortest and longest duration in ms; each in between is as likely."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How an agent serves its callers. Probabilities are per call unless they say otherwise.

    Attributes:
        features: How often each awkward thing happens. Each takes one exchange to itself.
        endings: Weights of the ends: goodbye, timeout, inactivity of the caller, error.
        heard_ms: From the caller's last sound to the ruling that the turn is over.
        model_ms: From then to the decision of the model.
        again_ms: From the answer of a failed tool to the next decision.
        after_tool_ms: From the answer of a tool to the decision of the model.
        tool_ms: Run time of a tool.
        voice_ms: From the decision to the first sound.
        silence_ms: From the caller's last sound to the decision, in a turn with dead air.
        silent_turns: Probability per turn without a tool that it has dead air.
        late: Probability that an event arrives late.
        repeated: Probability that a record is sent twice.
        is_mute: Whether nobody ever answers; callers ask twice whether anybody is there, then hang up.
        talks_over: Whether the agent starts before its caller has finished, wherever a text is long enough.
        tools_fail: Whether no tool works.
        is_confused: Whether the agent understands nothing and asks the caller to repeat everything.
        sends_audit: Whether the framework of the agent sends its audit log.
        most_exchanges: After how many exchanges callers hang up at the latest, without a farewell; None for the whole call.
    """

    features: Mapping[str, float]
    endings: tuple[int, int, int, int]
    heard_ms: Range
    model_ms: Range
    again_ms: Range
    after_tool_ms: Range
    tool_ms: Range
    voice_ms: Range
    silence_ms: Range = (3300, 6500)
    silent_turns: float = 0.0
    late: float = 0.2
    repeated: float = 0.15
    is_mute: bool = False
    talks_over: bool = False
    tools_fail: bool = False
    is_confused: bool = False
    sends_audit: bool = True
    most_exchanges: int | None = None


AWKWARD: Final = Profile(
    features={
        "user_barge_in": 0.35,
        "assistant_interruption": 0.2,
        "empty_session": 0.15,
        "missing_audio_end": 0.1,
        "late_audio_end": 0.1,
        "slow_tool": 0.3,
        "tool_error": 0.2,
        "dead_air": 0.2,
        "slow_answer": 0.3,
        "user_silence": 0.12,
    },
    endings=(80, 7, 7, 6),
    heard_ms=(250, 650),
    model_ms=(250, 700),
    again_ms=(250, 500),
    after_tool_ms=(300, 700),
    tool_ms=(80, 700),
    voice_ms=(150, 300),
)
"""Calls in which most things go wrong now and then, for tests. No real agent would be kept in use like that."""

HEALTHY: Final = Profile(
    features={
        "user_barge_in": 0.15,
        "assistant_interruption": 0.03,
        "empty_session": 0.05,
        "missing_audio_end": 0.01,
        "late_audio_end": 0.01,
        "slow_tool": 0.03,
        "tool_error": 0.03,
        "dead_air": 0.01,
        "slow_answer": 0.05,
        "user_silence": 0.02,
    },
    endings=(97, 1, 1, 1),
    heard_ms=(280, 380),
    model_ms=(250, 400),
    again_ms=(100, 200),
    after_tool_ms=(100, 220),
    tool_ms=(40, 160),
    voice_ms=(150, 210),
    late=0.02,
    repeated=0.02,
)
"""An agent that meets the objectives of `deploy/slo.yaml`: 95 % of turns within 1.5 s, dead air in less than 1 %. It answers after
0.66 s at the earliest, because EVA's simulated caller notices its own silence after 0.6 s, and until then an answer looks like an
interruption.
"""

PROFILES: Final[Mapping[ProfileName, Profile]] = {"healthy": HEALTHY, "awkward": AWKWARD}

ProfileOf = Callable[[str, int], Profile]
"""The profile of an agent at a time, by its name and epoch milliseconds."""


def always(profile: Profile) -> ProfileOf:
    """Returns the profile for every agent at any time."""
    return lambda _agent, _at_ms: profile
