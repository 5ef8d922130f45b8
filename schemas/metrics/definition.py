"""The form of the rows of the metric catalogue: metrics and their labels, with the bounds of label
values.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from schemas.closed_sets import REDACTION_TYPES, RoleName

MetricType = Literal["counter", "gauge", "histogram"]
Role = Literal[RoleName, "every"]
"""The exposer of a metric: a role, or every process with any roles."""

PREFIX: Final = "callgauge_"
OVERFLOW_VALUE: Final = "other"
"""Label value that replaces all values after the label's cap was reached."""


@dataclass(frozen=True, slots=True)
class Label:
    """One label as one metric uses it. Its values are bounded in exactly one of three ways.

    Attributes:
        name: The label's name.
        meaning: Meaning of a value, one phrase.
        values: The closed set of values, empty if the set is not known beforehand.
        cap: For values that arrive in events: how many distinct ones keep their name; later ones
            are `OVERFLOW_VALUE`.
        yields: Whether it gives way to other labels: once half of the page is full, new
            combinations have `OVERFLOW_VALUE` for it.

    A label with neither takes its values from the deployment (partitions, consumer groups), never
    from an event.
    """

    name: str
    meaning: str
    values: tuple[str, ...] = ()
    cap: int | None = None
    yields: bool = False


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its meaning, unit, labels and role.

    Attributes:
        name: The full name, as on `/metrics` (a histogram's without its suffixes).
        type: Counter, gauge or histogram.
        unit: Unit of the value.
        help: A full sentence; for a duration or an event, from when to when or at which moment.
        role: The role whose `/metrics` shows it; `every` if each does.
        label_set: Its labels, in the order in which children are addressed.
        edges: Upper edges of a histogram's buckets in its unit, ascending, without infinity; empty
            otherwise.
    """

    name: str
    type: MetricType
    unit: str
    help: str
    role: Role
    label_set: tuple[Label, ...] = ()
    edges: tuple[float, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names, in the order in which children are addressed."""
        return tuple(label.name for label in self.label_set)

    @property
    def series(self) -> Mapping[str, frozenset[str]]:
        """The names rules and panels may select, each with the labels that its samples carry."""
        names = frozenset[str](self.labels)
        if self.type != "histogram":
            return {self.name: names}
        return {
            f"{self.name}_bucket": names | {"le"},
            f"{self.name}_count": names,
            f"{self.name}_sum": names,
        }

    @property
    def le_values(self) -> tuple[str, ...]:
        """The texts that `le` takes on `/metrics`: one per edge, always with a decimal point, then
        `+Inf`.
        """
        return (*(str(float(edge)) for edge in self.edges), "+Inf") if self.edges else ()

    @property
    def series_of_child(self) -> int:
        """How many series one label combination has: of a histogram its edges, infinity, the count
        and the sum.
        """
        return len(self.edges) + 3 if self.type == "histogram" else 1

    @property
    def least_children(self) -> int:
        """How many label combinations there can be if every capped label is `other`; labels of the
        deployment count as one.
        """
        return math.prod(len(label.values) or 1 for label in self.label_set)


@dataclass(frozen=True, slots=True)
class MetricsOf:
    """Declares the metrics of one role. Each declaration is called with the metric's help."""

    role: Role

    def counter(self, name: str, unit: str, *labels: Label) -> Callable[[str], Metric]:
        """Declares how often something happened."""
        return lambda meaning: Metric(name, "counter", unit, meaning, self.role, labels)

    def gauge(self, name: str, unit: str, *labels: Label) -> Callable[[str], Metric]:
        """Declares how much of something there is now."""
        return lambda meaning: Metric(name, "gauge", unit, meaning, self.role, labels)

    def histogram(
        self, name: str, unit: str, edges: tuple[float, ...], *labels: Label
    ) -> Callable[[str], Metric]:
        """Declares how often a value fell between two edges."""
        return lambda meaning: Metric(name, "histogram", unit, meaning, self.role, labels, edges)


def words_of(
    words: type[StrEnum], *, only: Collection[StrEnum] | None = None, without: StrEnum | None = None
) -> tuple[str, ...]:
    """Returns the label values of a closed set: all of its words, or a part of them, in
    its order.
    """
    return tuple(
        word.value for word in words if word is not without and (only is None or word in only)
    )


TENANT: Final = Label("tenant", "whose call it is", cap=20)
SCORE_KIND: Final = Label("kind", "what the row is of", ("turn", "call", "goals"))
REDACTION_TYPE: Final = Label("type", "kind of the replaced text", REDACTION_TYPES)
