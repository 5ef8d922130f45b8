"""The pages of calls that are over: those that are asked for, what they have in common, and two
versions compared. Pure.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field

from consumers.console.agents import BadTime
from consumers.console.bad_times import MAX_BAD_TIMES
from consumers.console.page.drawing import Scale
from consumers.console.page.rendering import render
from consumers.console.page.sections import LETTERS, timeline, words_by_turn
from consumers.console.pages import TO_CALL_BACK, Site, page, place_of, wrong_in_words
from consumers.store.changes import (
    CALL_MEASURES,
    COST,
    LEAST_CALLS,
    LISTED,
    LONGEST_WAIT,
    MEASURES,
    SUBGOAL,
    SUCCESS,
    USUAL_SINCE,
    Beside,
    Change,
    ComparedMeasure,
    Comparison,
    Lot,
    LotCalls,
    SubgoalChange,
    Told,
    alone,
    calls_beside,
    measure_of,
    shown,
    told,
    worse_than_the_others,
)
from consumers.view.calls import ReportedCall
from consumers.view.contents import facts_of, subgoals_of, verdict
from consumers.view.running import short_id
from consumers.view.words import clock, counted, day_and_time, in_words, percent, seconds
from schemas.scores.trouble import VERY_SLOW_MS, worst_wait_ms
from schemas.units import DAY_MS, MINUTE_MS, MS_PER_SECOND

MAX_FIELD_CHARS: Final = 500
"""Longest field of a question."""
ROWS: Final = 50
"""Calls of one page."""
MOST_PAGES: Final = 200
"""Pages that can be turned to: what is behind 10,000 calls is found by asking for less."""
MOST_VALUES: Final = 40
"""Values of one facet, those with most calls."""
FALSE_ALARM: Final = "false-alarm"
"""The label of a call that is shown as bad, and that a person found to be well."""
UNKNOWN: Final = "\u2013"

_Text: Any = Field("", max_length=MAX_FIELD_CHARS)


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def query(self, **changes: object) -> str:
        """The same question, or one that differs in these fields, as the query of an address."""
        asked = self.model_copy(update=changes)
        return "?" + urlencode(asked.model_dump(exclude_defaults=True))


class PastQuery(_Asked):
    """Which past calls are asked for. `said` shows the last words of the caller; `tool` is one that
    failed, `subgoal` one that was missed; `day` is a date in UTC, `today` or `yesterday`; a CSV
    that is `shown` has the columns of the page.
    """

    since: str = _Text
    until: str = _Text
    agent: str = _Text
    version: str = _Text
    tenant: str = _Text
    environment: str = _Text
    outcome: str = _Text
    main: str = _Text
    trouble: str = _Text
    goal_set: str = _Text
    label: str = _Text
    tool: str = _Text
    subgoal: str = _Text
    goals: str = _Text
    day: str = _Text
    where: str = _Text
    text: str = _Text
    said: str = _Text
    sort: str = _Text
    up: str = _Text
    shown: str = _Text
    page: int = Field(1, ge=1, le=MOST_PAGES)

    def query(self, **changes: object) -> str:
        """As of any question; another order begins at its first page."""
        return super().query(**{"page": 1} | changes)


FACETS: Final[Mapping[str, tuple[str, str]]] = {
    "main": ("Main trouble", "main_trouble"),
    "outcome": ("Outcome", "outcome"),
    "trouble": ("Trouble", "troubles"),
    "tool": ("Failed tool", "tools_failed"),
    "goals": ("All goals", "all_goals"),
    "subgoal": ("Missed subgoal", "subgoal_results"),
    "agent": ("Agent", "labels.agent"),
    "version": ("Version", "labels.version"),
    "tenant": ("Tenant", "labels.tenant"),
    "environment": ("Environment", "labels.environment"),
    "label": ("Label", ""),
    "goal_set": ("Goal set", "goals.goal_set"),
    "day": ("Day, UTC", "day_ms"),
}
"""What calls are counted by: by the field of the question, its heading and the column
of history.
"""
PRESETS: Final[Mapping[str, Mapping[str, str]]] = {
    "Newest": {},
    "Today": {"day": "today", "since": "", "sort": ""},
    "Yesterday": {"day": "yesterday", "since": "", "sort": ""},
    "Never answered": {"outcome": "never_answered"},
    "Slow": {"trouble": "slow"},
    "Goals missed": {"trouble": "goals_missed"},
    "False alarms": {"label": FALSE_ALARM, "since": "30d", "day": ""},
    "To call back": {"outcome": TO_CALL_BACK, "said": "last"},
    "Last words of abandoned calls": {"outcome": "hung_up,never_answered", "said": "last"},
}
"""Questions that are asked often, the newest call first; of a day the worst one."""
_KEPT: Final = ("agent", "version", "tenant", "environment", "day")
"""Facets whose choice a preset keeps: it asks the same of fewer calls."""
BESIDE: Final = "\0"
"""Stands between an agent and its version where calls of several agents are counted by version: 2 of
one agent has nothing to do with 2 of another. So it does between a goal set and its subgoal.
"""
BELONGS_TO: Final = {"version": "agent", "subgoal": "goal_set"}
"""The facets whose values belong to one of another facet, and that one."""
_OUTCOMES: Final = {
    "hung_up": "hung up unanswered, after answers",
    "failed": "failed: agent error",
    "events_stopped": "events stopped: how it ended is not known",
    "running": "not closed yet, not counted here",
}


class InCommon(NamedTuple):
    """A value that some calls have more often than others.

    Attributes:
        facet: Field of the question.
        values: Its value; several where the same calls have them.
        share: The share of these calls that have it.
        others: The same of the others.
        is_within: Whether only the calls that have what is named before it are compared.
    """

    facet: str
    values: Sequence[str]
    share: float
    others: float
    is_within: bool = False


class PastFound(NamedTuple):
    """Past calls that were found.

    Attributes:
        rows: The calls of the page, by column.
        total: How many calls there are on all pages.
        running: How many more calls still run, of which all is true that is asked for.
        facets: By the field of the question, its values with the number of calls that have them
            beside all else that is asked.
        said: By call, a turn, who spoke and what was said: where the words were found, or the last
            words of the caller.
        labels: By call, the labels of people.
        in_common: What the calls that are asked for have more often than the others.
        used_tools: By tool the number of calls that called it, beside all else that is asked.
        since_ms: From when on calls are counted, by the broker's clock in epoch ms.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    total: int = 0
    running: int = 0
    facets: Mapping[str, Sequence[tuple[str, int]]] = {}
    said: Mapping[str, tuple[int, str, str]] = {}
    labels: Mapping[str, Sequence[str]] = {}
    in_common: Sequence[InCommon] = ()
    used_tools: Mapping[str, int] = {}
    since_ms: int = 0


def _began(value: Any) -> str:
    return day_and_time(value)[5:19]


PAST_COLUMNS: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "first_known_ms": ("Began, UTC", _began),
    "labels.agent": ("Agent", str),
    "rank": ("Why", str),
    "p50_ms": ("Median wait", seconds),
    "p95_ms": ("Slow wait, p95", seconds),
    LONGEST_WAIT.name: (LONGEST_WAIT.title, seconds),
    "unanswered": ("Unanswered", str),
    "dead_airs": ("Dead air", str),
    "failed_tool_calls": ("Failed tools", str),
    "goals.progress.result": ("Subgoals", percent),
    "turns": ("Turns", str),
    # as the page of a call rounds it
    "length_ms": ("Length", lambda length_ms: clock(round(length_ms, -3))),
    COST.name: (COST.title, lambda value: shown(COST, float(value))),
}
"""Columns of past calls, as the page has them and its CSV: by the column of history, its heading
and how a value is written; unknown is a dash. Calls can be ordered by each.
"""
_IN_CSV: Final = frozenset({"p95_ms", "dead_airs", "failed_tool_calls", "turns"})
"""Columns for which the page has no room: its chips tell of most, and of fewer than 20 turns the
longest wait is the p95.
"""
ASKED_COLUMNS: Final = (
    *(
        "conversation_id",
        *PAST_COLUMNS,
        "ended_reason",
        "state",
        "outcome",
        "troubles",
        "labels.version",
        "labels.tenant",
        "labels.environment",
    ),
    *(
        "began_ms",
        "ended_ms",
        "longest_wait_ms",
        "in_vain_ms",
        "waiting.turn",
        "errors.number",
        "errors.component",
        "failed_tools",
        "goals.digest",
        "goals.subgoals.result",
        "user_interruptions",
        "assistant_interruptions",
    ),
)
"""What is read of each call of the page."""


def began_ms(call: Mapping[str, Any]) -> int:
    """When it began by its own events, in epoch ms; where they have no time, when the first of them
    came. Calls that are imported or sent late came later than they began.
    """
    return int(call.get("began_ms") or call.get("first_known_ms") or 0)


def why(call: Mapping[str, Any]) -> Iterator[str]:
    """Yields each thing that was wrong with a call, in words, the worst first."""
    outcome, turn, ended = (call.get(name) for name in ("outcome", "waiting.turn", "ended_reason"))
    waited_ms = call.get("in_vain_ms")
    in_vain = f" after {seconds(waited_ms)}" if waited_ms else ""
    bad_ends = {
        "never_answered": "the agent never spoke" if turn == 0 else f"never answered{in_vain}",
        "hung_up": f"hung up unanswered{in_vain}, turn {turn}",
        "failed": "failed: ended with an error" if ended == "error" else "failed: agent error",
        "events_stopped": f"how it ended is not known: waited in turn {turn}",
    }
    if outcome in bad_ends:
        yield bad_ends[outcome]
    unanswered, longest_ms = call.get("unanswered") or 0, call.get("longest_wait_ms") or 0
    words = {
        "unanswered": ""
        if outcome == "never_answered" or (outcome == "hung_up" and unanswered == 1)
        else f"{counted(unanswered, 'turn')} unanswered",
        "agent_error": counted(call.get("errors.number") or 0, "agent error"),
        "slow": f"slow: {seconds(longest_ms)}"
        if longest_ms > VERY_SLOW_MS
        else f"slow: median {seconds(call.get('p50_ms') or 0)}",
        "tool_fails": f"{call.get('failed_tools') or 'tool'} failed",
        "goals_missed": _missed(call.get("missed_subgoals") or ()),
        "interruptions": counted(
            sum(call.get(f"{side}_interruptions") or 0 for side in ("user", "assistant")),
            "interruption",
        ),
        "dead_air": "dead air"
        if call.get("dead_airs") == 1
        else f"dead air {call.get('dead_airs')} times",
    }
    for name in str(call.get("troubles") or "").split():
        if text := words.get(name, in_words(name)):
            yield text


def _missed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"missed {names[0]}{more}" if names else "goals missed"


def past_page(
    site: Site, asked: PastQuery, found: PastFound, remark: str, redact: Callable[[str], str] = str
) -> str:
    """The page of calls that are over."""
    sort = asked.sort or "rank"
    columns = [
        name
        for name in PAST_COLUMNS
        if name not in _IN_CSV
        and (name != COST.name or any(call.get(name) is not None for call in found.rows))
    ]
    heads = [
        (
            PAST_COLUMNS[name][0],
            asked.query(
                sort=name, up="1" * (not asked.up if name == sort else name == "labels.agent")
            ),
            name == sort,
            name in {"first_known_ms", "labels.agent", "rank"},
        )
        for name in columns
    ]
    content = render(
        "past.html",
        asked=asked,
        presets=[
            (
                name,
                PastQuery(
                    **{"sort": "first_known_ms", "since": asked.since}
                    | ({} if "since" in fields else {"until": asked.until})
                    | _chosen(asked, *_KEPT)
                    | dict(fields)
                ).query(),
            )
            for name, fields in PRESETS.items()
        ],
        chosen=[
            (FACETS[name][0], _in_words(name, value), asked.query(**{name: ""}))
            for name, value in _chosen(asked).items()
        ],
        hidden=_chosen(asked) | {name: getattr(asked, name) for name in ("said", "up")},
        facets=[
            (
                name,
                FACETS[name][0],
                [
                    _value(asked, name, *each, most=max(1, *(calls for _, calls in values)))
                    | {"of": found.used_tools.get(each[0]) if name == "tool" else None}
                    | {"part": _part_of_day(each[0], found.since_ms) if name == "day" else ""}
                    for each in in_order(name, values[:MOST_VALUES])
                ],
            )
            for name, values in found.facets.items()
            if values
        ],
        sorts=[(name, head) for name, (head, _) in PAST_COLUMNS.items()],
        sort=sort,
        heads=heads,
        rows=[_row(site, asked, found, call, columns, redact) for call in found.rows],
        in_common=[
            (
                _in_facet(each.facet, each.values),
                asked.query(**choice_of(each.facet, each.values[0])),
                percent(each.share),
                percent(each.others),
                each.is_within,
            )
            for each in found.in_common
        ],
        found=found,
        are_to_call_back=asked.outcome == TO_CALL_BACK,
        running=f"./?{urlencode(_chosen(asked, 'agent', 'version', 'tenant', 'environment'))}",
        first=(asked.page - 1) * ROWS + 1,
        turning=[
            (name, asked.query(page=number))
            for name, number in (("Previous", asked.page - 1), ("Next", asked.page + 1))
            if 1 <= number <= min(MOST_PAGES, -(-found.total // ROWS))
        ],
        csv=f"past.csv{asked.query(shown='')}",
        by_day=f"versions{LotsQuery(by='day', agent=asked.agent).query()}",
        remark=remark,
    )
    return page(site, "Past calls", content, here="past")


def _part_of_day(day: str, since_ms: int) -> str:
    """From when on calls of a day are counted; empty where it is from its beginning."""
    day_of, _, time_of = day_and_time(since_ms)[:16].partition(" ")
    return f" from {time_of}" * (day == day_of and time_of != "00:00")


MOST_NAMED_TOOLS: Final = 4
"""Tools that fail in the same calls and are all named."""


def _in_facet(facet: str, values: Sequence[str]) -> str:
    choice = choice_of(facet, values[0])
    text = _in_words(facet, values[0]) if len(choice) == 1 else _beside(facet, choice)
    if facet == "version" and len(choice) > 1:
        return text  # its agent says what it is
    if facet in {"outcome", "trouble"}:
        return "; ".join(_in_words(facet, each) for each in values)
    if facet == "tool" and len(values) <= MOST_NAMED_TOOLS:
        text = ", ".join(values)
    elif len(values) > 1:
        text += f" and {len(values) - 1} more"
    heading = FACETS[facet][0] if facet in {"tool", "subgoal"} else in_words(facet)
    return f"{heading.lower()} {text}"


def _chosen(asked: PastQuery, *names: str) -> dict[str, str]:
    return {name: value for name in names or FACETS if (value := getattr(asked, name))}


_MAIN_IN_WORDS: Final = {
    "tool_fails": "tool failed, goals missed or not known",
    "tool_failed_goals_reached": "tool failed, all goals reached",
    "goals_missed": "goals missed, no tool failed",
    "slow": "slow, no goal known to be missed",
    "not_judged": "well as far as known, goals not judged",
    "no_turn": "no turn of a caller",
    "none": "well",
}
"""Words of a main trouble that say what is not wrong beside it."""


_AS_BAD: Final = ("never_answered", "hung_up", "failed", "tool_fails", "goals_missed")
"""The main troubles that cost a call its purpose, the worst first."""
_AT_THE_END: Final = ("events_stopped", "not_judged", "no_turn", "none")
"""Calls without a trouble, or of which it is not known."""
_PLACES: Final = {name: place for place, name in enumerate((*_AS_BAD, "other", *_AT_THE_END))}


def in_order(facet: str, values: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The values of a facet with their calls: main troubles by how bad they are, all others as they
    are, the most calls first.
    """
    if facet != "main":
        return list(values)
    return sorted(values, key=lambda each: _PLACES.get(each[0], _PLACES["other"]))


def _in_words(name: str, value: str) -> str:
    if name == "main" and value in _MAIN_IN_WORDS:
        return _MAIN_IN_WORDS[value]
    is_ours = name in {"outcome", "trouble", "main"}
    return (
        " or ".join(_OUTCOMES.get(each, in_words(each)) for each in value.split(","))
        if is_ours
        else value
    )


def choice_of(name: str, value: str) -> dict[str, str]:
    """The fields of the question that choose a value of a facet."""
    of, beside, each = value.rpartition(BESIDE)
    return {BELONGS_TO[name]: of, name: each} if beside else {name: value}


def _beside(name: str, choice: Mapping[str, str]) -> str:
    of, each = choice[BELONGS_TO[name]], _in_words(name, choice[name]) or "unknown"
    return f"{of} {each}" if name == "version" else f"{each} ({of})"


def _value(asked: PastQuery, name: str, value: str, calls: int, *, most: int) -> dict[str, Any]:
    choice = choice_of(name, value)
    is_chosen = choice[name] in {getattr(asked, name), *getattr(asked, name).split(",")} - {""}
    words = _in_words(name, choice[name]) or "unknown"
    href = ""
    if choice[name]:
        href = asked.query(**{name: ""} if is_chosen else choice)
    return {
        "text": words if len(choice) == 1 else _beside(name, choice),
        "calls": calls,
        "href": href,
        "is_chosen": is_chosen,
        "share": f"{100 * calls / most:.0f}%",
    }


def _row(
    site: Site,
    asked: PastQuery,
    found: PastFound,
    call: Mapping[str, Any],
    columns: Sequence[str],
    redact: Callable[[str], str],
) -> dict[str, Any]:
    conversation_id = str(call["conversation_id"])
    turn, who, text = found.said.get(conversation_id, (None, "", ""))
    labels = [call.get(f"labels.{each}") for each in ("version", "tenant", "environment")]
    people = found.labels.get(conversation_id, ())
    return {
        "id": conversation_id,
        "short_id": short_id(conversation_id),
        "href": site.call_href(conversation_id),
        "began": _began(began_ms(call)),
        "began_on": day_and_time(began_ms(call)),
        "ended": day_and_time(ended_ms)[11:19] if (ended_ms := call.get("ended_ms")) else "",
        "more": ", ".join(str(each) for each in labels if each not in {None, "unknown"}),
        # what a person found to be well is not shown as bad
        "chips": [("calm" if FALSE_ALARM in people else "bad", text) for text in why(call)],
        "cells": [
            (name, head, UNKNOWN if call.get(name) is None else written(call[name]))
            for name in columns
            for head, written in [PAST_COLUMNS[name]]
        ],
        "turn": turn,
        "who": who,
        "said": marked(redact(text), asked.text),
        "labels": people,
    }


_WHOSE_CALL: Final = {"Version": "version", "Tenant": "tenant", "Environment": "environment"}
"""By heading of the CSV, the label that the page shows beside the agent."""


_NUMBERS: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    **dict.fromkeys(
        ("p50_ms", "p95_ms", LONGEST_WAIT.name),
        ("s", lambda wait_ms: f"{wait_ms / MS_PER_SECOND:.2f}"),
    ),
    "goals.progress.result": ("%", lambda share: f"{100 * share:.0f}"),
    "length_ms": ("s", lambda length_ms: f"{length_ms / MS_PER_SECOND:.0f}"),
    COST.name: ("$", "{:.4f}".format),
}
"""The unit of a column in CSV, and its value as a number that a spreadsheet can add up."""


def lines_as_shown(
    site: Site,
    calls: Iterable[Mapping[str, Any]],
    labels: Mapping[str, Sequence[str]],
    last_words: Mapping[str, str] | None = None,
) -> Iterator[Sequence[str]]:
    """The calls as the page has them, a line each, headings first: its columns and words, and
    numbers with their unit in the heading; `labels` are those of people, and `last_words` what
    callers said last, by call, where the page shows it.
    """
    names = [name for name in PAST_COLUMNS if name not in _IN_CSV]
    units = [_NUMBERS[name][0] if name in _NUMBERS else "" for name in names]
    heads = [
        PAST_COLUMNS[name][0] + f" ({unit})" * bool(unit)
        for name, unit in zip(names, units, strict=True)
    ]
    said = [] if last_words is None else ["Last words"]
    yield ["Call", *heads, *_WHOSE_CALL, "Labels", *said, "Page"]
    for call in calls:
        conversation_id = str(call["conversation_id"])
        told = {
            "first_known_ms": day_and_time(began_ms(call)).removesuffix(" UTC"),
            "rank": "; ".join(why(call)),
        }
        known = {
            name: (_NUMBERS.get(name) or PAST_COLUMNS[name])[1](call[name])
            for name in names
            if call.get(name) is not None
        }
        cells = [(known | told).get(name, "") for name in names]
        whose = [str(call.get(f"labels.{name}") or "") for name in _WHOSE_CALL.values()]
        of_people = " ".join(labels.get(conversation_id, ()))
        said = [] if last_words is None else [last_words.get(conversation_id, "")]
        yield [conversation_id, *cells, *whose, of_people, *said, site.call_href(conversation_id)]


def marked(text: str, words: str) -> list[tuple[bool, str]]:
    """The parts of a text, and whether each is one of the words that were sought.

    Example:
        >>> marked("No refund, sorry", "REFUND")
        [(False, 'No '), (True, 'refund'), (False, ', sorry')]
    """
    sought = re.compile(f"({'|'.join(map(re.escape, words.split())) or '(?!)'})", re.IGNORECASE)
    return [(place % 2 == 1, part) for place, part in enumerate(sought.split(text)) if part]


# Two calls side by side.


class Usual(NamedTuple):
    """Medians of an agent's calls.

    Attributes:
        agent: The agent.
        calls: How many calls it is of.
        medians: By name of a measure of `CALL_MEASURES` its median; unknown ones are left out.
    """

    agent: str
    calls: int
    medians: Mapping[str, float]


def measured(call: ReportedCall) -> dict[str, float]:
    """The measures of a call that are known."""
    known = {
        each.name: MEASURES[each.name].of(call.row)
        for each in CALL_MEASURES
        if each.name in MEASURES
    }
    known |= {
        "length_ms": call.length_ms,
        "dead_airs": call.dead_airs,
        LONGEST_WAIT.name: worst_wait_ms(call.row),
    }
    return {name: value for name, value in known.items() if isinstance(value, int | float)}


def beside(a: ReportedCall | Usual, b: ReportedCall) -> Beside:
    """Compares a call with another one, or with what is usual."""
    if isinstance(a, Usual):
        return calls_beside(a.medians, measured(b), {})
    of_a, of_b = measured(a), measured(b)
    if a.row.labels.agent != b.row.labels.agent:  # whose goals differ
        for of in (of_a, of_b):
            for name in _OF_GOALS:
                of.pop(name, None)
        return calls_beside(of_a, of_b, {})
    return calls_beside(of_a, of_b, dict(_goals_beside(a, b)))


_OF_GOALS: Final = ("success", "goals.progress.result")
"""Measures that say nothing where calls have different goals."""


_REACHED: Final = {"Reached": 1, "Reached in ": 1, "Not reached": 0}


def _goals_beside(a: ReportedCall, b: ReportedCall) -> Iterator[tuple[str, Told]]:
    of_a, of_b = (
        {call.shown(goal.id): (state, turn) for goal, state, turn, _ in subgoals_of(call)}
        for call in (a, b)
    )
    for name in dict.fromkeys([*of_a, *of_b]):
        states = [of.get(name, (UNKNOWN, None)) for of in (of_a, of_b)]
        in_a, in_b = (state if turn is None else f"{state}turn {turn}" for state, turn in states)
        change = alone(SUBGOAL, *(_REACHED.get(state) for state, _ in states))
        yield name, told(SUBGOAL, change)._replace(values=(in_a, in_b), apart="")


def comparison_page(
    site: Site, calls: Sequence[ReportedCall], usual: Usual | None = None, remark: str = ""
) -> str:
    """The page of two calls side by side, or of one beside what calls of its agent are like.

    Args:
        site: What all pages have.
        calls: Two calls, of which the first is the base, or one.
        usual: The base of a single call.
        remark: What a reader should know of it; empty for nothing.
    """
    letters, ids = LETTERS[-len(calls) :], [call.conversation_id for call in calls]
    said = [words_by_turn(call, name) for name, call in zip(letters, calls, strict=True)]
    content = render(
        "compare.html",
        sides=[
            (name, site.call_href(call.conversation_id), call, dict(facts_of(call)), verdict(call))
            for name, call in zip(letters, calls, strict=True)
        ],
        usual=usual,
        least_usual=LEAST_CALLS,
        swapped=f"compare?{urlencode([('id', each) for each in reversed(ids)])}",
        remark=remark or _of_others(calls),
        found=beside(calls[0] if usual is None else usual, calls[-1]),
        timeline=timeline(*calls),
        turns=[
            (turn, [(name, of.get(turn)) for name, of in zip(letters, said, strict=True)])
            for turn in sorted({turn for of in said for turn in of})
        ],
    )
    return page(site, "Two calls side by side", content, here="past")


def _of_others(calls: Sequence[ReportedCall]) -> str:
    """A remark on calls of several agents."""
    agents = {each.row.labels.agent for each in calls}
    return "These are calls of different agents, whose goals differ." * (len(agents) > 1)


# Bad times.


def bad_times_page(site: Site, times: Sequence[BadTime], now_ms: int) -> str:
    """The page of the times in which versions of agents were bad, the newest first."""
    content = render(
        "bad_times.html", most=MAX_BAD_TIMES, rows=[_bad_time(site, each, now_ms) for each in times]
    )
    return page(site, "Bad times", content, here="past")


def _bad_time(site: Site, time: BadTime, now_ms: int) -> dict[str, Any]:
    until_ms = time.until_ms
    began_ms = min(time.affected_began_ms or time.since_ms, time.since_ms)
    since, day_before = (day_and_time(each)[:16] for each in (began_ms, began_ms - DAY_MS))
    # a call that began in its last minute is one of them
    until = "" if until_ms is None else day_and_time(until_ms + MINUTE_MS)[:16]
    bad = Lot(agent=time.agent, version=time.version or "", since=since, until=until)
    before = Lot(agent=time.agent, since=day_before, until=since)
    tenants = [f"{calls} of {name}" for name, calls in time.tenants_affected]
    if time.tenants_more:
        tenants.append(f"others of {counted(time.tenants_more, 'more tenant')}")
    return {
        "time": time,
        "part": place_of(time),
        "since": day_and_time(time.since_ms),
        "until": "" if until_ms is None else day_and_time(until_ms),
        "lasted_ms": max(0, (now_ms if until_ms is None else until_ms) - time.since_ms),
        "wrong": wrong_in_words(time),
        "whose": ", ".join([*tenants, *time.environments_affected]),
        "past": past_href(bad) if site.has_past else "",
        "compare": LotsQuery().between(before, bad),
    }


# Two versions.


class LotsQuery(_Asked):
    """Which two lots of calls are compared; with nothing, the two newest versions of the agent with
    most calls, or the first two of what is listed. `since` and `until` are the period of all, and
    of a lot that says none; `by` is what calls are listed by, `agent` whose calls are listed
    alone, `sort` the measure whose worst value comes first.
    """

    by: str = _Text
    agent: str = _Text
    sort: str = _Text
    since: str = _Text
    until: str = _Text
    a_agent: str = _Text
    a_version: str = _Text
    a_tenant: str = _Text
    a_environment: str = _Text
    a_since: str = _Text
    a_until: str = _Text
    b_agent: str = _Text
    b_version: str = _Text
    b_tenant: str = _Text
    b_environment: str = _Text
    b_since: str = _Text
    b_until: str = _Text

    def lots(self) -> tuple[Lot, Lot] | None:
        """The lots; None where nothing is said."""
        a, b = (
            Lot(*(getattr(self, f"{side}_{name}").strip() for name in Lot._fields)) for side in "ab"
        )
        return (a, b) if any((*a, *b)) else None

    def within(self, lots: tuple[Lot, Lot]) -> tuple[Lot, Lot]:
        """Two lots within the period, unless they have one of their own."""
        a, b = (
            lot._replace(since=lot.since or self.since, until=lot.until or self.until)
            for lot in lots
        )
        return a, b

    def between(self, a: Lot, b: Lot) -> str:
        """Two other lots of the same period, as the address of their comparison."""
        fields = {
            f"{side}_{name}": value
            for side, lot in (("a", a), ("b", b))
            for name, value in lot._asdict().items()
        }
        return f"versions{self.query(**fields)}#compared"


class Versions(NamedTuple):
    """The calls of a period by version, or by another thing, and two lots of them.

    Attributes:
        comparison: The lots; None where there are none to compare.
        all: The calls of each version, or of each value of another thing, in order.
        pair: The two lots that are compared if the question names none.
        today: The date of today in UTC; empty where nobody knows it.
        yesterday: The one before it.
        agents: All agents with calls of the period, those with most calls first.
        others: The two newest versions of other agents, each pair with what can be said of them.
    """

    comparison: Comparison | None
    all: Sequence[LotCalls] = ()
    pair: tuple[Lot, Lot] | None = None
    today: str = ""
    yesterday: str = ""
    agents: Sequence[str] = ()
    others: Sequence[tuple[tuple[Lot, Lot], str]] = ()


PERIODS: Final = {"24h": "24 hours", "7d": "7 days", "30d": "30 days", "90d": "90 days"}
"""Periods that are offered: as they are asked for, and in words."""
MOST_VERSIONS: Final = 100
"""Lots of calls that are listed: of versions those of the agents with most calls."""
USUAL_BY: Final = "version"
BY: Final = (USUAL_BY, "agent", "tenant", "environment", "day", "week")
"""The ways in which calls can be listed."""
_ONE_AFTER_THE_OTHER: Final = (USUAL_BY, "day", "week")
"""The ways of listing in which each lot follows another one."""
_SIDE_BY_SIDE: Final = ("agent", "tenant", "environment")
"""The ways of listing in which each lot stands beside all others."""
MOST_WORSE: Final = 4
"""Lots that are named because they are worse than the others."""
REPLACED_MS: Final = 10 * MINUTE_MS
"""So long without a call, while another version has some, it was replaced."""
MOST_OFFERED: Final = 12
"""Agents that are offered to be listed alone, those with most calls."""


_LOT_FIELDS: Final = {
    "agent": "Agent",
    "version": "Version",
    "tenant": "Tenant",
    "environment": "Environment",
    "since": "From",
    "until": "Until",
}


def versions_page(site: Site, asked: LotsQuery, versions: Versions, remark: str) -> str:
    """The page of two lots of calls."""
    found = versions.comparison
    lots = asked.lots() or versions.pair or (Lot(), Lot())
    content = render(
        "versions.html",
        fields=[
            (name, head, [(side, getattr(lot, name)) for side, lot in zip("ab", lots, strict=True)])
            for name, head in _LOT_FIELDS.items()
        ],
        names={
            name: sorted({getattr(each.lot, name) for each in versions.all[:MOST_VERSIONS]} - {""})
            for name in ("agent", "version", "tenant", "environment")
        },
        asked=asked,
        is_chosen=asked.lots() is not None,
        by=asked.by or USUAL_BY,
        listings=[
            (each, f"versions{only.query(by=each)}")
            for only in [LotsQuery(since=asked.since, until=asked.until, agent=asked.agent)]
            for each in BY
        ],
        agents=[
            (name or "All", f"versions{only.query(agent=name)}", name == asked.agent)
            for only in [LotsQuery(by=asked.by, since=asked.since, until=asked.until)]
            for name in dict.fromkeys(("", *versions.agents[:MOST_OFFERED], asked.agent))
        ],
        one_after_the_other=_ONE_AFTER_THE_OTHER,
        periods=[
            (words, f"versions{asked.query(since=since, until=until)}", (since, until))
            for words, since, until in (
                *((words, since, "") for since, words in PERIODS.items()),
                ("Today", versions.today, ""),
                ("Yesterday", versions.yesterday, versions.today),
            )
            if since
        ],
        period=asked.since or USUAL_SINCE,
        period_in_words=PERIODS.get(asked.since or USUAL_SINCE, ""),
        listed=[
            (
                measure.title,
                f"versions{asked.query(sort=measure.name)}",
                ("ascending" if measure.better > 0 else "descending")
                * (measure.name == asked.sort),
            )
            for measure in LISTED
        ],
        versions=[
            _version(asked, each, older, lots)
            for each, older in worst_first(
                list(zip_longest(versions.all, versions.all[1:])), asked.sort
            )
        ][:MOST_VERSIONS],
        left_out=max(0, len(versions.all) - MOST_VERSIONS),
        days=Lot(since=asked.since, until=asked.until).days,
        found=found,
        verdict=found.verdict() if found else "",
        agent=lots[0].agent if lots[0].agent == lots[1].agent else "",
        names_of_lots=found.names if found else (),
        calls=[past_href(lot) for lot in asked.within(lots)],
        replaced=_replaced(versions, lots),
        others=[
            (
                after.agent,
                f"{text} {_replaced(versions, (before, after))}".rstrip(),
                asked.between(before, after),
            )
            for (before, after), text in versions.others
        ],
        worse=[
            (
                _name_of(each.lot, asked.by or USUAL_BY),
                text,
                past_href(asked.within((each.lot, each.lot))[0]),
            )
            for each, text in list(worse_than_the_others(versions.all))[:MOST_WORSE]
        ]
        if asked.by in _SIDE_BY_SIDE
        else [],
        csv=f"versions.csv{asked.query()}",
        swapped=asked.between(lots[1], lots[0]),
        rows=[
            _change(measure, change, [past_href(lot, measure) for lot in asked.within(lots)])
            for change in found.changes
            for measure in [measure_of(change.measure)]
        ]
        if found
        else [],
        subgoals=[
            (
                each.goal_set,
                each.name,
                _change(SUBGOAL, each.change, []),
                each.others,
                _flipped_href(asked.within(lots)[1], each),
                [(site.call_href(name), name, short_id(name)) for name in each.flipped],
            )
            for each in found.subgoals
        ]
        if found
        else [],
        remark=remark,
    )
    return page(site, "Versions", content, here="versions")


def _replaced(versions: Versions, lots: tuple[Lot, Lot]) -> str:
    """Says that the calls go to the older of two versions again; empty where they do not."""
    seen = {each.lot: each for each in versions.all}
    a, b = (seen.get(lot) for lot in lots)
    if a is None or b is None or not b.lot.version or a.lot.agent != b.lot.agent:
        return ""
    if a.last_ms - b.last_ms <= REPLACED_MS or a.first_ms >= b.first_ms:
        return ""
    return f"{b.lot.version} has had no call since {_began(b.last_ms)} UTC; {a.lot.version or 'calls without a version'} has."


_Listed = tuple[LotCalls, LotCalls | None]


def worst_first(listed: list[_Listed], sort: str) -> list[_Listed]:
    """The lots by a measure, unknown values last; as they are without one."""
    measure = next((each for each in LISTED if each.name == sort), None)
    if measure is None:
        return listed

    def rank(each: _Listed) -> tuple[bool, float]:
        value = each[0].values.get(sort)
        return value is None, (value or 0.0) * (1 if measure.better > 0 else -1)

    return sorted(listed, key=rank)


def _version(
    asked: LotsQuery, seen: LotCalls, older: LotCalls | None, lots: tuple[Lot, Lot]
) -> dict[str, Any]:
    """A row of a lot: the name of a version or of a day compares it with the one before it, and
    each lot can be A or B.
    """
    lot, (a, b) = seen.lot, lots
    by = asked.by or USUAL_BY
    name = _name_of(lot, by)
    before = older.lot if older is not None and by in _ONE_AFTER_THE_OTHER else None
    if before is not None and by == "version" and (not before.version or before.agent != lot.agent):
        before = None
    has_name = bool(lot.version if by == "version" else name)
    return {
        "name": name or "unknown",
        "has_name": has_name,
        "href": "" if before is None else asked.between(before, lot),
        "sides": (("A", asked.between(lot, b), lot == a), ("B", asked.between(a, lot), lot == b)),
        "calls": seen.calls,
        "calls_href": past_href(asked.within((lot, lot))[0]) if has_name else "",
        "seen": [day_and_time(each)[5:16] for each in (seen.first_ms, seen.last_ms)],
        "cells": [
            (shown(measure, seen.values.get(measure.name)), _left_out_of(seen, measure))
            for measure in LISTED
        ],
    }


def _name_of(lot: Lot, by: str) -> str:
    if by == "version":
        return f"{lot.agent} {lot.version or 'without a version'}"
    return str(lot.days if by in {"day", "week"} else getattr(lot, by, ""))


def _left_out_of(seen: LotCalls, measure: ComparedMeasure) -> str:
    """Says what a value leaves out: a turn without an answer has no wait, and some calls could not
    be judged.
    """
    if measure is LONGEST_WAIT and seen.unanswered:
        said = f"{counted(seen.unanswered, 'turn')} unanswered"
        if seen.in_vain_ms is not None:
            callers = counted(seen.in_vain, "caller")
            said = f"{callers} left without an answer, the longest after {seconds(seen.in_vain_ms)}"
        return said
    if measure is not SUCCESS:
        return ""
    reached = round(seen.values.get(SUCCESS.name, 0.0) * seen.judged)
    said = f"{reached:,} of {seen.judged:,}" * (seen.judged > 0)
    unknown = f"{seen.unjudged:,} not judged" * (seen.unjudged > 0)
    return "; ".join(filter(None, (said, unknown)))


def past_href(lot: Lot, measure: ComparedMeasure | None = None) -> str:
    """Where the calls of a lot are listed; of a measure by which calls can be ordered, those with
    the worst values first.
    """
    name = "" if measure is None else measure.name
    by = {}
    if measure is not None and name in PAST_COLUMNS:
        by = {"sort": name, "up": "1" * (measure.better > 0)}
    only = {
        "success": {"trouble": "goals_missed"},
        "ended_badly": {"outcome": "never_answered,hung_up,failed"},
    }.get(name, {})
    return f"past{PastQuery(**lot._asdict()).query(since=lot.since or USUAL_SINCE, **by, **only)}"


def _flipped_href(lot: Lot, of: SubgoalChange) -> str:
    """Where the calls of a lot are listed that came out otherwise than most of the first one; those
    that reached the subgoal among others with the same goal set.
    """
    missed = of.name * round(of.change.before or 0)
    fields = lot._asdict() | {"since": lot.since or USUAL_SINCE, "subgoal": missed}
    return f"past{PastQuery(**fields, goal_set=of.goal_set).query()}"


def _change(measure: ComparedMeasure, change: Change, hrefs: Sequence[str]) -> dict[str, Any]:
    reach = max(abs(change.low or 0), abs(change.high or 0), abs(change.change or 0)) or 1
    scale = Scale(-reach, reach)
    has_ends = change.low is not None and change.high is not None
    return told(measure, change)._asdict() | {
        "title": measure.title,
        "hrefs": hrefs,
        "calls": (change.calls_before, change.calls_after),
        "from": scale.at(change.low or 0) if has_ends else "",
        "length": scale.length(change.low or 0, change.high or 0, 1) if has_ends else "",
        "at": scale.at(change.change or 0),
    }
