"""The measures of one's own on calls that run: keeps the newest rows of each, calls the functions,
and gives rows of `scores.own`.

A turn is measured when the call has left it, and again when its row or its words change. What has
no value by then, and the call itself, is measured when the row comes that closes the call. Values
are counted when their call closes, each once, in the order of those rows. So one place, up to which
all is counted, tells who goes on what is left to do.

Each function has a queue and a worker of its own, so a slow one delays itself. A value that has
waited for too long is given up.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Never

import structlog

from consumers.engine.redaction.redactor import Redactor
from consumers.measures.files import FoundMeasures, MeasureSettings, stamp_of
from consumers.measures.own import (
    MAX_REASON_CHARS,
    Calls,
    Measure,
    MeasureOutcome,
    begun_beside,
    own_row,
)
from consumers.runtime.process import OperatorError, end_tasks
from consumers.runtime.registry import Instruments
from schemas.metric_context import MetricContext
from schemas.rows import CallRow, OwnRow, StoredRow, TurnRow, WordsRow

WATCH_SECONDS: Final = 1.0
"""How often it is looked whether a file has changed."""
LOAD_SECONDS: Final = 30.0
"""How long reading the files may take; then the measures stay as they are until a file changes
again.
"""
MAX_WAIT_SECONDS: Final = 30.0
"""How long a value may wait for its function to be free. Then it is given up, so that calls are
counted and queues are bounded.
"""
_GIVEN_UP: Final = MeasureOutcome(
    reason=(
        f"not called within {MAX_WAIT_SECONDS:.0f} s: the function is too slow for so many calls"
    ),
    cause="mistake",
)
CONTEXT_SECONDS: Final = 20.0
"""How long the events of a call may take to come, for a function that asks for its context."""
MAX_CALLS: Final = 5_000
"""Calls whose turns and words are kept, at some 40 kB for eight turns. A call that is opened beyond
them is left out as a whole: what is computed from a part of its turns would be a wrong value.
"""
MAX_TOLD: Final = 10
"""Kinds of mistakes of one function that are logged."""

ContextOf = Callable[[CallRow], Awaitable[MetricContext]]
"""Makes the context of a call that has closed. It may raise OperatorError, whose text is why there
is none.
"""

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Call:
    """A call that is not counted yet.

    Attributes:
        first: Offset of its first row.
        is_closed: Whether its last row has come.
        waiting: The measures, and turns, whose values are to come.
        values: The values, as rows and as the functions gave them.
    """

    first: int
    row: CallRow | None = None
    turns: dict[int, TurnRow] = field(default_factory=dict)
    is_closed: bool = False
    waiting: set[tuple[str, int | None]] = field(default_factory=set)
    values: dict[tuple[str, int | None], tuple[OwnRow, MeasureOutcome]] = field(
        default_factory=dict
    )


_Key = tuple[_Call, int | None]
"""A call, and one of its turns; None is the call itself."""


class _Function:
    """A measure with what waits for it, and since when."""

    def __init__(self, measured: Measure, seconds: float) -> None:
        self.measure = measured
        self.calls = Calls(measured, seconds)
        self.waiting: OrderedDict[_Key, float] = OrderedDict()
        self.has_more = asyncio.Event()
        self.told: set[str] = set()


class Reached(NamedTuple):
    """How far a partition is done.

    Attributes:
        first: The offset from which on a successor needs rows.
        counted: The offset in front of which every close is counted.
        since_ms: When the oldest call that it needs began, in broker time; None if it needs none.
    """

    first: int
    counted: int
    since_ms: int | None


class _Partition:
    def __init__(self, position: int, counted: int) -> None:
        self.position = position
        self.counted = counted
        self.calls: OrderedDict[str, _Call] = OrderedDict()
        self.closed: deque[tuple[int, _Call]] = deque()

    @property
    def uncounted(self) -> list[_Call]:
        return [*self.calls.values(), *(call for _, call in self.closed)]


class LiveMeasures:
    """Measures the calls whose rows it is given.

    Attributes:
        read: Set once the files have been read.
        changed: Set when there are values to write.
    """

    def __init__(
        self,
        settings: MeasureSettings,
        instruments: Instruments,
        redactor: Redactor,
        context_of: ContextOf,
    ) -> None:
        """Nothing is read before `follow_files`. What functions say as text is redacted."""
        self.read = asyncio.Event()
        self.changed = asyncio.Event()
        self._settings = settings
        self._instruments = instruments
        self._redactor = redactor
        self._context_of = context_of
        self._functions: dict[str, _Function] = {}
        self._partitions: dict[int, _Partition] = {}
        self._words: OrderedDict[str, dict[int, WordsRow]] = OrderedDict()
        self._left_out: set[str] = set()  # until they close, so as many as are open
        self._unwritten: list[OwnRow] = []

    @property
    def wants_words(self) -> bool:
        """Whether a function asks for words."""
        return any("words" in each.measure.wants for each in self._functions.values())

    # The functions: those of the files as they are now.

    async def follow_files(self) -> Never:
        """Reads the files, again whenever one changes, and calls the functions, until it is
        cancelled.
        """
        stamp, workers = None, list[asyncio.Task[None]]()
        try:
            while True:
                if (now := stamp_of(self._settings.folder)) != stamp:
                    stamp = now
                    if (found := await self._found()) is not None:
                        await end_tasks(workers)
                        self._use(found)
                        workers = [
                            asyncio.create_task(self._work(each))
                            for each in self._functions.values()
                        ]
                    self.read.set()
                await asyncio.sleep(WATCH_SECONDS)
        finally:
            await end_tasks(workers)

    async def _found(self) -> FoundMeasures | None:
        # Code of others is run by that: in a thread that keeps neither the loop nor the end of the
        # process waiting.
        reading = asyncio.wrap_future(
            begun_beside("measures", FoundMeasures, {"folder": self._settings.folder})
        )
        reading.add_done_callback(lambda each: each.cancelled() or each.exception())
        await asyncio.wait([reading], timeout=LOAD_SECONDS)
        if reading.done() and (error := reading.exception()) is None:
            found: FoundMeasures = reading.result()
            return found
        problem = (
            f"it raised {error!r}" if reading.done() else f"it takes more than {LOAD_SECONDS:.0f} s"
        )
        log.warning(
            "measures_not_read",
            role="measures",
            problem=f"reading the files: {problem}",
            what_happens_now="The measures stay as they were.",
            what_to_do="Correct the file that does work when it is read.",
        )
        return None

    def _use(self, found: FoundMeasures) -> None:
        for sentence in found.mistakes:
            log.warning("measures_left_out", role="measures", problem=sentence)
        self._functions = {
            name: _Function(each, self._settings.seconds) for name, each in found.measures.items()
        }
        log.info("measures_read", role="measures", measures=list(self._functions))
        # what waited, or was in progress, is asked of the new ones
        for partition in self._partitions.values():
            for call in partition.uncounted:
                asked, call.waiting = call.waiting, set()
                for measured, turn in asked:
                    self._ask(measured, call, turn)
            self._count_closed(partition)

    # The rows.

    def begin(self, partition: int, reached: Reached) -> None:
        """Takes a partition over. Its next rows are those from `first` on."""
        self._partitions[partition] = _Partition(reached.first, reached.counted)

    def end(self) -> None:
        """Gives all partitions up: their calls are forgotten, and what functions still give is no
        value any more.
        """
        for partition in self._partitions.values():
            for call in partition.uncounted:
                call.waiting.clear()
        for of_calls in (self._partitions, self._words, self._left_out):
            of_calls.clear()

    def reached(self, partition: int) -> Reached:
        """How far a partition is done, once the values that there are now are written."""
        of = self._partitions[partition]
        first = min((call.first for call in of.uncounted), default=of.position)
        began = (call.row.first_known_ms for call in of.uncounted if call.row is not None)
        return Reached(first, of.counted, min(began, default=None))

    def values(self) -> list[OwnRow]:
        """The values that came and are not written."""
        self.changed.clear()
        return self._unwritten[:]

    def written(self, values: int) -> None:
        """Notes that so many of them are written, the first ones."""
        del self._unwritten[:values]

    def know(self, partition: int, rows: Iterable[StoredRow]) -> None:
        """Takes the rows of calls that are in front of those that are read."""
        of = self._partitions[partition]
        for row in rows:
            if isinstance(row, WordsRow):
                self.take_words(row)
            else:
                self._keep(of, of.position, row)

    def take_words(self, row: WordsRow) -> None:
        """Takes a row of words. They come in front of the row that says that their turn is left."""
        if row.conversation_id in self._left_out:
            return
        self._words.setdefault(row.conversation_id, {})[row.turn] = row
        self._words.move_to_end(row.conversation_id)
        if len(self._words) > MAX_CALLS:
            self._left_out.add(self._words.popitem(last=False)[0])
        for partition in self._partitions.values():
            if (call := partition.calls.get(row.conversation_id)) is not None:
                self._ask_of_turn(call, row.turn, only_words=True)

    def read_row(self, partition: int, offset: int, row: StoredRow | None) -> None:
        """Takes a record of `scores`, None is one without a row. In front of the place up to which
        all is counted it only shows which calls are open.
        """
        of = self._partitions[partition]
        of.position = offset + 1
        is_new = offset >= of.counted
        call = None if row is None else self._keep(of, offset, row)
        if call is not None and isinstance(row, CallRow) and row.state == "closed":
            del of.calls[row.conversation_id]  # a later call may have the id
            if is_new:
                self._close(of, call, row, offset)
                self._count_closed(of)
            else:
                self._words.pop(row.conversation_id, None)
                self._left_out.discard(row.conversation_id)
            return
        if is_new and not of.closed:
            of.counted = offset + 1
        if is_new and call is not None and isinstance(row, TurnRow):
            self._ask_of_turn(call, row.turn)

    def _keep(self, of: _Partition, offset: int, row: StoredRow) -> _Call:
        if row.conversation_id not in of.calls:
            of.calls[row.conversation_id] = _Call(offset)
            if (
                sum(
                    name not in self._left_out
                    for each in self._partitions.values()
                    for name in each.calls
                )
                > MAX_CALLS
            ):
                self._left_out.add(row.conversation_id)
        call = of.calls[row.conversation_id]
        match row:
            case TurnRow() if row.conversation_id not in self._left_out:
                call.turns[row.turn] = row
            case CallRow():
                call.row = row
        return call

    def _close(self, of: _Partition, call: _Call, row: CallRow, offset: int) -> None:
        call.is_closed = True
        of.closed.append((offset, call))
        for turn in call.turns:
            self._ask_of_turn(call, turn, only_missing=True)
        for function in self._functions.values():
            if function.measure.of == "call" or row.conversation_id in self._left_out:
                self._ask(function.measure.name, call, None)

    def _ask_of_turn(
        self, call: _Call, turn: int, *, only_words: bool = False, only_missing: bool = False
    ) -> None:
        row = call.turns.get(turn)
        if row is None or (row.status == "open" and not call.is_closed):
            return
        for function in self._functions.values():
            measured, key = function.measure, (function.measure.name, turn)
            if measured.of != "turn" or (only_words and "words" not in measured.wants):
                continue
            if row.status == "withdrawn":
                call.values.pop(key, None)
            elif not only_missing or not (key in call.values or key in call.waiting):
                self._ask(measured.name, call, turn)

    def _ask(self, measured: str, call: _Call, turn: int | None) -> None:
        function = self._functions.get(measured)
        if function is not None:
            call.waiting.add((measured, turn))
            function.waiting.setdefault((call, turn), time.monotonic())
            function.has_more.set()

    # The values.

    async def _work(self, function: _Function) -> None:
        while True:
            if not function.waiting:
                function.has_more.clear()
                await function.has_more.wait()
            (call, turn), asked_at = function.waiting.popitem(last=False)
            row = call.row if turn is None else call.turns[turn]
            # its partition begins behind the row of the call, or was given up
            if row is None or not call.waiting:
                continue
            outcome = _GIVEN_UP
            if time.monotonic() - asked_at < MAX_WAIT_SECONDS:
                try:
                    outcome = await self._outcome(function, call, row)
                # whatever it is, as that no thread can begin: it costs this value only
                except Exception as error:  # noqa: BLE001
                    outcome = MeasureOutcome(
                        reason=f"it could not be called: {error!r}"[:MAX_REASON_CHARS],
                        cause="mistake",
                    )
            if call.waiting:
                self._valued(function, call, row, outcome)
            await asyncio.sleep(0)

    async def _outcome(
        self, function: _Function, call: _Call, row: TurnRow | CallRow
    ) -> MeasureOutcome:
        if row.conversation_id in self._left_out:
            return MeasureOutcome(
                reason=(
                    f"left out: it began while {MAX_CALLS:,} calls were measured. Let more "
                    "processes run the role measures"
                ),
                cause="limit",
            )
        words = self._words.get(row.conversation_id, {})
        if isinstance(row, TurnRow):
            return await function.calls.call_beside({"turn": row, "words": words.get(row.turn)})
        turns = tuple(each for _, each in sorted(call.turns.items()) if each.status != "withdrawn")
        given: dict[str, object] = {"call": row, "turns": turns, "words": dict(words)}
        if "context" in function.measure.wants:
            try:
                async with asyncio.timeout(CONTEXT_SECONDS):
                    given["context"] = await self._context_of(row)
            except OperatorError as error:
                return MeasureOutcome(reason=str(error)[:MAX_REASON_CHARS])
            except TimeoutError:
                return MeasureOutcome(
                    reason=f"the events of the call were not read within {CONTEXT_SECONDS:.0f} s"
                )
        return await function.calls.call_beside(given)

    def _valued(
        self, function: _Function, call: _Call, row: TurnRow | CallRow, outcome: MeasureOutcome
    ) -> None:
        own = own_row(function.measure, row, self._redacted(outcome))
        if own.turn is None or call.turns[own.turn].status != "withdrawn":
            call.values[own.measure, own.turn] = own, outcome
        self._unwritten.append(own)
        self.changed.set()
        if outcome.cause != "reason":
            self._tell(function, own)
        if (call, own.turn) not in function.waiting:
            call.waiting.discard((own.measure, own.turn))
        for partition in self._partitions.values():
            if partition.closed and partition.closed[0][1] is call:
                self._count_closed(partition)

    def _redacted(self, outcome: MeasureOutcome) -> MeasureOutcome:
        label, reason = (
            text and self._redactor.redact(text) for text in (outcome.label, outcome.reason)
        )
        return outcome._replace(label=label, reason=reason)

    def _tell(self, function: _Function, own: OwnRow) -> None:
        """Logs a mistake, the first of its kind."""
        kind = (own.reason or "").partition(":")[0]
        if kind in function.told or len(function.told) >= MAX_TOLD:
            return
        function.told.add(kind)
        log.warning(
            "measure_failed",
            role="measures",
            measure=own.measure,
            conversation_id=own.conversation_id,
            turn=own.turn,
            reason=own.reason,
            what_happens_now=(
                "The value is missing. It is said once; callgauge_own_unmeasured_total counts on."
            ),
            what_to_do=(
                "Correct the function, whose changed file counts immediately, or do what the "
                "reason says."
            ),
        )

    def _count_closed(self, of: _Partition) -> None:
        """Counts the values of the calls that have closed, as far as those before them
        are counted.
        """
        while of.closed and not of.closed[0][1].waiting:
            _, call = of.closed.popleft()
            of.counted = of.closed[0][0] if of.closed else of.position
            if call.row is not None:
                self._words.pop(call.row.conversation_id, None)
                self._left_out.discard(call.row.conversation_id)
            for own, outcome in call.values.values():
                labels = own.measure, own.labels.agent, own.labels.tenant
                if own.value is not None:
                    self._instruments.observe("callgauge_own_value", labels, own.value)
                elif own.label is not None:
                    self._instruments.inc("callgauge_own_labels_total", (*labels, own.label))
                else:
                    self._instruments.inc(
                        "callgauge_own_unmeasured_total", (own.measure, outcome.cause)
                    )
