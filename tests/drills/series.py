"""Series as Prometheus would have scraped them: increments of counters, by the time of their cause."""

from collections.abc import Iterable, Mapping
from itertools import accumulate, groupby
from operator import add
from typing import Final

SCRAPE_SECONDS: Final = 30


class Series:
    """Increments by scrape, from a time on."""

    def __init__(self, begins_ms: int, minutes: int) -> None:
        self._begins_ms = begins_ms
        self._scrapes = minutes * 60 // SCRAPE_SECONDS + 1
        self._added: dict[str, list[float]] = {}

    def add(self, name: str, at_ms: int, by: float) -> None:
        """Adds to a counter, or to the steps of a gauge, from the scrape after `at_ms` on; 0 makes it appear."""
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
        """Returns values in promtool's notation. Every counter is there from the first scrape, as if the process had run before."""
        return {name: _runs(accumulate(added)) for name, added in self._added.items()} | self._last_changes()

    def _last_changes(self) -> dict[str, str]:
        """When each source was heard last, on promtool's clock, which begins at 0."""
        found = {}
        for name, added in self._added.items():
            if name.startswith("callgauge_events_total"):
                source = labels_in(name)["source"]
                times = (place * SCRAPE_SECONDS if by else 0.0 for place, by in enumerate(added))
                named = series_name("callgauge_source_last_event_timestamp_seconds", {"source": source})
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
    """Returns the labels of such a name. Values of simulated traffic have no comma and no quotation mark."""
    pairs = name[name.index("{") + 1 : -1].split(",")
    return {key: value.strip('"') for key, value in (pair.split("=", 1) for pair in pairs if pair)}


def _runs(values: Iterable[float]) -> str:
    """Equal values in a row are one word: a day of series is a tenth as long, and promtool takes longest to read it."""
    words = []
    for value, equal in groupby(values):
        more = sum(1 for _ in equal) - 1
        words.append(f"{value:.12g}+0x{more}" if more else f"{value:.12g}")
    return " ".join(words)
