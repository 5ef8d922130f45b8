"""Measures of one's own: what `@measure` marks, and how such a function is called so that a mistake
in it costs its own value only.

Each call of a function is made in a thread of its own, because no thread can be stopped: after its
time is over its result is ignored. A function of which several calls have not come back is
not called again until one does. So a function that hangs costs `MAX_HANGING` threads, and neither
the others nor the loop wait for it.
"""

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from inspect import Parameter
from statistics import fmean
from typing import Any, Final, Literal, NamedTuple

from consumers.runtime.process import OperatorError
from schemas.rows import CallRow, NotApplicable, OwnRow, TurnRow, Unscored

MAX_HANGING: Final = 2
"""Calls of one function that may be in progress after their time was over; then it is not called
until one comes back.
"""
MAX_LABELS: Final = 20
"""Different labels that one function may give; a further one is no value."""
MAX_LABEL_CHARS: Final = 40
MAX_REASON_CHARS: Final = 200
MAX_NAME_CHARS: Final = 40

_OF_A_TURN: Final = frozenset({"turn", "words"})
_OF_A_CALL: Final = frozenset({"call", "turns", "words", "context"})


class MeasureError(OperatorError):
    """A function cannot be a measure; `str` of it says why, and what to do."""


class NotMeasured(NamedTuple):
    """What a measure gives where there is no value: the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Measure:
    """A function of a turn or of a call.

    Attributes:
        name: Its name, and that of its value.
        of: What it is of.
        wants: Names of its parameters.
        function: It.
    """

    name: str
    of: Literal["turn", "call"]
    wants: frozenset[str]
    function: Callable[..., Any]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls the function, for tests of it."""
        return self.function(*arguments, **named)


def measure(function: Callable[..., Any]) -> Measure:
    """Marks a function as a measure. It says by its parameters what it is of, and what it gets.

    `turn` makes it one of a turn: the row of the turn, and with `words` the row of its words, or
    None. `call` makes it one of a call, at its close: its row, with `turns` the rows of its turns,
    with `words` those of its words by turn, with `context` the `MetricContext`.

    It gives a number, True or False, a label (at most 40 characters, 20 different ones), or
    `NotMeasured("why")`. It may be a coroutine.

    Raises:
        MeasureError: Its name or a parameter is none that can be.

    Example:
        >>> @measure
        ... def is_slow(turn):
        ...     return turn.wait_ms > 2_000
        >>> is_slow.of, is_slow(TurnRow(conversation_id="c", turn=1, wait_ms=2_500.0))
        ('turn', True)
    """
    name = getattr(function, "__name__", "")
    if not (
        name.isascii()
        and name.isidentifier()
        and name == name.lower()
        and len(name) <= MAX_NAME_CHARS
    ):
        raise MeasureError(
            f"A measure has the name {name!r}: expected lower-case letters, digits and "
            f"underscores, {MAX_NAME_CHARS} at most. Rename the function."
        )
    needed = {
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is Parameter.empty
    }
    for of, row, known in (("turn", "turn", _OF_A_TURN), ("call", "call", _OF_A_CALL)):
        if row in needed and needed <= known:
            return Measure(name, "turn" if of == "turn" else "call", frozenset(needed), function)
    raise MeasureError(
        f"The measure {name} has the parameters ({', '.join(sorted(needed))}): expected turn, or "
        "turn and words, for one of a turn; call, and any of turns, words and context, for one of "
        "a call. Change its parameters."
    )


class MeasureOutcome(NamedTuple):
    """The result of one call of a function: a value, a label, or a reason.

    Attributes:
        value: A number.
        label: A label.
        reason: Why there is neither.
        cause: To what that is due: the function gave a reason; it made a mistake, as it raised, took
            too long, or gave what is no value; more calls run than are measured.
    """

    value: float | None = None
    label: str | None = None
    reason: str | None = None
    cause: Literal["reason", "mistake", "limit"] = "reason"


def _mistake(reason: str) -> MeasureOutcome:
    return MeasureOutcome(reason=reason[:MAX_REASON_CHARS], cause="mistake")


def _called(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """What a function gives; a coroutine runs in a loop of this thread."""
    result = function(**given)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> Any:
    return await result


def begun_beside(
    name: str, function: Callable[..., Any], given: Mapping[str, Any]
) -> "Future[Any]":
    """Calls a function in a thread of that name, which does not keep the process from ending."""
    promise: Future[Any] = Future()
    promise.set_running_or_notify_cancel()  # from here on it cannot be cancelled
    threading.Thread(target=_work, args=(function, given, promise), name=name, daemon=True).start()
    return promise


def _work(function: Callable[..., Any], given: Mapping[str, Any], promise: "Future[Any]") -> None:
    try:
        result = _called(function, given)
    # whatever it is, only the value is missing
    except (Exception, SystemExit) as error:  # noqa: BLE001
        promise.set_exception(error)
    else:
        promise.set_result(result)


@dataclass(slots=True)
class Calls:
    """The calls of one measure.

    Attributes:
        measure: It.
        seconds: How long one call may take.
    """

    measure: Measure
    seconds: float
    _hanging: list["Future[Any]"] = field(default_factory=list)
    _labels: set[str] = field(default_factory=set)

    @property
    def hangs(self) -> bool:
        """Whether so many calls have not come back that it is not called."""
        self._hanging = [each for each in self._hanging if not each.done()]
        return len(self._hanging) >= MAX_HANGING

    def begin(self, given: Mapping[str, Any]) -> "Future[Any]":
        """Calls it in a thread of its own. The thread does not keep the process from ending."""
        wanted = {name: given[name] for name in self.measure.wants}
        return begun_beside(f"measure {self.measure.name}", self.measure.function, wanted)

    def call(self, given: Mapping[str, Any]) -> MeasureOutcome:
        """Calls it, and waits for its value as long as it may take."""
        if self.hangs:
            return self.hanging()
        promise = self.begin(given)
        wait([promise], self.seconds)
        return self.outcome(promise)

    async def call_beside(self, given: Mapping[str, Any]) -> MeasureOutcome:
        """The same in a loop, which goes on meanwhile."""
        if self.hangs:
            return self.hanging()
        promise = self.begin(given)
        waiting = asyncio.wrap_future(promise)
        # what it raised is in the row
        waiting.add_done_callback(lambda each: each.cancelled() or each.exception())
        await asyncio.wait([waiting], timeout=self.seconds)
        return self.outcome(promise)

    def hanging(self) -> MeasureOutcome:
        """Stands for a call that is not made."""
        return _mistake(
            f"not called: {MAX_HANGING} calls of it have not come back after {self.seconds:g} s "
            "each"
        )

    def outcome(self, promise: "Future[Any]") -> MeasureOutcome:
        """What came of a call that has had its time."""
        if not promise.done():
            self._hanging.append(promise)
            return _mistake(f"it took more than {self.seconds:g} s")
        if (error := promise.exception()) is not None:
            return _mistake(f"it raised {type(error).__name__}: {error}")
        return self._checked(promise.result())

    def _checked(self, result: Any) -> MeasureOutcome:
        match result:
            case Unscored(reason=unknown):
                return MeasureOutcome(reason=unknown.value)
            case NotMeasured(reason=reason) | NotApplicable(reason=reason):
                return MeasureOutcome(reason=(str(reason) or "not measured")[:MAX_REASON_CHARS])
            case bool() | int() | float():
                try:
                    value = float(result)
                except OverflowError:
                    value = math.inf
                return (
                    MeasureOutcome(value)
                    if math.isfinite(value)
                    else _mistake(f"it gave {value}, which is no number")
                )
            case str():
                return self._label(result.strip())
        return _mistake(
            f"it gave {type(result).__name__}: expected a number, a text as a label, or NotMeasured"
        )

    def _label(self, label: str) -> MeasureOutcome:
        if not 0 < len(label) <= MAX_LABEL_CHARS or not label.isprintable():
            return _mistake(
                f"it gave a label of {len(label)} characters: expected 1 to {MAX_LABEL_CHARS} in "
                "one line"
            )
        if label not in self._labels and len(self._labels) >= MAX_LABELS:
            return _mistake(f"it gave more than {MAX_LABELS} different labels")
        self._labels.add(label)
        return MeasureOutcome(label=label)


def own_row(measured: Measure, row: TurnRow | CallRow, outcome: MeasureOutcome) -> OwnRow:
    """The row of a value. It has the revision of the row that it was computed from."""
    return OwnRow(
        conversation_id=row.conversation_id,
        measure=measured.name,
        turn=row.turn if isinstance(row, TurnRow) else None,
        revision=row.revision,
        known_ms=row.known_ms,
        labels=row.labels,
        value=outcome.value,
        label=outcome.label,
        reason=outcome.reason,
    )


def given_to(
    measured: Measure,
    call: CallRow | None,
    turns: Sequence[TurnRow],
    words: Mapping[int, Any],
    context: Callable[[], Any] | None,
) -> Iterator[tuple[TurnRow | CallRow, dict[str, Any]]]:
    """The rows of a call for which a measure is called, each with what it gets. A context is made
    only if it is wanted.
    """
    if measured.of == "turn":
        for turn in turns:
            yield turn, {"turn": turn, "words": words.get(turn.turn)}
    elif call is not None and call.state == "closed":
        given = {"call": call, "turns": tuple(turns), "words": dict(words)}
        yield (
            call,
            given
            | (
                {"context": context()}
                if context is not None and "context" in measured.wants
                else {}
            ),
        )


def mean_values(rows: Iterable[OwnRow]) -> dict[str, float]:
    """By measure that gave numbers, the mean of them in the rows of one call."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.value is not None:
            values.setdefault(row.measure, []).append(row.value)
    return {name: fmean(each) for name, each in values.items()}
