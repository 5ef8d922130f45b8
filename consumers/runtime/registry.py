"""The instruments of the roles in one process, built from the metric catalogue into one registry.

Counters and histograms change when something happens; gauges are read at each scrape. This module
does not know what it counts: names, labels, caps and edges are rows of the catalogue.

Counting and the page are ours, because the client library takes ten times as long for them; what
else is registered is its own.
"""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, product
from typing import Final, Generic, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Exemplar, GaugeMetricFamily
from prometheus_client.core import Metric as LibraryFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from consumers.runtime.settings import MAX_SERIES
from schemas.metrics.catalogue import metrics_of
from schemas.metrics.definition import OVERFLOW_VALUE, Label, Metric, Role

LabelValues = tuple[str, ...]
GaugeReader = Callable[[], Mapping[LabelValues, float]]
OVERFLOW_METRIC: Final = "callgauge_label_overflow_total"

FOLDED_METRIC: Final = "callgauge_series_folded_total"

MAX_PREPARED: Final = 100
"""Most combinations that are created at 0 beforehand, so that `increase()` sees the first event."""


# The children of counters and histograms: the values of one combination of labels, and their lines
# on the page.


class Example(NamedTuple):
    """One counted case: its labels, its value, and the epoch seconds at which it was counted."""

    labels: Mapping[str, str]
    value: float
    at: float


class Counter:
    """One series of a counter. One thread changes it; another may show it meanwhile."""

    __slots__ = ("_example", "_value", "heads")

    def __init__(self, heads: Sequence[str]) -> None:
        """Starts at 0.

        Args:
            heads: The beginning of each of its lines on the page.
        """
        self.heads = heads
        self._value = 0.0
        self._example: Example | None = None

    def inc(self, by: float, exemplar: Mapping[str, str] | None) -> None:
        """Adds to it.

        Raises:
            ValueError: It would become smaller.
        """
        if by < 0:
            raise ValueError(f"a counter only grows, and cannot by {by}")
        self._value += by
        if exemplar is not None:
            self._example = Example(exemplar, float(by), time.time())

    def shown(self) -> tuple[Sequence[float], Sequence[Example | None]]:
        """Returns the value of each line, and its exemplar."""
        return (self._value,), (self._example,)


class Histogram:
    """All series of one combination of labels of a histogram. One thread changes it; another may
    show it meanwhile.
    """

    __slots__ = ("_counts", "_edges", "_examples", "_sum", "heads")

    def __init__(self, heads: Sequence[str], edges: Sequence[float]) -> None:
        """Starts without a value; `heads` as in `Counter`."""
        self.heads = heads
        self._edges = edges
        self._counts = [0.0] * (len(edges) + 1)
        self._sum = 0.0
        self._examples: list[Example | None] = [None] * len(heads)

    def observe(self, reading: float, exemplar: Mapping[str, str] | None) -> None:
        """Adds one value."""
        place = bisect_left(self._edges, reading)
        self._counts[place] += 1
        self._sum += reading
        if exemplar is not None:
            self._examples[place] = Example(exemplar, float(reading), time.time())

    def shown(self) -> tuple[Sequence[float], Sequence[Example | None]]:
        """Returns the value of each line, and its exemplar: one line for each edge, one for
        infinity, the count and the sum.
        """
        up_to = list(accumulate(self._counts))
        return (*up_to, up_to[-1], self._sum), self._examples


Child = TypeVar("Child", Counter, Histogram)


def _number(value: float) -> str:
    """As Go writes it, from a million on with an exponent."""
    # the library has no hints
    return repr(value) if -1e6 < value < 1e6 else str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    """Returns labels as they are written behind a name, empty if there are none."""
    pairs = (
        '{}="{}"'.format(name, value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"'))
        for name, value in sorted(labels)
    )
    text = ",".join(pairs)
    return f"{{{text}}}" if text else ""


def _begun(metric: Metric, *, is_openmetrics: bool) -> str:
    """Returns the lines before a metric's own: OpenMetrics names a counter without `_total`."""
    name = metric.name.removesuffix("_total") if is_openmetrics else metric.name
    return f"# HELP {name} {metric.help}\n# TYPE {name} {metric.type}\n"


class Vocabulary:
    """Values of capped labels that keep their name: the first ones seen, the same in
    every metric.
    """

    def __init__(self, on_overflow: Callable[[str], None]) -> None:
        self._known: dict[str, set[str]] = defaultdict(set)
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
        return value


class SeriesBudget:
    """Series that the page may still get. Those under `other` are set aside at the start, so that
    they always find room.
    """

    def __init__(self, most: int, on_folded: Callable[[], None]) -> None:
        self.left = most
        self._scarce = most // 2
        self.count_folded = on_folded

    @property
    def is_scarce(self) -> bool:
        """Whether half of the page is full."""
        return self.left < self._scarce

    def set_aside(self, metric: Metric) -> None:
        """Takes the series that the metric has in any case: all combinations of its closed labels,
        capped ones at `other`.
        """
        self.left -= metric.series_of_child * metric.least_children

    def reserve(self, series: int, *, counts: bool = True) -> bool:
        """Takes series if there are as many; otherwise their values count as folded, if the caller
        `counts`.
        """
        if series <= self.left:
            self.left -= series
            return True
        if counts:
            self.count_folded()
        return False


class Family(Generic[Child]):
    """The children of one counter or histogram by label values, so that a look-up is one read of a
    dictionary.
    """

    def __init__(
        self,
        metric: Metric,
        make: Callable[[Sequence[str]], Child],
        vocabulary: Vocabulary,
        budget: SeriesBudget,
        on_new: Callable[[Mapping[str, str]], None],
    ) -> None:
        """Starts without children, but for those whose labels are all known.

        Args:
            metric: What they are of.
            make: Makes a child from the beginnings of its lines.
            vocabulary: Which names keep theirs.
            budget: Room on the page.
            on_new: Told of the capped labels of each new child.
        """
        self.metric = metric
        self._on_new = on_new
        self._make_child: Callable[[Sequence[str]], Child] = make
        self._vocabulary = vocabulary
        self._budget = budget
        self._children: dict[LabelValues, Child] = {}
        self._series = metric.series_of_child
        self._capped = [
            index for index, label in enumerate(metric.label_set) if label.cap is not None
        ]
        self._yielding = [index for index, label in enumerate(metric.label_set) if label.yields]
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
        """Creates every combination of the closed labels with the given values, if no other labels
        are left and they are few.
        """
        choices = [
            (given[label.name],) if label.name in given else label.values
            for label in self.metric.label_set
        ]
        combinations = list(product(*choices))
        if all(choices) and len(combinations) <= MAX_PREPARED:
            for values in combinations:
                self._make(self._placed(values, counts=False))

    def _resolve(self, values: LabelValues) -> Child:
        labels = self.metric.label_set
        if len(values) != len(labels):
            raise ValueError(
                f"{self.metric.name} has the labels {self.metric.labels}, not {len(values)} values"
            )
        resolved = []
        for label, value in zip(labels, values, strict=True):
            if label.values and value not in label.values:
                raise ValueError(
                    f"{self.metric.name}: {label.name} is one of {label.values}, not {value!r}"
                )
            resolved.append(self._vocabulary.admit(label, value))
        placed = self._placed(tuple(resolved), counts=True)
        is_new = placed not in self._children
        child = self._make(placed)
        if is_new:
            self._on_new({labels[index].name: placed[index] for index in self._capped})
        return child

    def _placed(self, values: LabelValues, *, counts: bool) -> LabelValues:
        """Returns the label values under which a combination counts, and takes the room of a new
        one.

        Where half of the page is full, a new one gives up the labels that yield; where there is no
        room, all that are capped. That combination has its room from the start.
        """
        if values in self._children:
            return values
        if self._budget.is_scarce and any(
            values[index] != OVERFLOW_VALUE for index in self._yielding
        ):
            values = self._with_other(values, self._yielding)
            if counts:
                self._budget.count_folded()
        if (
            values in self._children
            or all(values[index] == OVERFLOW_VALUE for index in self._capped)
            or self._budget.reserve(self._series, counts=counts)
        ):
            return values
        return self._with_other(values, self._capped)

    def _with_other(self, values: LabelValues, indices: Sequence[int]) -> LabelValues:
        return tuple(
            OVERFLOW_VALUE if index in indices else value for index, value in enumerate(values)
        )

    def _make(self, values: LabelValues) -> Child:
        known = self._children.get(values)
        if known is None:
            labels = list(zip(self.metric.labels, values, strict=True))
            heads = [name + _labels(chain(labels, le)) + " " for name, le in self._lines()]
            known = self._make_child(heads)
            self._children[values] = known
        return known

    def _lines(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
        """The series of one child, each with its name and the label that only it has, in the order
        of `shown`.
        """
        name = self.metric.name
        if self.metric.type == "counter":
            yield name, ()
        else:
            yield from ((f"{name}_bucket", (("le", edge),)) for edge in self.metric.le_values)
            yield from ((f"{name}_count", ()), (f"{name}_sum", ()))

    def text(self, *, is_openmetrics: bool) -> str:
        """The part of the page about this metric."""
        parts = [_begun(self.metric, is_openmetrics=is_openmetrics)]
        for child in list(self._children.values()):
            values, examples = child.shown()
            if is_openmetrics and any(examples):
                for head, value, each in zip(child.heads, values, examples, strict=True):
                    case = (
                        ""
                        if each is None
                        else f" # {_labels(each.labels.items())} {_number(each.value)} {each.at}"
                    )
                    parts.append(f"{head}{_number(value)}{case}\n")
            else:
                parts += [
                    f"{head}{_number(value)}\n"
                    for head, value in zip(child.heads, values, strict=True)
                ]
        return "".join(parts)

    def counted(self) -> dict[str, int]:
        """The first value of each child that has one, by its label values."""
        values = {
            " ".join(labels): int(child.shown()[0][0])
            for labels, child in list(self._children.items())
        }
        return {labels: value for labels, value in values.items() if value}

    def family(self) -> LibraryFamily:
        """The same for who asks the registry and not for the page."""
        shown = LibraryFamily(
            self.metric.name.removesuffix("_total"), self.metric.help, self.metric.type
        )
        for names, child in list(self._children.items()):
            labels = dict(zip(self.metric.labels, names, strict=True))
            values, examples = child.shown()
            for (name, le), value, each in zip(self._lines(), values, examples, strict=True):
                case = None if each is None else Exemplar(dict(each.labels), each.value, each.at)
                shown.add_sample(name, {**labels, **dict(le)}, value, exemplar=case)
        return shown


class _Gauges:
    """Gauges as last read. Each reading replaces the one before as a whole, so vanished values
    leave the page.
    """

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)
        self.readings: dict[str, Mapping[LabelValues, float]] = {}

    def text(self, *, is_openmetrics: bool) -> str:
        """The part of the page about them."""
        parts = []
        for metric in self._metrics:
            parts.append(_begun(metric, is_openmetrics=is_openmetrics))
            parts += [
                f"{metric.name}{_labels(zip(metric.labels, values, strict=True))} "
                f"{_number(float(reading))}\n"
                for values, reading in self.readings.get(metric.name, {}).items()
            ]
        return "".join(parts)

    def families(self) -> Iterator[LibraryFamily]:
        """The same for who asks the registry and not for the page."""
        for metric in self._metrics:
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for values, reading in self.readings.get(metric.name, {}).items():
                family.add_metric(values, reading)
            yield family


class _Others(Collector):
    """Collects the other collectors of a registry, such as the library's of the process."""

    def __init__(self, registry: CollectorRegistry, but: Collector) -> None:
        self._registry = registry
        self._but = but

    def collect(self) -> Iterator[LibraryFamily]:
        # the library does not expose its collectors
        for collector in list(self._registry._collector_to_names):  # noqa: SLF001
            if collector is not self._but:
                yield from collector.collect()


class Instruments(Collector):
    """All metrics of some roles, ready to use. Only this class bounds label values.

    Attributes:
        registry: The content of `/metrics`.
        not_understood: Each kind of events that this process has not understood, and what to do
            about it. Who adds bounds it.
    """

    def __init__(
        self, registry: CollectorRegistry, roles: Collection[Role], max_series: int = MAX_SERIES
    ) -> None:
        """Registers the metrics.

        Args:
            registry: The content of `/metrics`; not the default one of the process, so that tests
                can have their own.
            roles: The roles that run in this process. Metrics of every process are always included.
            max_series: Most series. Beyond it, names that arrive in events become `other`. Values
                of closed sets and of the deployment (partitions, topics) are always there.
        """
        self.registry = registry
        self.not_understood: dict[str, str] = {}
        self._vocabulary = Vocabulary(self._count_overflow)
        self._budget = SeriesBudget(max_series, self._count_folded)
        self._prepared: set[tuple[tuple[str, str], ...]] = set()
        # of gauges, and counted as series
        self._shown: defaultdict[str, set[LabelValues]] = defaultdict(set)
        self._counters: dict[str, Family[Counter]] = {}
        self._histograms: dict[str, Family[Histogram]] = {}
        self._readers: dict[str, GaugeReader] = {}
        self._hooks: defaultdict[Role | None, list[Callable[[], None]]] = defaultdict(list)
        self._registering: Role | None = None
        metrics = dict.fromkeys(
            metric for role in sorted({*roles, "every"}) for metric in metrics_of(role)
        )
        for metric in metrics:
            self._budget.set_aside(metric)
        for metric in metrics:
            if metric.type == "counter":
                self._counters[metric.name] = Family(
                    metric, Counter, self._vocabulary, self._budget, self._prepare_for
                )
            elif metric.type == "histogram":
                make = partial(Histogram, edges=metric.edges)
                self._histograms[metric.name] = Family(
                    metric, make, self._vocabulary, self._budget, self._prepare_for
                )
        self._gauge_metrics = {metric.name: metric for metric in metrics if metric.type == "gauge"}
        self._gauges = _Gauges(self._gauge_metrics.values())
        self._families = [
            self._counters.get(name) or self._histograms[name]
            for name in (metric.name for metric in metrics if metric.type != "gauge")
        ]
        registry.register(self)

    def describe(self) -> Iterator[LibraryFamily]:
        """For the registry: nothing, so that it compares no names; those of the catalogue are
        distinct.
        """
        yield from ()

    def collect(self) -> Iterator[LibraryFamily]:
        """For who asks the registry: all metrics, with the gauges as last read."""
        yield from (family.family() for family in self._families)
        yield from self._gauges.families()

    def page(self, encode: Callable[[Collector], bytes], *, is_openmetrics: bool) -> bytes:
        """Returns `/metrics`, with the gauges as last read. It may run in another thread than what
        counts.

        Args:
            encode: The library's encoder of the format, for what else is in the registry.
            is_openmetrics: Whether the format is OpenMetrics, which shows exemplars; otherwise
                Prometheus' older one.
        """
        parts = [family.text(is_openmetrics=is_openmetrics) for family in self._families]
        parts.append(self._gauges.text(is_openmetrics=is_openmetrics))
        # which ends OpenMetrics with a line
        return "".join(parts).encode() + encode(_Others(self.registry, self))

    def inc(
        self,
        name: str,
        values: LabelValues = (),
        by: float = 1,
        exemplar: Mapping[str, str] | None = None,
    ) -> None:
        """Adds to a counter.

        Args:
            name: The metric's full name.
            values: Its label values, in the catalogue's order.
            by: The increase, not below 0.
            exemplar: Labels of one counted case, kept as they are; at most 128 characters, names
                included.

        Raises:
            KeyError: These roles have no counter of that name.
            ValueError: A label value is outside its closed set, or the increase is negative.
        """
        self._counters[name].child(values).inc(by, exemplar)

    def counted(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """What has counted by labels, of each of these counters that these roles have."""
        return {name: self._counters[name].counted() for name in names if name in self._counters}

    def read(self, names: Iterable[str]) -> dict[str, dict[str, float]]:
        """What each of these gauges is now by labels, of those that these roles have and read."""
        readers = {name: self._readers[name] for name in names if name in self._readers}
        return {
            name: {" ".join(labels): value for labels, value in read().items()}
            for name, read in readers.items()
        }

    def observe(
        self,
        name: str,
        values: LabelValues,
        reading: float,
        exemplar: Mapping[str, str] | None = None,
    ) -> None:
        """Adds one value to a histogram; arguments and errors as in `inc`."""
        self._histograms[name].child(values).observe(reading, exemplar)

    def read_gauge(self, name: str, reader: GaugeReader) -> None:
        """Registers a function that returns all values of a gauge, by label values. It runs on the
        event loop at each scrape.

        Raises:
            KeyError: These roles have no gauge of that name.
            ValueError: It is read already.
        """
        metric = self._gauge_metrics[name]
        if name in self._readers:
            raise ValueError(f"{metric.name} has a reader already")
        self._readers[name] = reader

    def before_scrape(self, hook: Callable[[], None]) -> None:
        """Registers a hook that runs on the event loop before each scrape, for counts that a role
        has not added yet.
        """
        self._hooks[self._registering].append(hook)

    @contextmanager
    def registering(self, role: Role) -> Iterator[None]:
        """Opens a context in which a role registers gauges and hooks. They replace its earlier
        ones, for a restart of the role.
        """
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
        """Runs the hooks and reads every gauge. It runs on the event loop, so that their sources do
        not change meanwhile.
        """
        for hook in chain.from_iterable(self._hooks.values()):
            hook()
        for name, reader in self._readers.items():
            self._gauges.readings[name] = self._bounded(self._gauge_metrics[name], reader())

    def _bounded(
        self, metric: Metric, readings: Mapping[LabelValues, float]
    ) -> Mapping[LabelValues, float]:
        """Returns the readings under the label values that the vocabulary allows; readings with the
        same ones are added.
        """
        if all(label.cap is None for label in metric.label_set):
            return dict(readings)
        shown: dict[LabelValues, float] = defaultdict(float)
        known = self._shown[metric.name]
        for values, reading in readings.items():
            pairs = zip(metric.label_set, values, strict=True)
            names = tuple(
                self._vocabulary.admit(label, value, counts=False) for label, value in pairs
            )
            if names not in known:
                if self._budget.reserve(1, counts=False):
                    known.add(names)
                else:
                    names = _folded(metric, names)
            shown[names] += reading
        return shown

    def _prepare_for(self, names: Mapping[str, str]) -> None:
        """Creates all counters of who is named for the first time, such as a tenant's of an agent:
        what makes rates is there at 0.
        """
        key = tuple(names.items())
        if names and key not in self._prepared:
            self._prepared.add(key)
            for family in self._counters.values():
                if {
                    label.name for label in family.metric.label_set if label.cap is not None
                } == names.keys():
                    family.prepare(names)

    def _count_overflow(self, name: str) -> None:
        self.inc(OVERFLOW_METRIC, (name,))

    def _count_folded(self) -> None:
        self.inc(FOLDED_METRIC)


def _folded(metric: Metric, names: LabelValues) -> LabelValues:
    """Returns the label values with `other` for every capped label."""
    pairs = zip(metric.label_set, names, strict=True)
    return tuple(OVERFLOW_VALUE if label.cap is not None else name for label, name in pairs)
