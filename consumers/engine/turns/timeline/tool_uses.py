"""Pairs tool calls with their responses: by id where they have one, otherwise the first call of a tool with the first response
of it, in the order of the timeline.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from consumers.engine.turns.timeline.elements import ToolUse
from schemas.closed_sets import InputSource
from schemas.scores.all_records import ToolOutcome

_ERROR_STATUSES = frozenset({"error", "failed", "failure"})

UseKey = tuple[int, int]
"""Turn, and number of earlier uses in that turn."""
_Pairing = tuple[str, str | None]
"""Tool, and id of the call where it has one; calls and responses with equal ones are paired."""


class ToolEntry:
    """One tool event and, through `previous`, all of the call before it: a value that checkpoints share."""

    __slots__ = ("is_response", "place", "previous", "time_ms", "turn", "use")

    def __init__(
        self, previous: "ToolEntry | None", turn: int, use: ToolUse, time_ms: int, *, is_response: bool
    ) -> None:
        self.previous = previous
        self.place: int = 0 if previous is None else previous.place + 1
        self.turn = turn
        self.use = use
        self.time_ms = time_ms
        self.is_response = is_response

    def is_as(self, other: "ToolEntry") -> bool:
        """Whether the other entry, at the same place of another chain, is of the same event."""
        # An event keeps its payload through replays; only its turn can change.
        return self.use is other.use and self.turn == other.turn and self.is_response is other.is_response


@dataclass(slots=True)
class PairedUse:
    """One use of a tool; `index` counts the uses of its turn, `outcome` is None while it runs. Its arguments and answer are the
    events' own values, shared and not to be changed. `is_withheld` marks an answer that the producer does not send. `source` is
    the reporting input. `is_exact` says whether the call has a time of its own, and not only a place.
    """

    turn: int
    index: int
    tool: str
    called_at_ms: int | None
    outcome: ToolOutcome | None = None
    duration_ms: int | None = None
    arguments: object = None
    answer: object = None
    is_withheld: bool = False
    source: InputSource = InputSource.AUDIT
    is_exact: bool = True

    @property
    def lacks_arguments(self) -> bool:
        """Whether its producer does not send the arguments: None in the audit log means a tool without any."""
        return self.arguments is None and self.source is not InputSource.AUDIT


class ToolUses:
    """The pairing of a call's tool events. It follows the end of their chain, at the cost of the changes there."""

    __slots__ = (
        "_by_turn",
        "_entries",
        "_uses",
        "_waiting",
    )

    def __init__(self) -> None:
        self._entries: list[ToolEntry] = []
        self._uses: list[PairedUse] = []
        self._waiting: dict[_Pairing, list[PairedUse]] = {}  # one or two: an empty deque is ten times as large
        self._by_turn: dict[int, list[PairedUse]] = {}

    def __iter__(self) -> Iterator[PairedUse]:
        """Every use, in the order in which they began."""
        for entry, use in zip(self._entries, self._uses, strict=True):
            if _begins(entry, use):
                yield use

    def of_turn(self, turn: int) -> Sequence[PairedUse]:
        """The uses that began in a turn, in their order."""
        return self._by_turn.get(turn, ())

    def has_call(self, turn: int) -> bool:
        """Whether a tool was called in a turn; a response without a call is no call."""
        return any(use.called_at_ms is not None for use in self.of_turn(turn))

    def follow(self, last: ToolEntry | None) -> Mapping[UseKey, PairedUse | None]:
        """Pairs the events of the chain that ends with `last`.

        Returns:
            The uses that changed; None for one that no longer exists.
        """
        changed: dict[UseKey, PairedUse | None] = {}
        entries = self._entries
        fresh: list[ToolEntry] = []
        while last is not None and not (last.place < len(entries) and entries[last.place] is last):
            fresh.append(last)
            last = last.previous
        shared = 0 if last is None else last.place + 1
        while fresh and shared < len(entries) and entries[shared].is_as(fresh[-1]):
            entries[shared] = fresh.pop()
            shared += 1
        while len(entries) > shared:
            self._unpair(changed)
        for entry in reversed(fresh):
            self._pair(entry, changed)
        return changed

    def _pair(self, entry: ToolEntry, changed: dict[UseKey, PairedUse | None]) -> None:
        tool = entry.use.name
        pairing = tool, entry.use.call_id
        waiting = self._waiting.get(pairing)
        if entry.is_response and waiting:
            use = waiting.pop(0)
        else:
            of_turn = self._by_turn.setdefault(entry.turn, [])
            called_at_ms = None if entry.is_response else entry.time_ms
            use = PairedUse(
                entry.turn, len(of_turn), tool, called_at_ms, source=entry.use.source, is_exact=entry.use.is_exact
            )
            of_turn.append(use)
            if not entry.is_response:
                use.arguments = entry.use.value
                self._waiting.setdefault(pairing, []).append(use)
        if entry.is_response:
            use.answer = entry.use.value
            use.is_withheld = entry.use.is_withheld
            use.outcome = _outcome(entry.use)
            use.duration_ms = _took_ms(use, entry)
        self._entries.append(entry)
        self._uses.append(use)
        changed[use.turn, use.index] = use

    def _unpair(self, changed: dict[UseKey, PairedUse | None]) -> None:
        """Undos the pairing of the last entry: the exact reverse of `_pair`."""
        entry, use = self._entries.pop(), self._uses.pop()
        pairing = use.tool, entry.use.call_id
        if not _begins(entry, use):
            use.outcome = use.duration_ms = use.answer = None
            use.is_withheld = False
            self._waiting[pairing].insert(0, use)
            changed[use.turn, use.index] = use
            return
        if not entry.is_response:
            self._waiting[pairing].pop()
        self._by_turn[use.turn].pop()
        changed[use.turn, use.index] = None


def _outcome(response: ToolUse) -> ToolOutcome:
    if response.is_error:
        return ToolOutcome.ERROR
    # An ElevenLabs agent reports with every answer whether the tool failed.
    is_hidden = response.is_withheld and response.value is None and response.source is InputSource.PIPECAT
    return ToolOutcome.UNKNOWN if is_hidden else outcome_of(response.value)


def _took_ms(use: PairedUse, response: ToolEntry) -> int | None:
    """The tool's time; None where the call or the response is out of the past, with no time of its own."""
    if response.use.took_ms is not None:
        return response.use.took_ms
    if use.called_at_ms is None or not (use.is_exact and response.use.is_exact):
        return None
    return max(0, response.time_ms - use.called_at_ms)


def _begins(entry: ToolEntry, use: PairedUse) -> bool:
    """Whether this entry created the use: a call, or a response without a call."""
    return not entry.is_response or use.called_at_ms is None


def outcome_of(response: object) -> ToolOutcome:
    """The outcome that a tool's answer shows: an error status, an `error_type` or an `error` is a failure.

    Example:
        >>> outcome_of({"status": "error", "error_type": "not_found"}), outcome_of({"status": "ok"}), outcome_of(None)
        (<ToolOutcome.ERROR: 'error'>, <ToolOutcome.SUCCESS: 'success'>, <ToolOutcome.SUCCESS: 'success'>)
        >>> outcome_of({"status": {"code": 200}})
        <ToolOutcome.SUCCESS: 'success'>
    """
    if not isinstance(response, Mapping):
        return ToolOutcome.SUCCESS
    status = response.get("status")
    is_error_status = isinstance(status, str) and status in _ERROR_STATUSES  # some tools put an object there
    if is_error_status or response.get("error_type") or response.get("error"):
        return ToolOutcome.ERROR
    return ToolOutcome.SUCCESS
