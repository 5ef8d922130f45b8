"""Samples of the metrics from each record of `scores`, and the state of its call that they need."""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, assert_never

from schemas.closed_sets import CALL_JUDGES, GOAL_REASONS, LATENCY_REASONS, TURN_JUDGES, Speaker, UnscoredReason
from schemas.metrics.catalogue import metric_named
from schemas.metrics.exporter import USED_AMOUNTS
from schemas.scores.live_view import CallGoals
from schemas.scores.records import (
    STAGE_PREFIX,
    AgentErrorsFact,
    AnyScoreRecord,
    CallStartedFact,
    CallValues,
    ClosedFact,
    DeadAirFact,
    GoalsFact,
    InterruptionFact,
    NotApplicable,
    ProgressScore,
    Result,
    Scored,
    SpeechScore,
    StallFact,
    SubgoalScore,
    TextRating,
    ToolUseFact,
    TurnStatus,
    TurnTakingScore,
    TurnValueName,
    TurnValues,
    Unscored,
    VoiceToVoiceLatency,
)
from schemas.scores.shares import Shares
from schemas.units import to_seconds

# Interruptions that may still be withdrawn: they count when the call leaves their turn.

_Interruption = tuple[int, Speaker]


class Interruptions(NamedTuple):
    """Interruptions in turns that the call has not left, as the records so far show them.

    A simulated caller reports the end of its own speech 0.6 s later, so a quick answer looks like an interruption until then.
    Alerts count interruptions, and a counter cannot go back: so one counts with the row of its turn or of a later one, or when the
    call closes. An exporter that starts in the middle of a turn leaves out the part that it did not read.

    Attributes:
        open: Those of now.
        withdrawn: Those that were withdrawn and may come back.
    """

    open: frozenset[_Interruption] = frozenset()
    withdrawn: frozenset[_Interruption] = frozenset()

    def after(self, record: AnyScoreRecord) -> "Interruptions":
        """Returns the interruptions after one more record."""
        match record:
            case InterruptionFact(turn=int(turn), by=by):
                one = frozenset({(turn, by)})
                if record.is_withdrawn:
                    return Interruptions(self.open - one, self.withdrawn | (self.open & one))
                # One that is neither new nor withdrawn has counted already.
                return Interruptions(
                    self.open | (one if record.is_first else one & self.withdrawn), self.withdrawn - one
                )
            case TurnValues() | ClosedFact() if self.open or self.withdrawn:
                left = self._left(record)
                return Interruptions(self.open - left, self.withdrawn - left)
        return self

    def counted(self, record: AnyScoreRecord) -> list[Speaker]:
        """Returns who began each interruption that counts with this record."""
        return sorted(by for _, by in self.open & self._left(record))

    def _left(self, record: AnyScoreRecord) -> frozenset[_Interruption]:
        """Returns those in turns that the call has left, as this record shows."""
        match record:
            case ClosedFact():
                return self.open | self.withdrawn
            case TurnValues(turn=int(number)):
                return frozenset(each for each in self.open | self.withdrawn if each[0] <= number)
        return frozenset()


# User turns: after the caller has spoken, a turn waits for an answer. It is counted once, whether an answer comes or
# not.


class UserTurns(NamedTuple):
    """Waits for an answer in the newest turn of a call.

    An answer and a dead air of the same turn are mostly one wait, whichever record comes first. But while nobody answers, a caller
    speaks again and again within one turn: each dead air beyond the first is a wait of its own. An exporter that starts between
    the two records of one wait counts it twice.

    Attributes:
        turn: Number of the turn; None before the first wait.
        answers: 1 once it was answered.
        dead_airs: How many of its silences became dead air.
    """

    turn: int | None = None
    answers: int = 0
    dead_airs: int = 0

    @property
    def waits(self) -> int:
        """How often a caller waited in this turn."""
        return max(self.answers, self.dead_airs)

    def after(self, record: AnyScoreRecord) -> "UserTurns":
        """Returns the newest turn after one more record. A record of an earlier turn, which can come late, changes nothing."""
        answers = isinstance(record, VoiceToVoiceLatency) and record.is_first and isinstance(record.result, Scored)
        is_silent = isinstance(record, DeadAirFact) and record.is_first
        if record.turn is None or not (answers or is_silent) or record.turn < (self.turn or 0):
            return self
        before = self if record.turn == self.turn else UserTurns(record.turn)
        return UserTurns(record.turn, before.answers + answers, before.dead_airs + is_silent)

    def new_waits(self, record: AnyScoreRecord) -> int:
        """Returns how many waits this record shows that no record before it did: 0 or 1."""
        after = self.after(record)
        return after.waits - (self.waits if after.turn == self.turn else 0)


# Sums the progress of the running calls that have goals, by agent, tenant and environment.

Who = tuple[str, ...]

MAX_KNOWN_GROUPS: Final = 10_000
"""Most combinations of agent, tenant and environment that stay on the page at 0 after their last call, or their last with goals."""
PROGRESS_PARTS: Final = 10_000
"""Parts of 1 in which progress, which has four decimals, is an integer. So sums of it are exact after any removal."""


@dataclass(slots=True)
class _Sums:
    calls_known: int = 0
    calls_unknown: int = 0
    progress_parts: int = 0
    reached: int = 0
    subgoals: int = 0


class RunningProgress:
    """Sums over the running calls that have goals, by agent, tenant and environment."""

    def __init__(self) -> None:
        self._groups: defaultdict[Who, _Sums] = defaultdict(_Sums)

    def add(self, who: Who, goals: CallGoals) -> None:
        """Adds the progress of a running call."""
        self._count(who, goals, 1)

    def remove(self, who: Who, goals: CallGoals) -> None:
        """Removes the progress of a call, exactly as it was added."""
        self._count(who, goals, -1)

    def calls(self) -> Mapping[tuple[str, ...], float]:
        """Returns the number of calls, by whose they are and by whether their progress is known."""
        return {
            (*who, state): calls
            for who, sums in self._shown()
            for state, calls in (("known", sums.calls_known), ("unknown", sums.calls_unknown))
        }

    def progress(self) -> Mapping[tuple[str, ...], float]:
        """Returns the sum of their progress, by whose they are."""
        return {who: sums.progress_parts / PROGRESS_PARTS for who, sums in self._shown()}

    def subgoals(self) -> Mapping[tuple[str, ...], float]:
        """Returns the number of their subgoals, by whose they are and by whether they are reached."""
        return {
            (*who, state): subgoals
            for who, sums in self._shown()
            for state, subgoals in (("reached", sums.reached), ("open", sums.subgoals - sums.reached))
        }

    def _shown(self) -> Iterator[tuple[Who, _Sums]]:
        if len(self._groups) > MAX_KNOWN_GROUPS:
            running = {who: sums for who, sums in self._groups.items() if sums.calls_known or sums.calls_unknown}
            self._groups = defaultdict(_Sums, running)
        yield from self._groups.items()

    def _count(self, who: Who, goals: CallGoals, calls: int) -> None:
        sums = self._groups[who]
        if goals.progress is None:
            sums.calls_unknown += calls
        else:
            sums.calls_known += calls
            sums.progress_parts += calls * round(goals.progress * PROGRESS_PARTS)
        sums.reached += calls * goals.reached
        sums.subgoals += calls * goals.subgoals


# The running calls as the score records show them: how many, their progress, and who waits; bounded in number and in
# time.


class CallSoFar(NamedTuple):
    """A call as its records before the newest one show it; the default is a call without any.

    Attributes:
        goals: Its progress.
        user_turns: Waits for an answer in its newest turn.
        interruptions: Those in turns that it has not left.
        is_over: Whether it only waits for verdicts.
        version: The agent's version; None if the call does not say it.
    """

    goals: CallGoals = CallGoals()
    user_turns: UserTurns = UserTurns()
    interruptions: Interruptions = Interruptions()
    is_over: bool = False
    version: str | None = None

    @property
    def progress(self) -> float | None:
        """Progress after the newest judged turn, from 0 to 1; None if it is not known or the call has no goals."""
        return self.goals.progress

    def after(self, record: AnyScoreRecord) -> "CallSoFar":
        """Returns the call after one more record."""
        is_over = self.is_over or (isinstance(record, CallValues) and record.is_over)
        version = record.version or self.version if isinstance(record, CallStartedFact) else self.version
        goals, user_turns = self.goals.after(record), self.user_turns.after(record)
        return CallSoFar(goals, user_turns, self.interruptions.after(record), is_over, version)


@dataclass(slots=True)
class _ActiveCall:
    partition: int
    who: Who
    heard_at_ms: int
    so_far: CallSoFar


class ActiveCalls:
    """Calls with a record, and without a closing record so far. Those that are over and wait for verdicts are kept and do not
    count as running.

    An exporter that starts in the middle of a call sees it at the call's next record. When there are too many, the tenant with the
    most loses its quietest one. Times are of the reader's clock, in ms.

    Attributes:
        progress: Sums over the calls that have goals.
    """

    def __init__(self, max_calls: int, forget_after_ms: int) -> None:
        self.progress = RunningProgress()
        self._max_calls = max_calls
        self._forget_after_ms = forget_after_ms
        self._calls: OrderedDict[str, _ActiveCall] = OrderedDict()  # the quietest first
        self._shares = Shares()
        self._running: Counter[Who] = Counter()

    def __len__(self) -> int:
        return len(self._calls)

    def take(self, record: AnyScoreRecord, partition: int, now_ms: int) -> int:
        """Folds one record.

        Returns:
            Number of calls that were forgotten to make room: 0 or 1.
        """
        conversation_id = record.conversation_id
        so_far = self._taken_out(conversation_id).so_far if conversation_id in self._calls else CallSoFar()
        if isinstance(record, ClosedFact):
            self._shares.discard(conversation_id)
            return 0
        who = (record.labels.agent, record.labels.tenant, record.labels.environment)
        call = _ActiveCall(partition, who, now_ms, so_far.after(record))
        self._calls[conversation_id] = call
        self._count(call, 1)
        self._shares.use(conversation_id, record.labels.tenant)
        if len(self._calls) <= self._max_calls:
            return 0
        self._taken_out(self._shares.make_room())
        return 1

    def so_far(self, conversation_id: str) -> CallSoFar:
        """Returns the call as its records so far show it."""
        call = self._calls.get(conversation_id)
        return CallSoFar() if call is None else call.so_far

    def forget_silent(self, now_ms: int) -> int:
        """Forgets the calls without a record for too long, and returns their number."""
        forgotten = 0
        while self._calls:
            conversation_id, call = next(iter(self._calls.items()))
            if now_ms - call.heard_at_ms <= self._forget_after_ms:
                break
            self._drop(conversation_id)
            forgotten += 1
        return forgotten

    def keep_only(self, partitions: Collection[int]) -> None:
        """Drops the calls of other partitions, because another exporter counts them now."""
        for conversation_id in [key for key, call in self._calls.items() if call.partition not in partitions]:
            self._drop(conversation_id)

    def by_who(self) -> dict[Who, int]:
        """Returns the number of running calls by agent, tenant and environment; 0 for groups of former calls, so that their lines
        in graphs go on.
        """
        if len(self._running) > MAX_KNOWN_GROUPS:
            self._running = +self._running
        return dict(self._running)

    def _drop(self, conversation_id: str) -> None:
        self._taken_out(conversation_id)
        self._shares.discard(conversation_id)

    def _taken_out(self, conversation_id: str) -> _ActiveCall:
        call = self._calls.pop(conversation_id)
        self._count(call, -1)
        return call

    def _count(self, call: _ActiveCall, sign: Literal[1, -1]) -> None:
        """Adds a running call to the sums, or removes it exactly as it was added."""
        goals = call.so_far.goals
        self._running[call.who] += 0 if call.so_far.is_over else sign
        if not goals.subgoals or call.so_far.is_over:
            return
        if sign > 0:
            self.progress.add(call.who, goals)
        else:
            self.progress.remove(call.who, goals)


# Turns a score record into samples of metrics. Pure: what to count and observe, for the service to carry out.

EXEMPLAR_NAME: Final = "conversation_id"
MAX_EXEMPLAR_CHARS: Final = 128 - len(EXEMPLAR_NAME)
"""OpenMetrics allows 128 characters for an exemplar's names and values together."""

REVISED_LATENCY: Final = "turn_response_latency"

_COUNTED_WHEN_UNSCORED: Final[frozenset[str]] = frozenset({"turn_taking", *(kind.value for kind in TURN_JUDGES)})
"""Values of turns that are counted when they are unknown, in addition to the latency."""
_SCHEMA_THAT_RESTATES: Final = 1
"""Schema version whose final records may repeat earlier ones with the same revision."""


class Counted(NamedTuple):
    """Adds `by` to the counter `metric`. 0 only creates the series, so that the first count is a visible step."""

    metric: str
    labels: tuple[str, ...]
    by: float = 1


class Observed(NamedTuple):
    """Adds `value`, in the metric's unit, to the histogram `metric`."""

    metric: str
    labels: tuple[str, ...]
    value: float


Sample = Counted | Observed


class UncountableRecordError(ValueError):
    """A valid record lacks something that its metric needs. Leave it out and count it as refused."""


def exemplar_of(record: AnyScoreRecord) -> dict[str, str]:
    """Returns the exemplar that leads from a sample to its call: the conversation id, cut to the limit of OpenMetrics."""
    # With one NUL character, Prometheus refuses the whole page.
    return {EXEMPLAR_NAME: record.conversation_id[:MAX_EXEMPLAR_CHARS].replace("\x00", "\ufffd")}


def project(record: AnyScoreRecord, now_ms: int, call: CallSoFar) -> Iterator[Sample]:
    """Yields the samples of one record.

    Args:
        record: A record of `scores`.
        now_ms: The reader's wall clock, for our own delay.
        call: The call before this record.

    Raises:
        UncountableRecordError: A value has no source or anchor, or is unknown for a reason that this kind of value cannot have.
    """
    yield Counted("callgauge_scores_read_total", (record.kind,))
    if not call.is_over:
        delay_ms = max(0, now_ms - record.caused_at_ms)  # below 0 only where clocks disagree
        yield Observed("callgauge_event_to_score_seconds", (record.labels.pipeline_type,), to_seconds(delay_ms))
    who = (record.labels.agent, record.labels.tenant, record.labels.environment)
    if new_waits := call.user_turns.new_waits(record):
        yield Counted("callgauge_user_turns_total", who, new_waits)
    for speaker in call.interruptions.counted(record):
        yield Counted("callgauge_interruptions_total", (*who, speaker))
    match record:
        case VoiceToVoiceLatency():
            yield from _latency(record, who)
        case CallStartedFact():
            if record.is_first:
                yield Counted("callgauge_calls_started_total", who)
        case InterruptionFact() | ProgressScore():
            # One counts when the call leaves its turn, the other is shown while the call runs and observed when it closes.
            pass
        case AgentErrorsFact():
            if record.is_first:  # the evaluator counts each error; here the agent is known
                yield Counted("callgauge_calls_with_agent_errors_total", who)
        case DeadAirFact():
            if record.is_first:
                yield Counted("callgauge_dead_air_total", who)
        case ToolUseFact():
            if record.is_first:
                yield Counted("callgauge_tool_calls_total", (*who, record.tool, record.outcome))
        case ClosedFact():
            yield Counted("callgauge_calls_ended_total", (*who, record.reason))
            yield Observed("callgauge_call_turns", who, record.turns)
            last = call.goals.newest
            if last is not None and last.auc is not None:
                yield Observed("callgauge_call_auc_ratio", who, last.auc)
            if last is not None and last.ppt is not None:
                yield Observed("callgauge_call_ppt_ratio", who, last.ppt)
            if call.progress is not None:
                yield Observed("callgauge_call_progress_ratio", who, call.progress)
                if call.version is not None:
                    yield Observed("callgauge_version_score_ratio", (*who, call.version, "progress"), call.progress)
                if call.goals.goal_set is not None:
                    labels = (*who, call.goals.goal_set)
                    yield Observed("callgauge_goal_set_progress_ratio", labels, call.progress)
        case GoalsFact():
            if record.is_first:
                yield Counted("callgauge_calls_with_goals_total", who)
                for outcome in ("success", "failure"):  # `increase()` cannot see a step from nothing to 1
                    yield Counted("callgauge_goal_set_calls_total", (*who, record.goal_set.id, outcome), 0)
                by_judge = sum(subgoal.is_judged for subgoal in record.goal_set.subgoals)
                by_code = len(record.goal_set.subgoals) - by_judge
                yield Counted("callgauge_subgoals_total", (*who, "code"), by_code)
                yield Counted("callgauge_subgoals_total", (*who, "judge"), by_judge)
        case SubgoalScore():
            if record.is_first:
                yield Counted("callgauge_subgoals_reached_total", (*who, record.checked_by))
        case StallFact():
            if record.is_first:
                yield Counted("callgauge_progress_stalls_total", (*who, record.by))
        case TurnValues():
            if record.is_first and record.turn is not None and record.turn >= 1:
                yield Counted("callgauge_turns_total", who)
            yield from _turn(record, who)
        case CallValues():
            if record.status is TurnStatus.FINAL:
                yield from _call(record, who)
                if call.version is not None:
                    yield from _of_version(record, (*who, call.version))
                if record.success_final_turn is not None:
                    yield from _success(record.success_final_turn, who, call.goals.goal_set)
        case _:
            assert_never(record)


def _latency(record: VoiceToVoiceLatency, who: Who) -> Iterator[Sample]:
    """Observes the first value. Later ones only count as revisions, because a histogram cannot remove a value."""
    is_restated = record.schema_version == _SCHEMA_THAT_RESTATES and record.status is TurnStatus.FINAL
    if not record.is_first and not is_restated:
        yield Counted("callgauge_turn_revisions_total", (*who, REVISED_LATENCY))
    if isinstance(record.result, Scored) and record.is_first:
        if record.source is None or record.anchor is None:
            raise UncountableRecordError(f"a scored {record.name} names no source or no anchor")
        labels = (*who, record.source, record.anchor)
        latency_ms = record.result.value
        if latency_ms < 0:
            yield Counted("callgauge_turns_overlapped_total", labels)
        else:
            yield Observed("callgauge_turn_response_latency_seconds", labels, to_seconds(latency_ms))


def _turn(record: TurnValues, who: Who) -> Iterator[Sample]:
    """Observes the values that no earlier revision of the row had. A value that changes is not observed again."""
    stages = {f"{STAGE_PREFIX}{each.stage}": each for each in record.stages}
    for name in record.first_known:
        if (stage := stages.get(name)) is not None:
            seconds = to_seconds(stage.latency_ms)
            yield Observed("callgauge_stage_latency_seconds", (*who, stage.source, stage.stage), seconds)
            continue
        match name, record:
            case "turn_taking", TurnValues(turn_taking=TurnTakingScore(result=Scored(value=value), anchor=anchor)):
                if anchor is None:
                    raise UncountableRecordError(f"a scored {name} names no anchor")
                yield Observed("callgauge_turn_taking_ratio", (*who, anchor), value)
            case "estimate_error_ms", TurnValues(estimate_error=error) if error is not None:
                yield Observed("callgauge_estimate_error_seconds", who, to_seconds(abs(error.error_ms)))
            case _:
                match getattr(record, name) if name in TURN_JUDGES else None:
                    case TextRating(result=Scored(value=value)):
                        yield Observed("callgauge_text_rating_ratio", (*who, name), value)
                        continue
                raise UncountableRecordError(
                    f"a row of a turn knows {name[:40]!r} for the first time and has no such value"
                )


def _told(record: CallValues, who: Who) -> Iterator[Sample]:
    """What the models of the agent used and cost, and the notes of its framework."""
    for use in record.uses or ():
        for amount in USED_AMOUNTS:
            if count := getattr(use, amount):
                yield Counted("callgauge_agent_usage_total", (*who, amount), count)
    match record.cost:
        case Scored(value=cost):
            yield Observed("callgauge_call_cost_dollars", who, cost)
        case Unscored():
            yield Counted("callgauge_calls_without_cost_total", who)
    for note in record.notes or ():
        if note.what == "handoff":
            yield Counted("callgauge_handoffs_total", who)
        elif note.what == "false_interruption":
            yield Counted("callgauge_false_interruptions_total", who)
        elif note.cause is not None:
            yield Counted("callgauge_interruption_causes_total", (*who, note.cause))


def _call(record: CallValues, who: Who) -> Iterator[Sample]:
    """Adds the values of a whole call at its end. A value that is not known adds nothing, or counts as unknown."""
    if record.speech is not None:
        yield from _speech(record.speech, who)
    if (errors := record.stt_wer) is not None and errors.reference_words:
        yield Counted("callgauge_stt_reference_words_total", who, errors.reference_words)
        yield Counted("callgauge_stt_word_errors_total", (*who, "substitution"), errors.substitutions)
        yield Counted("callgauge_stt_word_errors_total", (*who, "deletion"), errors.deletions)
        yield Counted("callgauge_stt_word_errors_total", (*who, "insertion"), errors.insertions)
    if (score := record.transcript_disagreement) is not None:
        for speaker, side in ((Speaker.USER, score.user), (Speaker.ASSISTANT, score.assistant)):
            if side.turns:
                yield Counted("callgauge_transcript_words_total", (*who, speaker), side.words)
                yield Counted("callgauge_transcript_differences_total", (*who, speaker), side.differences)
    for eva_name, eva in record.eva.items():
        # `eva_response_speed` is no ratio, and is in the histogram of latencies already.
        if eva.normalized is not None or not isinstance(eva.result, Scored):
            yield from _final(eva_name, eva.result, "callgauge_eva_score_ratio", (*who, eva_name))
    for stage, agreement in record.stages.items():
        if agreement.compared:
            yield Counted("callgauge_stage_disagreements_total", (*who, stage), agreement.disputed)
    if record.tool_correctness is not None:
        yield from _final("tool_correctness", record.tool_correctness, "callgauge_tool_correctness_ratio", who)
    yield from _told(record, who)
    for kind in CALL_JUDGES:
        if (rating := getattr(record, kind)) is not None:
            yield from _final(kind.value, rating.result, "callgauge_text_rating_ratio", (*who, kind.value))
    for anchor, latencies in record.latencies.items():
        yield Counted("callgauge_turns_final_total", (*who, anchor, "measured"), latencies.measured)
        yield Counted("callgauge_turns_final_total", (*who, anchor, "overlapped"), latencies.overlapped)
        seconds = to_seconds(latencies.measured_ms)
        yield Counted("callgauge_turns_final_latency_seconds_total", (*who, anchor), seconds)
    for value_name, reasons in record.unscored_turns.items():
        yield from _unscored_turns(value_name, reasons, who)
    for reason, subgoals in record.unscored_subgoals.items():
        known = _one_of(GOAL_REASONS, reason, "subgoal")
        yield Counted("callgauge_subgoals_unscored_total", (*who, known), subgoals)


def _unscored_turns(name: TurnValueName, reasons: Mapping[UnscoredReason, int], who: Who) -> Iterator[Sample]:
    if name == "voice_to_voice_latency_ms":
        for reason, turns in reasons.items():
            yield Counted("callgauge_turns_unmeasured_total", (*who, _one_of(LATENCY_REASONS, reason, name)), turns)
    elif name in _COUNTED_WHEN_UNSCORED:
        yield Counted("callgauge_scores_unscored_total", (*who, name), sum(reasons.values()))
    else:
        raise UncountableRecordError(f"no metric counts turns without {name}")


def _speech(score: SpeechScore, who: Who) -> Iterator[Sample]:
    for speaker, side in ((Speaker.USER, score.user), (Speaker.ASSISTANT, score.assistant)):
        yield from _known("callgauge_talk_seconds_total", (*who, speaker), side.speech_ms)
        yield from _known("callgauge_longest_monologue_seconds", (*who, speaker), side.longest_monologue_ms)
        yield from _known("callgauge_words_per_minute", (*who, speaker), side.words_per_minute)
        yield from _known("callgauge_repeated_questions_total", (*who, speaker), side.repeated_questions)
    yield from _known("callgauge_overlap_seconds_total", who, score.overlap_ms)
    yield from _known("callgauge_dead_air_seconds_total", who, score.dead_air_ms)
    yield from _known("callgauge_first_word_seconds", who, score.first_word_ms)


def _known(name: str, labels: tuple[str, ...], result: Result) -> Iterator[Sample]:
    """Counts or observes a value as its metric is declared. A value that is not known adds nothing."""
    if isinstance(result, Scored):
        metric = metric_named(name)
        value = to_seconds(result.value) if metric.unit == "seconds" else result.value
        yield Counted(name, labels, value) if metric.type == "counter" else Observed(name, labels, value)


def _of_version(record: CallValues, labels: tuple[str, ...]) -> Iterator[Sample]:
    """Observes the values that tell one version of an agent from the next."""
    ratings = {kind.value: rating.result for kind in CALL_JUDGES if (rating := getattr(record, kind)) is not None}
    of_eva = {name: score.result for name in ("eva_turn_taking", "eva_x_mean") if (score := record.eva.get(name))}
    own = {"success": record.success_final_turn, "tool_correctness": record.tool_correctness}
    for name, result in {**own, **of_eva, **ratings}.items():
        if isinstance(result, Scored):
            yield Observed("callgauge_version_score_ratio", (*labels, name), result.value)


def _success(result: Result, who: Who, goal_set: str | None) -> Iterator[Sample]:
    match result:
        case Scored(value=success):
            outcome = "success" if success == 1 else "failure"
            yield Counted("callgauge_calls_scored_total", (*who, outcome))
        case Unscored(reason=reason):
            outcome = "unscored"
            known = _one_of(GOAL_REASONS, reason, "success_final_turn")
            yield Counted("callgauge_calls_unscored_total", (*who, known))
        case NotApplicable():
            return
        case _:
            assert_never(result)
    if goal_set is not None:
        yield Counted("callgauge_goal_set_calls_total", (*who, goal_set, outcome))


def _final(name: str, result: Result, metric: str, labels: tuple[str, ...]) -> Iterator[Sample]:
    """Observes the final value of a score that can change while the call runs."""
    match result:
        case Scored(value=value):
            yield Observed(metric, labels, value)
        case Unscored():
            yield Counted("callgauge_scores_unscored_total", (*labels[:3], name))
        case NotApplicable():
            pass
        case _:
            assert_never(result)


def _one_of(reasons: frozenset[UnscoredReason], reason: UnscoredReason, name: str) -> UnscoredReason:
    if reason not in reasons:
        raise UncountableRecordError(f"{name} cannot be unscored because of {reason}")
    return reason
