"""The columns of the tables: a row of a turn, or of a call, as flat values.

They follow from the structs of `schemas/rows.py`, so a field is declared there alone. SQLite,
ClickHouse, CSV, Parquet and the functions for notebooks have the same names: a field of a field
stands behind a dot. Unknown is None, never 0.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import getdoc
from types import UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct, structs

from schemas.closed_sets import EvaMetricName
from schemas.rows import CallRow, NotApplicable, OwnRow, SubgoalResult, TurnRow, Unscored
from schemas.scores.latency_stages import Stage

Flat = str | int | float | None
"""What a column has."""
Kind = Literal["text", "integer", "real"]
Shape = Literal[
    "text",
    "integer",
    "real",
    "flag",
    "value",
    "reason",
    "names",
    "numbers",
    "many",
    "stage",
    "results",
    "json",
]
"""How a column is made from its field.

- `text`, `integer`, `real`: as it is; `flag`: 1 or 0
- `value`, `reason`: the number, and why there is none
- `names`, `numbers`: a list of them, with commas between; None for an empty one
- `many`: how many parts a list has; the parts are in the row itself
- `stage`: the latency of this stage
- `results`: the result of each part of a list, with commas between: 1, 0, or ? where it is not
  known; None for an empty one
- `json`: JSON, of a table whose keys are free; None for an empty one
"""

_KINDS: Final[Mapping[Shape, Kind]] = {
    "integer": "integer",
    "flag": "integer",
    "many": "integer",
    "real": "real",
    "value": "real",
    "stage": "real",
}
_NO_VALUE: Final = (Unscored, NotApplicable)
_MEANINGS: Final = re.compile(r"^    (\w+): (.*(?:\n {6,}.*)*)", re.MULTILINE)


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        path: Names of the fields that lead to it.
        shape: How it is made from the last of them.
        default: What is there where the field is not on the wire; None for nothing.
        known_with: How many of the first fields must be there for that.
        meaning: One phrase for people.
    """

    path: tuple[str, ...]
    shape: Shape
    default: Flat
    known_with: int
    meaning: str

    @property
    def name(self) -> str:
        """Its name: the fields with dots between."""
        return ".".join((*self.path, "reason") if self.shape == "reason" else self.path)

    @property
    def kind(self) -> Kind:
        """What its values are."""
        return _KINDS.get(self.shape, "text")

    @property
    def unit(self) -> str:
        """The unit of its values; empty for none, or if it is the same as the kind."""
        if self.kind == "text":
            return ""
        if self.shape == "stage":
            return "ms"
        for ending, unit in (("_ms", "ms"), ("_dollars", "US dollars"), ("_minute", "1/min")):
            if self.path[-1].endswith(ending):
                return unit
        return ""

    def of(self, row: Any) -> Flat:
        """Its value in a row."""
        found = row
        for name in self.path[:-1] if self.shape in {"stage", "results"} else self.path:
            if found is None:
                return None
            found = found.get(name) if isinstance(found, dict) else getattr(found, name)
        if found is None:
            return None
        return _FLAT[self.shape](found) if self.shape != "stage" else _latency(found, self.path[-1])


def _latency(stages: Sequence[Any], stage: str) -> float | None:
    return next((each.latency_ms for each in stages if each.stage == stage), None)


def _reason(found: Any) -> str | None:
    return str(found.reason) if isinstance(found, _NO_VALUE) else None


def _listed(found: Sequence[Any]) -> str | None:
    return ", ".join(map(str, found)) or None


def _written(found: Mapping[Any, Any]) -> str | None:
    """JSON as ClickHouse writes it: a number without a fraction has no point."""
    short = {
        name: int(each) if isinstance(each, float) and each.is_integer() else each
        for name, each in found.items()
    }
    return msgspec.json.encode(short).decode() if short else None


_FLAT: Final[Mapping[Shape, Callable[[Any], Flat]]] = {
    "text": str,
    "integer": int,
    "real": float,
    "flag": int,
    "value": lambda found: None if isinstance(found, _NO_VALUE) else float(found),
    "reason": _reason,
    "names": _listed,
    "numbers": _listed,
    "many": len,
    "results": lambda found: _listed(
        ["?" if isinstance(each.result, _NO_VALUE) else f"{each.result:g}" for each in found]
    ),
    "json": _written,
}


def _columns(of: type[Struct], path: tuple[str, ...] = (), known_with: int = 0) -> Iterator[Column]:
    """The columns of a struct that stands at this place of a row."""
    hints, meanings = get_type_hints(of), meanings_of(of)
    for field in structs.fields(of):
        is_free = field.default is None
        default = (
            None
            if field.default is NODEFAULT or not isinstance(field.default, int | float | str)
            else field.default
        )
        place, meaning = (*path, field.name), meanings[field.name]
        yield from _of_hint(
            hints[field.name], place, default, len(place) if is_free else known_with, meaning
        )


def _of_hint(
    hint: Any, place: tuple[str, ...], default: Flat, known_with: int, meaning: str
) -> Iterator[Column]:
    options = (
        [each for each in get_args(hint) if each is not type(None)] if _is_union(hint) else [hint]
    )
    (first, *others) = options
    if others:
        yield Column(place, "value", default, known_with, meaning)
        yield Column(place, "reason", None, known_with, f"why `{place[-1]}` has no value")
    elif get_origin(first) is dict:
        key, of = get_args(first)
        yield from _of_table(key, of, place, known_with, meaning)
    elif get_origin(first) is tuple:
        yield from _of_list(get_args(first)[0], place, known_with, meaning)
    elif isinstance(first, type) and issubclass(first, Struct):
        yield from _columns(first, place, known_with)
    else:
        yield Column(place, _plain(first), default, known_with, meaning)


def _of_table(
    key: Any, of: Any, place: tuple[str, ...], known_with: int, meaning: str
) -> Iterator[Column]:
    """The columns of each key, where it is one of few; otherwise one column of JSON."""
    if not (isinstance(of, type) and issubclass(of, Struct)):
        yield Column(place, "json", None, known_with, meaning)
        return
    for name in get_args(EvaMetricName) if key is str else key:
        yield from _columns(of, (*place, str(name)), len(place) + 1)


def _of_list(of: Any, place: tuple[str, ...], known_with: int, meaning: str) -> Iterator[Column]:
    if place == ("stages",):
        for stage in Stage:
            yield Column((*place, str(stage)), "stage", None, known_with, "latency of this stage")
    elif isinstance(of, type) and issubclass(of, Struct):
        yield Column(place, "many", 0, known_with, f"number of: {meaning}")
        if of is SubgoalResult:
            yield Column(
                (*place, "result"), "results", None, known_with, f"result of each: {meaning}"
            )
    else:
        yield Column(place, "numbers" if of is int else "names", None, known_with, meaning)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in {Union, UnionType}


def _plain(hint: Any) -> Shape:
    if hint is bool:
        return "flag"
    if hint is float:
        return "real"
    return "integer" if hint is int else "text"


def meanings_of(of: type[Struct]) -> dict[str, str]:
    """What the docstring of a struct says of each field.

    >>> meanings_of(Unscored)
    {}
    """
    _, _, attributes = (getdoc(of) or "").partition("Attributes:\n")
    found = _MEANINGS.findall(attributes)
    return {name: " ".join(text.split()).rstrip(".") for name, text in found}


TURN_COLUMNS: Final = tuple(_columns(TurnRow))
"""The columns of a turn."""
CALL_COLUMNS: Final = tuple(_columns(CallRow))
"""The columns of a call."""
OWN_COLUMNS: Final = tuple(_columns(OwnRow))
"""The columns of a value of a measure of one's own."""


def flat(columns: Sequence[Column], row: Any) -> tuple[Flat, ...]:
    """The values of a row."""
    return tuple(column.of(row) for column in columns)
