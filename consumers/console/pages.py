"""What the pages show, as markup: the calls that run now, and one call in depth. Pure: values and the present time in, text out."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from markupsafe import Markup

from consumers.console.agents import AgentNow
from consumers.console.fleet import STEP_MS, Fleet, Step
from consumers.console.page.calls import ReportedCall
from consumers.console.page.drawing import counted, in_words, percent, seconds
from consumers.console.page.rendering import ICON, kept, render
from consumers.console.page.running import running_line, wait_level
from consumers.console.page.sections import parts_of_page
from schemas.annotations import LABEL_PATTERN, MAX_LABEL_CHARS, MAX_NOTE_CHARS
from schemas.closed_sets import SortKey
from schemas.scores.running import RunningCalls, ShownCall, ShownCalls, WantedCalls
from schemas.scores.trouble import SLOW_MS
from schemas.units import MS_PER_SECOND, to_seconds
from schemas.wire import MAX_NAME_CHARS

ANCHOR: Final = "call"
"""Beginning of the ids of the parts of a call's page."""
MOST_ROWS: Final = 50
"""Calls on a page; the others are counted. The worst come first, and a browser shows so many anew within 50 ms."""
MOST_AGENTS: Final = 20
"""Versions of agents on a page; the worst come first, and a search finds the calls of every one."""
MOST_NAMES: Final = 200
"""Names of agents, tenants or environments that a filter offers."""
MOST_ALERTS: Final = 20
"""Firing alerts on a page; the others are counted."""
MOST_CHIPS: Final = 6
"""Troubles of a call that have a chip: there are nine kinds."""
NO_CALLS: Final = Markup(
    "No call runs now. <code>callgauge serve</code> has printed a line that sends a first one, and what bots need to send theirs; on "
    "Kafka, <code>callgauge doctor</code> says what comes in."
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
        who: Agent, tenant and environment, as far as it has them.
        summary: In words.
        since_ms: When it began to fire, or its condition to hold, in epoch ms.
        fires_ms: When it fires if the condition still holds; None once it fires.
    """

    name: str
    severity: str
    who: str
    summary: str
    since_ms: int
    fires_ms: int | None = None


class Alerts(NamedTuple):
    """The alerts that fire, those that are about to, and a sentence where nothing can be said of either."""

    firing: Sequence[Alert] = ()
    remark: str = "Alerts are shown when console.alertmanager has the address of Alertmanager."
    near: Sequence[Alert] = ()
    remark_on_rules: str = ""


def page(site: Site, title: str, content: str, **more: Any) -> str:
    """A whole page around its content."""
    values = {"here": "", "stream": None, "parts": None, "wall": False} | more
    return render("shell.html", title=title, content=Markup(content), icon=ICON, **site._asdict(), **values)  # noqa: S704  # made by templates


# The calls that run now.


def common_boxes(now: RunningCalls, fleet: Fleet, alerts: Alerts) -> dict[str, Mapping[str, str]]:
    """The parts of the page of running calls that are the same whichever calls are chosen."""
    return {
        "alerts": {"firing": _alerts(alerts)},
        "lines": {each["id"]: render("now_lines.html", line=each) for each in _lines(fleet, now)},
        "agents": {each.id: _agent_markup(each) for each in map(_agent, fleet.agents.now[:MOST_AGENTS])},
        "names": {"lists": _names(now)},
    }


def now_boxes(
    site: Site, now: RunningCalls, wanted: WantedCalls, fleet: Fleet, common: Mapping[str, Mapping[str, str]]
) -> dict[str, Mapping[str, str]]:
    """The parts of the page of running calls, by the element that they are in; `common` has those of every choice."""
    shown = now.chosen(wanted)
    return {
        "head": {"counts": _head(fleet, shown)},
        **common,
        "calls": dict(_row(site, call) for call in shown.calls[:MOST_ROWS]),
        "rest": {"more": _rest(shown, has_any=bool(now.calls))},
    }


def now_page(site: Site, boxes: Mapping[str, Mapping[str, str]], wanted: WantedCalls, *, wall: bool) -> str:
    """The whole page of running calls, which needs no script to be read."""
    filled = {box: Markup("".join(parts.values())) for box, parts in boxes.items()}  # noqa: S704  # made by templates
    content = render(
        "now.html",
        wanted=wanted,
        query=query_of(wanted),
        wall=wall,
        orders=ORDERS,
        **{name: filled[name] for name in ("head", "alerts", "lines", "agents", "names", "rest")},
        rows=filled["calls"],
    )
    stream = f"{site.root}live/now?{query_of(wanted)}"
    return page(site, "Calls now", content, here="now", stream=stream, wall=wall)


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


def _row(site: Site, shown: ShownCall) -> tuple[str, str]:
    """The id of the row of a call, and its markup."""
    row = running_line(shown)
    part = f"r-{hashlib.blake2b(row.conversation_id.encode(), digest_size=8).hexdigest()}"
    href = site.call_href(row.conversation_id)
    return part, kept("now_row.html", row=row, part=part, href=href, chips=row.chips[:MOST_CHIPS])


# The agents.


class _Agent(NamedTuple):
    """One version of an agent in the table."""

    id: str
    agent: str
    version: str
    href: str
    level: str
    since_ms: int | None
    affected: str
    calls: str
    in_trouble: str
    ended_badly: str
    unanswered: str
    p50: str
    p95: str
    p95_level: str
    goals: str
    line: tuple[str, ...]


def _agent(each: AgentNow) -> _Agent:
    version = each.version or ""
    named = hashlib.blake2b(f"{each.agent}\0{version}".encode(), digest_size=8).hexdigest()
    share, p50, p95 = each.unanswered_share, each.wait_p50_ms, each.wait_p95_ms
    return _Agent(
        id=f"a-{named}",
        agent=each.agent,
        version=version,
        href=f"./?{urlencode({'agent': each.agent} | ({'version': version} if version else {}))}",
        level="healthy" if each.bad_since_ms is None else "urgent",
        since_ms=each.bad_since_ms,
        affected=counted(each.calls_affected, "call"),
        calls=f"{each.calls_running:,}",
        in_trouble=f"{each.calls_in_trouble:,}",
        ended_badly=f"{each.calls_ended_badly:,}",
        unanswered="" if share is None else percent(share),
        p50="" if p50 is None else seconds(p50),
        p95="" if p95 is None else seconds(p95),
        p95_level=wait_level(p95),
        goals="" if each.progress is None else percent(each.progress),
        line=tuple(_pieces(each.waits_p95_ms, max((*filter(None, each.waits_p95_ms), float(SLOW_MS))))),
    )


def _agent_markup(agent: _Agent) -> str:
    return kept("now_agent.html", agent=agent)


def _head(fleet: Fleet, shown: ShownCalls) -> str:
    parts = []
    if fleet.unreadable:
        parts.append(f"{counted(fleet.unreadable, 'record')} not understood")
    if fleet.table.calls_dropped:
        parts.append(f"{counted(fleet.table.calls_dropped, 'call')} left out")
    return render(
        "now_head.html",
        running=shown.running, bad=shown.bad, age=shown.age, is_stale=shown.is_stale, left_out=", ".join(parts),
    )  # fmt: skip


def _rest(shown: ShownCalls, *, has_any: bool) -> str:
    left_out = shown.calls[MOST_ROWS:]
    bad = sum(call.is_bad for call in left_out)
    text = f"and {counted(len(left_out), 'further call')}, {bad:,} of them in trouble" if left_out else ""
    if not shown.calls:
        text = "No call like this runs now." if has_any else NO_CALLS
    return Markup('<p id="more" class="note">{}</p>').format(text)


def _names(now: RunningCalls) -> str:
    labels = [each.call.labels for each in now.calls]
    lists = [
        ("agents", {each.agent for each in labels}),
        ("versions", {each.version for each in labels if each.version is not None}),
        ("tenants", {each.tenant for each in labels}),
        ("environments", {each.environment for each in labels}),
    ]
    inside = render("now_names.html", lists=[(name, sorted(names)[:MOST_NAMES]) for name, names in lists])
    return Markup('<div id="lists">{}</div>').format(inside)


def _alerts(alerts: Alerts) -> str:
    return render(
        "now_alerts.html",
        kinds=[
            (alerts.firing[:MOST_ALERTS], max(0, len(alerts.firing) - MOST_ALERTS)),
            (alerts.near[:MOST_ALERTS], max(0, len(alerts.near) - MOST_ALERTS)),
        ],
        remarks=[remark for remark in (alerts.remark * (not alerts.firing), alerts.remark_on_rules) if remark],
    )


# Figures of all calls as moving lines.

_WIDTH, _HEIGHT, _MARGIN = 300.0, 40.0, 3.0
_MINUTES: Final = 5


def _lines(fleet: Fleet, now: RunningCalls) -> list[dict[str, Any]]:
    steps = list(fleet.steps)
    recent = _MINUTES * 60 * MS_PER_SECOND // STEP_MS
    latencies = fleet.latencies(recent)
    p50, p95 = latencies.percentile_ms(50), latencies.percentile_ms(95)
    newest = steps[-1] if steps else None
    running, bad = sum(each.call.state != "closed" for each in now.calls), sum(each.is_bad for each in now.calls)
    return [
        _line(
            "line-latency", "Latency, p95", [each.percentile_ms(95) for each in steps],
            "no answer" if p95 is None else seconds(p95),
            "" if p50 is None else f"p50 {seconds(p50)}, {_MINUTES} min", limit=SLOW_MS,
        ),
        _line(
            "line-calls", "Calls", [float(each.running) for each in steps],
            str(running), f"{bad} in trouble",
        ),
        _line(
            "line-progress", "Progress", [each.progress for each in steps],
            _progress(newest), "mean of the running calls with goals", top=1.0,
        ),
    ]  # fmt: skip


def _progress(newest: Step | None) -> str:
    return "no goals" if newest is None or newest.progress is None else percent(newest.progress)


def _line(
    part: str,
    name: str,
    values: Sequence[float | None],
    newest: str,
    more: str,
    *,
    limit: float | None = None,
    top: float | None = None,
) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    highest = top or max((*known, limit or 0.0, 1.0))
    return {
        "id": part,
        "name": name,
        "newest": newest,
        "more": more,
        "limit": None if limit is None else _height_of(limit, highest),
        "pieces": _pieces(values, highest),
        "spoken": f"{name}: {newest} now",
    }


def _pieces(values: Sequence[float | None], highest: float) -> list[str]:
    """The points of a line; it has a gap where no value is known."""
    step = _WIDTH / max(1, len(values) - 1)
    pieces: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{place * step:.1f},{_height_of(value, highest)}")
    return [" ".join(points if len(points) > 1 else points * 2) for points in pieces if points]


def _height_of(value: float, highest: float) -> float:
    return round(_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * min(1.0, value / highest), 1)


# One call.


def call_boxes(call: ReportedCall, remark: str) -> dict[str, Mapping[str, str]]:
    """The parts of the page of a call, by the element that they are in."""
    return {
        "about": {"remark": Markup('<p id="remark">{}</p>').format(remark)},
        call.anchor_id: parts_of_page(call),
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
        author: Who may say something of it; empty for somebody who has to give a name, None for nobody.
    """
    filled = {box: Markup("".join(parts.values())) for box, parts in boxes.items()}  # noqa: S704  # made by templates
    place = quote(conversation_id, safe="")
    content = render(
        "live_call.html", about=filled["about"], anchor=ANCHOR, article=filled[ANCHOR], span_ms=span_ms,
        report=f"{site.root}report/{place}", author=author, label=_LABEL, most_label=MAX_LABEL_CHARS, most_note=MAX_NOTE_CHARS,
        most_name=MAX_NAME_CHARS,
    )  # fmt: skip
    live = {"stream": f"{site.root}live/calls/{place}", "parts": f"{site.root}parts/calls/{place}"}
    return page(site, f"Call {conversation_id}", content, **live)


_LABEL: Final = LABEL_PATTERN.strip("^$").replace("_-", r"_\-")
"""The pattern as browsers want it: of a whole value, with an escape before a dash among characters."""


def remark_on(call: ReportedCall, at_ms: int | None, read_since_ms: int | None) -> str:
    """What a reader should know of the page of a call: whether it goes on, and what is missing.

    Args:
        call: As it is shown.
        at_ms: The moment at which it was known so, by the broker's clock; None for now.
        read_since_ms: From when on the console has read rows.
    """
    parts = []
    if at_ms is not None:
        parts.append(
            f"As it was known {to_seconds(max(0, at_ms - call.row.first_known_ms)):.0f} s after its first event."
        )
    elif call.is_closed:
        parts.append("The call is over and its scores are final.")
    else:
        parts.append("The call goes on.")
    if (missing := call.missing_turns) and read_since_ms is not None and call.row.first_known_ms < read_since_ms:
        parts.append(
            f"It began before this console: {counted(len(missing), 'turn')} of it, up to turn {missing[-1]}, cannot be shown. Its figures "
            "count them."
        )
    if call.row.left_out:
        parts.append(f"Its row was too large, and has no {', '.join(map(in_words, call.row.left_out))}.")
    return " ".join(parts)


def names_of(text: str) -> frozenset[str]:
    """The names of a filter, which are separated by commas."""
    return frozenset(name for each in text.split(",") if (name := each.strip()))
