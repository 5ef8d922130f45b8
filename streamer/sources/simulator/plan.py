"""The plan of a simulated call."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from streamer.sources.simulator.profile import (
    APOLOGY,
    CONFUSED,
    DOMAINS,
    FILLERS,
    HELLO,
    NOISES,
    NUDGES,
    Domain,
    Exchange,
    Profile,
    ProfileOf,
    ToolScript,
    can_happen,
)

CallKind = Literal["phone", "cascade", "audio_llm", "s2s"]
"""`phone`: a real line, no simulated caller, pipecat's own records. The others: EVA's three sources
and pipelines.
"""

SIMULATED_KINDS: Final[tuple[CallKind, ...]] = ("cascade", "audio_llm", "s2s")
_SIMULATOR_ONLY: Final = frozenset({"missing_audio_end", "late_audio_end"})

_IN_THE_ANSWER: Final = frozenset(
    {"assistant_interruption", "late_audio_end", "slow_tool", "tool_error", "slow_answer"}
)
"""Parts that a turn without an answer lacks."""

_PATIENCE_MS: Final = (5_000, 9_000)
"""How long a caller waits in silence before asking whether anybody is there."""


@dataclass(frozen=True, slots=True)
class PlannedSpeech:
    """One speech: first and last sound, the intended text and the spoken text."""

    text: str
    spoken: str
    start_ms: int
    end_ms: int

    @property
    def cut_off(self) -> bool:
        return self.spoken != self.text


@dataclass(frozen=True, slots=True)
class PlannedToolRun:
    """One use of a tool, from its call to its response."""

    name: str
    parameters: Mapping[str, Any]
    response: Mapping[str, Any]
    called_ms: int
    answered_ms: int

    @property
    def failed(self) -> bool:
        return bool(self.response["status"] == "error")


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One decision of the assistant's model: something to say, a tool to use, or both."""

    asked_ms: int
    decided_ms: int
    speech: PlannedSpeech | None = None
    tool: PlannedToolRun | None = None


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """The user speaks (None: stays silent), the assistant decides that it heard everything, and
    answers in steps.
    """

    user: PlannedSpeech | None
    heard_ms: int
    steps: tuple[PlannedStep, ...]
    noise: PlannedSpeech | None = None
    awkward: str = ""


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A whole call; turn 0 is the greeting. Times in epoch ms."""

    kind: CallKind
    conversation_id: str
    agent: str
    start_ms: int
    turns: tuple[PlannedTurn, ...]
    hang_up_ms: int
    ended_reason: str
    features: frozenset[str]


def plan_call(
    rng: random.Random,
    *,
    conversation_id: str,
    start_ms: int,
    kind: CallKind,
    profile_of: ProfileOf,
    domains: Sequence[Domain] = DOMAINS,
) -> CallPlan:
    """Draws one call of one of these domains."""
    domain = rng.choice(domains)
    weights = profile_of(domain.agent, start_ms).endings
    (ended_reason,) = rng.choices(
        ("goodbye", "timeout", "inactivity_timeout", "error"), weights=weights
    )
    return _Planner(rng, domain, kind, start_ms, profile_of).plan(conversation_id, ended_reason)


HUNG_UP: Final = "user_hung_up"
"""How a call ends whose caller gives up: nobody says goodbye."""


class _Planner:
    """Walks through one call's exchanges, keeping the turns so far."""

    def __init__(
        self, rng: random.Random, domain: Domain, kind: CallKind, start_ms: int, of: ProfileOf
    ) -> None:
        self._rng = rng
        self._profile_of = of
        self._domain = domain
        self._kind = kind
        self._start_ms = start_ms
        self._ms_per_word = rng.uniform(300, 390)
        self._turns: list[PlannedTurn] = []

    def plan(self, conversation_id: str, ended_reason: str) -> CallPlan:
        exchanges = self._exchanges()
        awkward = self._draw_awkward(exchanges)
        self._greet()
        for index, exchange in enumerate(exchanges):
            if awkward.get(index) == "user_silence":
                self._stay_silent()
            self._take_turn(exchange, awkward.get(index, ""))
        features = set(awkward.values())
        if self._profile.is_mute or self._profile.most_exchanges is not None:
            ended_reason = HUNG_UP
        elif ended_reason == "goodbye":
            self._take_turn(self._domain.farewell, "")
        elif ended_reason == "error":  # the agent breaks down while the user waits for an answer
            self._turns[-1] = replace(self._turns[-1], steps=())
            features = {
                *features - ({self._turns[-1].awkward} & _IN_THE_ANSWER),
                "unanswered",
                "dead_air",
            }
        waited_ms = (
            self._between(400, 1500)
            if ended_reason in {"goodbye", HUNG_UP}
            else self._between(8_000, 15_000)
        )
        return CallPlan(
            kind=self._kind,
            conversation_id=conversation_id,
            agent=self._domain.agent,
            start_ms=self._start_ms,
            turns=tuple(self._turns),
            hang_up_ms=self._last_sound_ms() + waited_ms,
            ended_reason=ended_reason,
            features=frozenset(features),
        )

    @property
    def _profile(self) -> Profile:
        """How well the agent does now: an incident also meets calls that have begun before it."""
        return self._profile_of(self._domain.agent, self._last_sound_ms())

    def _exchanges(self) -> tuple[Exchange, ...]:
        """Draws how far the caller gets. Who is not answered or not understood says no
        new thing.
        """
        there = self._domain.exchanges
        fewest = min(self._profile.fewest_exchanges, len(there))
        planned = there[: self._rng.randint(fewest, len(there))]
        if self._profile.is_mute:
            return (planned[0], *(Exchange(text, "") for text in HELLO))
        if self._profile.is_confused:
            return tuple(
                Exchange(exchange.user, CONFUSED) for exchange in planned for _ in range(2)
            )
        if self._profile.most_exchanges is not None:
            return planned[: self._rng.randint(1, self._profile.most_exchanges)]
        return planned

    def _draw_awkward(self, exchanges: tuple[Exchange, ...]) -> dict[int, str]:
        """Gives each awkward thing that is drawn an exchange of its own where it can happen."""
        before = [self._domain.greeting, *(exchange.assistant for exchange in exchanges)]
        awkward: dict[int, str] = {}
        for feature, probability in self._profile.features.items():
            drawn = self._rng.random() < probability
            if not drawn or (feature in _SIMULATOR_ONLY and self._kind == "phone"):
                continue
            places = [
                index
                for index, exchange in enumerate(exchanges)
                if index not in awkward and can_happen(feature, exchange, before[index])
            ]
            if places:
                awkward[self._rng.choice(places)] = feature
        return awkward

    def _greet(self) -> None:
        speech = self._speech(self._domain.greeting, self._start_ms + self._between(700, 1400))
        asked_ms, decided_ms = speech.start_ms - 500, speech.start_ms - 350
        self._turns.append(
            PlannedTurn(
                user=None, heard_ms=asked_ms, steps=(PlannedStep(asked_ms, decided_ms, speech),)
            )
        )

    def _stay_silent(self) -> None:
        """Plans a user who does not answer; after 12 s the assistant asks whether
        anybody is there.
        """
        heard_ms = self._last_sound_ms() + 12_000
        decided_ms = heard_ms + self._between(400, 900)
        speech = self._speech(self._rng.choice(NUDGES), decided_ms + self._between(180, 400))
        steps = (PlannedStep(heard_ms, decided_ms, speech),)
        self._turns.append(
            PlannedTurn(user=None, heard_ms=heard_ms, steps=steps, awkward="user_silence")
        )

    def _take_turn(self, exchange: Exchange, awkward: str) -> None:
        is_asking_again = not self._turns[-1].steps
        start_ms = self._last_sound_ms() + (
            self._between(*_PATIENCE_MS) if is_asking_again else self._reaction_ms()
        )
        awkward = self._own_trouble(exchange, awkward)
        noise = None
        if awkward == "user_barge_in":
            start_ms = self._cut_last_answer()
        elif awkward == "empty_session":
            noise = PlannedSpeech(
                self._rng.choice(NOISES), "", start_ms, start_ms + self._between(300, 700)
            )
            start_ms = noise.end_ms + self._between(900, 1800)
        user = self._speech(exchange.user, start_ms)
        if awkward == "assistant_interruption":
            heard_ms = user.end_ms - self._between(1500, 2100)  # a pause taken for the end
            steps: tuple[PlannedStep, ...] = (
                self._answer(heard_ms, heard_ms + self._between(150, 350), exchange.assistant),
            )
        else:
            heard_ms = user.end_ms + self._between(*self._profile.heard_ms)
            steps = (
                ()
                if self._profile.is_mute
                else self._steps(exchange, awkward, user.end_ms, heard_ms)
            )
        self._turns.append(PlannedTurn(user, heard_ms, steps, noise, awkward))

    def _own_trouble(self, exchange: Exchange, awkward: str) -> str:
        """Returns the awkward thing of a turn: the drawn one, or one that the profile has in any
        turn.
        """
        profile = self._profile
        if profile.is_mute or not self._turns[-1].steps:
            return ""
        if (
            not awkward
            and profile.talks_over
            and can_happen("assistant_interruption", exchange, "")
        ):
            return "assistant_interruption"
        if not awkward and profile.silent_turns and can_happen("dead_air", exchange, ""):
            return "dead_air" if self._rng.random() < profile.silent_turns else ""
        return awkward

    def _steps(
        self, exchange: Exchange, awkward: str, user_end_ms: int, heard_ms: int
    ) -> tuple[PlannedStep, ...]:
        decided_ms = heard_ms + self._between(*self._profile.model_ms)
        if awkward == "slow_answer":
            decided_ms = user_end_ms + self._between(1800, 2500)
        elif awkward == "dead_air":
            decided_ms = user_end_ms + self._between(*self._profile.silence_ms)
        if exchange.tool is None:
            return (self._answer(heard_ms, decided_ms, exchange.assistant),)
        text = exchange.assistant
        steps: list[PlannedStep] = []
        if awkward == "tool_error":
            failed = self._run(
                exchange.tool, decided_ms + 4, self._between(*self._profile.tool_ms), error=True
            )
            steps.append(PlannedStep(heard_ms, decided_ms, tool=failed))
            heard_ms, decided_ms = (
                failed.answered_ms,
                failed.answered_ms + self._between(*self._profile.again_ms),
            )
            text = f"{APOLOGY} {text}"
        duration_ms = (
            self._between(4000, 9000)
            if awkward == "slow_tool"
            else self._between(*self._profile.tool_ms)
        )
        run = self._run(exchange.tool, decided_ms + 4, duration_ms, error=self._profile.tools_fail)
        filler = None
        if awkward == "slow_tool" and self._rng.random() < 0.5:
            filler = self._speech(self._rng.choice(FILLERS), decided_ms + self._between(180, 400))
        steps.append(PlannedStep(heard_ms, decided_ms, filler, run))
        last = self._answer(
            run.answered_ms, run.answered_ms + self._between(*self._profile.after_tool_ms), text
        )
        if (
            filler is not None
            and last.speech is not None
            and last.speech.start_ms < filler.end_ms + 200
        ):
            last = replace(last, speech=self._speech(text, filler.end_ms + 200))
        return (*steps, last)

    def _answer(self, asked_ms: int, decided_ms: int, text: str) -> PlannedStep:
        return PlannedStep(
            asked_ms,
            decided_ms,
            self._speech(text, decided_ms + self._between(*self._profile.voice_ms)),
        )

    def _run(
        self, script: ToolScript, called_ms: int, duration_ms: int, *, error: bool
    ) -> PlannedToolRun:
        response: Mapping[str, Any] = script.response
        if error:
            response = {
                "status": "error",
                "error_type": "not_found",
                "message": f"{script.name} found nothing",
            }
        return PlannedToolRun(
            script.name, script.parameters, response, called_ms, called_ms + duration_ms
        )

    def _speech(self, text: str, start_ms: int) -> PlannedSpeech:
        words = len(text.split())
        return PlannedSpeech(
            text, text, start_ms, start_ms + 250 + round(words * self._ms_per_word)
        )

    def _cut_last_answer(self) -> int:
        """Cuts the last speech of the assistant off; returns the time at which the user
        interrupted.
        """
        turn = self._turns[-1]
        step = turn.steps[-1]
        if step.speech is None:
            raise AssertionError("the last step of a turn is always spoken")
        fraction = self._rng.uniform(0.4, 0.75)
        said_ms = round((step.speech.end_ms - step.speech.start_ms) * fraction)
        words = step.speech.text.split()
        barge_in_ms = step.speech.start_ms + said_ms
        end_ms = min(barge_in_ms + self._between(350, 700), step.speech.end_ms)
        spoken = " ".join(words[: round(len(words) * fraction)])
        cut = replace(step, speech=replace(step.speech, spoken=spoken, end_ms=end_ms))
        self._turns[-1] = replace(turn, steps=(*turn.steps[:-1], cut))
        return barge_in_ms

    def _last_sound_ms(self) -> int:
        ends_ms = [
            step.speech.end_ms for turn in self._turns[-1:] for step in turn.steps if step.speech
        ]
        ends_ms += [turn.user.end_ms for turn in self._turns[-1:] if turn.user]
        return max(ends_ms, default=self._start_ms)

    def _reaction_ms(self) -> int:
        low, high, usual = (300, 1600, 600) if self._kind == "phone" else (800, 3800, 1500)
        return round(self._rng.triangular(low, high, usual))

    def _between(self, low: int, high: int) -> int:
        return self._rng.randint(low, high)
