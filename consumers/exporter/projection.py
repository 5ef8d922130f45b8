"""Samples of the metrics from each row of `scores`, and what gauges show of the calls that run."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from schemas.closed_sets import (
    CALL_JUDGES,
    GOAL_REASONS,
    LATENCY_REASONS,
    TURN_JUDGES,
    Speaker,
    UnscoredReason,
)
from schemas.metrics.catalogue import metric_named
from schemas.metrics.exporter import USED_AMOUNTS
from schemas.rows import (
    CallRow,
    Goals,
    GoalsRow,
    Labels,
    NotApplicable,
    Row,
    Speech,
    SubgoalResult,
    TurnRow,
    Unscored,
    Value,
    kind_of,
    number,
)
from schemas.scores.shares import Shares
from schemas.units import to_seconds

Who = tuple[str, ...]
"""Agent, tenant and environment."""
Part = TypeVar("Part")


def _who(labels: Labels) -> Who:
    return labels.agent, labels.tenant, labels.environment


# The running calls, by the newest row of each: how many there are, and how far they have come
# towards their goals.

MAX_KNOWN_GROUPS: Final = 10_000
"""Most combinations of agent, tenant and environment that stay on the page at 0 after their last
call, or their last with goals.
"""
_PROGRESS_DECIMALS: Final = 4
"""Decimals of progress. A sum is rounded to them, so it does not depend on the order of
the calls.
"""


@dataclass(slots=True)
class _OpenCall:
    """What is kept of the newest row of an open call. `heard_ms` is by the reader's clock."""

    partition: int
    who: Who
    heard_ms: int
    is_over: bool
    subgoals: int
    reached: int
    progress: float | None


@dataclass(slots=True)
class _Sums:
    """Sums over the running calls of a group."""

    has_had_goals: bool = False
    calls: int = 0
    known: int = 0
    unknown: int = 0
    progress: float = 0.0
    reached: int = 0
    subgoals: int = 0

    def add(self, call: _OpenCall) -> None:
        self.calls += 1
        if not call.subgoals:
            return
        self.has_had_goals = True
        if call.progress is None:
            self.unknown += 1
        else:
            self.known += 1
            self.progress += call.progress
        self.reached += call.reached
        self.subgoals += call.subgoals


class OpenCalls:
    """Calls with a row, and without a closed one so far. Those that are over and wait for verdicts
    are kept and do not count as running.

    A running call says at least once a minute how it is, so who has read the last two minutes knows
    all of them. When there are too many, the tenant with the most loses its quietest one. Times are
    of the reader's clock, in ms.
    """

    def __init__(self, max_calls: int, forget_after_ms: int) -> None:
        self._max_calls = max_calls
        self._forget_after_ms = forget_after_ms
        self._calls: OrderedDict[str, _OpenCall] = OrderedDict()  # the quietest first
        self._shares = Shares()
        self._groups: dict[Who, _Sums] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def replace_row(self, row: CallRow, partition: int, now_ms: int) -> int:
        """Replaces what is known of a call by its newer row.

        Returns:
            Number of calls that were forgotten to make room: 0 or 1.
        """
        conversation_id = row.conversation_id
        self._calls.pop(conversation_id, None)
        if row.state == "closed":
            self._shares.discard(conversation_id)
            return 0
        goals = row.goals or _NO_GOALS
        reached, progress = 0, None
        if goals.progress is not None:
            reached, progress = goals.progress.reached, number(goals.progress.result)
        self._calls[conversation_id] = _OpenCall(
            partition,
            _who(row.labels),
            now_ms,
            row.state == "over",
            len(goals.subgoals),
            reached,
            progress,
        )
        self._shares.use(conversation_id, row.labels.tenant)
        if len(self._calls) <= self._max_calls:
            return 0
        del self._calls[self._shares.make_room()]
        return 1

    def is_over(self, conversation_id: str) -> bool:
        """Whether the call only waits for verdicts, as far as is known."""
        call = self._calls.get(conversation_id)
        return call is not None and call.is_over

    def forget_silent(self, now_ms: int) -> int:
        """Forgets the calls without a row for too long, and returns their number."""
        forgotten = 0
        while self._calls:
            conversation_id, call = next(iter(self._calls.items()))
            if now_ms - call.heard_ms <= self._forget_after_ms:
                break
            self._drop(conversation_id)
            forgotten += 1
        return forgotten

    def keep_only(self, partitions: Collection[int]) -> None:
        """Drops the calls of other partitions, because another exporter counts them now."""
        for conversation_id in [
            key for key, call in self._calls.items() if call.partition not in partitions
        ]:
            self._drop(conversation_id)

    def sum_up(self) -> None:
        """Adds up the running calls, for the gauges. Groups of former calls stay at 0, so that
        their lines in graphs go on.
        """
        groups = {who: _Sums(sums.has_had_goals) for who, sums in self._groups.items()}
        for call in self._calls.values():
            if not call.is_over:
                groups.setdefault(call.who, _Sums()).add(call)
        if len(groups) > MAX_KNOWN_GROUPS:
            groups = {who: sums for who, sums in groups.items() if sums.calls}
        self._groups = groups

    def running(self) -> Mapping[Who, float]:
        """The number of running calls when they were added up."""
        return {who: sums.calls for who, sums in self._groups.items()}

    def with_goals(self) -> Mapping[tuple[str, ...], float]:
        """The number of those with goals, by whether their progress is known."""
        return {
            (*who, state): calls
            for who, sums in self._that_had_goals()
            for state, calls in (("known", sums.known), ("unknown", sums.unknown))
        }

    def progress(self) -> Mapping[Who, float]:
        """The sum of their progress."""
        return {
            who: round(sums.progress, _PROGRESS_DECIMALS) for who, sums in self._that_had_goals()
        }

    def subgoals(self) -> Mapping[tuple[str, ...], float]:
        """The number of their subgoals, by whether they are reached."""
        return {
            (*who, state): subgoals
            for who, sums in self._that_had_goals()
            for state, subgoals in (
                ("reached", sums.reached),
                ("open", sums.subgoals - sums.reached),
            )
        }

    def _that_had_goals(self) -> Iterator[tuple[Who, _Sums]]:
        return ((who, sums) for who, sums in self._groups.items() if sums.has_had_goals)

    def _drop(self, conversation_id: str) -> None:
        del self._calls[conversation_id]
        self._shares.discard(conversation_id)


# Turns a row into samples of metrics. Pure: what to count and observe, for the service to carry
# out.

EXEMPLAR_NAME: Final = "conversation_id"
MAX_EXEMPLAR_CHARS: Final = 128 - len(EXEMPLAR_NAME)
"""OpenMetrics allows 128 characters for an exemplar's names and values together."""

REVISED_LATENCY: Final = "turn_response_latency"

_COUNTED_WHEN_UNSCORED: Final[frozenset[str]] = frozenset(
    {"turn_taking", *(kind.value for kind in TURN_JUDGES)}
)
"""Values of turns that are counted when they are unknown, in addition to the latency."""
_NO_GOALS: Final = Goals("", "")


class Counted(NamedTuple):
    """Adds `by` to the counter `metric`. 0 only creates the series, so that the first count is a
    visible step.
    """

    metric: str
    labels: tuple[str, ...]
    by: float = 1


class Observed(NamedTuple):
    """Adds `value`, in the metric's unit, to the histogram `metric`."""

    metric: str
    labels: tuple[str, ...]
    value: float


Sample = Counted | Observed


class UncountableRowError(ValueError):
    """A valid row lacks something that its metric needs. Leave it out and count it as refused."""


def exemplar_of(row: Row) -> dict[str, str]:
    """Returns the exemplar that leads from a sample to its call: the conversation id, cut to the
    limit of OpenMetrics.
    """
    # With one NUL character, Prometheus refuses the whole page.
    return {EXEMPLAR_NAME: row.conversation_id[:MAX_EXEMPLAR_CHARS].replace("\x00", "\ufffd")}


def project(row: Row, now_ms: int, *, is_over: bool = False) -> Iterator[Sample]:
    """Yields the samples of one row: of what is new in it, and of nothing else.

    Rows of one transaction are one, with the news of all of them and the values of the last. So a
    value that was new in an earlier one can be gone again: it is not observed.

    Args:
        row: A row of `scores`.
        now_ms: The reader's wall clock, for our own delay.
        is_over: Whether the call waited for nothing but verdicts before this row, so that the delay
            is not ours.

    Raises:
        UncountableRowError: A value has no source or anchor, or is unknown for a reason that this
            kind of value cannot have; or a name in `news` is none that the contract has.
    """
    yield Counted("callgauge_scores_read_total", (kind_of(row),))
    if isinstance(row, GoalsRow) or not row.news:
        return
    if not is_over:
        delay_ms = max(0, now_ms - row.known_ms)  # below 0 only where clocks disagree
        yield Observed(
            "callgauge_event_to_score_seconds", (row.labels.pipeline_type,), to_seconds(delay_ms)
        )
    who = _who(row.labels)
    for name in row.news:
        kind, _, what = name.partition(".")
        if isinstance(row, TurnRow):
            yield from _turn_news(row, who, kind, what)
        else:
            yield from _call_news(row, who, kind, what)


def _turn_news(row: TurnRow, who: Who, kind: str, what: str) -> Iterator[Sample]:
    match kind:
        case "turn":
            yield Counted("callgauge_turns_total", who)
        case "wait":
            yield from _wait(row, who)
        case "wait_revised":
            # The histogram keeps the first value, because it cannot remove one.
            yield Counted("callgauge_turn_revisions_total", (*who, REVISED_LATENCY))
        case "user_turn":
            yield Counted("callgauge_user_turns_total", who)
        case "stages":
            for stage in row.stages:
                if stage.stage == what:
                    labels = (*who, stage.source, stage.stage)
                    yield Observed(
                        "callgauge_stage_latency_seconds", labels, to_seconds(stage.latency_ms)
                    )
        case "interruption":
            yield Counted("callgauge_interruptions_total", (*who, what))
        case "dead_air":
            yield Counted("callgauge_dead_air_total", who)
        case "tool":
            for use in row.tools:
                if str(use.index) == what and use.outcome is not None:
                    yield Counted("callgauge_tool_calls_total", (*who, use.tool, use.outcome))
        case "turn_taking":
            if (
                row.turn_taking is not None
                and (timing := number(row.turn_taking.result)) is not None
            ):
                anchor = row.turn_taking.anchor
                if anchor is None:
                    raise UncountableRowError("a turn's timing names no anchor")
                yield Observed("callgauge_turn_taking_ratio", (*who, anchor), timing)
        case "estimate_error":
            if row.estimate_error is not None:
                seconds = to_seconds(abs(row.estimate_error.error_ms))
                yield Observed("callgauge_estimate_error_seconds", who, seconds)
        case "conciseness" | "speakability" | "transcription_accuracy_key_entities":
            rating = getattr(row, kind)
            if rating is not None and (rated := number(rating.result)) is not None:
                yield Observed("callgauge_text_rating_ratio", (*who, kind), rated)
        case _:
            raise _unknown_news("turn", kind)


def _wait(row: TurnRow, who: Who) -> Iterator[Sample]:
    wait_ms = number(row.wait_ms)
    if wait_ms is None:
        return
    if row.wait_source is None or row.anchor is None:
        raise UncountableRowError("a wait names no source or no anchor")
    labels = (*who, row.wait_source, row.anchor)
    if wait_ms < 0:
        yield Counted("callgauge_turns_overlapped_total", labels)
    else:
        yield Observed("callgauge_turn_response_latency_seconds", labels, to_seconds(wait_ms))


def _call_news(row: CallRow, who: Who, kind: str, what: str) -> Iterator[Sample]:
    goals = row.goals or _NO_GOALS
    match kind:
        case "started":
            yield Counted("callgauge_calls_started_total", who)
        case "errors":  # the evaluator counts each error; here the agent is known
            yield Counted("callgauge_calls_with_agent_errors_total", who)
        case "goals":
            yield Counted("callgauge_calls_with_goals_total", who)
            # `increase()` cannot see a step from nothing to 1
            for outcome in ("success", "failure"):
                yield Counted("callgauge_goal_set_calls_total", (*who, goals.goal_set, outcome), 0)
            yield Counted(
                "callgauge_subgoals_total", (*who, "code"), len(goals.subgoals) - goals.by_judge
            )
            yield Counted("callgauge_subgoals_total", (*who, "judge"), goals.by_judge)
        case "subgoal":
            subgoal = _numbered(goals.subgoals, what, first=0)
            yield Counted("callgauge_subgoals_reached_total", (*who, _checked_by(subgoal)))
        case "stall":
            stall = _numbered(goals.stalls, what, first=1)
            yield Counted("callgauge_progress_stalls_total", (*who, stall.by))
        case "closed":
            yield from _closed(row, who, goals)
        case _:
            raise _unknown_news("call", kind)


def _numbered(parts: Sequence[Part], what: str, *, first: int) -> Part:
    """The part of a call with the number that its news name."""
    if not what.isdecimal() or not first <= int(what) < first + len(parts):
        raise UncountableRowError(
            f"its news name {what[:40]!r} of {len(parts)} parts, the first of which is {first}"
        )
    return parts[int(what) - first]


def _checked_by(subgoal: SubgoalResult) -> str:
    """Only a judge votes, and none of his verdicts is without a vote."""
    return "judge" if subgoal.votes_complete or subgoal.votes_incomplete else "code"


def _unknown_news(kind: str, name: str) -> UncountableRowError:
    return UncountableRowError(f"news of a {kind} with a name that no metric has: {name[:40]!r}")


# A call that closes: its final values.


def _closed(row: CallRow, who: Who, goals: Goals) -> Iterator[Sample]:
    """Adds the values of a whole call. A value that is not known adds nothing, or counts as
    unknown.
    """
    if row.close_reason is None:
        raise UncountableRowError("a closed call names no reason")
    yield Counted("callgauge_calls_ended_total", (*who, row.close_reason))
    yield Observed("callgauge_call_turns", who, row.turns)
    if row.speech is not None:
        yield from _speech(row.speech, who)
    yield from _transcripts(row, who)
    for eva_name, eva in row.eva.items():
        # `eva_response_speed` is no ratio, and is in the histogram of latencies already.
        if eva.normalized is not None or number(eva.result) is None:
            yield from _final(eva_name, eva.result, "callgauge_eva_score_ratio", (*who, eva_name))
    for stage, agreement in row.stages.items():
        if agreement.compared:
            yield Counted("callgauge_stage_disagreements_total", (*who, stage), agreement.disputed)
    yield from _told(row, who)
    for kind in CALL_JUDGES:
        if (rating := getattr(row, kind)) is not None:
            yield from _final(
                kind.value, rating.result, "callgauge_text_rating_ratio", (*who, kind.value)
            )
    for anchor, waits in row.waits.items():
        yield Counted("callgauge_turns_final_total", (*who, anchor, "measured"), waits.measured)
        yield Counted("callgauge_turns_final_total", (*who, anchor, "overlapped"), waits.overlapped)
        seconds = to_seconds(waits.measured_ms)
        yield Counted("callgauge_turns_final_latency_seconds_total", (*who, anchor), seconds)
    for value_name, reasons in row.unscored_turns.items():
        yield from _unscored_turns(value_name, reasons, who)
    yield from _goals(goals, who)
    if row.labels.version is not None:
        yield from _of_version(row, goals, (*who, row.labels.version))


def _goals(goals: Goals, who: Who) -> Iterator[Sample]:
    for reason, subgoals in goals.unscored_subgoals.items():
        known = _one_of(GOAL_REASONS, reason, "subgoal")
        yield Counted("callgauge_subgoals_unscored_total", (*who, known), subgoals)
    if goals.tool_correctness is not None:
        yield from _final(
            "tool_correctness", goals.tool_correctness, "callgauge_tool_correctness_ratio", who
        )
    if goals.success_final_turn is not None:
        yield from _success(goals.success_final_turn, who, goals.goal_set)
    if goals.progress is None:
        return
    if (auc := number(goals.progress.auc)) is not None:
        yield Observed("callgauge_call_auc_ratio", who, auc)
    if (ppt := number(goals.progress.ppt)) is not None:
        yield Observed("callgauge_call_ppt_ratio", who, ppt)
    if (progress := number(goals.progress.result)) is not None:
        yield Observed("callgauge_call_progress_ratio", who, progress)
        yield Observed("callgauge_goal_set_progress_ratio", (*who, goals.goal_set), progress)


def _success(success: Value, who: Who, goal_set: str) -> Iterator[Sample]:
    if isinstance(success, NotApplicable):
        return
    if isinstance(success, Unscored):
        outcome = "unscored"
        reason = _one_of(GOAL_REASONS, success.reason, "success_final_turn")
        yield Counted("callgauge_calls_unscored_total", (*who, reason))
    else:
        outcome = "success" if success == 1 else "failure"
        yield Counted("callgauge_calls_scored_total", (*who, outcome))
    yield Counted("callgauge_goal_set_calls_total", (*who, goal_set, outcome))


def _of_version(row: CallRow, goals: Goals, labels: tuple[str, ...]) -> Iterator[Sample]:
    """Observes the values that tell one version of an agent from the next."""
    values: dict[str, Value | None] = {
        "success": goals.success_final_turn,
        "progress": None if goals.progress is None else goals.progress.result,
        "tool_correctness": goals.tool_correctness,
    }
    for name in ("eva_turn_taking", "eva_x_mean"):
        values[name] = row.eva[name].result if name in row.eva else None
    for kind in CALL_JUDGES:
        rating = getattr(row, kind)
        values[kind.value] = None if rating is None else rating.result
    for name, value in values.items():
        if (score := number(value)) is not None:
            yield Observed("callgauge_version_score_ratio", (*labels, name), score)


def _told(row: CallRow, who: Who) -> Iterator[Sample]:
    """What the models of the agent used and cost, and the notes of its framework."""
    for use in row.uses:
        for amount in USED_AMOUNTS:
            if count := getattr(use, amount):
                yield Counted("callgauge_agent_usage_total", (*who, amount), count)
    if isinstance(row.cost_dollars, Unscored):
        yield Counted("callgauge_calls_without_cost_total", who)
    elif (cost := number(row.cost_dollars)) is not None:
        yield Observed("callgauge_call_cost_dollars", who, cost)
    for note in row.notes:
        if note.what == "handoff":
            yield Counted("callgauge_handoffs_total", who)
        elif note.what == "false_interruption":
            yield Counted("callgauge_false_interruptions_total", who)
        elif note.cause is not None:
            yield Counted("callgauge_interruption_causes_total", (*who, note.cause))


def _transcripts(row: CallRow, who: Who) -> Iterator[Sample]:
    if (errors := row.stt_wer) is not None and errors.reference_words:
        yield Counted("callgauge_stt_reference_words_total", who, errors.reference_words)
        yield Counted(
            "callgauge_stt_word_errors_total", (*who, "substitution"), errors.substitutions
        )
        yield Counted("callgauge_stt_word_errors_total", (*who, "deletion"), errors.deletions)
        yield Counted("callgauge_stt_word_errors_total", (*who, "insertion"), errors.insertions)
    for speaker, side in (
        (Speaker.USER, row.user_disagreement),
        (Speaker.ASSISTANT, row.assistant_disagreement),
    ):
        if side is not None and side.turns:
            yield Counted("callgauge_transcript_words_total", (*who, speaker), side.words)
            yield Counted(
                "callgauge_transcript_differences_total", (*who, speaker), side.differences
            )


def _speech(speech: Speech, who: Who) -> Iterator[Sample]:
    for speaker, side in ((Speaker.USER, speech.user), (Speaker.ASSISTANT, speech.assistant)):
        yield from _known("callgauge_talk_seconds_total", (*who, speaker), side.speech_ms)
        yield from _known(
            "callgauge_longest_monologue_seconds", (*who, speaker), side.longest_monologue_ms
        )
        yield from _known("callgauge_words_per_minute", (*who, speaker), side.words_per_minute)
        yield from _known(
            "callgauge_repeated_questions_total", (*who, speaker), side.repeated_questions
        )
    yield from _known("callgauge_overlap_seconds_total", who, speech.overlap_ms)
    yield from _known("callgauge_dead_air_seconds_total", who, speech.dead_air_ms)
    yield from _known("callgauge_first_word_seconds", who, speech.first_word_ms)


def _known(name: str, labels: tuple[str, ...], value: Value) -> Iterator[Sample]:
    """Counts or observes a value as its metric is declared. A value that is not known
    adds nothing.
    """
    amount = number(value)
    if amount is None:
        return
    metric = metric_named(name)
    if metric.unit == "seconds":
        amount = to_seconds(amount)
    yield (
        Counted(name, labels, amount)
        if metric.type == "counter"
        else Observed(name, labels, amount)
    )


def _final(name: str, value: Value, metric: str, labels: tuple[str, ...]) -> Iterator[Sample]:
    """Observes the final value of a score that can change while the call runs."""
    if isinstance(value, Unscored):
        yield Counted("callgauge_scores_unscored_total", (*labels[:3], name))
    elif (score := number(value)) is not None:
        yield Observed(metric, labels, score)


def _unscored_turns(name: str, reasons: Mapping[UnscoredReason, int], who: Who) -> Iterator[Sample]:
    if name == "voice_to_voice_latency_ms":
        for reason, turns in reasons.items():
            yield Counted(
                "callgauge_turns_unmeasured_total",
                (*who, _one_of(LATENCY_REASONS, reason, name)),
                turns,
            )
    elif name in _COUNTED_WHEN_UNSCORED:
        yield Counted("callgauge_scores_unscored_total", (*who, name), sum(reasons.values()))
    else:
        raise UncountableRowError(f"no metric counts turns without {name[:40]}")


def _one_of(
    reasons: frozenset[UnscoredReason], reason: UnscoredReason, name: str
) -> UnscoredReason:
    if reason not in reasons:
        raise UncountableRowError(f"{name} cannot be unscored because of {reason}")
    return reason
