"""Seeded calls like live ones, difficult ones included: interruptions by both sides, late events, slow tools.

About half of them come from a real phone line (pipecat's own records, no simulated caller), the others from EVA's
three sources and its three kinds of pipeline. The same seed gives the same bytes.
"""

import heapq
import itertools
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas.events.simulator import Source
from streamer.recordings.recorded_call import RecordedCall
from streamer.sources.replay.playback import Delivery, PlayedCall, WireEvent, in_time_order
from streamer.sources.simulator.eva_sources import (
    NEW_CALLER,
    OLD_CALLER,
    Emission,
    audit_entries,
    caller_events,
    framework_events,
    pipecat_events,
)
from streamer.sources.simulator.phone import phone_events
from streamer.sources.simulator.plan import SIMULATED_KINDS, CallKind, CallPlan, plan_call
from streamer.sources.simulator.profile import AWKWARD, ProfileOf, always
from streamer.sources.simulator.speech import AGENTS, DOMAINS

PHONE_SHARE: Final = 0.5
"""Share of phone calls, when no kind is asked for."""
_KIND_WEIGHTS: Final = (60, 20, 20)  # of cascade, audio_llm and s2s among the others

_OLD_CALLER_PROBABILITY, _ANNOUNCED_PROBABILITY = 0.15, 0.2
_NO_DETECTOR_PROBABILITY, _NO_AUDIT_PROBABILITY = 0.15, 0.25
_LATE_MIN_MS, _LATE_MAX_MS = 1500, 5000

ALWAYS_AWKWARD: Final = always(AWKWARD)
"""The default of tests; the same seed makes the same bytes in every version."""

RAMP_UP_MS: Final = 20_000
"""Calls of simulated traffic begin one after the other within this time, so that the first is there at once."""
_PAUSE_MIN_MS, _PAUSE_MAX_MS = 500, 4000


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """A simulated call, the delivery of its events, and its difficulties.

    Attributes:
        call: The call with its control events.
        delivery: The events that are produced late or sent twice.
        features: Names of its difficulties, for example `user_barge_in`.
    """

    call: RecordedCall
    delivery: Delivery
    features: frozenset[str]

    def wire_events(self) -> Iterator[WireEvent]:
        """The call's events in the order in which they are produced, late and repeated ones included."""
        return in_time_order(self.call, self.delivery)


def simulate_call(
    seed: int,
    *,
    start_ms: int,
    kind: CallKind | None = None,
    tenant: str | None = None,
    environment: str | None = "simulated",
    profile_of: ProfileOf = ALWAYS_AWKWARD,
    agents: Collection[str] = AGENTS,
) -> SimulatedCall:
    """Simulates one call.

    Args:
        seed: Decides everything about the call. Seed and start make its conversation id.
        start_ms: Epoch milliseconds at which the line is opened.
        kind: `phone`, or a pipeline of EVA's simulator; None draws one, about half of them phone calls.
        tenant: Named in `call_started`, when given.
        environment: Named in `call_started`, when given.
        profile_of: How well the agent of the call does.
        agents: The agents that callers may reach.
    """
    rng = random.Random(f"call {seed}")  # noqa: S311 - play, not secrets
    drawn_kind = kind or _draw_kind(rng)
    conversation_id = f"sim-{start_ms}-{seed}"
    domains = [domain for domain in DOMAINS if domain.agent in agents]
    plan = plan_call(
        rng, conversation_id=conversation_id, start_ms=start_ms, kind=drawn_kind, profile_of=profile_of, domains=domains
    )
    profile = profile_of(plan.agent, start_ms)
    features = set(plan.features)

    def happens(feature: str, probability: float) -> bool:
        if rng.random() < probability:
            features.add(feature)
            return True
        return False

    streams: dict[Source, list[Emission]] = {}
    audit, updates = audit_entries(plan, rng)
    if plan.kind == "phone":
        voice_detector = not happens("no_voice_detector", _NO_DETECTOR_PROBABILITY)
        streams["pipecat"] = phone_events(plan, rng, voice_detector=voice_detector)
        if not happens("no_audit", _NO_AUDIT_PROBABILITY):
            streams["audit"] = audit
    else:
        streams["audit"] = audit
        if plan.kind == "s2s":
            streams["pipecat"] = framework_events(plan)
        else:
            announce = happens("announced_phrases", _ANNOUNCED_PROBABILITY)
            streams["pipecat"] = pipecat_events(plan, rng, announce_phrases=announce)
        dialect = OLD_CALLER if happens("old_role_names", _OLD_CALLER_PROBABILITY) else NEW_CALLER
        streams["elevenlabs"] = caller_events(plan, rng, dialect)

    if not profile.sends_audit:
        streams.pop("audit", None)
    delays_ms = _back_dated(streams)
    source = rng.choice(list(streams))
    if happens("late_events", profile.late):
        # One event is held up and its source queues behind it. Early enough for the queue to empty before the end.
        index = rng.randrange(max(1, len(streams[source]) * 2 // 3))
        held_ms = rng.randint(_LATE_MIN_MS, _LATE_MAX_MS)
        delays_ms[source, index] = delays_ms.get((source, index), 0) + held_ms
    repeated = set()
    if happens("repeated_record", profile.repeated):
        repeated.add((source, rng.randrange(len(streams[source]))))

    call = RecordedCall(
        conversation_id=plan.conversation_id,
        pipeline_type="cascade" if plan.kind == "phone" else plan.kind,
        conversation_ended_reason=plan.ended_reason,
        audit=_stream(streams, "audit"),
        pipecat=_stream(streams, "pipecat"),
        elevenlabs=_stream(streams, "elevenlabs"),
        control=_control(plan, streams, updates, tenant, environment),
    )
    return SimulatedCall(call, Delivery(delays_ms, frozenset(repeated)), frozenset(features))


def _draw_kind(rng: random.Random) -> CallKind:
    if rng.random() < PHONE_SHARE:
        return "phone"
    return rng.choices(SIMULATED_KINDS, weights=_KIND_WEIGHTS)[0]


def _stream(streams: dict[Source, list[Emission]], source: Source) -> tuple[Any, ...] | None:
    return tuple(emission.event for emission in streams[source]) if source in streams else None


def _back_dated(streams: dict[Source, list[Emission]]) -> dict[tuple[Source, int], int]:
    """How long after their own time events are produced, where they are."""
    return {
        (source, index): late_ms
        for source, emissions in streams.items()
        for index, emission in enumerate(emissions)
        if (late_ms := emission.produced_ms - int(emission.event["timestamp"])) > 0
    }


def _control(
    plan: CallPlan,
    streams: dict[Source, list[Emission]],
    updates: Sequence[Emission],
    tenant: str | None,
    environment: str | None,
) -> tuple[dict[str, Any], ...]:
    facts = {"agent": plan.agent, "tenant": tenant, "environment": environment}
    pipeline_type = "cascade" if plan.kind == "phone" else plan.kind
    started = {"type": "call_started", "timestamp": plan.start_ms, "pipeline_type": pipeline_type}
    started |= {key: value for key, value in facts.items() if value is not None}
    produced = itertools.chain(*streams.values(), updates)
    end_ms = max(plan.hang_up_ms, *(emission.produced_ms for emission in produced))
    ended = {"type": "call_ended", "timestamp": end_ms, "reason": plan.ended_reason}
    return (started, *(dict(update.event) for update in updates), ended)


def simulated_traffic(
    seed: int,
    *,
    concurrent_calls: int,
    start_ms: int,
    kind: CallKind | None = None,
    limit: int | None = None,
    tenant: str | None = None,
    environment: str | None = "simulated",
    profile_of: ProfileOf = ALWAYS_AWKWARD,
    agents: Collection[str] = AGENTS,
) -> Iterator[PlayedCall]:
    """Calls on a number of lines; each line calls again seconds after it hung up. Calls are made lazily, one by one.

    Args:
        seed: Decides all calls.
        concurrent_calls: Number of lines; nearly all are busy after the ramp-up.
        start_ms: Epoch milliseconds of the first call.
        kind: Kind of every call; None draws one for each.
        limit: Number of calls; None never ends.
        tenant: Tenant in every `call_started`, if given.
        environment: Environment in every `call_started`, if given.
        profile_of: How well the agents do.
        agents: The agents that callers may reach.

    Yields:
        Calls in the order in which they start.
    """
    if concurrent_calls < 1:
        raise ValueError(f"concurrent_calls is {concurrent_calls}, expected at least 1")
    rng = random.Random(f"traffic {seed}")  # noqa: S311 - play, not secrets
    spacing_ms = min(1500, RAMP_UP_MS // concurrent_calls)
    lines_free_ms = [start_ms + line * spacing_ms for line in range(concurrent_calls)]  # ascending: already a heap
    for _ in itertools.count() if limit is None else range(limit):
        begin_ms = lines_free_ms[0]
        simulated = simulate_call(
            rng.getrandbits(40), start_ms=begin_ms, kind=kind, tenant=tenant, environment=environment,
            profile_of=profile_of, agents=agents,
        )  # fmt: skip
        events = tuple(simulated.wire_events())
        heapq.heapreplace(lines_free_ms, events[-1].arrival_ms + rng.randint(_PAUSE_MIN_MS, _PAUSE_MAX_MS))
        yield PlayedCall(simulated.call.conversation_id, events, start_offset_ms=begin_ms - start_ms)
