"""What the pages show, as markup: the calls that run now, and one call in depth. Pure: values and
the present time in, text out.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from markupsafe import Markup

from consumers.console.agents import (
    BAD_SHARE,
    MINUTES,
    AgentNow,
    BadTime,
    Figures,
    Version,
    version_of,
)
from consumers.console.fleet import Fleet, Runbook
from consumers.console.page.rendering import ICON, kept, render
from consumers.console.page.sections import parts_of_page
from consumers.console.settings import origin_of
from consumers.view.calls import ReportedCall
from consumers.view.contents import summary
from consumers.view.running import running_line, wait_level
from consumers.view.words import (
    counted,
    day_and_time,
    in_words,
    percent,
    seconds,
    seconds_if_known,
    time_of_day,
)
from schemas.annotations import LABEL_PATTERN, MAX_LABEL_CHARS, MAX_NOTE_CHARS
from schemas.closed_sets import SortKey
from schemas.scores.latency_stages import Stage
from schemas.scores.running import RunningCalls, ShownCall, ShownCalls, WantedCalls
from schemas.scores.trouble import (
    SLOW_MS,
    STAGE_WORDS,
    VERY_SLOW_MS,
    TroubleKind,
    worst_wait_ms,
)
from schemas.units import MINUTE_MS, to_seconds
from schemas.wire import MAX_NAME_CHARS

ANCHOR: Final = "call"
"""Beginning of the ids of the parts of a call's page."""
MOST_ROWS: Final = 50
"""Calls on a page; the others are counted. The worst come first, and a browser shows so many anew
within 50 ms.
"""
MOST_AGENTS: Final = 20
"""Versions of agents on a page; the worst come first, and a search finds the calls of every one."""
MOST_NAMES: Final = 200
"""Names of agents, tenants or environments that a filter offers."""
MOST_ALERTS: Final = 20
"""Firing alerts on a page; the others are counted."""
MOST_CHIPS: Final = 6
"""Troubles of a call that have a chip: there are nine kinds."""
MOST_HEALTHY: Final = 5
"""Healthy calls of a version that have a row each; more are one row, which leads to them."""
MOST_NAMED: Final = 3
"""Versions of agents that the headline names, and tenants of each."""
TO_CALL_BACK: Final = "never_answered,hung_up,failed"
"""The outcomes of calls whose callers did not get what they called for."""
QUIET_MS: Final = 20_000
"""A version that gets no call for so long, while another one of its agent does, is being replaced;
for less, calls of both come by turns.
"""
NO_CALLS: Final = Markup(
    "No call runs now. <code>callgauge serve</code> has printed a line that sends a first one, and "
    "what bots need to send theirs; on Kafka, <code>callgauge doctor</code> says what comes in."
)
"""In the place of rows. It has no token, because more people may read a page than may send."""

ORDERS: Final[Mapping[SortKey, str]] = {
    "trouble": "Worst",
    "quiet": "Longest quiet",
    "latency": "Slowest",
    "began": "Oldest",
    "agent": "By agent",
}


class Site(NamedTuple):
    """What all pages have in common.

    Attributes:
        root: Address of the first page, with a slash at its end.
        version: Of callgauge.
        stamp: Changes with the styles and scripts, so that a browser asks for new ones.
        has_past: Whether there is a history to search.
        has_login: Whether a person came in by a form, and may log out.
    """

    root: str
    version: str
    stamp: str
    has_past: bool
    has_login: bool = False

    def call_href(self, conversation_id: str) -> str:
        """Address of the page of a call."""
        return f"{self.root}calls/{quote(conversation_id, safe='')}"


class Alert(NamedTuple):
    """One alert that fires.

    Attributes:
        name: Of its rule.
        severity: `critical`, `warning` or `info`.
        whose: Agent, tenant and environment, as far as it has them, by their names.
        summary: In words.
        since_ms: When it began to fire, or its condition to hold, in epoch ms.
        fires_ms: When it fires if the condition still holds; None once it fires.
        what_to_do: The end of its runbook; empty where its rule has none.
        runbook: Address of the runbook; empty where its rule has none.
    """

    name: str
    severity: str
    whose: Mapping[str, str]
    summary: str
    since_ms: int
    fires_ms: int | None = None
    what_to_do: str = ""
    runbook: str = ""

    def is_of(self, wanted: WantedCalls) -> bool:
        """Whether it is of calls that are asked for; one that does not say whose it is may be."""
        asked = {
            "agent": wanted.agents,
            "tenant": wanted.tenants,
            "environment": wanted.environments,
        }
        return all(
            not names or self.whose.get(label, "") in {*names, ""} for label, names in asked.items()
        )


class Alerts(NamedTuple):
    """The alerts that fire, those that are about to, and a sentence where nothing can be said of
    either.
    """

    firing: Sequence[Alert] = ()
    remark: str = "Alerts are shown when console.alertmanager has the address of Alertmanager."
    near: Sequence[Alert] = ()
    remark_on_rules: str = ""


def page(site: Site, title: str, content: str, **more: Any) -> str:
    """A whole page around its content."""
    values = {"here": "", "stream": None, "parts": None, "wall": False} | more
    return render(
        "shell.html",
        title=title,
        content=Markup(content),  # noqa: S704 - made by templates
        icon=ICON,
        **site._asdict(),
        **values,
    )


# The calls that run now.


def names_boxes(now: RunningCalls) -> dict[str, Mapping[str, str]]:
    """The part of the page of running calls that is the same whichever calls are chosen."""
    return {"names": {"lists": _names(now)}}


def now_boxes(
    site: Site,
    now: RunningCalls,
    wanted: WantedCalls,
    fleet: Fleet,
    alerts: Alerts,
    names: Mapping[str, Mapping[str, str]],
) -> dict[str, Mapping[str, str]]:
    """The parts of the page of running calls, by the element that they are in; `names` has those of
    every choice.
    """
    shown = now.chosen(wanted)
    rows, left_out = _rows(site, shown, wanted)
    return {
        "head": {"counts": _head(site, fleet, shown, wanted)},
        "alerts": {"firing": _alerts(alerts, wanted)},
        "lines": dict(_lines(*fleet.agents.figures(wanted), shown, _marks(fleet, wanted))),
        "agents": dict(
            _agent(each, wanted, is_silent=bool(shown.silent_ms))
            for each in fleet.agents.now[:MOST_AGENTS]
        ),
        **names,
        "calls": rows,
        "rest": {"more": _rest(shown, left_out, has_any=bool(now.calls))},
    }


def now_page(
    site: Site, boxes: Mapping[str, Mapping[str, str]], wanted: WantedCalls, *, wall: bool
) -> str:
    """The whole page of running calls, which needs no script to be read."""
    # made by templates
    filled = {box: Markup("".join(parts.values())) for box, parts in boxes.items()}  # noqa: S704
    content = render(
        "now.html",
        wanted=wanted,
        query=query_of(wanted),
        wall=wall,
        orders=ORDERS,
        very_slow_ms=VERY_SLOW_MS,
        **{name: filled[name] for name in ("head", "alerts", "lines", "agents", "names", "rest")},
        rows=filled["calls"],
    )
    return page(
        site,
        "Calls now",
        content,
        here="now",
        stream=f"{site.root}live/now?{query_of(wanted)}",
        wall=wall,
    )


def query_of(wanted: WantedCalls) -> str:
    """A choice of calls as the query of an address."""
    fields = {
        "text": wanted.text,
        "agent": ",".join(sorted(wanted.agents)),
        "version": ",".join(sorted(wanted.versions)),
        "tenant": ",".join(sorted(wanted.tenants)),
        "environment": ",".join(sorted(wanted.environments)),
        "bad": "1" if wanted.only_bad else "",
        "sort": "" if wanted.sort == "trouble" else wanted.sort,
    }
    return urlencode({name: value for name, value in fields.items() if value})


def _rows(
    site: Site, shown: ShownCalls, wanted: WantedCalls
) -> tuple[dict[str, str], list[ShownCall]]:
    """The rows of the calls by their ids, under headings where the worst come first; and the calls
    for which there is no room. Healthy ones are one row for each version of an agent that has many,
    unless it is asked for.
    """
    groups: dict[str, list[ShownCall]] = {}
    for each in shown.calls:
        groups.setdefault(_group_of(each) if shown.is_ranked else "", []).append(each)
    folded: dict[Version, int] = {}
    if shown.is_ranked and not wanted.is_by_label and not wanted.text:
        healthy = Counter(version_of(each.call.labels) for each in groups.get(_WELL, []))
        folded = {
            version: calls
            for version, calls in healthy.most_common(MOST_AGENTS)
            if calls > MOST_HEALTHY
        }
    of_folded = {}
    for (agent, version), calls_folded in folded.items():
        part, href = _place_of(agent, version)
        name = f"{agent} {version or ''}".strip()
        of_folded[f"g{part}"] = kept(
            "now_group.html", part=f"g{part}", heading=name, href=href, calls=calls_folded
        )
    rows: dict[str, str] = {}
    left_out: list[ShownCall] = []
    room = MOST_ROWS
    for heading, calls in groups.items():
        if heading:
            part = f"g-{heading.split()[0].lower()}"
            rows[part] = kept(
                "now_group.html", part=part, heading=heading, href="", calls=len(calls)
            )
        own = [
            each for each in calls if heading != _WELL or version_of(each.call.labels) not in folded
        ]
        rows |= (_row(site, each) for each in own[:room])
        if heading == _WELL:
            rows |= of_folded
        left_out += own[room:]
        room = max(0, room - len(own))
    return rows, left_out


_WELL: Final = "Well"


def _group_of(shown: ShownCall) -> str:
    if shown.is_bad:
        return "In trouble"
    if shown.ending is not None:
        return f"Ended badly, in the last {MINUTES} minutes"
    if shown.has_stopped and shown.call.state == "running":
        return "No events: state unknown"
    return _WELL if shown.call.state == "running" else "Over"


def _row(site: Site, shown: ShownCall) -> tuple[str, str]:
    """The id of the row of a call, and its markup."""
    row = running_line(shown)
    part = f"r-{hashlib.blake2b(row.conversation_id.encode(), digest_size=8).hexdigest()}"
    href = site.call_href(row.conversation_id)
    return part, kept("now_row.html", row=row, part=part, href=href, chips=row.chips[:MOST_CHIPS])


# The agents.


def _place_of(agent: str, version: str | None) -> tuple[str, str]:
    """The id of a version of an agent, and the address of its calls."""
    named = hashlib.blake2b(f"{agent}\0{version or ''}".encode(), digest_size=8).hexdigest()
    return (
        f"a-{named}",
        f"./?{urlencode({'agent': agent} | ({'version': version} if version else {}))}",
    )


def _agent(each: AgentNow, wanted: WantedCalls, *, is_silent: bool = False) -> tuple[str, str]:
    """The id of the row of a version of an agent, and its markup; while no event comes
    (`is_silent`), nobody knows how it is.
    """
    part, href = _place_of(each.agent, each.version)
    highest = max((*filter(None, each.waits_p95_ms), float(SLOW_MS)))
    is_chosen = _is_chosen(each, wanted)
    row = kept(
        "now_agent.html",
        agent=each,
        part=part,
        href="./" if is_chosen else href,
        is_chosen=is_chosen,
        is_silent=is_silent,
        doubt=_doubt(each),
        bad_share=BAD_SHARE,
        p95_level=wait_level(each.wait_p95_ms),
        limit=_height_of(SLOW_MS, highest),
        line=_pieces(each.waits_p95_ms, highest),
    )
    return part, row


def _is_chosen(each: AgentNow, wanted: WantedCalls) -> bool:
    return each.agent in wanted.agents and (not wanted.versions or each.version in wanted.versions)


def _doubt(now: AgentNow) -> str:
    """Says why a version may be bad while too few of its calls are in trouble to call it so; empty
    without a reason.
    """
    if now.bad is not None:
        return ""
    if now.slowest_ms is not None and 2 * now.calls_slow >= now.calls_answered:
        answered = counted(now.calls_answered, "answered call")
        return f"{now.calls_slow} of {answered} slow ({seconds(now.slowest_ms)})"
    if now.calls_unsure:
        calls = counted(now.calls_running, "call")
        return f"{now.calls_unsure} of {calls} silent, or without events"
    if 0 < now.calls_running <= 2 * now.calls_in_trouble:
        return f"{now.calls_in_trouble} of {counted(now.calls_running, 'call')} in trouble"
    return ""


def _head(site: Site, fleet: Fleet, shown: ShownCalls, wanted: WantedCalls) -> str:
    left_out = {
        "not understood": (fleet.unreadable, "record"),
        "left out": (fleet.table.calls_dropped, "call"),
    }
    chosen = [each for each in fleet.agents.now if not wanted.agents or _is_chosen(each, wanted)]
    bad = [each for each in chosen if each.bad is not None]
    told = [_bad(each, each.bad, fleet) for each in bad[:MOST_NAMED] if each.bad is not None]
    return render(
        "now_head.html",
        shown=shown,
        bad=told,
        are_well=bool(told)
        and not shown.silent_ms
        and all(each["is_well_again"] for each in told)
        and len(told) == len(bad),
        doubts=[(each, doubt) for each in chosen if (doubt := _doubt(each))][:MOST_NAMED],
        has_past=site.has_past,
        others=len(bad) - MOST_NAMED,
        left_out=", ".join(f"{counted(*of)} {how}" for how, of in left_out.items() if of[0]),
        running=sum(each.calls_running for each in fleet.agents.now),
        silent_since_ms=fleet.known.event_ms,
        stopped=sum(each.has_stopped for each in shown.calls),
        stopped_ms=fleet.known.stopped_ms,
        now_ms=fleet.agents.at_ms,
        wanted=wanted,
        past=""
        if len(wanted.agents) > 1
        else f"./past?{query_of(WantedCalls(wanted.agents, wanted.tenants, wanted.environments, versions=wanted.versions))}",
        note=fleet.note,
        doctor=fleet.doctor,
        worst=_worst_of(site, bad, shown),
        bad_times=len(fleet.bad_times),
    )


def _worst_of(site: Site, bad: Sequence[AgentNow], shown: ShownCalls) -> str:
    """The address of the worst call of what the headline names first: one that runs or has ended
    badly. Without a bad version that of all calls; empty without any.
    """
    version = (bad[0].agent, bad[0].version) if bad else None
    ended = []
    for each in shown.calls if not shown.silent_ms else ():
        if version in {None, version_of(each.call.labels)}:
            if each.is_bad:  # the worst of them is the first
                return site.call_href(each.call.conversation_id)
            if each.ending:
                ended.append(each.call)
    worst = max(ended, key=lambda call: worst_wait_ms(call) or 0, default=None)
    return "" if worst is None else site.call_href(worst.conversation_id)


_WRONG: Final[Mapping[TroubleKind | None, tuple[str, str]]] = {
    TroubleKind.MUTE: ("callers get no answer", "CallgaugeAgentMute"),
    TroubleKind.SILENT: ("callers wait in silence", "CallgaugeDeadAir"),
    TroubleKind.AGENT_ERROR: ("the agent reports errors", ""),
    TroubleKind.VERY_SLOW: ("answers are slow", "CallgaugeAnswersSlow"),
    TroubleKind.TOOL_FAILS: ("tools fail", "CallgaugeToolErrors"),
    TroubleKind.STALLED: ("no further goal is reached", "CallgaugeProgressStalls"),
    TroubleKind.SLOW: ("answers are slow", "CallgaugeAnswersSlow"),
    TroubleKind.INTERRUPTIONS: ("the sides interrupt each other", "CallgaugeInterruptionsHigh"),
    TroubleKind.DEAD_AIR: ("callers wait in silence", "CallgaugeDeadAir"),
}
"""By trouble its words for the headline, and the alert whose runbook has the steps; errors of an
agent have no alert.
"""


def wrong_in_words(of: BadTime) -> str:
    """Says what most calls of a bad version suffer, and the stage behind it; then what most
    suffered earlier in the same time, in order. Empty where nobody knows.
    """
    said = []
    for trouble, stage in ((of.trouble, of.stage), *of.before):
        wrong, _ = _WRONG.get(trouble, ("", ""))
        if wrong:
            said.append(f"{wrong} ({_stage_in_words(stage)})" if stage else wrong)
    earlier = f"; earlier: {', then '.join(said[1:])}" if len(said) > 1 else ""
    return f"{said[0]}{earlier}" if said else ""


def place_of(time: BadTime) -> str:
    """The id of a bad time on the page of all of them."""
    return "-".join(["t", str(time.since_ms), *map(quote, (time.agent, time.version or ""))])


def _stage_in_words(stage: Stage | None) -> str:
    return "" if stage is None else STAGE_WORDS[stage].partition(",")[0]


def runbook_sections(text: str) -> list[tuple[str, list[list[tuple[bool, str]]]]]:
    """The sections of a runbook, what to do first: the heading of each and its paragraphs, in parts
    of which each is code or not.
    """
    sections = []
    for section in text.partition("\n")[2].split("\n## "):
        heading, _, content = section.partition("\n")
        blocks = [
            [
                (place % 2 == 1, part)
                for place, part in enumerate(" ".join(block.split()).split("`"))
            ]
            for block in _BLOCK.split(content)
            if block.strip()
        ]
        sections.append((heading.strip(), blocks))
    return sorted(sections, key=lambda each: each[0] != "What to do")


_BLOCK: Final = re.compile(r"\n\s*\n|\n(?=- |\d+\. )")
"""Between two paragraphs or points of Markdown."""


def _first_steps(bad: BadTime, known: Sequence[str]) -> list[str]:
    """The steps of a runbook, those about the stage that is slow first, without the rollback."""
    stage = _stage_in_words(bad.stage)
    steps = sorted(
        (step for step in known if not step.startswith(ROLL_BACK)),
        key=lambda step: not (stage and stage in step.partition(":")[0].casefold()),
    )
    if not stage and bad.trouble in {TroubleKind.SLOW, TroubleKind.VERY_SLOW}:
        return ["Open a slow call: its turn says what took the time.", *steps]
    return steps


def _version_before(now: AgentNow, others: Sequence[AgentNow]) -> AgentNow | None:
    """The version before a bad one, if it was well; None otherwise."""
    older = [each for each in others if (each.first_call_ms or 0) < (now.first_call_ms or 0)]
    before = max(older, key=lambda each: each.first_call_ms or 0, default=None)
    return None if before is None or before.bad is not None or not now.version else before


def _bad(now: AgentNow, bad: BadTime, fleet: Fleet) -> dict[str, Any]:
    """A bad version of an agent for the headline: where it and its calls are shown, what most of
    its bad calls suffer, the runbook about that, whether calls go to another version by now, and
    how that one does. To roll it back is the first step if the version before was well.
    """
    _, alert = _WRONG.get(bad.trouble, ("", ""))
    others = [each for each in fleet.agents.now if each.agent == now.agent and each.version]
    before = _version_before(now, others)
    runbook = fleet.runbooks.get(alert) or Runbook("", (), "")
    quiet_ms = fleet.agents.at_ms - (now.last_call_ms or 0)
    newest = max(others, key=lambda each: each.last_call_ms or 0, default=now)
    is_replaced = quiet_ms > QUIET_MS and (newest.last_call_ms or 0) > (now.last_call_ms or 0)
    steps = _first_steps(bad, runbook.steps)
    if is_replaced:
        ending = f"{now.version} gets no new calls: wait until its last ones have ended."
        steps = [ending, *steps]
    elif before is not None:
        steps = [f"Roll back {now.version}: {before.version} was well.", *steps]
    else:
        steps += [step for step in runbook.steps if step.startswith(ROLL_BACK)]
    others_now = ""
    if newest.version != now.version and newest.calls_running:
        of_it = f"{newest.calls_answered:,} with an answer, {newest.calls_in_trouble:,} in trouble"
        others_now = f"{newest.version}: {counted(newest.calls_running, 'call')} now, {of_it}."
    part, href = _place_of(now.agent, now.version)
    whose = {"agent": now.agent} | ({"version": now.version} if now.version else {})
    since_ms = bad.affected_began_ms or bad.since_ms
    from_then = whose | {"since": day_and_time(since_ms)[:16]}
    to_call_back = {"outcome": TO_CALL_BACK, "said": "last"}
    lots = {"a_agent": now.agent, "a_version": before.version} if before else {}
    lots |= {"b_agent": now.agent, "b_version": now.version}
    return {
        "now": now,
        "part": part,
        "href": href,
        "wrong": wrong_in_words(bad),
        "alert": alert,
        "team": runbook.team,
        "contact": runbook.contact,
        "has_runbook": bool(runbook.text),
        "kept": f"./bad-times#{place_of(bad)}",
        "steps": steps,
        "before": before,
        "compare": f"./versions?{urlencode(lots)}#compared",
        "past": f"./past?{urlencode(from_then)}",
        "to_call_back": f"./past?{urlencode(from_then | to_call_back)}",
        "is_replaced": is_replaced,
        "others_now": others_now,
        # after the end of its last bad call nobody knows how the next one will be
        "is_well_again": not bad.lasts
        and bool(others_now or (now.calls_answered and not bad.ended_with_call)),
        "has_ended": bad.calls_meanwhile > now.calls_running,
    }


ROLL_BACK: Final = "After a deployment:"
"""How the step of a runbook begins that rolls back."""


def _rest(shown: ShownCalls, left_out: Sequence[ShownCall], *, has_any: bool) -> str:
    bad = sum(call.is_bad for call in left_out)
    text = (
        f"and {counted(len(left_out), 'further call')}, {bad:,} of them in trouble"
        if left_out
        else ""
    )
    if not shown.calls:
        text = "No call like this runs now." if has_any else NO_CALLS
    return Markup('<p id="more" class="note">{}</p>').format(text)


def _names(now: RunningCalls) -> str:
    lists = [
        (f"{name}-names", sorted({found for each in now.calls if (found := of(each.call.labels))}))
        for name, of in ((each, attrgetter(each)) for each in _LABELS)
    ]
    inside = render("now_names.html", lists=[(name, names[:MOST_NAMES]) for name, names in lists])
    return Markup('<div id="lists">{}</div>').format(inside)


_LABELS: Final = ("agent", "version", "tenant", "environment")


def _alerts(alerts: Alerts, wanted: WantedCalls) -> str:
    """The alerts that may be of the calls that are asked for."""
    kinds = [[each for each in some if each.is_of(wanted)] for some in (alerts.firing, alerts.near)]
    return render(
        "now_alerts.html",
        kinds=[
            (
                [(each, urlencode(each.whose)) for each in some[:MOST_ALERTS]],
                max(0, len(some) - MOST_ALERTS),
            )
            for some in kinds
        ],
        # That there is no Alertmanager is no news to who looks every day.
        remarks=[
            each
            for each in (alerts.remark * (not alerts.firing), alerts.remark_on_rules)
            if each not in {"", Alerts().remark}
        ],
    )


# Five figures, each with its line.

_WIDTH, _HEIGHT, _MARGIN, _DASH = 300.0, 40.0, 3.0, 14.0
LATELY_MINUTES: Final = 2
"""How far back turns say something of now."""
_LEAST_SHARE: Final = 0.2
"""The top of a line of shares is no lower: a turn or two without an answer are no mountain."""


def _marks(fleet: Fleet, wanted: WantedCalls) -> dict[int, str]:
    """By the begin of a minute the chosen versions whose first call began in it, where their agent
    had another one before: what changed then.
    """
    began_ms: dict[str, int] = {}
    versions = [each for each in fleet.agents.now if each.first_call_ms is not None]
    for each in versions:
        first_ms = each.first_call_ms or 0
        began_ms[each.agent] = min(first_ms, began_ms.get(each.agent, first_ms))
    chosen = fleet.agents.versions_of(wanted)
    names: dict[int, list[str]] = {}
    for each in versions:
        first_ms = each.first_call_ms or 0
        if first_ms > began_ms[each.agent] and (each.agent, each.version) in chosen:
            of_minute = names.setdefault(first_ms - first_ms % MINUTE_MS, [])
            of_minute.append(f"{each.agent} {each.version or 'without a version'}")
    return {
        minute_ms: f"; {', '.join(of[:MOST_NAMED])}{' and others' * (len(of) > MOST_NAMED)} began"
        for minute_ms, of in names.items()
    }


def _lines(
    whole: Figures,
    minutes: Sequence[tuple[int, Figures]],
    shown: ShownCalls,
    marks: Mapping[int, str],
) -> Iterator[tuple[str, str]]:
    """The figures of the chosen calls: the id of each and its markup, with its values by minute, and
    marks at some of them.
    """
    p95, goals = whole.wait_p95_ms, whole.success
    last = [each for _, each in minutes[-LATELY_MINUTES:]]
    newest = next(
        (each.wait_p95_ms for each in reversed(last) if each.wait_p95_ms is not None), None
    )
    turns, unanswered = (
        sum(each.turns for each in last),
        sum(each.turns_unanswered for each in last),
    )
    # of one turn alone the share says nothing
    is_bad = unanswered > 1 and unanswered >= BAD_SHARE * turns
    none = "none lately" if whole.turns else "no turn yet"
    counting = "callers who wait or gave up counted; " if is_bad else ""
    begins = next((begin_ms for begin_ms, each in minutes if each.calls_running or each.turns), 0)
    # what ran in the first minute with figures may have run for long
    marks = {begin_ms: text for begin_ms, text in marks.items() if begin_ms > begins}
    step = _WIDTH / max(1, len(minutes) - 1)
    marked = tuple(place * step for place, (begin_ms, _) in enumerate(minutes) if begin_ms in marks)
    is_whole = not minutes or begins <= minutes[0][0]
    window = f"in {MINUTES} min" if is_whole else f"since {time_of_day(begins)[:5]} UTC"

    def line(
        part: str,
        name: str,
        value: str,
        more: str,
        level: str,
        of: Callable[[Figures], float | None],
        written: Callable[[float], str],
        least: float,
        limit: float | None = None,
    ) -> tuple[str, str]:
        values = [None if begin_ms < begins else of(each) for begin_ms, each in minutes]
        top = max(least, *(each for each in values if each is not None), 0.0)
        told = (
            ("not known" if each is None else written(each)) + marks.get(begin_ms, "")
            for each, (begin_ms, _) in zip(values, minutes, strict=True)
        )
        return part, kept(
            "now_line.html",
            part=part,
            name=name,
            value=value,
            more=more,
            level=level,
            top=written(top),
            limit=None if limit is None else _height_of(limit, top),
            pieces=_pieces(values, top),
            marked=marked,
            minutes=tuple(zip((begin_ms for begin_ms, _ in minutes), told, strict=True)),
        )

    yield from (
        line(
            "line-calls",
            "Calls",
            f"{shown.running:,}",
            "running now",
            "",
            lambda each: each.calls_running,
            "{:,.0f}".format,
            1,
        ),
        line(
            "line-trouble",
            "In trouble",
            f"{shown.bad:,}",
            f"and {whole.calls_ended_badly:,} ended badly {window}",
            "urgent" if shown.bad else "",
            lambda each: each.calls_in_trouble + each.calls_ended_badly,
            "{:,.0f}".format,
            1,
        ),
        line(
            "line-wait",
            "Wait, p95",
            none if newest is None else seconds(newest),
            f"{counting}in the newest minute; {seconds_if_known(p95)} {window}; objective "
            f"{seconds(SLOW_MS)}",
            wait_level(newest) or "bad" * is_bad,
            lambda each: each.wait_p95_ms,
            seconds,
            SLOW_MS,
            SLOW_MS,
        ),
        line(
            "line-unanswered",
            "Unanswered",
            percent(unanswered / turns) if turns else none,
            f"{unanswered:,} of {counted(turns, 'turn')} in {LATELY_MINUTES} min; "
            f"{whole.turns_unanswered:,} of {whole.turns:,} {window}",
            "urgent" if is_bad else "",
            lambda each: each.unanswered_share,
            percent,
            _LEAST_SHARE,
        ),
        line(
            "line-goals",
            "All goals reached",
            "not known" if goals is None else percent(goals),
            (
                f"of {counted(whole.calls_judged, 'call')}"
                if whole.calls_judged
                else "no call with goals"
            )
            + " that ended"
            + f"; {whole.calls_unjudged:,} could not be judged" * (whole.calls_unjudged > 0),
            "",
            lambda each: each.success,
            percent,
            1.0,
        ),
    )


def _pieces(values: Sequence[float | None], highest: float) -> tuple[str, ...]:
    """The points of a line; it has a gap where no value is known."""
    step = _WIDTH / max(1, len(values) - 1)
    pieces: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append((place * step, _height_of(value, highest)))
    return tuple(" ".join(points) for points in map(_drawn, pieces) if points)


def _drawn(points: Sequence[tuple[float, float]]) -> list[str]:
    """The points of a piece; a single one is a short dash."""
    if len(points) == 1:
        ((x, y),) = points
        points = [(x - _DASH / 2, y), (x + _DASH / 2, y)]
    return [f"{x:.1f},{y}" for x, y in points]


def _height_of(value: float, highest: float) -> float:
    return round(
        _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * max(0.0, min(1.0, value / highest)), 1
    )


# One call.


def call_boxes(call: ReportedCall, remark: str) -> dict[str, Mapping[str, str]]:
    """The parts of the page of a call, by the element that they are in."""
    return {
        "about": {
            "remark": Markup('<p id="remark" class="note">{}</p>').format(remark),
            "summary": Markup('<pre id="summary" hidden>{}</pre>').format(summary(call)),
        },
        call.anchor_id: parts_of_page(call),
    }


def recording_of(call: ReportedCall, origins: Collection[str] | None) -> Mapping[str, str]:
    """The player of a call's recording; its address as text where no page may play it. Nothing
    without a recording, or where what was said is hidden.

    Args:
        call: The call.
        origins: From where sound may come; None where it is hidden.
    """
    url, starts_ms = call.row.recording_url, call.row.recording_starts_ms
    if url is None or origins is None:
        return {}
    if starts_ms is None:
        starts_ms = call.row.began_ms
    return {
        "recording": render(
            "recording.html",
            url=url,
            plays=origin_of(url) in origins,
            starts_ms=int(call.start_ms) if starts_ms is None else starts_ms,
        )
    }


def call_page(
    site: Site,
    conversation_id: str,
    boxes: Mapping[str, Mapping[str, str]],
    *,
    span_ms: tuple[int, int],
    author: str | None,
) -> str:
    """The whole page of a call.

    Args:
        site: What all pages have.
        conversation_id: The call.
        boxes: Its parts.
        span_ms: Broker times between which a person may look back.
        author: Who may say something of it; empty for somebody who has to give a name, None for
            nobody.
    """
    # made by templates
    filled = {box: Markup("".join(parts.values())) for box, parts in boxes.items()}  # noqa: S704
    place = quote(conversation_id, safe="")
    content = render(
        "live_call.html",
        about=filled["about"],
        sound=filled["sound"],
        anchor=ANCHOR,
        article=filled[ANCHOR],
        span_ms=span_ms,
        conversation_id=conversation_id,
        compare=f"{site.root}compare" if site.has_past else "",
        report=f"{site.root}report/{place}",
        author=author,
        label=_LABEL,
        most_label=MAX_LABEL_CHARS,
        most_note=MAX_NOTE_CHARS,
        most_name=MAX_NAME_CHARS,
    )
    return page(
        site,
        f"Call {conversation_id}",
        content,
        stream=f"{site.root}live/calls/{place}",
        parts=f"{site.root}parts/calls/{place}",
    )


_LABEL: Final = LABEL_PATTERN.strip("^$").replace("_-", r"_\-")
"""The pattern as browsers want it: of a whole value, with an escape before a dash among
characters.
"""


_STATES: Final[Mapping[str, str]] = {
    "running": "The call is running.",
    "ended": "The call has ended; events that come late still change what is shown.",
    "over": "The call is over; verdicts of judges are still to come.",
    "closed": "The call is over and its scores are final.",
}


def remark_on(call: ReportedCall, at_ms: int | None, read_since_ms: int | None) -> str:
    """What a reader should know of the page of a call: whether it goes on, and what is missing.

    Args:
        call: As it is shown.
        at_ms: The moment at which it was known so, by the broker's clock; None for now.
        read_since_ms: From when on the console has read rows.
    """
    parts = [_STATES[call.row.state]]
    if at_ms is not None:
        after_ms = max(0, at_ms - call.row.first_known_ms)
        parts = [f"As it was known {to_seconds(after_ms):.0f} s after its first event."]
    if (
        (missing := call.missing_turns)
        and read_since_ms is not None
        and call.row.first_known_ms < read_since_ms
    ):
        parts.append(
            f"It began before this console: {counted(len(missing), 'turn')} of it, up to turn "
            f"{missing[-1]}, cannot be shown. Its figures count them."
        )
    if call.row.left_out:
        parts.append(
            f"Its row was too large, and has no {', '.join(map(in_words, call.row.left_out))}."
        )
    return " ".join(parts)


def names_of(text: str) -> frozenset[str]:
    """The names of a filter, which are separated by commas."""
    return frozenset(name for each in text.split(",") if (name := each.strip()))
