"""Calls of hours in virtual time: simulator, engine, the exporter's projection, and series as Prometheus would scrape them.

No clock runs: windows and waits of the rules are the real ones, and the same seed gives the same series.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final

import yaml

from consumers.engine.effects import CloseCall, Effect, PublishScore, RecordFact
from consumers.engine.goals.chosen_goals import ChosenGoals
from consumers.engine.limits import Limits
from consumers.engine.partition import PartitionEvaluator
from consumers.exporter.active_calls import CallSoFar
from consumers.exporter.projection import Counted, project
from schemas.goals.goal_set import GoalSet
from schemas.metrics.catalogue import metric_named
from schemas.scores.all_records import AnyScoreRecord, ClosedFact
from streamer.goals.files import read_goal_file
from streamer.goals.index import GoalIndex
from streamer.offline.arrivals import arrivals_of
from streamer.roles.demo import GOALS_FOLDER
from streamer.sources.replay.playback import PlayedCall, WireEvent
from streamer.sources.simulator.incidents import Incident, with_incidents
from streamer.sources.simulator.profile import HEALTHY, Profile
from streamer.sources.simulator.speech import AGENTS
from streamer.sources.simulator.traffic import simulated_traffic
from tests.deploy.firing import Firing, firings, rules_for

START_MS: Final = 1_795_000_000_000
SCRAPE_SECONDS: Final = 30
RULES: Final = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules" / "callgauge.rules.yml"
_DAY: Final = 24 * 60
_CONTROL: Final = frozenset({"call_started", "call_ended", "user_text_updated"})
_ALL_EDGES: Final = "callgauge_turn_response_latency_seconds"
"""The histogram of which rules take a quantile; of others they read single edges."""


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
        bot_announces: Whether the bot sends the events that begin and end a call, and not the framework with its audit log.
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

    def calls(self) -> Iterator[PlayedCall]:
        """All calls that begin in its time."""
        for number, tenant in enumerate(self.tenants):
            incidents = self.incidents if self.troubled_tenant in (None, tenant) else ()
            for played in simulated_traffic(
                self.seed + number, concurrent_calls=self.lines, start_ms=START_MS, tenant=tenant,
                environment=self.environment, profile_of=with_incidents(self.usual, incidents), agents=self.agents,
            ):  # fmt: skip
                if played.start_offset_ms >= self.minutes * 60_000:
                    break
                yield replace(played, events=tuple(map(_from_the_bot, played.events))) if self.bot_announces else played


def _from_the_bot(event: WireEvent) -> WireEvent:
    return replace(event, source="pipecat") if event.event_name in _CONTROL else event


def minute(number: float) -> int:
    """The time of a minute of the drill, in epoch ms."""
    return START_MS + round(number * 60_000)


@dataclass(slots=True)
class Series:
    """Increments of counters by scrape, and gauges."""

    scrapes: int
    _added: defaultdict[str, list[float]] = field(init=False)
    calls: int = 0
    events: int = 0

    def __post_init__(self) -> None:
        self._added = defaultdict(lambda: [0.0] * self.scrapes)

    def add(self, name: str, labels: Mapping[str, str], at_ms: int, by: float) -> None:
        """Adds to a counter, or to the steps of a gauge; 0 makes it appear."""
        place = -(-(at_ms - START_MS) // (SCRAPE_SECONDS * 1000))
        pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
        added = self._added[f"{name}{{{pairs}}}"]
        if 0 <= place < self.scrapes:
            added[place] += by

    def notation(self) -> dict[str, str]:
        """Values in promtool's notation. Every counter is there from the first scrape, as if the process had run before."""
        return {name: " ".join(f"{value:g}" for value in _sums(added)) for name, added in self._added.items()}


def _sums(added: Iterable[float]) -> Iterator[float]:
    total = 0.0
    for each in added:
        total += each
        yield total


@cache
def _asked() -> tuple[frozenset[str], frozenset[str]]:
    """Metrics and edges that any rule reads."""
    text = RULES.read_text(encoding="utf-8")
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\bcallgauge_\w+", text)}
    return frozenset(names | set(re.findall(r"\bcallgauge_\w+", text))), frozenset(re.findall(r'le="([\d.]+)"', text))


@cache
def _goals() -> GoalIndex:
    sets: list[GoalSet] = []
    for path in sorted(GOALS_FOLDER.glob("*.yaml")):
        sets += (placed.goals for placed in read_goal_file(path).sets)
    return GoalIndex(sets)


class _DemoGoals:
    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        return _goals().of_agent(agent) if agent is not None else None


def _records(played: PlayedCall, series: Series) -> Iterator[AnyScoreRecord]:
    """What the engine publishes of one call, in order."""
    engine = PartitionEvaluator(Limits(), "drill", ChosenGoals(_DemoGoals()))
    for arrival in arrivals_of(played.conversation_id, played.events, []):
        series.events += 1
        if arrival is None:
            continue
        while (due_ms := engine.next_wakeup()) is not None and due_ms <= arrival.broker_time_ms:
            yield from _written(engine.advance(due_ms))
        yield from _written(engine.receive(arrival))
        source = {"source": arrival.source.value}
        series.add("callgauge_events_total", {**source, "outcome": "folded"}, arrival.broker_time_ms, 1)
    while (due_ms := engine.next_wakeup()) is not None:
        yield from _written(engine.advance(due_ms))


def _written(effects: Iterable[Effect]) -> Iterator[AnyScoreRecord]:
    for effect in effects:
        match effect:
            case PublishScore(record) | RecordFact(record):
                yield record
            case CloseCall(_, closing):
                yield from closing


def scraped(worlds: Sequence[World], minutes: int) -> Series:
    """Runs the calls of all worlds, and returns what Prometheus scrapes in this time."""
    series = Series(minutes * 60 // SCRAPE_SECONDS + 1)
    series.add("callgauge_build_info", {"version": "drill"}, START_MS, 1)
    series.add("callgauge_calls_open", {}, START_MS, 1)
    for world in worlds:
        for played in world.calls():
            series.calls += 1
            _count(_records(played, series), series)
    return series


def _count(records: Iterable[AnyScoreRecord], series: Series) -> None:
    asked, edges = _asked()
    so_far, is_running = CallSoFar(), False
    for record in records:
        at_ms = record.caused_at_ms
        for sample in project(record, at_ms, so_far):
            if sample.metric not in asked:
                continue
            metric = metric_named(sample.metric)
            labels = dict(zip(map(str, metric.labels), map(str, sample.labels), strict=True))
            if isinstance(sample, Counted):
                series.add(sample.metric, labels, at_ms, sample.by)
                continue
            series.add(f"{sample.metric}_count", labels, at_ms, 1)
            for edge, text in zip((*metric.edges, float("inf")), metric.le_values, strict=True):
                if text in edges or sample.metric == _ALL_EDGES:
                    series.add(f"{sample.metric}_bucket", {**labels, "le": text}, at_ms, sample.value <= edge)
        so_far = so_far.after(record)
        who = {"agent": record.labels.agent, "tenant": record.labels.tenant, "environment": record.labels.environment}
        if not is_running and record.labels.agent != "unknown":
            is_running = True
            series.add("callgauge_calls_active", who, at_ms, 1)
        if is_running and isinstance(record, ClosedFact):
            series.add("callgauge_calls_active", who, at_ms, -1)


def alerts_of(series: Series, minutes: int, every: int, work: Path) -> list[Firing]:
    """Returns what fires at every so many minutes, of all alerts but the watchdog, which always does, and those that need days."""
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    left_out = "Watchdog" if minutes > _DAY else "Watchdog|BurnRate"
    names = {rule["alert"] for group in document["groups"] for rule in group["rules"] if "alert" in rule}
    alerts = sorted(name for name in names if not re.search(left_out, name))
    rules = work / "rules.yml"
    rules.write_text(yaml.safe_dump(rules_for(document, alerts)), encoding="utf-8")
    last_seen = _last_events(series)
    times = range(0, minutes * 60 + 1, every * 60)
    return firings(
        rules, series.notation() | last_seen, interval=SCRAPE_SECONDS, every=30, alerts=alerts, times=times, work=work,
    )  # fmt: skip


def _last_events(series: Series) -> dict[str, str]:
    """When each source was heard last, on promtool's clock, which begins at 0."""
    found = {}
    for name, added in series._added.items():
        if name.startswith("callgauge_events_total"):
            source = re.findall(r'source="(\w+)"', name)[0]
            last, seen = 0, []
            for place, each in enumerate(added):
                last = place * SCRAPE_SECONDS if each else last
                seen.append(str(last))
            found[f'callgauge_source_last_event_timestamp_seconds{{source="{source}"}}'] = " ".join(seen)
    return found
