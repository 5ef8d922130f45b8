"""EVA's scores of a call that need no judge, while it runs and at its end."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from msgspec.structs import replace

from consumers.engine.effects import Count
from consumers.engine.goals.text_judges import Ratings
from consumers.engine.measures.eva_timing import (
    INACTIVITY,
    SCORE_DIGITS,
    HeardTimes,
    SettledTurns,
    TurnScore,
    context_as_heard,
    final_taking,
    heard_times,
    is_scored_at_the_close,
    last_speaker,
    live_score,
    live_taking,
    may_be_scored,
    missed_turn,
    response_speed,
    speed_of,
    turn_scores_of,
    turn_taking,
    why_silent,
    worst_anchor,
)
from consumers.engine.measures.eva_tools import (
    pre_tool_speech_rate,
    tool_call_validity,
    tool_schema_validity,
    validity_of,
)
from consumers.engine.measures.results import MetricResult, failed, scored, skipped
from consumers.engine.measures.words import stt_wer
from consumers.engine.sources.facts import AgentTool, Ended, Started
from consumers.engine.turns.eva import CallerLine, EvaHistory
from consumers.engine.turns.heard import HeardTurns
from consumers.engine.turns.live import LiveCall
from schemas.closed_sets import JudgeKind, PipelineType, UnscoredReason
from schemas.metric_context import MetricContext
from schemas.rows import Eva, NotApplicable, TurnTaking, Unscored, Value, number

# EVA's metrics of a call's final state: whether the user was identified, and whether the records
# are as expected.

State = Mapping[str, Any]
"""A scenario's records by table; facts about the user are under `session`."""

SESSION: Final = "session"
DIGITS: Final = 4
MAX_LISTED_TABLES: Final = 50
_UNORDERED: Final = frozenset(
    {
        "standby_list",
        "notifications",
        "bookings",
        "system_accounts",
        "group_memberships",
        "asset_recoveries",
    }
)
"""Lists whose order has no meaning."""
_NOTHING: Final = frozenset({"none", "null"})


def authentication_success(
    expected: State,
    final: State,
    tool_responses: Sequence[Mapping[str, Any]] = (),
    agent_tools: Sequence[Mapping[str, Any]] = (),
) -> MetricResult:
    """1 when the final session has every expected value, otherwise 0; skipped when nothing is
    expected.

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
    explanation = (
        f"Session mismatch on keys: {list(mismatches)}"
        if mismatches
        else "Authentication successful"
    )
    details = {
        "actual_session": _session(final),
        "expected_session": wanted,
        "mismatches": mismatches,
        "reason": explanation,
    }
    names = {tool.get("name") for tool in agent_tools if tool.get("tool_type") == "auth"}
    calls = Counter(str(each["tool_name"]) for each in tool_responses if each["tool_name"] in names)
    parts: dict[str, float | None] = {}
    # Calls of each tool on average: an agent with two of them calls both once when nothing goes
    # wrong.
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
        final_hash: Hash of the actual records as the run computed it; takes precedence over
            `final`.
    """
    mismatches = session_mismatches(expected, final)
    if mismatches:
        explanation = f"Authentication failed: session mismatch on keys: {list(mismatches)}"
        return scored(
            0.0,
            {
                "auth_failed": True,
                "auth_mismatches": mismatches,
                "match": False,
                "message": explanation,
            },
        )
    expected_hash = state_hash(expected)
    actual_hash = state_hash(final) if final_hash is None else final_hash
    details: dict[str, Any] = {"actual_hash": actual_hash, "expected_hash": expected_hash}
    if expected_hash == actual_hash:
        return scored(1.0, {**details, "match": True, "message": "Final state is as expected"})
    tables = [
        table
        for table in sorted({*expected, *final} - {SESSION})
        if (table in expected) is not (table in final)
        or _plain(expected[table], table) != _plain(final[table], table)
    ]
    explanation = (
        f"{len(tables)} tables differ" if tables else "the hash of the run is of another state"
    )
    return scored(
        0.0,
        {
            **details,
            "differing_tables": tables[:MAX_LISTED_TABLES],
            "match": False,
            "message": explanation,
        },
    )


def session_mismatches(expected: State, final: State) -> dict[str, dict[str, Any]]:
    """Session values that are missing or differ from the expected ones; texts are compared without
    regard to case.
    """
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


# EVA's metrics of how a call ended: whether the assistant still answered, in time, and whether the
# end is valid.

TIME_LIMIT: Final = "time_limit_exceeded"
TIME_LIMITS: Final = frozenset({TIME_LIMIT, "timeout"})
"""Reasons for which a call is over its time limit in our scores. EVA's rule knows the first only,
its description names the second.
"""
GOODBYE: Final = "goodbye"


def conversation_correctly_finished(context: MetricContext) -> MetricResult:
    """0 when the call ended because the assistant left the user without an answer, otherwise 1."""
    reason, speaker = context.conversation_ended_reason, last_speaker(context)
    is_missed = missed_turn(context)
    if is_missed:
        explanation = f"conversation ended with {INACTIVITY} and user was the last speaker"
    elif reason == INACTIVITY:
        explanation = f"{INACTIVITY} but last speaker was {speaker!r}"
    else:
        explanation = f"conversation ended with reason={reason!r}"
    details = {
        "conversation_ended_reason": reason,
        "last_audio_speaker": speaker,
        "reason": explanation,
    }
    return scored(0.0 if is_missed else 1.0, details)


def conversation_completed_on_time(
    context: MetricContext, time_limits: Collection[str] = (TIME_LIMIT,)
) -> MetricResult:
    """0 when the call was cut off at its time limit, otherwise 1, whatever the reason: `cancelled`
    and a bot's own words for the end, such as `ended`, are no time limit, and EVA counts an unknown
    reason as none either.

    Args:
        context: The call.
        time_limits: The reasons that mean a time limit.
    """
    reason = context.conversation_ended_reason
    is_cut_off = reason in time_limits
    return scored(
        0.0 if is_cut_off else 1.0, {"conversation_ended_reason": reason, "timed_out": is_cut_off}
    )


def conversation_valid_end(context: MetricContext, line: CallerLine) -> MetricResult:
    """1 when the assistant left the user without an answer, or the simulated caller's last event is
    a goodbye, otherwise 0.
    """
    if missed_turn(context):
        return scored(1.0, {"ended_properly": True, "reason": "agent_timeout_on_user_turn"})
    if not line.has_events:
        return failed("The simulated caller's stream is empty")
    is_goodbye = line.last_reason == GOODBYE
    return scored(
        1.0 if is_goodbye else 0.0, {"ended_properly": is_goodbye, "reason": line.last_reason}
    )


# EVA's metrics of a call that need no judge, as far as their inputs are known.

DEFAULT_LANGUAGE: Final = "en"
STAGES: Final = ("llm_latency", "stt_latency", "tts_latency")
"""Stages of an answer whose mean latency is in a run's result."""


def metrics_of(
    context: MetricContext,
    history: EvaHistory,
    stage_mean_ms: Mapping[str, float] | None = None,
    mean_tokens: Mapping[str, float] | None = None,
) -> dict[str, MetricResult]:
    """EVA's metrics by name.

    Metrics of the call alone are always there. The one of a valid end needs a simulated caller, and
    those of the final state need both the final and the expected state.

    Args:
        context: EVA's context of the call.
        history: Its merged history.
        stage_mean_ms: Mean latency of each known stage.
        mean_tokens: Mean number of tokens of the model's steps, by EVA's names, as far as known.
    """
    line, rate = history.caller_line, pre_tool_speech_rate(history.timeline)
    results = {
        "conversation_completed_on_time": conversation_completed_on_time(context),
        "conversation_correctly_finished": conversation_correctly_finished(context),
        "response_speed": response_speed(context, stage_mean_ms),
        "stt_wer": stt_wer(context, context.language or DEFAULT_LANGUAGE),
        "tool_call_validity": tool_call_validity(context),
        "turn_taking": turn_taking(context, rate, mean_tokens=mean_tokens),
    }
    if line.has_events:
        results["conversation_valid_end"] = conversation_valid_end(context, line)
    expected, final = context.expected_scenario_db, context.final_scenario_db
    if expected is not None and final is not None:
        results["authentication_success"] = authentication_success(
            expected, final, context.tool_responses, context.agent_tools or ()
        )
        results["task_completion"] = task_completion(
            expected, final, context.final_scenario_db_hash
        )
    return results


# EVA's composites of a call's accuracy (EVA-A) and experience (EVA-X): the mean of the known parts,
# and whether all are good enough.

ACCURACY_THRESHOLDS: Final[Mapping[str, float]] = {
    "task_completion": 1.0,
    "faithfulness": 0.5,
    "agent_speech_fidelity": 0.95,
}
"""Least normalised score that is good enough, by part of EVA-A."""
EXPERIENCE_THRESHOLDS: Final[Mapping[str, float]] = {
    "conversation_progression": 0.5,
    "turn_taking": 0.8,
    "conciseness": 0.5,
}
"""Least normalised score that is good enough, by part of EVA-X."""
TOLERANCE: Final = 1e-9


def composite_mean(parts: Mapping[str, float | None]) -> float | None:
    """The mean of the known parts; None when none is known."""
    known = [value for value in parts.values() if value is not None]
    return fmean(known) if known else None


def composite_pass(
    parts: Mapping[str, float | None], thresholds: Mapping[str, float]
) -> bool | None:
    """Whether every part is good enough; None while one of them is unknown."""
    values = [(parts.get(name), least) for name, least in thresholds.items()]
    if any(value is None for value, _ in values):
        return None
    return all(value is not None and value >= least - TOLERANCE for value, least in values)


# Facts that a producer supplies so that more of a call can be judged: the agent's role,
# instructions and tools, the expected and the final state, the latencies that the producer itself
# measured.


class SuppliedFacts:
    """The facts of the newest events; a field that an event leaves out keeps its value.

    Attributes:
        pipeline_type: The agent's pipeline; None before any event names it.
        role: The agent's role; None before any event has it.
        instructions: The agent's instructions; None before any event has them.
        current_date_time: The date that the agent was told; None before any event has it.
        tools: The agent's tools; None before any event names them.
        expected_state: Expected state after the call.
        final_state: Actual state after the call.
        final_state_hash: Hash of the final state from the same event; takes precedence over the
            state.
        language: What the caller speaks; None before any event names it.
        latencies_ms: The producer's own latencies in the order of the turns; empty before any event
            names them.
    """

    def __init__(self) -> None:
        self.pipeline_type: PipelineType | None = None
        self.role: str | None = None
        self.instructions: str | None = None
        self.current_date_time: str | None = None
        self.tools: Sequence[AgentTool] | None = None
        self.expected_state: Mapping[str, Any] | None = None
        self.final_state: Mapping[str, Any] | None = None
        self.final_state_hash: str | None = None
        self.language: str | None = None
        self.latencies_ms: Sequence[float] = ()

    def started(self, event: Started) -> None:
        """Folds what is known of the agent."""
        self.pipeline_type = event.pipeline_type or self.pipeline_type
        self.role = self.role if event.role is None else event.role
        self.instructions = self.instructions if event.instructions is None else event.instructions
        if event.current_date_time is not None:
            self.current_date_time = event.current_date_time
        self.tools = self.tools if event.tools is None else event.tools
        self.language = event.language or self.language
        self.expected_state = (
            self.expected_state if event.expected_state is None else event.expected_state
        )

    def ended(self, event: Ended) -> None:
        """Folds the end of the call."""
        if event.final_state is not None:
            self.final_state, self.final_state_hash = event.final_state, event.final_state_hash
        if event.response_latencies_ms is not None:
            self.latencies_ms = event.response_latencies_ms


# Turns EVA's metrics of a whole call into scores: a zero for an unknown value becomes unscored,
# with a reason.

Metrics = dict[str, Eva]
"""Metrics of a call by name."""

NO_CALLER: Final = NotApplicable("there is no simulated caller")
NO_TOOL: Final = NotApplicable("no tool was used")
NO_ANSWER: Final = NotApplicable("no answer of a tool is known")
NO_ARGUMENTS: Final = NotApplicable("the arguments of the tools are not known")
NO_SCHEMAS: Final = NotApplicable("the schemas of the agent's tools are not known")
NO_EXPECTED_STATE: Final = NotApplicable("the expected final state is not known")
NO_EXPECTED_SESSION: Final = NotApplicable("the user need not be identified")
NO_WAIT: Final = NotApplicable("the user never waited for an answer")


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """Inputs of the metrics of a call that is over.

    Attributes:
        context: EVA's context, with the times of the turns in which the call is heard, and with its
            tools.
        turn_scores: The scores of those turns.
        silence: Why neither side was heard; None when some turn has a score.
        pre_tool_speech_rate: Share of tool groups that the assistant announced; None without tools.
        has_used_tool: Whether any source reports a tool, be it without arguments and without an
            answer.
        caller_line: The end of the simulated caller's stream.
        supplied: Facts that the producer supplied.
    """

    context: MetricContext
    turn_scores: Mapping[int, TurnScore]
    silence: UnscoredReason | None
    pre_tool_speech_rate: float | None
    has_used_tool: bool
    caller_line: CallerLine
    supplied: SuppliedFacts


def final_scores(call: FinishedCall) -> Metrics:
    """Every metric that needs no judge, scored or with the reason why not; word errors are a
    measure of their own.
    """
    return {
        "eva_turn_taking": _turn_taking(call),
        "eva_response_speed": _response_speed(call),
        "eva_tool_call_validity": _tool_call_validity(call),
        "eva_tool_schema_validity": _tool_schema_validity(call),
        **_ends(call),
        **_state(call),
    }


def _of(result: MetricResult) -> Eva:
    """The score of a result that has one."""
    return Eva(result.score or 0.0, result.normalized_score, dict(result.sub_metrics))


def _unscored(reason: UnscoredReason) -> Eva:
    return Eva(Unscored(reason))


def _turn_taking(call: FinishedCall) -> Eva:
    if call.silence is not None and not missed_turn(call.context):
        return _unscored(call.silence)
    return _of(turn_taking(call.context, call.pre_tool_speech_rate, call.turn_scores))


def _response_speed(call: FinishedCall) -> Eva:
    result = response_speed(call.context)
    if not result.skipped:
        return _of(result)
    return Eva(NO_WAIT) if call.silence is None else _unscored(call.silence)


def _tool_call_validity(call: FinishedCall) -> Eva:
    if call.context.tool_responses:
        return _of(tool_call_validity(call.context))
    return Eva(NO_ANSWER if call.has_used_tool else NO_TOOL)


def _tool_schema_validity(call: FinishedCall) -> Eva:
    if call.supplied.tools is None:
        return Eva(NO_SCHEMAS)
    result = tool_schema_validity(call.context.tool_params, call.supplied.tools)
    if not result.skipped:
        return _of(result)
    return Eva(NO_ARGUMENTS if call.has_used_tool else NO_TOOL)


def _ends(call: FinishedCall) -> Metrics:
    context, line = call.context, call.caller_line
    if context.conversation_ended_reason is None:
        finished = on_time = _unscored(UnscoredReason.END_REASON_UNKNOWN)
    else:
        on_time = _of(conversation_completed_on_time(context, TIME_LIMITS))
        finished = _of(conversation_correctly_finished(context))
        if context.conversation_ended_reason == INACTIVITY and last_speaker(context) is None:
            # the last speaker is unknown
            finished = _unscored(call.silence or UnscoredReason.NO_SPEECH_EVENTS)
    return {
        "eva_conversation_correctly_finished": finished,
        "eva_conversation_completed_on_time": on_time,
        "eva_conversation_valid_end": _of(conversation_valid_end(context, line))
        if line.has_events
        else Eva(NO_CALLER),
    }


def _state(call: FinishedCall) -> Metrics:
    expected, final = call.supplied.expected_state, call.supplied.final_state
    if expected is None:
        authentication = completion = Eva(NO_EXPECTED_STATE)
    elif final is None:
        authentication = completion = _unscored(UnscoredReason.FINAL_STATE_UNKNOWN)
    else:
        tools = [
            tool.model_dump(include={"name", "tool_type"}) for tool in call.supplied.tools or ()
        ]
        session = authentication_success(expected, final, call.context.tool_responses, tools)
        authentication = Eva(NO_EXPECTED_SESSION) if session.skipped else _of(session)
        completion = _of(task_completion(expected, final, call.supplied.final_state_hash))
    return {"eva_authentication_success": authentication, "eva_task_completion": completion}


# EVA's metrics of a live call: the timing of each turn the call has left, running values of the
# call, and final values.
#
# A turn's score is computed from that turn and the end of the answer before it, by the functions
# that score the whole call; at the close every value is EVA's own. A settled turn whose final value
# differs is counted with the cause.

_NO_ACCURACY: Final = NotApplicable("neither the task's completion nor faithfulness is known")
_NO_SOUND: Final = NotApplicable(
    "agent speech fidelity is judged from sound, which callgauge does not hear"
)
_NOT_JUDGED: Final = NotApplicable("conciseness and conversation progression are not both judged")
_OF_SOUND: Final = ("eva_turn_taking", "eva_response_speed")
_RATING_DIGITS: Final = 3


class EvaScores:
    """The values of one call.

    Attributes:
        supplied: Facts that the producer supplied, for metrics of the final state and of tools.
    """

    def __init__(self, ratings: Ratings) -> None:
        self.supplied = SuppliedFacts()
        self._ratings = ratings
        self._settled = SettledTurns()
        self._final: Mapping[int, TurnTaking] | None = None

    def touched(self, live: LiveCall, turns: Iterable[int], time_ms: int | None) -> None:
        """Notes which settled ones among these turns changed by an event at this time."""
        changed = live.turns.ever_settled.intersection(turns)
        heard = live.heard()
        for turn in changed:
            self._settled.changed(live, turn, self.turn_taking(live, heard, turn), time_ms)

    def settled(self, live: LiveCall, turns: Iterable[int]) -> None:
        """Notes the values of turns that are settled now."""
        heard = live.heard()
        for turn in turns:
            self._settled.settle(turn, self.turn_taking(live, heard, turn))

    def turn_taking(self, live: LiveCall, heard: HeardTurns, number: int) -> TurnTaking | None:
        """The timing of the turn as far as known; None while nothing is known."""
        if self._final is not None:
            return self._final.get(number)
        view, turn = live.turns.view(number), heard.turn(number)
        if (
            view is None
            or turn is None
            or not may_be_scored(turn, view)
            or is_scored_at_the_close(turn)
        ):
            return None
        return live_taking(number, heard_times(turn, view))

    def running_metrics(self, live: LiveCall, heard: HeardTurns) -> Metrics:
        """The metrics that the call has so far."""
        tools = live.turns.tools
        metrics: Metrics = {}
        answers = [
            {"tool_name": use.tool, "tool_response": use.answer}
            for use in tools
            if use.tool and use.answer is not None
        ]
        if answers:
            metrics["eva_tool_call_validity"] = _of(validity_of(answers, ()))
        timed = self._times(live, heard, is_over=False)
        takings = [
            taking
            for turn, each in timed.items()
            if (taking := live_taking(turn, each)) is not None
        ]
        waits = {
            turn: each.times.latency_s
            for turn, each in timed.items()
            if each.times.latency_s is not None
        }
        speed = speed_of(waits, [turn for turn in waits if tools.has_call(turn)])
        if speed.score is not None:
            metrics["eva_response_speed"] = replace(_of(speed), anchor=worst_anchor(takings))
        scores = [score for taking in takings if (score := number(taking.result)) is not None]
        if scores:
            metrics["eva_x_mean"] = self._experience_mean(round(fmean(scores), SCORE_DIGITS))
        return metrics

    def finish(
        self, live: LiveCall, heard: HeardTurns, context: MetricContext
    ) -> Generator[None, None, Metrics]:
        """Makes the final values of all turns. Yields where a step of a long call ends.

        Returns:
            Every metric of the call.
        """
        timed = self._times(live, heard, is_over=True)
        yield
        if heard.is_simulated:
            scores = turn_scores_of(context)
        else:
            context = context_as_heard(context, timed, heard.last_tool)
            scores = {
                turn: score
                for turn, each in timed.items()
                if (score := live_score(turn, each)) is not None
            }
        takings = {
            turn: final_taking(each, scores.get(turn), is_last=turn == heard.current)
            for turn, each in timed.items()
        }
        self._settled.close(takings)
        self._final = {
            turn: taking
            for turn, taking in takings.items()
            if turn or number(taking.result) is not None
        }
        yield
        whole = FinishedCall(
            context,
            scores,
            None if scores else why_silent(timed, has_speech_events=live.has_speech_events),
            pre_tool_speech_rate(live.history.timeline),
            heard.last_tool is not None,
            live.history.caller_line,
            self.supplied,
        )
        metrics = final_scores(whole)
        anchor = worst_anchor(takings.values())
        for name in _OF_SOUND:
            metrics[name] = replace(metrics[name], anchor=anchor)
        timing = number(metrics["eva_turn_taking"].result)
        metrics["eva_a_mean"] = _mean_of(
            self._accuracy(metrics["eva_task_completion"].result), _NO_ACCURACY
        )
        metrics["eva_a_pass"] = Eva(_NO_SOUND)
        metrics["eva_x_mean"] = self._experience_mean(timing)
        is_passed = composite_pass(self._experience(timing), EXPERIENCE_THRESHOLDS)
        passed = Eva(_NOT_JUDGED) if is_passed is None else Eva(float(is_passed), float(is_passed))
        metrics["eva_x_pass"] = passed
        return metrics

    def closing_counts(self) -> list[Count]:
        """Numbers of settled turns, and of those whose final value differs."""
        return self._settled.counts()

    def _times(self, live: LiveCall, heard: HeardTurns, *, is_over: bool) -> dict[int, HeardTimes]:
        """Times by turn, lowest first; while the call runs only of the turns that are
        scored live.
        """
        found = {}
        for place, turn in heard.turns(sorted(heard.numbers())).items():
            view = live.turns.view(place)
            if view is not None and (is_over or not is_scored_at_the_close(turn)):
                found[place] = heard_times(turn, view)
        return found

    def _experience_mean(self, timing: float | None) -> Eva:
        return _mean_of(self._experience(timing), Unscored(UnscoredReason.NO_TURN_JUDGED))

    def _accuracy(self, completion: Value) -> dict[str, float | None]:
        """The known parts of EVA-A."""
        parts: dict[str, float | None] = dict.fromkeys(ACCURACY_THRESHOLDS)
        parts["task_completion"] = number(completion)
        parts["faithfulness"] = self._rated(JudgeKind.FAITHFULNESS)
        return parts

    def _experience(self, timing: float | None) -> dict[str, float | None]:
        """The known parts of EVA-X."""
        known = self._ratings.known_of_turns(JudgeKind.CONCISENESS)
        return {
            "conversation_progression": self._rated(JudgeKind.CONVERSATION_PROGRESSION),
            "turn_taking": timing,
            "conciseness": round(fmean(known), _RATING_DIGITS) if known else None,
        }

    def _rated(self, kind: JudgeKind) -> float | None:
        rating = self._ratings.of_call(kind)
        return None if rating is None else number(rating.result)


def _mean_of(parts: Mapping[str, float | None], unknown: Unscored | NotApplicable) -> Eva:
    mean = composite_mean(parts)
    known = {name: value for name, value in parts.items() if value is not None}
    return Eva(unknown if mean is None else mean, mean, dict(known))
