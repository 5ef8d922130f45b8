"""In which turns tools were called, and which answers blame the call: kept up with the chain of the call's tool events."""

from collections import Counter

from consumers.engine.eva_metrics.tool_call_validity import DIGITS, call_error_of
from consumers.engine.tool_uses import ToolEntry


class ToolTurns:
    """Follows the end of the chain, at the cost of what changed there.

    Attributes:
        answers: Answers of tools, as EVA counts them: those that say anything.
        errors: Answers that blame the call, by error type.
    """

    def __init__(self) -> None:
        self.answers = 0
        self.errors: Counter[str] = Counter()
        self._entries: list[ToolEntry] = []
        self._calls: Counter[int] = Counter()

    def __reduce__(self) -> tuple[type["ToolTurns"], tuple[()]]:
        # A chain is pickled as deep as it is long, and the machine's own is made anew: what follows next reads it whole.
        return ToolTurns, ()

    @property
    def validity(self) -> float:
        """Share of the answers that do not blame the call."""
        return round((self.answers - self.errors.total()) / self.answers, DIGITS) if self.answers else 1.0

    @property
    def rates(self) -> dict[str, float | None]:
        """EVA's sub-metrics, without the error types that did not occur."""
        rates: dict[str, float | None] = {
            f"{error}_rate": round(count / self.answers, DIGITS)
            for error, count in sorted(self.errors.items())
            if count
        }
        rates["num_tool_calls"] = float(self.answers)
        return rates

    def has_call(self, turn: int) -> bool:
        """Whether a tool was called in this turn."""
        return self._calls[turn] > 0

    def follow(self, last: ToolEntry | None) -> bool:
        """Count as the chain that ends with `last` says; true when that changed anything."""
        entries = self._entries
        fresh: list[ToolEntry] = []
        while last is not None and not (last.place < len(entries) and entries[last.place] is last):
            fresh.append(last)
            last = last.previous
        shared = 0 if last is None else last.place + 1
        gone = entries[shared:]
        del entries[shared:]
        for entry in gone:
            self._count(entry, -1)
        for entry in reversed(fresh):
            entries.append(entry)
            self._count(entry, 1)
        return bool(gone or fresh)

    def _count(self, entry: ToolEntry, by: int) -> None:
        if not entry.is_response:
            self._calls[entry.turn] += by
        elif entry.use.name and entry.use.value is not None:
            self.answers += by
            error = call_error_of(entry.use.value)
            if error is not None:
                self.errors[error] += by
