"""What is known of one turn, and one entry of the conversation trace: values that checkpoints can share."""

from consumers.engine.elements import ToolUse
from consumers.engine.text_groups import TextGroup

Times = tuple[float, ...]
"""Audio times in epoch seconds, in the order they were filed."""

ToolEvent = tuple[bool, str, object, int]
"""(is a response, tool name, parameters or answer, event time in ms)."""


class TurnState:
    """One turn. Every field is an immutable value, so a copy is shallow; `epoch` says which checkpoint still shares it.

    Texts are None where the turn has none, which is not the same as empty. `intended_assistant` is pieces to be joined
    by one blank, text slots among them, so that a label stands behind words that are still to come.
    """

    __slots__ = (
        "assistant_ends",
        "assistant_interrupted",
        "assistant_starts",
        "epoch",
        "has_assistant_entry",
        "intended_assistant",
        "intended_user",
        "is_fallback",
        "segments",
        "tools",
        "transcribed_assistant",
        "transcribed_user",
        "user_ends",
        "user_interrupted",
        "user_starts",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.transcribed_user: str | None = None
        self.transcribed_assistant: str | None = None
        self.intended_user: str | None = None
        self.intended_assistant: tuple[str | TextGroup, ...] | None = None
        self.segments: tuple[TextGroup, ...] = ()
        self.user_starts: Times = ()
        self.user_ends: Times = ()
        self.assistant_starts: Times = ()
        self.assistant_ends: Times = ()
        self.assistant_interrupted = False
        self.user_interrupted = False
        self.is_fallback = False
        self.has_assistant_entry = False
        self.tools: tuple[ToolEvent, ...] = ()

    def copied(self, epoch: int) -> "TurnState":
        """A copy that belongs to `epoch`."""
        copy = TurnState.__new__(TurnState)
        copy.epoch = epoch
        copy.transcribed_user = self.transcribed_user
        copy.transcribed_assistant = self.transcribed_assistant
        copy.intended_user = self.intended_user
        copy.intended_assistant = self.intended_assistant
        copy.segments = self.segments
        copy.user_starts = self.user_starts
        copy.user_ends = self.user_ends
        copy.assistant_starts = self.assistant_starts
        copy.assistant_ends = self.assistant_ends
        copy.assistant_interrupted = self.assistant_interrupted
        copy.user_interrupted = self.user_interrupted
        copy.is_fallback = self.is_fallback
        copy.has_assistant_entry = self.has_assistant_entry
        copy.tools = self.tools
        return copy

    def intended_assistant_text(self) -> str | None:
        """The pieces as one text; None when the turn has none."""
        pieces = self.intended_assistant
        if pieces is None:
            return None
        return " ".join(piece if isinstance(piece, str) else piece.text for piece in pieces)

    def has_intended_assistant(self) -> bool:
        """Whether that text is there and not empty, without building it."""
        pieces = self.intended_assistant
        if not pieces:
            return False
        first = pieces[0]
        return len(pieces) > 1 or (bool(first) if isinstance(first, str) else first.length > 0)


class TraceEntry:
    """One entry of the trace and, through `previous`, all before it. Entries are never changed, only replaced.

    `role` is None for tools. `time_ms` is None for entries that EVA writes without a time.
    """

    __slots__ = ("content", "is_from_audit", "is_nudge", "kind", "previous", "role", "time_ms", "turn")

    def __init__(
        self,
        previous: "TraceEntry | None",
        role: str | None,
        kind: str,
        turn: int,
        content: str | ToolUse,
        time_ms: int | None,
        *,
        is_from_audit: bool = False,
        is_nudge: bool = False,
    ) -> None:
        self.previous = previous
        self.role = role
        self.kind = kind
        self.turn = turn
        self.content = content
        self.time_ms = time_ms
        self.is_from_audit = is_from_audit
        self.is_nudge = is_nudge

    def after(self, previous: "TraceEntry | None", content: str | ToolUse | None = None) -> "TraceEntry":
        """The same entry behind `previous`, with `content` in place of its own if given."""
        return TraceEntry(
            previous,
            self.role,
            self.kind,
            self.turn,
            self.content if content is None else content,
            self.time_ms,
            is_from_audit=self.is_from_audit,
            is_nudge=self.is_nudge,
        )


def in_order(last: TraceEntry | None) -> list[TraceEntry]:
    """The trace that ends with `last`, first entry first."""
    entries = []
    while last is not None:
        entries.append(last)
        last = last.previous
    entries.reverse()
    return entries
