"""The state of one turn, and one entry of the conversation trace: values that checkpoints can share.

Texts grow by appending and are read on demand, so they are kept as pieces: joining them at every growth would make the cost of
a turn quadratic in its words.
"""

from hashlib import blake2b

from consumers.engine.turns.eva.text_groups import TextGroup
from consumers.engine.turns.timeline.elements import ToolUse

Times = tuple[float, ...]
"""Audio times in epoch seconds, in the order of filing."""

Piece = str | TextGroup
Pieces = Piece | tuple["Pieces", tuple[Piece, ...]]
"""A text: one piece, or a text and the pieces behind it, all joined by one blank. A text slot may still grow."""


def grown(text: Pieces, *more: Piece) -> Pieces:
    """`text` with more pieces behind it, at a cost that does not grow with it.

    Example:
        >>> grown(grown("so", "I"), "say")
        (('so', ('I',)), ('say',))
    """
    return text, more


def joined(text: Pieces) -> str:
    """The pieces as one text.

    Example:
        >>> joined(grown(grown("so", "I"), "say"))
        'so I say'
    """
    pieces: list[Piece] = []
    while isinstance(text, tuple):
        text, more = text
        pieces += reversed(more)
    pieces.append(text)
    return " ".join(piece if isinstance(piece, str) else piece.text for piece in reversed(pieces))


def text_mark(text: str) -> int:
    """A number that differs for different texts and is the same in every process."""
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest())


def chars_of(text: Pieces) -> int:
    """Characters of the pieces, without the blanks between them.

    Example:
        >>> chars_of(grown(grown("so", "I"), "say"))
        6
    """
    chars = 0
    while isinstance(text, tuple):
        text, more = text
        chars += sum(len(piece) if isinstance(piece, str) else piece.length for piece in more)
    return chars + (len(text) if isinstance(text, str) else text.length)


def is_there(text: Pieces | None) -> bool:
    """Whether a text exists and is not empty, without joining it; two pieces have a blank between them.

    Example:
        >>> is_there(None), is_there(""), is_there("so"), is_there(grown("", ""))
        (False, False, True, True)
    """
    if isinstance(text, TextGroup):
        return text.length > 0
    return bool(text)


class TurnState:
    """One turn. Every field is an immutable value, so a copy is shallow; `epoch` names the checkpoint that still shares it.

    Texts are None where the turn has none, which is not the same as empty.
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
        "transcribed_assistant",
        "transcribed_user",
        "user_ends",
        "user_interrupted",
        "user_starts",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.transcribed_user: Pieces | None = None
        self.transcribed_assistant: Pieces | None = None
        self.intended_user: Pieces | None = None
        self.intended_assistant: Pieces | None = None
        self.segments: tuple[TextGroup, ...] = ()
        self.user_starts: Times = ()
        self.user_ends: Times = ()
        self.assistant_starts: Times = ()
        self.assistant_ends: Times = ()
        self.assistant_interrupted = False
        self.user_interrupted = False
        self.is_fallback = False
        self.has_assistant_entry = False

    def has_user_end(self, end_ms: int) -> bool:
        """Whether the caller's sound ended in this turn at that millisecond."""
        return any(end_ms == int(end_s * 1000) for end_s in self.user_ends)

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
        return copy


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
        content: Pieces | ToolUse,
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

    def after(self, previous: "TraceEntry | None", content: Pieces | ToolUse | None = None) -> "TraceEntry":
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
