"""The events of a call in order: elements with the state after each, uses of tools, and stretches
of time.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from itertools import chain, islice, repeat
from typing import Final, Literal, NamedTuple, Protocol

from schemas.closed_sets import Anchor, InputSource, ToolOutcome, UnscoredReason
from schemas.rows import MAX_SOUNDS, Sound, Unscored
from schemas.units import MS_PER_SECOND

# One merged timeline of a call: sorted elements, the machine's state after the last, and
# checkpoints to return to.
#
# An element in order costs one step of the machine. An insertion before the end, a removal or a
# changed text returns to the nearest checkpoint at or before it and replays the elements after it.

CHECKPOINT_EVERY = 8
"""Elements between checkpoints: a slightly late event replays about four of them and itself."""

MOST_BITS_OF_A_KEY = 62
"""Difference of two keys that fits into eight bytes: three days, of order keys. Keys further apart
are kept as whole numbers.
"""

RECENT_CHECKPOINTS = 3
"""Checkpoints kept at that spacing; older ones thin out by powers of two, so their number grows
with the logarithm.
"""


class Machine(Protocol):
    """A pure state machine whose state can be frozen and restored."""

    def apply(self, kind: int, payload: object, time_ms: int) -> None:
        """Applies one element."""

    def freeze(self) -> object:
        """The state as a value that later steps do not change."""

    def thaw(self, frozen: object) -> None:
        """Restores a frozen state."""


class Replays:
    """Counts the elements of one call that were folded or read again because of late or changed
    events; a limit bounds it.

    Going back is cheap for a slightly late event and costs the whole call for a very late one, so a
    producer whose events run backwards could keep a partition busy with one call.
    """

    def __init__(self) -> None:
        self.elements = 0


class Timeline:
    """Elements ordered by key, and a machine that has applied all of them."""

    def __init__(self, machine: Machine, time_shift: int, replays: Replays) -> None:
        self._machine = machine
        self._time_shift = time_shift
        self._replays = replays
        self._first_key = 0
        self._keys: MutableSequence[int] = array(
            "q"
        )  # differences to the first key: eight bytes each
        self._kinds = bytearray()
        self._payloads: list[object] = []
        self._checkpoints: list[tuple[int, object]] = [(0, machine.freeze())]

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[int, int, object]]:
        first = self._first_key
        return zip((first + key for key in self._keys), self._kinds, self._payloads, strict=True)

    def insert(self, key: int, kind: int, payload: object) -> None:
        """Inserts an element at the place of its key."""
        keys = self._keys
        if not keys:
            self._first_key = key
        own = key - self._first_key
        if own.bit_length() > MOST_BITS_OF_A_KEY and isinstance(keys, array):
            keys = self._keys = list(keys)  # its times are days apart
        if not keys or own > keys[-1]:
            keys.append(own)
            self._kinds.append(kind)
            self._payloads.append(payload)
            self._machine.apply(kind, payload, key >> self._time_shift)
            if len(keys) % CHECKPOINT_EVERY == 0:
                self._keep_checkpoint(len(keys))
            return
        self._replay(self._put(own, kind, payload))

    def insert_all(self, elements: Sequence[tuple[int, int, object]]) -> None:
        """Inserts keys, kinds and payloads that are late, and folds once again what follows the
        first of them. One by one, those of a long call would take time with the square of its
        length.
        """
        if elements and not self._keys:
            self._first_key = elements[0][0]
        if any((key - self._first_key).bit_length() > MOST_BITS_OF_A_KEY for key, _, _ in elements):
            self._keys = list(self._keys)
        if elements:
            self._replay(
                min(
                    [
                        self._put(key - self._first_key, kind, payload)
                        for key, kind, payload in elements
                    ]
                )
            )

    def _put(self, own: int, kind: int, payload: object) -> int:
        place = bisect_left(self._keys, own)
        self._keys.insert(place, own)
        self._kinds.insert(place, kind)
        self._payloads.insert(place, payload)
        return place

    def payload(self, key: int) -> object:
        """The payload of the element with this key; None without one."""
        own, place = key - self._first_key, self._place(key)
        return (
            self._payloads[place] if place < len(self._keys) and self._keys[place] == own else None
        )

    def remove(self, key: int) -> None:
        """Removes the element with this key."""
        place = self._place(key)
        del self._keys[place], self._kinds[place], self._payloads[place]
        self._replay(place)

    def replace(self, key: int, payload: object) -> None:
        """Replaces the payload of the element with this key."""
        place = self._place(key)
        self._payloads[place] = payload
        self._replay(place)

    def reread(self, key: int) -> None:
        """Replays from the element with this key, whose payload changed in place in a way that
        rules read.
        """
        self._replay(self._place(key))

    def _place(self, key: int) -> int:
        return bisect_left(self._keys, key - self._first_key)

    def _replay(self, place: int) -> None:
        checkpoints = self._checkpoints
        while checkpoints[-1][0] > place:
            checkpoints.pop()
        start, state = checkpoints[-1]
        machine = self._machine
        machine.thaw(state)
        shift, first = self._time_shift, self._first_key
        for position in range(start, len(self._keys)):
            machine.apply(
                self._kinds[position],
                self._payloads[position],
                (first + self._keys[position]) >> shift,
            )
            if (position + 1) % CHECKPOINT_EVERY == 0:
                self._keep_checkpoint(position + 1)
        self._replays.elements += len(self._keys) - start

    def _keep_checkpoint(self, position: int) -> None:
        recent = position - RECENT_CHECKPOINTS * CHECKPOINT_EVERY
        self._checkpoints = [
            checkpoint
            for checkpoint in self._checkpoints
            if checkpoint[0] >= recent
            or checkpoint[0] % (1 << ((position - checkpoint[0]).bit_length() - 1)) == 0
        ]
        self._checkpoints.append((position, self._machine.freeze()))


# The elements of a call's merged timeline: their kinds, their payloads and the key that orders
# them.

INDEX_BITS = 32
RANK_BITS = 2
TIME_SHIFT = INDEX_BITS + RANK_BITS

AUDIT_RANK = 0
PIPECAT_RANK = 1
SIMULATOR_RANK = 2
AGENT_RANK = 3


class ElementKind(IntEnum):
    """Kinds of elements that rules read."""

    AUDIT_USER = 0
    AUDIT_ASSISTANT = 1
    FALLBACK = 2
    TOOL_CALL = 3
    TOOL_RESPONSE = 4
    TEXT_GROUP = 5
    USER_AUDIO_START = 6
    USER_AUDIO_END = 7
    ASSISTANT_AUDIO_START = 8
    ASSISTANT_AUDIO_END = 9
    USER_SPEECH = 10
    ASSISTANT_SPEECH = 11
    SESSION_ENDED = 12


def order_key(time_ms: int, rank: int, index: int) -> int:
    """One integer that sorts by time, then source (audit, pipecat, simulator, agent), then place
    within the source.

    Example:
        >>> order_key(5, AUDIT_RANK, 9) < order_key(5, SIMULATOR_RANK, 0) < order_key(6, AUDIT_RANK, 0)
        True
        >>> key_time_ms(order_key(1_790_000_000_123, PIPECAT_RANK, 7))
        1790000000123
    """
    return (time_ms << TIME_SHIFT) | (rank << INDEX_BITS) | index


def key_time_ms(key: int) -> int:
    """The event time inside an order key."""
    return key >> TIME_SHIFT


@dataclass(slots=True, eq=False)
class ToolPayload:
    """Payload of a tool call or response: the tool, and its parameters or its answer (None without
    any).

    ElevenLabs agents and pipecat pair calls and responses by `call_id`; the audit log has none
    (None). `is_error` marks a failed tool, whatever its answer; `is_withheld` an answer that the
    producer does not send, but perhaps its status. `is_exact` is false where the time gives only
    the order, `took_ms` is the tool's time as the response itself has it; `source` is the reporting
    input. `provider_id` is the id by which the provider's own record of the call names the use;
    None where none ever comes. `kind` is ElevenLabs' word for where the tool runs: `webhook`,
    `client`, `system`, `mcp` and others.
    """

    name: str
    value: object
    call_id: str | None = None
    _: KW_ONLY
    is_error: bool = False
    is_withheld: bool = False
    is_exact: bool = True
    took_ms: int | None = None
    source: InputSource = InputSource.AUDIT
    provider_id: str | None = None
    kind: str | None = None


# The moments that a watch for dead air reads, in the broker's order.


class BrokerMoment(NamedTuple):
    """Broker time of a record; of two at the same time, the lower input rank comes first."""

    broker_ms: int
    input_rank: int


class HeardBy(IntEnum):
    """The source of a report of speech, from the poorest up; a call's best one counts from its
    first report on.
    """

    TRANSCRIPT = 1
    BOT = 2
    CALLER = 3


class SilenceKind(IntEnum):
    """Kinds of moments that begin, explain or end a silence.

    Attributes:
        USER_ENDED: Begins a silence.
        SPEECH_STARTED: Ends the silence; it was dead air if it had lasted by the call's own clock.
        TOOL_CALLED: Pauses the silence while a tool runs; it was dead air if it had already lasted
            too long.
        TOOL_ANSWERED: Begins the silence again at the answer of a tool.
        LINE_DOWN: Ends the watch: the call is over, and the caller waits for no answer.
        FUNCTION_CALLED: Pipecat reports a running tool; it counts until pipecat's tools give way.
        FUNCTION_SETTLED: Pipecat reports the end of that tool.
        USER_STARTED: As SPEECH_STARTED; but words that may have been heard before it leave the
            silence unproved.
        SOMEONE_SPOKE: Ends the silence without a result: somebody was speaking at this time, and it
            is not known since when.
        WORDS_CAME: Puts the decision off while words that went to speech synthesis may be heard.
        FUNCTIONS_GAVE_WAY: Drops pipecat's tools from this moment on; `FunctionCalls` has the rule.
    """

    USER_ENDED = 0
    SPEECH_STARTED = 1
    TOOL_CALLED = 2
    TOOL_ANSWERED = 3
    LINE_DOWN = 4
    FUNCTION_CALLED = 5
    FUNCTION_SETTLED = 6
    USER_STARTED = 7
    SOMEONE_SPOKE = 8
    WORDS_CAME = 9
    FUNCTIONS_GAVE_WAY = 10


class SilenceMoment(NamedTuple):
    """One moment; sorts in the order of application. `place` is its number among the call's
    moments, so a comparison never goes beyond it. `due_at_ms` is the broker time at which a silence
    that begins here becomes dead air, or words that begin here would be over; 0 where neither
    begins. `heard_by` is the source of a report of speech. A moment without it counts for every
    source.
    """

    broker_ms: int
    input_rank: int
    place: int
    kind: SilenceKind
    time_ms: int
    due_at_ms: int
    turn: int
    heard_by: HeardBy


# Stretches of sound, in milliseconds of epoch time.


class TimeSpan(NamedTuple):
    """A stretch of time in ms."""

    start_ms: int
    end_ms: int


Spans = tuple[TimeSpan, ...]


def merged(spans: Iterable[TimeSpan], *, keeps_moments: bool = False) -> Spans:
    """The same time without overlaps, earliest first; spans that touch are one. Spans without a
    length are left out unless `keeps_moments`.

    Example:
        >>> merged([TimeSpan(5, 9), TimeSpan(1, 3), TimeSpan(3, 4), TimeSpan(6, 7), TimeSpan(8, 8)])
        (TimeSpan(start_ms=1, end_ms=4), TimeSpan(start_ms=5, end_ms=9))
    """
    result: list[TimeSpan] = []
    for span in sorted(spans):
        if span.end_ms < span.start_ms or (span.end_ms == span.start_ms and not keeps_moments):
            continue
        if result and span.start_ms <= result[-1].end_ms:
            result[-1] = TimeSpan(result[-1].start_ms, max(result[-1].end_ms, span.end_ms))
        else:
            result.append(span)
    return tuple(result)


def length_ms(spans: Iterable[TimeSpan]) -> int:
    """Sum of their lengths."""
    return sum(span.end_ms - span.start_ms for span in spans)


# The sounds of a turn.

Times = tuple[float, ...]
"""Epoch seconds, in the order of filing."""


class Sounds(NamedTuple):
    """Sounds of one side of a turn.

    Attributes:
        starts: Their starts.
        ends: Their ends; the last one may have no end yet.
        are_paired_by_time: Whether a start belongs to the next end, as with a bot that is started
            twice and stops once; otherwise the first end is that of the first start, and so on, as
            EVA pairs them.
    """

    starts: Times = ()
    ends: Times = ()
    are_paired_by_time: bool = False

    def pairs(self) -> Iterator[tuple[float, float | None]]:
        """Start and end of each; None for an open one."""
        starts, ends = self.starts, self.ends
        if not self.are_paired_by_time:
            return zip(starts, chain(ends, repeat(None)), strict=False)
        places = (bisect_left(ends, start_s) for start_s in starts)
        return (
            (start_s, ends[place] if place < len(ends) else None)
            for start_s, place in zip(starts, places, strict=True)
        )

    def in_row(self) -> tuple[Sound, ...]:
        """The first ones, as the row of a turn has them."""
        return tuple(
            Sound(ms_of(start_s), None if stop_s is None else ms_of(stop_s))
            for start_s, stop_s in islice(self.pairs(), MAX_SOUNDS)
        )

    def are_in_row_of(self, others: "Sounds") -> bool:
        """Whether a row that was made from the others has these."""
        return self == others or self.in_row() == others.in_row()


class TurnSounds(NamedTuple):
    """The sounds of both sides of a turn."""

    agent: Sounds = Sounds()
    caller: Sounds = Sounds()


NO_SOUNDS: Final = TurnSounds()


def ms_of(time_s: float) -> int:
    """The nearest millisecond of a time in seconds."""
    return round(time_s * MS_PER_SECOND)


# Pairs tool calls with their responses: by id where they have one, otherwise the first call of a
# tool with the first response of it, in the order of the timeline.

_ERROR_STATUSES = frozenset({"error", "failed", "failure"})

UseKey = tuple[int, int]
"""Turn, and number of earlier uses in that turn."""
_Pairing = tuple[str, str | None]
"""Tool, and id of the call where it has one; calls and responses with equal ones are paired."""


class ToolEntry:
    """One tool event and, through `previous`, all of the call before it: a value that checkpoints
    share.
    """

    __slots__ = ("is_response", "place", "previous", "time_ms", "turn", "use")

    def __init__(
        self,
        previous: "ToolEntry | None",
        turn: int,
        use: ToolPayload,
        time_ms: int,
        *,
        is_response: bool,
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
        return (
            self.use is other.use
            and self.turn == other.turn
            and self.is_response is other.is_response
        )


@dataclass(slots=True)
class PairedUse:
    """One use of a tool; `index` counts the uses of its turn, `outcome` is None while it runs. Its
    arguments and answer are the events' own values, shared and not to be changed. `is_withheld`
    marks an answer that the producer does not send. `source` is the reporting input. `is_exact`
    says whether the call has a time of its own, and not only a place. `provider_id` is that of the
    event that begins the use. `kind_of_call` and `kind_of_answer` say where the tool runs, as its
    call and its answer tell it.
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
    provider_id: str | None = None
    kind_of_call: str | None = None
    kind_of_answer: str | None = None

    @property
    def kind(self) -> str | None:
        """Where the tool runs, in ElevenLabs' words; None where it is not reported."""
        return self.kind_of_call or self.kind_of_answer

    @property
    def lacks_arguments(self) -> bool:
        """Whether its producer does not send the arguments: None in the audit log means a tool
        without any.
        """
        return self.arguments is None and self.source is not InputSource.AUDIT


class ToolUses:
    """The pairing of a call's tool events. It follows the end of their chain, at the cost of the
    changes there.
    """

    def __init__(self) -> None:
        self._entries: list[ToolEntry] = []
        self._uses: list[PairedUse] = []
        self._waiting: dict[
            _Pairing, list[PairedUse]
        ] = {}  # one or two: an empty deque is ten times as large
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
                entry.turn,
                len(of_turn),
                tool,
                called_at_ms,
                source=entry.use.source,
                is_exact=entry.use.is_exact,
                provider_id=entry.use.provider_id,
            )
            of_turn.append(use)
            if not entry.is_response:
                use.arguments, use.kind_of_call = entry.use.value, entry.use.kind
                self._waiting.setdefault(pairing, []).append(use)
        if entry.is_response:
            use.answer, use.kind_of_answer = entry.use.value, entry.use.kind
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
            use.outcome = use.duration_ms = use.answer = use.kind_of_answer = None
            use.is_withheld = False
            self._waiting[pairing].insert(0, use)
            changed[use.turn, use.index] = use
            return
        if not entry.is_response:
            self._waiting[pairing].pop()
        self._by_turn[use.turn].pop()
        changed[use.turn, use.index] = None


def _outcome(response: ToolPayload) -> ToolOutcome:
    if response.is_error:
        return ToolOutcome.ERROR
    # An ElevenLabs agent reports with every answer whether the tool failed.
    is_hidden = (
        response.is_withheld and response.value is None and response.source is InputSource.PIPECAT
    )
    return ToolOutcome.UNKNOWN if is_hidden else outcome_of(response.value)


def _took_ms(use: PairedUse, response: ToolEntry) -> int | None:
    """The tool's time; None where the call or the response is out of the past, with no time of its
    own.
    """
    if response.use.took_ms is not None:
        return response.use.took_ms
    if use.called_at_ms is None or not (use.is_exact and response.use.is_exact):
        return None
    return max(0, response.time_ms - use.called_at_ms)


def _begins(entry: ToolEntry, use: PairedUse) -> bool:
    """Whether this entry created the use: a call, or a response without a call."""
    return not entry.is_response or use.called_at_ms is None


def outcome_of(response: object) -> ToolOutcome:
    """The outcome that a tool's answer shows: an error status, an `error_type` or an `error` is a
    failure.

    Example:
        >>> outcome_of({"status": "error", "error_type": "not_found"}), outcome_of({"status": "ok"}), outcome_of(None)
        (<ToolOutcome.ERROR: 'error'>, <ToolOutcome.SUCCESS: 'success'>, <ToolOutcome.SUCCESS: 'success'>)
        >>> outcome_of({"status": {"code": 200}})
        <ToolOutcome.SUCCESS: 'success'>
    """
    if not isinstance(response, Mapping):
        return ToolOutcome.SUCCESS
    status = response.get("status")
    is_error_status = (
        isinstance(status, str) and status in _ERROR_STATUSES
    )  # some tools put an object there
    if is_error_status or response.get("error_type") or response.get("error"):
        return ToolOutcome.ERROR
    return ToolOutcome.SUCCESS


# The cheap view of a live turn, for either machine: who waited for whom, and how long.
#
# Moments are published from it at every event that touches a turn; building a whole `HeardTurn`
# each time would cost more. The adapters in `heard` make both.

Source = Literal["elevenlabs", "pipecat", "audit"]
EVA_DIGITS = 6
"""Decimals of a second to which EVA rounds a latency; rounding first makes ours equal to its, times
1000.
"""
MS_DIGITS = 3


class TurnView(NamedTuple):
    """A turn as heard. `user_end_s` is None while the user speaks or was not heard; `anchor` names
    the source of that end.

    `are_times_exact` is false where times give only the order. `recorded_ms` is the latency that
    the agent's provider measured itself; the ends are then estimates. `is_answered_in_text` means
    that the assistant's answer was never spoken.
    """

    has_user: bool
    has_assistant: bool
    is_user_speaking: bool
    user_end_s: float | None
    assistant_start_s: float | None
    anchor: Anchor | None
    source: Source | None
    user_interrupted: bool
    assistant_interrupted: bool
    are_times_exact: bool = True
    recorded_ms: float | None = None
    is_answered_in_text: bool = False

    @property
    def timing(self) -> tuple[object, ...]:
        """The fields that a latency depends on."""
        return (*self[:7], self.are_times_exact, self.recorded_ms)

    @property
    def heard_ms(self) -> float | None:
        """Latency in ms as heard, from the end of the user's speech to the start of the
        assistant's; None when unknown.
        """
        if self.user_end_s is None or self.assistant_start_s is None or not self.are_times_exact:
            return None
        return round(round(self.assistant_start_s - self.user_end_s, EVA_DIGITS) * 1000, MS_DIGITS)


def voice_to_voice_ms(view: TurnView) -> float | Unscored | None:
    """Silence the caller sat through: from the end of the user's last speech of the turn to the
    assistant's first.

    Returns:
        Milliseconds, negative when the assistant began before the user had finished; unscored while
        the user is still heard, where times give only the order, and where the answer was never
        spoken; None while one side has not been heard, since nothing is known yet.
    """
    if view.recorded_ms is not None:
        return float(view.recorded_ms)
    if view.has_user and view.is_answered_in_text:
        return Unscored(UnscoredReason.ANSWERED_IN_TEXT)
    if not view.has_user or view.assistant_start_s is None:
        return None
    if view.user_end_s is None:
        return Unscored(UnscoredReason.USER_STILL_SPEAKING)
    heard_ms = view.heard_ms
    return Unscored(UnscoredReason.TIMES_UNKNOWN) if heard_ms is None else heard_ms


def unmeasured_reason(view: TurnView, *, has_speech_events: bool) -> UnscoredReason:
    """Why a turn of an ended call has no latency."""
    if not has_speech_events:
        return UnscoredReason.NO_SPEECH_EVENTS
    return (
        UnscoredReason.NO_USER_SPEECH if not view.has_user else UnscoredReason.NO_ASSISTANT_SPEECH
    )


class HasUserEnds(Protocol):
    """A turn of either machine."""

    def has_user_end(self, end_ms: int) -> bool:
        """Whether the caller ended in this turn at that millisecond."""


def turn_with_user_end(turns: Mapping[int, HasUserEnds], end_ms: int, otherwise: int) -> int:
    """The last of the turns in which the caller ended then; `otherwise` without one.

    When a silence is decided, every input is known up to it. When its beginning was read, others
    could still number its turn.
    """
    return next(
        (number for number in sorted(turns, reverse=True) if turns[number].has_user_end(end_ms)),
        otherwise,
    )
