"""Compares trials: pass@k, agreement of judges, errors."""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from aiokafka import TopicPartition
from rich.table import Table

from consumers.engine.agent_inspect import (
    InvalidInputValueError,
    judge_statistics,
    pass_at_k,
    pass_hat_k,
)
from consumers.history.opening import opened
from consumers.history.search import CallSearch
from consumers.history.settings import HistorySettings
from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from consumers.runtime.kafka.ranges import onlooker
from consumers.runtime.process import OperatorError, wall_clock_ms
from consumers.store.changes import remark_on_chance
from consumers.view.words import counted, in_words, number, percent
from schemas.closed_sets import UnjudgedReason
from schemas.goals.goal_set import GoalSet
from schemas.quarantine import UndecodableRecord
from schemas.topics import SCORES_TOPIC
from streamer.changes import changes_table
from streamer.cluster.readers import records_so_far
from streamer.offline.call_work import (
    RECORDS,
    Done,
    found_calls,
    places_of,
    reading,
    score_each,
    total_of,
)
from streamer.offline.own_values import OwnMeasures
from streamer.offline.scoring import RecordedScoring, plan_from
from streamer.recordings.reader import goals_for
from streamer.settings.all_settings import Settings
from streamer.terminal import output_console, print_document, print_line, quiet_libraries, say
from streamer.time_bounds import moment_given
from streamer.trials.calls import (
    MAX_TRIALS,
    NOT_CLOSED,
    MixedCalls,
    NewestRows,
    Trial,
    Trials,
    Versus,
    finding_of,
    holds_rows,
    read_rows_file,
    take_line,
    versus_json,
    versus_lines,
    words_by_turn,
)

if TYPE_CHECKING:
    from streamer.trials.causes import Causes  # which bring the judge

# Compares repeated calls of one goal set: success, progress, pass@k, pass^k, agreement of the
# judge, and errors. Pure.
#
# A trial is one call. All figures are over the trials of one goal set, and a set whose content
# changed is another. A trial whose success is unknown counts as a trial and in no figure that needs
# its success: unknown is not zero.

_QUANTILE: Final = 1.959964
"""Of the normal distribution, for 95 %."""
_NOT_JUDGED: Final = frozenset(reason.value for reason in UnjudgedReason)


class Passes(NamedTuple):
    """How likely one, and all, of k trials succeed; both None where there are fewer than k trials
    with a known success.

    With n trials, of which c succeed: pass@k = 1 - C(n-c, k) / C(n, k), the unbiased estimate of
    "Evaluating Large Language Models Trained on Code" (Chen et al., 2021); pass^k = C(c, k) / C(n,
    k), the estimate of "tau-bench" (Yao et al., 2024).
    """

    k: int
    pass_at_k: float | None
    pass_hat_k: float | None


class Judging(NamedTuple):
    """Work of the judge on the subgoals that a model checks.

    Attributes:
        agreement: Share of the votes that agree with the majority of their verdict; None without a
            vote.
        votes: Votes on them, in the verdicts that decided.
        verdicts: Subgoals with at least one vote, over all trials.
        unanimous: Those of them whose votes are all the same.
        unscored: Subgoals without a verdict of the judge, by reason, for example `invalid_answers`.
        with_majority: Votes that agree with the majority of their verdict.
    """

    agreement: float | None
    votes: int
    verdicts: int
    unanimous: int
    unscored: Counter[str]
    with_majority: int


class SubgoalErrors(NamedTuple):
    """One subgoal over all trials; `calls` did not reach it, `unknown` counts the
    others by reason.
    """

    id: str
    details: str
    reached: int
    missed: int
    unknown: Counter[str]
    calls: tuple[Trial, ...]


class Stalled(NamedTuple):
    """The trials without success, with a known progress that ends in the same turn. With None they
    progress to their last turn.
    """

    turn: int | None
    calls: tuple[Trial, ...]


class ToolErrors(NamedTuple):
    """A tool that fails in trials without success, up to the turn in which they stall."""

    tool: str
    failures: int
    calls: tuple[Trial, ...]


class ExpectedToolErrors(NamedTuple):
    """One expected tool call over all trials.

    Attributes:
        index: Its place in the goal set.
        tool: Its name.
        turn: The turn in which it is expected; None if it names none.
        made: In how many trials it was made as expected.
        missed: In how many it was not.
        why: How often what was not as expected: `name` (not called in the turn), `arguments`,
            `output`.
        unknown: The other trials, by reason.
        calls: The trials in which it was not.
    """

    index: int  # type: ignore[assignment]  # hides the method of tuples, which is not called
    tool: str
    turn: int | None
    made: int
    missed: int
    why: Counter[str]
    unknown: Counter[str]
    calls: tuple[Trial, ...]


@dataclass(frozen=True)
class GoalSetTrials:
    """The trials of a goal set with one content, at least one."""

    goal_set: GoalSet
    digest: str
    trials: tuple[Trial, ...]

    @property
    def name(self) -> str:
        """What it is called in texts, for a set of another content has the same id."""
        return f"{self.goal_set.id} {self.digest[:DIGEST_CHARS]}"

    @cached_property
    def known(self) -> tuple[bool, ...]:
        """Success of each trial of which it is known."""
        return tuple(trial.success for trial in self.trials if isinstance(trial.success, bool))

    @cached_property
    def unscored(self) -> Counter[str]:
        """The other trials, by the reason why their success is unknown."""
        return Counter(trial.success for trial in self.trials if isinstance(trial.success, str))

    @property
    def success_rate(self) -> float | None:
        """Share of successes among the trials with a known success; None without any."""
        return sum(self.known) / len(self.known) if self.known else None

    @property
    def mean_progress(self) -> float | None:
        """Mean of the trials whose progress is known; None without any."""
        values = [trial.progress for trial in self.trials if not isinstance(trial.progress, str)]
        return sum(values) / len(values) if values else None

    @property
    def success_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the success rate (Wilson, 1927), which few trials make wide; None
        without a known success.

        It holds where all trials succeed, too: two of two are no proof.
        """
        if (rate := self.success_rate) is None:
            return None
        of, squared = len(self.known), _QUANTILE**2
        middle, spread = (
            rate + squared / (2 * of),
            _QUANTILE * math.sqrt(rate * (1 - rate) / of + squared / (4 * of**2)),
        )
        return max(0.0, (middle - spread) / (1 + squared / of)), min(
            1.0, (middle + spread) / (1 + squared / of)
        )

    def passes(self, k: int) -> Passes:
        """The two estimates for one k, 1 or more."""
        if k > len(self.known):
            return Passes(k, None, None)
        given = self.known, len(self.known), k
        return Passes(k, pass_at_k(*given), pass_hat_k(*given))

    @cached_property
    def judging(self) -> Judging:
        """The judge's votes and errors."""
        judged_ids = {subgoal.id for subgoal in self.goal_set.subgoals if subgoal.is_judged}
        judged = [
            each
            for trial in self.trials
            for name, each in trial.subgoals.items()
            if name in judged_ids
        ]
        votes = [(each.votes_complete, each.votes_incomplete) for each in judged]
        polled = [each for each in votes if any(each)]
        count, with_majority = sum(map(sum, polled)), sum(map(max, polled))
        unanimous = sum(not min(each) for each in polled)
        findings = (finding_of(each.result) for each in judged)
        unscored = Counter(str(each) for each in findings if each in _NOT_JUDGED)
        agreement = with_majority / count if count else None
        return Judging(agreement, count, len(polled), unanimous, unscored, with_majority)

    @cached_property
    def subgoals(self) -> list[SubgoalErrors]:
        """The subgoals; those that are missed most come first, otherwise in the order
        of the set.
        """
        found = []
        for subgoal in self.goal_set.subgoals:
            findings = [
                (trial, finding_of(trial.subgoals[subgoal.id].result)) for trial in self.trials
            ]
            missed = tuple(trial for trial, finding in findings if finding is False)
            unknown = Counter(finding for _, finding in findings if isinstance(finding, str))
            reached = sum(finding is True for _, finding in findings)
            found.append(
                SubgoalErrors(subgoal.id, subgoal.details, reached, len(missed), unknown, missed)
            )
        return sorted(found, key=lambda each: -each.missed)

    @cached_property
    def expected_tools(self) -> list[ExpectedToolErrors]:
        """The expected tool calls; those that are missed most come first, otherwise in the order of
        the set.
        """
        found = []
        for index, call in enumerate(self.goal_set.expected_tool_calls):
            of_call = [
                (trial, each, finding_of(each.result))
                for trial in self.trials
                for each in trial.expected_tools
                if each.index == index
            ]
            missed = [(trial, each) for trial, each, finding in of_call if finding is False]
            turn = next((each.turn for _, each, _ in of_call), None)
            made = sum(finding is True for *_, finding in of_call)
            why = Counter[str](part for _, each in missed for part in each.missed)
            unknown = Counter(finding for *_, finding in of_call if isinstance(finding, str))
            calls = tuple(trial for trial, _ in missed)
            found.append(
                ExpectedToolErrors(index, call.tool, turn, made, len(missed), why, unknown, calls)
            )
        return sorted(found, key=lambda each: -each.missed)

    @cached_property
    def stalls(self) -> list[Stalled]:
        """By turn, the trials without success; most trials first."""
        by_turn: defaultdict[int | None, list[Trial]] = defaultdict(list)
        for trial in self._without_success():
            by_turn[trial.stall_turn].append(trial)
        return sorted(
            (Stalled(turn, tuple(trials)) for turn, trials in by_turn.items()),
            key=lambda each: (-len(each.calls), each.turn is None, each.turn or 0),
        )

    @cached_property
    def failed_tools(self) -> list[ToolErrors]:
        """By tool, the trials without success in which it fails up to the stall; most
        trials first.
        """
        failures: Counter[str] = Counter()
        by_tool: defaultdict[str, list[Trial]] = defaultdict(list)
        for trial in self._without_success():
            counts = Counter(each.what for each in trial.failed_before_stall)
            failures += counts
            for tool in counts:
                by_tool[tool].append(trial)
        return sorted(
            (ToolErrors(tool, failures[tool], tuple(trials)) for tool, trials in by_tool.items()),
            key=lambda each: (-len(each.calls), -each.failures, each.tool),
        )

    def _without_success(self) -> Iterator[Trial]:
        """Trials that failed and whose progress is known. A subgoal without a verdict may have been
        reached later.
        """
        return (
            trial
            for trial in self.trials
            if trial.success is False and not isinstance(trial.progress, str)
        )


def compared(trials: Iterable[Trial]) -> list[GoalSetTrials]:
    """The trials by goal set: sets by name, those of one name in the order of their first
    trials.
    """
    by_set: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        by_set.setdefault((trial.goal_set.id, trial.digest), []).append(trial)
    groups = (
        GoalSetTrials(own[0].goal_set, digest, tuple(own)) for (_, digest), own in by_set.items()
    )
    return sorted(groups, key=lambda each: each.goal_set.id)


def differences(before: GoalSet, after: GoalSet) -> list[str]:
    """The differences of two goal sets of one name, as phrases."""
    old, new = ({subgoal.id: subgoal for subgoal in each.subgoals} for each in (before, after))
    named = {
        "new": [name for name in new if name not in old],
        "left out": [name for name in old if name not in new],
        "changed": [name for name in new if name in old and new[name] != old[name]],
    }
    phrases = [f"subgoals {how}: {', '.join(names)}" for how, names in named.items() if names]
    if not phrases and list(old) != list(new):
        phrases.append("the order of the subgoals")
    if before.max_turns != after.max_turns:
        phrases.append(f"max_turns {before.max_turns} to {after.max_turns}")
    others = {
        "user_instruction": "the user's instruction",
        "expected_tool_calls": "expected tool calls",
    }
    phrases += [
        text for name, text in others.items() if getattr(before, name) != getattr(after, name)
    ]
    return phrases or ["the agents that it is for"]


# Results of compared trials: a table with the errors below it for people, and one JSON object for
# programs. Pure.

USUAL_K: Final = (1, 3, 5)
"""The k of pass@k and pass^k unless others are asked for, as far as there are so many trials."""
MOST_ERRORS: Final = 5
"""Subgoals, turns and tools of each kind that the text lists; JSON has all."""
MOST_LINKS: Final = 3
"""Calls that the text names for an error: enough to look at."""
DIGEST_CHARS: Final = 8
"""Characters of a digest in texts: enough to distinguish two sets of one name."""
UNSCORED: Final = "Unscored"
"""Name of the figure that the table leaves out where it is 0."""
_UNKNOWN: Final = "-"
_MISSED: Final = {"name": "not called", "arguments": "other arguments", "output": "another output"}


def trials_table(groups: Sequence[GoalSetTrials], ks: Sequence[int]) -> Table:
    """A row for each goal set; `-` is an unknown value. With two k it fits a terminal of 80
    columns.
    """
    left_out = set() if any(group.unscored for group in groups) else {UNSCORED}
    rows = [(group.name, dict(figures(group, ks))) for group in groups]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("Goal set", overflow="fold")
    for head in dict.fromkeys(
        head for _, values in rows for head in values if head not in left_out
    ):
        table.add_column(head, justify="right", overflow="fold")
    for name, values in rows:
        table.add_row(name, *(text for head, text in values.items() if head not in left_out))
    return table


def figures(group: GoalSetTrials, ks: Sequence[int]) -> Iterator[tuple[str, str]]:
    """The figures of a goal set with their names, as the table and the report show them."""
    yield "Trials", str(len(group.trials))
    yield UNSCORED, str(group.unscored.total())
    yield "Success", _known(group.success_rate, percent)
    yield "Progress", _known(group.mean_progress, percent)
    for k, at_k, hat_k in map(group.passes, ks):
        yield f"pass@{k}", _known(at_k, number)
        yield f"pass^{k}", _known(hat_k, number)
    yield "Judges agree", _known(group.judging.agreement, percent)


def error_lines(groups: Iterable[GoalSetTrials]) -> Iterator[str]:
    """The errors of each goal set: missed subgoals and expected tool calls, stalls, tools that
    fail, and the judge's errors; with the calls to look at.
    """
    for group in groups:
        lines = list(_errors(group))
        if lines:
            yield f"{group.name}:"
            yield from (f"  {line}" for line in lines)


def errors(group: GoalSetTrials) -> Iterator[tuple[str, tuple[Trial, ...]]]:
    """Each error as a phrase, with the trials that have it."""
    of = len(group.trials)
    for subgoal in group.subgoals[:MOST_ERRORS]:
        if subgoal.missed:
            unknown = f" (unknown in {subgoal.unknown.total()})" if subgoal.unknown else ""
            yield f"missed in {subgoal.missed} of {of}: {subgoal.id}{unknown}", subgoal.calls
    for call in group.expected_tools[:MOST_ERRORS]:
        if call.missed:
            why = ", ".join(f"{_MISSED[part]} {count}" for part, count in call.why.most_common())
            where = f"{call.tool} in turn {call.turn}"
            yield f"expected tool call missed in {call.missed} of {of}: {where} ({why})", call.calls
    for turn, calls in group.stalls[:MOST_ERRORS]:
        where = "ended without a stall" if turn is None else f"stalled in turn {turn}"
        yield f"{where}: {counted(len(calls), 'call')}", calls
    for tool, failures, calls in group.failed_tools[:MOST_ERRORS]:
        yield f"failed up to the stall: {tool}, {counted(failures, 'time')}", calls


def judge_errors(group: GoalSetTrials) -> str | None:
    """A phrase about votes and missing verdicts; None without either."""
    judging = group.judging
    parts = []
    if judging.verdicts:
        split = judging.verdicts - judging.unanimous
        parts.append(
            f"{judging.with_majority} of {judging.votes} votes with the majority, {split} of "
            f"{counted(judging.verdicts, 'verdict')} split"
        )
    if judging.unscored:
        parts.append(
            f"{counted(judging.unscored.total(), 'subgoal')} without a verdict "
            f"({_reasons(judging.unscored)})"
        )
    return f"judge: {'; '.join(parts)}" if parts else None


def remarks(groups: Sequence[GoalSetTrials], ks: Sequence[int] | None) -> Iterator[str]:
    """Sentences about goal sets that changed, and about a wanted k that is above the number of
    trials.

    Args:
        groups: The compared trials, in the order of `compared`.
        ks: The k that were asked for; None if none were asked for.
    """
    for name, of_name in groupby(groups, lambda each: each.goal_set.id):
        sets = [*of_name]
        if len(sets) == 1:
            continue
        counts = ", ".join(f"{each.name} of {counted(len(each.trials), 'trial')}" for each in sets)
        changes = "; ".join(differences(sets[0].goal_set, sets[-1].goal_set))
        yield (
            f"Goal set {name} changed between its trials: expected one content, seen {len(sets)} "
            f"({counts}). From the first to the last differ: {changes}. Each is compared by "
            "itself; to compare all, score the recordings again with one of them (--goals)."
        )
    for group in groups:
        if too_large := [k for k in ks or () if k > len(group.known)]:
            yield (
                f"Goal set {group.name}: expected k from 1 to the number of trials with a known "
                f"success, {len(group.known)} of {len(group.trials)}; seen --k "
                f"{', '.join(map(str, too_large))}. It has no pass@k and pass^k for that; the "
                "other figures are complete. Make more calls, or take a smaller k."
            )


def fitting(groups: Iterable[GoalSetTrials], ks: Sequence[int] | None) -> tuple[int, ...]:
    """The k to show: those that were asked for, otherwise the usual ones that at least one goal set
    has trials for.
    """
    if ks is not None:
        return tuple(dict.fromkeys(ks))
    most = max((len(group.known) for group in groups), default=0)
    return tuple(k for k in USUAL_K if k <= max(1, most))


def shown(ks: Sequence[int], wanted: Sequence[int] | None) -> tuple[int, ...]:
    """The k of a table: without 1 unless somebody asked for it, because pass@1 and pass^1 are the
    success.
    """
    return tuple(k for k in ks if k > 1 or wanted is not None)


def trials_json(
    groups: Iterable[GoalSetTrials], ks: Sequence[int], left_out: Mapping[str, int]
) -> dict[str, Any]:
    """Everything as plain values; an unknown value is null.

    Args:
        groups: The compared trials.
        ks: Each k of pass@k and pass^k.
        left_out: Calls that are no trials, by reason.
    """
    return {"goal_sets": [_plain(group, ks) for group in groups], "left_out": dict(left_out)}


def _plain(group: GoalSetTrials, ks: Sequence[int]) -> dict[str, Any]:
    judging = group.judging._asdict()
    del judging["with_majority"]
    return {
        "goal_set": group.goal_set.id,
        "digest": group.digest,
        "trials": len(group.trials),
        "unscored": group.unscored,
        "successes": sum(group.known),
        "success_rate": group.success_rate,
        "success_interval": group.success_interval,
        "mean_progress": group.mean_progress,
        "pass": [passes._asdict() for passes in map(group.passes, ks)],
        "judge": judging,
        "subgoals": _plain_errors(group.subgoals),
        "expected_tool_calls": _plain_errors(group.expected_tools),
        "stalls": _plain_errors(group.stalls),
        "failed_tools": _plain_errors(group.failed_tools),
        "calls": [_plain_trial(trial) for trial in group.trials],
    }


def _plain_errors(
    errors: Iterable[SubgoalErrors | ExpectedToolErrors | Stalled | ToolErrors],
) -> list[dict[str, Any]]:
    return [{**each._asdict(), "calls": _places(each.calls)} for each in errors]


def _plain_trial(trial: Trial) -> dict[str, Any]:
    success, progress = trial.success, trial.progress
    return {
        "conversation_id": trial.conversation_id,
        "place": trial.place or None,
        "success": None if isinstance(success, str) else success,
        "progress": None if isinstance(progress, str) else progress,
        "unscored": success if isinstance(success, str) else None,
        "missed": list(trial.missed),
        "stall_turn": trial.stall_turn,
        "judge_statistics": _statistics(trial),
    }


def _statistics(trial: Trial) -> dict[str, float | str | None]:
    """agent-inspect's `StatisticAnalysis` of the votes that decided the subgoals of one call; null
    with the reason if there is none.
    """
    judged = {subgoal.id for subgoal in trial.goal_set.subgoals if subgoal.is_judged}
    votes = [
        [True] * each.votes_complete + [False] * each.votes_incomplete
        for name, each in trial.subgoals.items()
        if name in judged
    ]
    try:
        expectation, std = judge_statistics(votes, bool)
    except InvalidInputValueError as error:
        return {"judge_expectation": None, "judge_std": None, "reason": str(error)}
    return {"judge_expectation": expectation, "judge_std": std}


def _places(trials: Iterable[Trial]) -> list[str]:
    return [trial.place or trial.conversation_id for trial in trials]


def _errors(group: GoalSetTrials) -> Iterator[str]:
    if (interval := group.success_interval) is not None:
        low, high = map(percent, interval)
        yield f"success {sum(group.known)} of {len(group.known)}; 95 % interval {low} to {high}"
    for phrase, trials in errors(group):
        places = _places(trials[:MOST_LINKS])
        more = f" and {len(trials) - MOST_LINKS} more" if len(trials) > MOST_LINKS else ""
        yield f"{phrase}: {', '.join(places)}{more}"
    if group.unscored:
        yield f"unscored: {counted(group.unscored.total(), 'trial')} ({_reasons(group.unscored)})"
    if (judged := judge_errors(group)) is not None:
        yield judged


def _reasons(counts: Counter[str]) -> str:
    return ", ".join(f"{in_words(reason)} {count}" for reason, count in counts.most_common())


def _known(value: float | None, written: Callable[[float], str]) -> str:
    return _UNKNOWN if value is None else written(value)


# The work of the command `trials`: gathers trials from files or topics, and prints the comparison.

_STOPPED: Final = "nothing was compared"  # it would be a comparison of other trials


def from_past_calls(settings: Settings, since: str, gathered: Trials) -> int:
    """Reads live calls; gives the number of records that could not be read."""
    with quiet_libraries(), reading(None, RECORDS, stopped=_STOPPED) as read:
        unreadable = asyncio.run(
            _read_past_trials(
                settings.kafka, moment_given(since), settings.console_url, gathered, read.event
            )
        )
    if unreadable:
        say(
            f"{unreadable} records of a newer version, or of another program, were left out with "
            "their calls."
        )
    return unreadable


def from_history(
    history: HistorySettings, console_url: str | None, since: str, gathered: Trials
) -> int:
    """Adds the calls of a history that began since then, with words; gives 0, because a record that
    is kept there can be read.

    Raises:
        HistoryFolderError: There is no folder of history, or it cannot be read.
    """
    with opened(history) as store, reading(None, RECORDS, stopped=_STOPPED) as read:
        question = CallSearch(
            moment_given(since), wall_clock_ms() + 1, order_by="first_known_ms", most=MAX_TRIALS + 1
        )
        for row in reversed(store.find(question)):
            call = str(row["conversation_id"])
            stored = store.call(call)
            read.event()
            if stored is None or stored.call.state != "closed":
                gathered.left_out[NOT_CLOSED] += 1
                continue
            rows = NewestRows(filter(None, [stored.goals, *stored.turns, stored.call]))
            trial = rows.trial(_call_page(console_url, call))
            gathered.add(
                trial
                and trial.measuring(stored.own).quoting(words_by_turn(stored.words, rows.turns))
            )
    return 0


async def _read_past_trials(
    kafka: KafkaSettings,
    since_ms: int,
    console_url: str | None,
    trials: Trials,
    on_record: Callable[[], None],
) -> int:
    """Adds the calls that closed since a moment, in the order in which they closed.

    Returns the number of records of a newer version, or of another program. Their calls are left
    out.

    Raises:
        KafkaUnreachableError: No broker answers, or it refuses.
        TopicsUnfitError: There is no topic `scores`.
    """
    calls = MixedCalls(trials, lambda call: _call_page(console_url, call), since_ms)
    counts = await partition_counts(kafka, [SCORES_TOPIC])
    topic = kafka.topic(SCORES_TOPIC)
    partitions = [TopicPartition(topic, number) for number in range(counts[SCORES_TOPIC])]
    unreadable = 0
    async with onlooker(kafka, "trials", auto_offset_reset="earliest") as consumer:
        async for record in records_so_far(consumer, partitions, since_ms):
            on_record()
            if isinstance(record, UndecodableRecord):
                calls.damage(None)
                unreadable += 1
            elif isinstance(record.key, bytes) and record.value is not None:
                unreadable += (
                    take_line(record.value, calls, record.key.decode("utf-8", "replace"))
                    is not None
                )
    calls.end()
    trials.found.sort(key=lambda trial: (trial.closed_at_ms, trial.conversation_id))
    return unreadable


def _call_page(console_url: str | None, conversation_id: str) -> str:
    return (
        f"{console_url.rstrip('/')}/calls/{quote(conversation_id, safe='')}" if console_url else ""
    )


def from_files(
    paths: Sequence[Path],
    settings: Settings,
    goals: Path | None,
    verdicts: Path | None,
    agent: str | None,
    processes: int | None,
    gathered: Trials,
    *,
    asks_judge: bool,
    quotes: bool = False,
) -> int:
    """Scores recordings and reads rows; gives the number of places that could not be read. With
    `quotes` trials have words.
    """
    files = [path for path in paths if holds_rows(path)]
    recorded = [path for path in paths if path not in files]
    found = found_calls(recorded)
    plan = plan_from(
        settings, goals_for(recorded, goals), agent, asks_judge=asks_judge and bool(found)
    )
    with reading(total_of(found), stopped=_STOPPED) as read:

        def collect(done: Done[Trial | None]) -> None:
            read.add(done)
            if done.place is not None:
                gathered.add(
                    None if done.result is None else replace(done.result, place=done.place)
                )

        for file in files:
            for sentence in read_rows_file(file, gathered):
                say(sentence)
                read.unread += 1
        own = OwnMeasures(settings.measures)
        processes = 1 if own else processes  # the bounds of a measure are those of one process
        shape = partial(trial_of, own=own if own else None, quotes=quotes)
        score_each(
            places_of(found),
            plan,
            shape,
            collect,
            settings,
            read,
            processes=processes,
            verdicts=verdicts,
        )
    return read.unread


def trial_of(
    scoring: RecordedScoring, *, own: OwnMeasures | None = None, quotes: bool = False
) -> Trial | None:
    """A recorded call after it was scored, with values of one's own measures, and with its words if
    they are wanted; None if it has no goals.
    """
    rows = NewestRows(scoring.rows)
    trial = rows.trial("")
    if trial is not None and own:
        trial = trial.measuring(own.of(scoring))
    if trial is None or not quotes:
        return trial
    return trial.quoting(words_by_turn(scoring.words, rows.turns))


def require_trials(gathered: Trials) -> None:
    """Refuses to compare nothing.

    Raises:
        OperatorError: There is no trial.
    """
    if not gathered.found:
        raise OperatorError(
            "There is nothing to compare: expected closed calls with goals; seen: "
            f"{_left_out(gathered) or 'no call at all'}. Nothing was printed. Give recordings "
            "their goals with --goals, live calls with goals.folder or goals.reads_topic; with "
            "--from-topics look further back with --since."
        )


def say_left_out(gathered: Trials) -> None:
    """Says which calls are no trials, and why."""
    if gathered.left_out:
        say(f"Left out: {_left_out(gathered)}.")


def print_comparison(
    gathered: Trials,
    wanted: Sequence[int] | None,
    causes: "Causes | None" = None,
    *,
    as_json: bool,
) -> bool:
    """Prints the comparison, with causes if they were looked for; returns whether it has everything
    requested.
    """
    groups = compared(gathered.found)
    ks = fitting(groups, wanted)
    if as_json:
        found = {} if causes is None else {"causes": causes.document()}
        print_document({**trials_json(groups, ks, gathered.left_out), **found})
    else:
        output_console().print(trials_table(groups, shown(ks, wanted)))
        for line in (*error_lines(groups), *(() if causes is None else causes.lines())):
            print_line(line)
    for sentence in remarks(groups, wanted):
        say(sentence)
    has_causes = causes is None or causes.is_complete
    return has_causes and all(k <= len(group.known) for group in groups for k in wanted or ())


def print_versus(gathered: Trials, names: tuple[str, str], *, as_json: bool) -> None:
    """Prints the comparison of two lots of trials.

    Raises:
        OperatorError: There is no trial by one of the names.
    """
    versus = Versus(*(_lot(gathered.found, name) for name in names))
    if as_json:
        print_document({**versus_json(versus, names), "left_out": dict(gathered.left_out)})
    else:
        changes = versus.changes()
        output_console().print(
            changes_table(
                # it is among the measures of a call once more
                (each for each in changes if each.measure != "progress"),
                (len(versus.a), len(versus.b)),
            )
        )
        for line in versus_lines(versus, names):
            print_line(line)
        if (remark := remark_on_chance(changes)) is not None:
            say(remark)


def _lot(trials: Sequence[Trial], name: str) -> Sequence[Trial]:
    # a file, or a folder of records; behind its name is the place in it
    if name and Path(name).exists():
        path = str(Path(name))
        lot = [
            each
            for each in trials
            if each.place == path or each.place.startswith((f"{path}:", f"{path} (", f"{path}/"))
        ]
    else:
        lot = [each for each in trials if each.goal_set.id == name]
        begin_so = [each for each in trials if name and each.digest.startswith(name)]
        if not lot and len({each.digest for each in begin_so}) > 1:
            raise OperatorError(
                f"--compare {name}: the digests of several goal sets begin so, and mixed they "
                "would be no lot. Nothing was compared. Give more of it."
            )
        lot = lot or begin_so
    if not lot:
        raise OperatorError(
            f"--compare {name}: expected a path with calls that have goals, the name of a goal set "
            "or the beginning of its digest; seen no such trial among "
            f"{', '.join(each.name for each in compared(trials))}. Nothing was compared. Name one "
            "of these."
        )
    return lot


def _left_out(gathered: Trials) -> str:
    return ", ".join(
        f"{counted(count, 'call')} {reason}" for reason, count in gathered.left_out.items()
    )
