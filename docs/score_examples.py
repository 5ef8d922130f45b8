"""Writes the part of scores.md that lists every record of the topic `scores`, with examples from calls that the engine has scored.

The calls are the sample call, the sample call with goals that it does not reach, and a simulated call whose agent talks over
its callers and reports an error.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

from consumers.engine.limits import GoalRules, Limits
from schemas.goals.goal_set import GoalSet
from schemas.scores.live_view import is_withdrawn
from schemas.scores.records import AnyScoreRecord, CallRecord
from streamer.offline.scoring import ScoringPlan, scoring_of
from streamer.recordings.files import SAMPLE, RecordedCall
from streamer.recordings.reader import goals_for, read_recordings
from streamer.sources.simulator.profile import HEALTHY, Incident, with_incidents
from streamer.sources.simulator.traffic import simulate_call

RECORDS: Final[Mapping[str, str]] = {
    "call_started": "The call is known. Published once; a later revision has new labels of the call.",
    "voice_to_voice_latency_ms": "The wait of one turn, in milliseconds: from the end of the user's speech to the first sound "
    "of the answer. Published at that sound. `anchor` says how the end of the speech is known. A negative value means that the "
    "assistant began before the user had ended.",
    "interruption_by_user": "The user began to speak while the assistant still spoke. Published at once; withdrawn if later "
    "events show otherwise.",
    "interruption_by_assistant": "The assistant began to speak while the user still spoke. Published at once; withdrawn if "
    "later events show otherwise.",
    "dead_air": "After the user's speech nobody spoke and no tool ran for longer than `threshold_ms`. Never withdrawn.",
    "tool_call": "A tool call has ended. `outcome` is `success`, `error`, `unanswered` (no answer until the end of the call) or "
    "`unknown` (the bot keeps the answer back).",
    "agent_errors": "The agent reported errors in this call: a processor of a pipecat bot, or ElevenLabs. Published at the first, "
    "then whenever their number has doubled or the last record is 10 s old, and at the close. Their texts are not kept.",
    "goals": "The goal set of the call. Its progress is measured against this set, even if the file changes later.",
    "subgoal": "Whether one subgoal is reached: 1 or 0. `index` is its place in the goal set, `reached_turn` is the turn that "
    "reached it.",
    "progress": "Progress after one turn: the share of the subgoals that are reached. `auc`, `ppt` and `success` are those of "
    "agent-inspect. `missing` counts the subgoals without a verdict.",
    "stall": "The call has reached no further subgoal for 4 turns or 2 minutes, and some are open. `since_turn` is the turn of "
    "the last progress; 0 means that there was none.",
    "turn": "All measured values of one turn, as one row. Published when the call leaves the turn, and again if a value changes. "
    "A value that was not measured is null.",
    "call": "All values of the whole call. Published at its end; in calls longer than two minutes also while they run, at most "
    "every 30 s.",
    "closed": "The call is closed, and the newest revision of each record is final. Written in one transaction with `call`. "
    "`through` is the offset of the last record that was evaluated, by input.",
}
"""The meaning of each record, by its name."""

OUT_OF_REACH: Final = GoalSet.model_validate(
    {
        "id": "out-of-reach",
        "subgoals": [
            {
                "id": "found",
                "details": "The booking is found.",
                "check": {"kind": "tool_called", "tool": "find_booking"},
            },
            {"id": "never", "details": "The hotel is booked.", "check": {"kind": "tool_called", "tool": "book_hotel"}},
        ],
    }
)
"""Goals that the sample call does not reach: it stalls."""
SIMULATED_SEED: Final = 5
SIMULATED_START_MS: Final = 1_790_000_000_000
AGENT_ERROR: Final = {
    "type": "error", "timestamp": SIMULATED_START_MS + 1_000, "data": {"processor": "OpenAILLMService#0"}
}  # fmt: skip
_COMMON: Final = frozenset({*CallRecord.model_fields, "record_id"} - {"turn", "index"})
_PLAN: Final = ScoringPlan(Limits(), GoalRules(asks_judge=False), "0.1.0")


@cache
def example_records() -> tuple[AnyScoreRecord, ...]:
    """Everything that the evaluator would write of the three calls, call by call."""
    (sample,) = read_recordings(SAMPLE)
    sets = goals_for([SAMPLE], None)
    scoring = scoring_of(sample, replace(_PLAN, sets=sets))
    profile = with_incidents(HEALTHY, [Incident("talks_over")])
    simulated = simulate_call(SIMULATED_SEED, start_ms=SIMULATED_START_MS, kind="phone", profile_of=profile)
    return (
        *_records(sample, scoring.goal_set),
        *_records(sample, OUT_OF_REACH),
        *_records(replace(simulated.call, pipecat=(*(simulated.call.pipecat or ()), AGENT_ERROR)), None),
    )


def _records(call: RecordedCall, goal_set: GoalSet | None) -> list[AnyScoreRecord]:
    scoring = scoring_of(call, _PLAN)
    scoring.goal_set = goal_set
    for _ in scoring.run():
        raise AssertionError("a judge was asked")
    return scoring.final_records()


def example_of(name: str) -> AnyScoreRecord:
    """The first good example of a record: of a turn with a latency, of a subgoal that is reached."""
    found = [each for each in example_records() if each.name == name and not is_withdrawn(each)]
    return next((each for each in found if each.turn not in (None, 0)), found[0])


def whole_record_lines() -> Iterator[str]:
    """One record with all of its fields."""
    yield from _json(example_of("voice_to_voice_latency_ms").model_dump(mode="json"))


def record_lines() -> Iterator[str]:
    """Each record: its meaning, and an example without the common fields."""
    for name, meaning in RECORDS.items():
        yield from ("", f"### `{name}`", "", meaning, "")
        yield from _json(example_of(name).model_dump(mode="json", exclude=set(_COMMON) - {"kind"}))


def _json(fields: Mapping[str, Any]) -> Iterator[str]:
    """A block of JSON with one line for each field of the record."""
    yield from ("```json", "{")
    shown = {name: value for name, value in fields.items() if value is not None or name != "turn"}
    for number, (name, value) in enumerate(shown.items(), 1):
        yield f"  {json.dumps(name)}: {json.dumps(value)}{',' if number < len(shown) else ''}"
    yield from ("}", "```")
