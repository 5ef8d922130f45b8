"""Results of compared trials: a table with the errors below it for people, and one JSON object for programs. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from streamer.report.drawing.numbers import counted, in_words, number, percent
from streamer.trials.comparison import GoalSetTrials, Passes, SubgoalErrors, changed_sets, differences
from streamer.trials.trial import Trial

USUAL_K: Final = (1, 3, 5)
"""The k of pass@k and pass^k unless others are asked for, as far as there are so many trials."""
MOST_ERRORS: Final = 5
"""Subgoals, turns and tools of each kind that the text lists; JSON has all."""
MOST_LINKS: Final = 3
"""Calls that the text names for an error: enough to look at."""
VERSION_CHARS: Final = 8
"""Characters of a version in texts: enough to distinguish two versions of one set."""
UNSCORED: Final = "Unscored"
"""Name of the figure that the table leaves out where it is 0."""
_UNKNOWN: Final = "-"


def trials_table(groups: Sequence[GoalSetTrials], ks: Sequence[int]) -> Table:
    """A row for each version of a goal set; `-` is a value that nobody knows. With two k it fits a terminal of 80 columns."""
    left_out = set() if any(group.unscored for group in groups) else {UNSCORED}
    rows = [(group.goal_set.id, dict(figures(group, ks))) for group in groups]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("Goal set", overflow="fold")
    for head in dict.fromkeys(head for _, values in rows for head in values if head not in left_out):
        table.add_column(head, justify="right", overflow="fold")
    for name, values in rows:
        table.add_row(Text(name), *(Text(text) for head, text in values.items() if head not in left_out))
    return table


def figures(group: GoalSetTrials, ks: Sequence[int]) -> Iterator[tuple[str, str]]:
    """The figures of a goal set with their names, as the table and the report show them."""
    yield "Version", group.version[:VERSION_CHARS]
    yield "Trials", str(len(group.trials))
    yield UNSCORED, str(group.unscored.total())
    yield "Success", _share(group.success_rate)
    yield "Progress", _share(group.mean_progress)
    for passes in map(group.passes, ks):
        yield f"pass@{passes.k}", _number(passes.at_k)
        yield f"pass^{passes.k}", _number(passes.hat_k)
    yield "Judges agree", _share(group.judging.agreement)


def error_lines(groups: Iterable[GoalSetTrials]) -> Iterator[str]:
    """The errors of each goal set: missed subgoals, stalls, tools that fail, and the judge's errors; with the calls to look at."""
    for group in groups:
        lines = list(_errors(group))
        if lines:
            yield f"{group.goal_set.id} {group.version[:VERSION_CHARS]}:"
            yield from (f"  {line}" for line in lines)


def errors(group: GoalSetTrials) -> Iterator[tuple[str, tuple[Trial, ...]]]:
    """Each error as a phrase, with the trials that have it."""
    of = len(group.trials)
    for subgoal in group.subgoals[:MOST_ERRORS]:
        if subgoal.missed:
            yield f"missed in {len(subgoal.missed)} of {of}: {subgoal.subgoal_id}{_unknown(subgoal)}", subgoal.missed
    for stall in group.stalls[:MOST_ERRORS]:
        where = "ended without a stall" if stall.turn is None else f"stalled in turn {stall.turn}"
        yield f"{where}: {counted(len(stall.trials), 'call')}", stall.trials
    for tool in group.failed_tools[:MOST_ERRORS]:
        yield f"failed up to the stall: {tool.tool}, {counted(tool.failures, 'time')}", tool.trials


def judge_errors(group: GoalSetTrials) -> str | None:
    """A phrase about votes and missing verdicts; None without either."""
    judging = group.judging
    parts = []
    if judging.polled:
        split = judging.polled - judging.unanimous
        parts.append(f"{judging.with_majority} of {judging.votes} votes with the majority, {split} of "
                     f"{counted(judging.polled, 'verdict')} split")  # fmt: skip
    if judging.unscored:
        parts.append(f"{counted(judging.unscored.total(), 'subgoal')} without a verdict ({_reasons(judging.unscored)})")
    return f"judge: {'; '.join(parts)}" if parts else None


def remarks(groups: Sequence[GoalSetTrials], ks: Sequence[int] | None) -> Iterator[str]:
    """Sentences about goal sets that changed, and about a wanted k that is above the number of trials.

    Args:
        groups: The compared trials.
        ks: The k that were asked for; None if nobody asked for any.
    """
    for versions in changed_sets(groups):
        counts = ", ".join(
            f"{each.version[:VERSION_CHARS]} of {counted(len(each.trials), 'trial')}" for each in versions
        )
        changes = "; ".join(differences(versions[0].goal_set, versions[-1].goal_set))
        yield (
            f"Goal set {versions[0].goal_set.id} changed between its trials: expected one version, seen {len(versions)} ({counts}). "
            f"From the first to the last differ: {changes}. Each version is compared by itself; to compare all, score the "
            "recordings again with one version (--goals)."
        )
    for group in groups:
        if too_large := [k for k in ks or () if k > len(group.known)]:
            yield (
                f"Goal set {group.goal_set.id} {group.version[:VERSION_CHARS]}: expected k from 1 to the number of trials with a "
                f"known success, {len(group.known)} of {len(group.trials)}; seen --k {', '.join(map(str, too_large))}. It has no "
                "pass@k and pass^k for that; the other figures are complete. Make more calls, or take a smaller k."
            )


def fitting(groups: Iterable[GoalSetTrials], ks: Sequence[int] | None) -> tuple[int, ...]:
    """The k to show: those that were asked for, otherwise the usual ones that at least one goal set has trials for."""
    if ks is not None:
        return tuple(dict.fromkeys(ks))
    most = max((len(group.known) for group in groups), default=0)
    return tuple(k for k in USUAL_K if k <= max(1, most))


def shown(ks: Sequence[int], wanted: Sequence[int] | None) -> tuple[int, ...]:
    """The k of a table: without 1 unless somebody asked for it, because pass@1 and pass^1 are the success."""
    return tuple(k for k in ks if k > 1 or wanted is not None)


def trials_json(groups: Iterable[GoalSetTrials], ks: Sequence[int], left_out: Mapping[str, int]) -> dict[str, Any]:
    """Everything as plain values; an unknown value is null.

    Args:
        groups: The compared trials.
        ks: Each k of pass@k and pass^k.
        left_out: Calls that are no trials, by reason.
    """
    return {"goal_sets": [_plain(group, ks) for group in groups], "left_out": dict(left_out)}


def _plain(group: GoalSetTrials, ks: Sequence[int]) -> dict[str, Any]:
    judging = group.judging
    return {
        "goal_set": group.goal_set.id,
        "version": group.version,
        "trials": len(group.trials),
        "unscored": dict(group.unscored),
        "successes": sum(group.known),
        "success_rate": group.success_rate,
        "mean_progress": group.mean_progress,
        "pass": [_plain_passes(passes) for passes in map(group.passes, ks)],
        "judge": {
            "agreement": judging.agreement,
            "votes": judging.votes,
            "verdicts": judging.polled,
            "unanimous": judging.unanimous,
            "unscored": dict(judging.unscored),
        },
        "subgoals": [
            {
                "id": each.subgoal_id,
                "details": each.details,
                "reached": each.reached,
                "missed": len(each.missed),
                "unknown": dict(each.unknown),
                "calls": _places(each.missed),
            }
            for each in group.subgoals
        ],
        "stalls": [{"turn": each.turn, "calls": _places(each.trials)} for each in group.stalls],
        "failed_tools": [
            {"tool": each.tool, "failures": each.failures, "calls": _places(each.trials)} for each in group.failed_tools
        ],
        "calls": [_plain_trial(trial) for trial in group.trials],
    }


def _plain_passes(passes: Passes) -> dict[str, Any]:
    return {"k": passes.k, "pass_at_k": passes.at_k, "pass_hat_k": passes.hat_k}


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
    }


def _places(trials: Iterable[Trial]) -> list[str]:
    return [trial.place or trial.conversation_id for trial in trials]


def _errors(group: GoalSetTrials) -> Iterator[str]:
    for phrase, trials in errors(group):
        places = _places(trials[:MOST_LINKS])
        more = f" and {len(trials) - MOST_LINKS} more" if len(trials) > MOST_LINKS else ""
        yield f"{phrase}: {', '.join(places)}{more}"
    if group.unscored:
        yield f"unscored: {counted(group.unscored.total(), 'trial')} ({_reasons(group.unscored)})"
    if (judged := judge_errors(group)) is not None:
        yield judged


def _unknown(subgoal: SubgoalErrors) -> str:
    return f" (unknown in {subgoal.unknown.total()})" if subgoal.unknown else ""


def _reasons(counts: Counter[str]) -> str:
    return ", ".join(f"{in_words(reason)} {count}" for reason, count in counts.most_common())


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else percent(value)


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else number(value)
