"""Calls of hours in virtual time: simulator, engine, the exporter's projection, and series as
Prometheus would scrape them.

No clock runs: windows and waits of the rules are the real ones, and the same seed gives the same
series.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import accumulate, groupby
from operator import add
from pathlib import Path
from typing import Final

import yaml

from consumers.engine.effects import Effect, PublishRow
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.exporter.projection import Counted, project
from schemas.goals.goal_set import GoalSet
from schemas.metrics.catalogue import metric_named
from schemas.rows import CallRow, GoalsRow, Row
from streamer.goals.files import SIMULATED_GOALS, GoalIndex, read_goal_file
from streamer.offline.contexts import arrivals_of
from streamer.offline.side_by_side import results_in_order
from streamer.sources.replay import PlayedCall, WireEvent
from streamer.sources.simulator.profile import AGENTS, HEALTHY, Incident, Profile, with_incidents
from streamer.sources.simulator.traffic import simulated_traffic
from tests.deploy.firing import Firing, firings, rules_for

# -- series
# ------------------------------------------------------------------------------------------------------------

SCRAPE_SECONDS: Final = 30


class Series:
    """Increments by scrape, from a time on."""

    def __init__(self, begins_ms: int, minutes: int) -> None:
        self._begins_ms = begins_ms
        self._scrapes = minutes * 60 // SCRAPE_SECONDS + 1
        self._added: dict[str, list[float]] = {}

    def add(self, name: str, at_ms: int, by: float) -> None:
        """Adds to a counter, or to the steps of a gauge, from the scrape after `at_ms` on; 0 makes
        it appear.
        """
        place = -(-(at_ms - self._begins_ms) // (SCRAPE_SECONDS * 1000))
        added = self._of(name)
        if 0 <= place < self._scrapes:
            added[place] += by

    def merge(self, other: "Series") -> None:
        """Adds the values of another one of the same time."""
        for name, steps in other._added.items():
            self._added[name] = list(map(add, self._of(name), steps))

    def _of(self, name: str) -> list[float]:
        added = self._added.get(name)
        if added is None:
            added = self._added[name] = [0.0] * self._scrapes
        return added

    def notation(self) -> dict[str, str]:
        """Returns values in promtool's notation. Every counter is there from the first scrape, as
        if the process had run before.
        """
        return {
            name: _runs(accumulate(added)) for name, added in self._added.items()
        } | self._last_changes()

    def _last_changes(self) -> dict[str, str]:
        """When each source was heard last, on promtool's clock, which begins at 0."""
        found = {}
        for name, added in self._added.items():
            if name.startswith("callgauge_events_total"):
                source = labels_in(name)["source"]
                times = (place * SCRAPE_SECONDS if by else 0.0 for place, by in enumerate(added))
                named = series_name(
                    "callgauge_source_last_event_timestamp_seconds", {"source": source}
                )
                found[named] = _runs(accumulate(times, max))
        return found


def series_name(metric: str, labels: Mapping[str, str]) -> str:
    """Returns the name of a series with its labels.

    >>> series_name("up", {"job": "callgauge"})
    'up{job="callgauge"}'
    """
    pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{metric}{{{pairs}}}"


def labels_in(name: str) -> dict[str, str]:
    """Returns the labels of such a name. Values of simulated traffic have no comma and no quotation
    mark.
    """
    pairs = name[name.index("{") + 1 : -1].split(",")
    return {key: value.strip('"') for key, value in (pair.split("=", 1) for pair in pairs if pair)}


def _runs(values: Iterable[float]) -> str:
    """Equal values in a row are one word: a day of series is a tenth as long, and promtool takes
    longest to read it.
    """
    words = []
    for value, equal in groupby(values):
        more = sum(1 for _ in equal) - 1
        words.append(f"{value:.12g}+0x{more}" if more else f"{value:.12g}")
    return " ".join(words)


# -- calls
# -------------------------------------------------------------------------------------------------------------

START_MS: Final = 1_795_000_000_000
RULES: Final = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules" / "callgauge.rules.yml"
_DAY: Final = 24 * 60
_TENANT, _ENVIRONMENT = "TENANT", "ENVIRONMENT"
"""Names in the calls themselves, to be replaced by those of a world: calls that are the same in two
worlds are evaluated once.
"""
_CALLS_REMEMBERED: Final = 256
"""Calls whose evaluation is kept: more than a world of a short drill has. Until their trouble
begins, worlds have the same calls.
"""
_CONTROL: Final = frozenset({"call_started", "call_ended", "user_text_updated", "turn_details"})
_ALL_EDGES: Final = "callgauge_turn_response_latency_seconds"
"""The histogram of which rules take a quantile; of others they read single edges."""


Seen = Callable[[str, Mapping[str, str], int, float], None]
"""Takes the metric, labels, time in ms and increment of one sample."""
Increments = list[tuple[str, int, float]]
"""Series, time in ms, and by how much it grows then."""


@dataclass(frozen=True, slots=True)
class World:
    """Traffic of one environment.

    Attributes:
        environment: Its name, by which its alerts are known.
        lines: Calls at a time.
        minutes: How long calls begin.
        incidents: Troubles, from a time in ms since the epoch.
        agents: Whom callers reach.
        tenants: Each has as many lines.
        troubled_tenant: The only tenant that the incidents concern; None for all.
        usual: The profile without trouble.
        seed: Decides the calls.
        bot_announces: Whether the bot sends the events that begin and end a call, and not the
            framework with its audit log.
    """

    environment: str
    lines: int
    minutes: int
    incidents: Sequence[Incident] = ()
    agents: Sequence[str] = AGENTS
    tenants: Sequence[str] = ("t",)
    troubled_tenant: str | None = None
    usual: Profile = HEALTHY
    seed: int = 7
    bot_announces: bool = False

    def calls(self) -> Iterator[tuple[str, PlayedCall]]:
        """Yields all calls that begin in its time, each with its tenant. The calls themselves name
        neither tenant nor environment.
        """
        for number, tenant in enumerate(self.tenants):
            incidents = self.incidents if self.troubled_tenant in (None, tenant) else ()
            for played in simulated_traffic(
                self.seed + number,
                concurrent_calls=self.lines,
                start_ms=START_MS,
                tenant=_TENANT,
                environment=_ENVIRONMENT,
                profile_of=with_incidents(self.usual, incidents),
                agents=self.agents,
            ):
                if played.start_offset_ms >= self.minutes * 60_000:
                    break
                is_moved = self.bot_announces
                yield (
                    tenant,
                    replace(played, events=tuple(map(_from_the_bot, played.events)))
                    if is_moved
                    else played,
                )


def _from_the_bot(event: WireEvent) -> WireEvent:
    return replace(event, source="pipecat") if event.event_name in _CONTROL else event


def minute(number: float) -> int:
    """The time of a minute of the drill, in epoch ms."""
    return START_MS + round(number * 60_000)


@cache
def _asked() -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    """Metrics that any rule reads, and the edges of histograms."""
    text = RULES.read_text(encoding="utf-8")
    names = {
        re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\bcallgauge_\w+", text)
    }
    edges = re.findall(r'(callgauge_\w+)_bucket\{le="([\d.]+)"', text)
    return frozenset(names | set(re.findall(r"\bcallgauge_\w+", text))), frozenset(edges)


@cache
def _goals() -> GoalIndex:
    sets: list[GoalSet] = []
    for path in sorted(SIMULATED_GOALS.glob("*.yaml")):
        sets += (placed.goals for placed in read_goal_file(path).sets)
    return GoalIndex(sets)


class _DemoGoals:
    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        return _goals().of_agent(agent) if agent is not None else None


def rows_of(played: PlayedCall, seen: Seen) -> Iterator[Row]:
    """Yields the engine's rows of one call, in order, and counts the events that it reads."""
    engine = PartitionEvaluator(Limits(), "drill", ChosenGoals(_DemoGoals()))
    for arrival in arrivals_of(played.conversation_id, played.events, []):
        if arrival is None:
            continue
        while (due_ms := engine.next_wakeup()) is not None and due_ms <= arrival.broker_time_ms:
            yield from _rows_in(engine.advance(due_ms))
        yield from _rows_in(engine.receive(arrival))
        seen(
            "callgauge_events_total",
            {"source": arrival.source.value, "outcome": "folded"},
            arrival.broker_time_ms,
            1,
        )
    while (due_ms := engine.next_wakeup()) is not None:
        yield from _rows_in(engine.advance(due_ms))


def _rows_in(effects: Iterable[Effect]) -> Iterator[Row]:
    return (effect.row for effect in effects if isinstance(effect, PublishRow))


@lru_cache(_CALLS_REMEMBERED)
def _increments(played: PlayedCall) -> Increments:
    """Returns the samples of one call: series, millisecond and amount."""
    found: Increments = []

    def seen(metric: str, labels: Mapping[str, str], at_ms: int, by: float) -> None:
        found.append((series_name(metric, labels), at_ms, by))

    _count(rows_of(played, seen), seen)
    return found


def _count(rows: Iterable[Row], seen: Seen) -> None:
    asked, edges = _asked()
    is_running = is_over = False
    for row in rows:
        if isinstance(row, GoalsRow):
            continue
        at_ms = row.known_ms
        for sample in project(row, at_ms, is_over=is_over):
            if sample.metric not in asked:
                continue
            metric = metric_named(sample.metric)
            labels = dict(zip(map(str, metric.labels), map(str, sample.labels), strict=True))
            if isinstance(sample, Counted):
                seen(sample.metric, labels, at_ms, sample.by)
                continue
            seen(f"{sample.metric}_count", labels, at_ms, 1)
            for edge, text in zip((*metric.edges, float("inf")), metric.le_values, strict=True):
                if (sample.metric, text) in edges or sample.metric == _ALL_EDGES:
                    seen(
                        f"{sample.metric}_bucket",
                        {**labels, "le": text},
                        at_ms,
                        sample.value <= edge,
                    )
        who = {
            "agent": row.labels.agent,
            "tenant": row.labels.tenant,
            "environment": row.labels.environment,
        }
        if not is_running and row.labels.agent != "unknown":
            is_running = True
            seen("callgauge_calls_active", who, at_ms, 1)
        if isinstance(row, CallRow):
            is_over = row.state == "over"
            if is_running and row.state == "closed":
                seen("callgauge_calls_active", who, at_ms, -1)


def scraped(worlds: Sequence[World], minutes: int, *, processes: int = 1) -> Series:
    """Runs the calls of all worlds, and returns Prometheus' scrapes of this time.

    Args:
        worlds: Those of one environment have different agents, tenants or seeds.
        minutes: How long is scraped.
        processes: How many work beside each other, each on a world of its own.
    """
    series = Series(START_MS, minutes)
    series.add(series_name("callgauge_build_info", {"version": "drill"}), START_MS, 1)
    series.add(series_name("callgauge_sequencer_term", {}), START_MS, 1)
    series.add(series_name("callgauge_calls_open", {}), START_MS, 1)
    for each in results_in_order(worlds, partial(_scraped, minutes=minutes), processes):
        series.merge(each)
    return series


def _scraped(world: World, minutes: int) -> Series:
    series = Series(START_MS, minutes)
    for tenant, played in world.calls():
        for name, at_ms, by in _increments(played):
            series.add(
                name.replace(_TENANT, tenant).replace(_ENVIRONMENT, world.environment), at_ms, by
            )
    return series


def alerts_of(
    series: Series,
    minutes: int,
    every: int,
    work: Path,
    program: Path | None = None,
    only: str = "",
) -> list[Firing]:
    """Returns the firing alerts at every so many minutes, without the watchdog, which always fires,
    and those that need days; or `only` one of them, which takes a fraction of the time.
    """
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    left_out = "Watchdog" if minutes > _DAY else "Watchdog|BurnRate"
    names = {
        rule["alert"] for group in document["groups"] for rule in group["rules"] if "alert" in rule
    }
    alerts = [only] if only else sorted(name for name in names if not re.search(left_out, name))
    rules = work / "rules.yml"
    rules.write_text(yaml.safe_dump(rules_for(document, alerts)), encoding="utf-8")
    times = range(0, minutes * 60 + 1, every * 60)
    return firings(
        rules,
        series.notation(),
        interval=SCRAPE_SECONDS,
        every=30,
        alerts=alerts,
        times=times,
        work=work,
        program=program,
    )
