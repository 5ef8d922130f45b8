"""The instruments of the roles in one process, built from the metric catalogue into one registry.

Counters and histograms change when something happens; gauges are read at each scrape. This module does not know what it
counts: names, labels, caps and edges are rows of the catalogue.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, product
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from consumers.runtime.settings import MAX_SERIES
from schemas.metrics.catalogue import metrics_of
from schemas.metrics.definition import OVERFLOW_VALUE, Label, Metric, Role

LabelValues = tuple[str, ...]
GaugeReader = Callable[[], Mapping[LabelValues, float]]
Child = TypeVar("Child", Counter, Histogram)

OVERFLOW_METRIC: Final = "callgauge_label_overflow_total"

FOLDED_METRIC: Final = "callgauge_series_folded_total"

MAX_PREPARED: Final = 100
"""Most combinations that are created at 0 beforehand, so that `increase()` sees the first event."""


class Vocabulary:
    """Values of capped labels that keep their name: the first ones seen, the same in every metric."""

    def __init__(self, on_new: Callable[[Label, str], None], on_overflow: Callable[[str], None]) -> None:
        self._known: dict[str, set[str]] = defaultdict(set)
        self._on_new = on_new
        self._on_overflow = on_overflow

    def admit(self, label: Label, value: str, *, counts: bool = True) -> str:
        """Returns the value itself, or `other` when the label's cap is reached.

        Args:
            label: The label.
            value: The value from an event.
            counts: Whether a value beyond the cap counts as overflow. Reading a gauge does not.
        """
        if label.cap is None:
            return value
        value = value.replace("\x00", "\ufffd")  # one NUL, and Prometheus refuses the whole page
        known = self._known[label.name]
        if value in known:
            return value
        if value == OVERFLOW_VALUE or len(known) >= label.cap:
            if counts:
                self._on_overflow(label.name)
            return OVERFLOW_VALUE
        known.add(value)
        self._on_new(label, value)
        return value


class SeriesBudget:
    """Series that the page may still get. Those under `other` are set aside at the start, so that they always find room."""

    def __init__(self, most: int, on_folded: Callable[[], None]) -> None:
        self.left = most
        self._on_folded = on_folded

    def set_aside(self, metric: Metric) -> None:
        """Takes the series that the metric has in any case: all combinations of its closed labels, capped ones at `other`."""
        self.left -= metric.series_of_child * metric.least_children

    def take(self, series: int, *, counts: bool = True) -> bool:
        """Takes series if there are as many; otherwise their values count as folded, if the caller `counts`."""
        if series <= self.left:
            self.left -= series
            return True
        if counts:
            self._on_folded()
        return False


class Family(Generic[Child]):
    """The children of one counter or histogram by label values, so that a look-up is one read of a dictionary."""

    def __init__(self, metric: Metric, parent: Child, vocabulary: Vocabulary, budget: SeriesBudget) -> None:
        self.metric = metric
        self._parent: Child = parent
        self._vocabulary = vocabulary
        self._budget = budget
        self._children: dict[LabelValues, Child] = {}
        self._series = metric.series_of_child
        self._capped = [index for index, label in enumerate(metric.label_set) if label.cap is not None]
        if not self._capped and all(label.values for label in metric.label_set):
            self.prepare({})

    def child(self, values: LabelValues) -> Child:
        """Returns the child of these label values.

        Raises:
            ValueError: A value is outside its label's closed set, or there are too many or too few.
        """
        known = self._children.get(values)
        return known if known is not None else self._resolve(values)

    def prepare(self, given: Mapping[str, str]) -> None:
        """Creates every combination of the closed labels with the given values, if no other labels are left and they are few."""
        choices = [(given[label.name],) if label.name in given else label.values for label in self.metric.label_set]
        combinations = list(product(*choices))
        if all(choices) and len(combinations) <= MAX_PREPARED:
            for values in combinations:
                if self._has_room(values, counts=False):
                    self._make(values)

    def _resolve(self, values: LabelValues) -> Child:
        labels = self.metric.label_set
        if len(values) != len(labels):
            raise ValueError(f"{self.metric.name} has the labels {self.metric.labels}, not {len(values)} values")
        resolved = []
        for label, value in zip(labels, values, strict=True):
            if label.values and value not in label.values:
                raise ValueError(f"{self.metric.name}: {label.name} is one of {label.values}, not {value!r}")
            resolved.append(self._vocabulary.admit(label, value))
        if not self._has_room(tuple(resolved), counts=True):
            for index in self._capped:
                resolved[index] = OVERFLOW_VALUE
        known = self._children.get(tuple(resolved))
        if known is not None:
            return known
        if isinstance(self._parent, Counter):
            self.prepare({labels[index].name: resolved[index] for index in self._capped})
        return self._make(tuple(resolved))

    def _has_room(self, values: LabelValues, *, counts: bool) -> bool:
        """Returns whether there is room for this combination, and takes it if it is new. A reserved combination takes none."""
        return (
            values in self._children
            or all(values[index] == OVERFLOW_VALUE for index in self._capped)
            or self._budget.take(self._series, counts=counts)
        )

    def _make(self, values: LabelValues) -> Child:
        known = self._children.get(values)
        if known is None:
            known = self._parent.labels(*values) if values else self._parent
            self._children[values] = known
        return known


class _Gauges(Collector):
    """Gauges as last read. Each reading replaces the one before as a whole, so vanished values leave the page."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)
        self.readings: dict[str, Mapping[LabelValues, float]] = {}

    def describe(self) -> Iterator[GaugeMetricFamily]:
        for metric in self._metrics:
            yield GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for metric in self._metrics:
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for values, reading in self.readings.get(metric.name, {}).items():
                family.add_metric(values, reading)
            yield family


class Instruments:
    """All metrics of some roles, ready to use. Only this class bounds label values."""

    def __init__(self, registry: CollectorRegistry, roles: Collection[Role], max_series: int = MAX_SERIES) -> None:
        """Registers the metrics.

        Args:
            registry: The content of `/metrics`; not the default one of the process, so that tests can have their own.
            roles: The roles that run in this process. Metrics of every process are always included.
            max_series: Most series. Beyond it, names that arrive in events become `other`. Values of closed sets and of the
                deployment (partitions, topics) are always there.
        """
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's function has no hints; saves a series per child
        self.registry = registry
        self._vocabulary = Vocabulary(self._prepare_for, self._count_overflow)
        self._budget = SeriesBudget(max_series, self._count_folded)
        self._shown: defaultdict[str, set[LabelValues]] = defaultdict(set)  # of gauges, and counted as series
        self._counters: dict[str, Family[Counter]] = {}
        self._histograms: dict[str, Family[Histogram]] = {}
        self._readers: dict[str, GaugeReader] = {}
        self._hooks: defaultdict[Role | None, list[Callable[[], None]]] = defaultdict(list)
        self._registering: Role | None = None
        metrics = dict.fromkeys(metric for role in sorted({*roles, "every"}) for metric in metrics_of(role))
        for metric in metrics:
            self._budget.set_aside(metric)
        for metric in metrics:
            if metric.type == "counter":
                counter = Counter(metric.name, metric.help, metric.labels, registry=registry)
                self._counters[metric.name] = Family(metric, counter, self._vocabulary, self._budget)
            elif metric.type == "histogram":
                histogram = Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.edges)
                self._histograms[metric.name] = Family(metric, histogram, self._vocabulary, self._budget)
        self._gauge_metrics = {metric.name: metric for metric in metrics if metric.type == "gauge"}
        self._gauges = _Gauges(self._gauge_metrics.values())
        registry.register(self._gauges)

    def inc(
        self, name: str, values: LabelValues = (), by: float = 1, exemplar: Mapping[str, str] | None = None
    ) -> None:
        """Adds to a counter.

        Args:
            name: The metric's full name.
            values: Its label values, in the catalogue's order.
            by: The increase, not below 0.
            exemplar: Labels of one counted case; at most 128 characters, names included.

        Raises:
            KeyError: These roles have no counter of that name.
            ValueError: A label value is outside its closed set.
        """
        self._counters[name].child(values).inc(by, dict(exemplar) if exemplar else None)

    def observe(
        self, name: str, values: LabelValues, reading: float, exemplar: Mapping[str, str] | None = None
    ) -> None:
        """Adds one value to a histogram; arguments and errors as in `inc`."""
        self._histograms[name].child(values).observe(reading, dict(exemplar) if exemplar else None)

    def read_gauge(self, name: str, reader: GaugeReader) -> None:
        """Registers a function that returns all values of a gauge, by label values. It runs on the event loop at each scrape.

        Raises:
            KeyError: These roles have no gauge of that name.
            ValueError: It is read already.
        """
        metric = self._gauge_metrics[name]
        if name in self._readers:
            raise ValueError(f"{metric.name} has a reader already")
        self._readers[name] = reader

    def before_scrape(self, hook: Callable[[], None]) -> None:
        """Registers a hook that runs on the event loop before each scrape, for counts that a role has not added yet."""
        self._hooks[self._registering].append(hook)

    @contextmanager
    def registering(self, role: Role) -> Iterator[None]:
        """Opens a context in which a role registers gauges and hooks. They replace its earlier ones, for a restart of the role."""
        for name in [name for name in self._readers if self._gauge_metrics[name].role == role]:
            del self._readers[name]
            self._gauges.readings.pop(name, None)
        self._hooks[role].clear()
        before, self._registering = self._registering, role
        try:
            yield
        finally:
            self._registering = before

    def refresh(self) -> None:
        """Runs the hooks and reads every gauge. It runs on the event loop, so that their sources do not change meanwhile."""
        for hook in chain.from_iterable(self._hooks.values()):
            hook()
        for name, reader in self._readers.items():
            self._gauges.readings[name] = self._bounded(self._gauge_metrics[name], reader())

    def _bounded(self, metric: Metric, readings: Mapping[LabelValues, float]) -> Mapping[LabelValues, float]:
        """Returns the readings under the label values that the vocabulary allows; readings with the same ones are added."""
        if all(label.cap is None for label in metric.label_set):
            return dict(readings)
        shown: dict[LabelValues, float] = defaultdict(float)
        known = self._shown[metric.name]
        for values, reading in readings.items():
            pairs = zip(metric.label_set, values, strict=True)
            names = tuple(self._vocabulary.admit(label, value, counts=False) for label, value in pairs)
            if names not in known:
                if self._budget.take(1, counts=False):
                    known.add(names)
                else:
                    names = _folded(metric, names)
            shown[names] += reading
        return shown

    def _prepare_for(self, label: Label, value: str) -> None:
        for family in self._counters.values():
            if label in family.metric.label_set:
                family.prepare({label.name: value})

    def _count_overflow(self, name: str) -> None:
        self.inc(OVERFLOW_METRIC, (name,))

    def _count_folded(self) -> None:
        self.inc(FOLDED_METRIC)


def _folded(metric: Metric, names: LabelValues) -> LabelValues:
    """Returns the label values with `other` for every capped label."""
    pairs = zip(metric.label_set, names, strict=True)
    return tuple(OVERFLOW_VALUE if label.cap is not None else name for label, name in pairs)
