"""EVA's texts: speech and words of one entry grow in groups, and the spoken part of an interrupted
answer.
"""

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from consumers.engine.turns.timeline import (
    INDEX_BITS,
    PIPECAT_RANK,
    Replays,
    key_time_ms,
    order_key,
)

# EVA's labels of who cut off whom, and the sentences that its rules compare with.

ASSISTANT_INTERRUPTS = "[assistant interrupts]"
USER_INTERRUPTS = "[user interrupts]"
CUT_OFF_BY_USER = "[likely cut off by user]"
CUT_OFF_BY_ASSISTANT = "[likely cut off by assistant]"
CUT_ITSELF_OFF = "[speaker likely cut itself off]"
LIKELY_INTERRUPTION = "[likely interruption]"
PAUSE = "[pause]"

ALL_LABELS = (
    ASSISTANT_INTERRUPTS,
    USER_INTERRUPTS,
    CUT_OFF_BY_USER,
    CUT_OFF_BY_ASSISTANT,
    CUT_ITSELF_OFF,
    LIKELY_INTERRUPTION,
    PAUSE,
)

GENERIC_ERROR_SENTENCE = "I'm sorry, I encountered an error processing your request."
"""The pipeline's own apology. A text group that equals it enters the trace, although no reply of
the model caused it.
"""

EMPTY_UTTERANCES = frozenset({"", "...", "......", ".", ",", "?", "!"})
"""Texts of a `user_speech` without words; `..` is not among them."""


# Pipecat's text stream as groups: rules P1 to P5, kept up to date event by event.
#
# Between two turn markers all kept `tts_text` frames form one group, so a group and the block
# between its markers are the same thing here. Words only append to the open group. A group that
# holds a phrase (a frame with a blank) keeps its raw frames, because the phrase may turn out to be
# the preview of the words after it (P4) or may share its stamp with another frame (P3) and then
# vanish; a group of single words keeps only its text.

_ERROR_LENGTH = len(GENERIC_ERROR_SENTENCE)
_INDEX_MASK = (1 << INDEX_BITS) - 1

CHARS_LIKE_AN_ELEMENT = 64
"""Characters whose splitting and joining costs about as much as folding one element again."""


@dataclass(slots=True, eq=False)
class RawFrame:
    """One kept frame of a group that holds phrases; `is_dropped` by P3."""

    stamp: float
    text: str
    index: int
    is_phrase: bool
    is_dropped: bool = False


class TextGroup:
    """A text slot: its place in the timeline stays while its text grows.

    `key` orders it by its first kept frame; None while no frame is kept. `frames` is None while it
    holds no phrase; then `words_wanted` is the word count of its last phrase and `words_seen` the
    number of frames after it.
    """

    __slots__ = (
        "frames",
        "glue",
        "is_error_sentence",
        "key",
        "length",
        "parts",
        "words_seen",
        "words_wanted",
    )

    def __init__(self, key: int | None, glue: str, text: str) -> None:
        self.key = key
        self.glue = glue
        self.parts = [text]
        self.length = len(text)
        self.is_error_sentence = text == GENERIC_ERROR_SENTENCE
        self.frames: list[RawFrame] | None = None
        self.words_wanted = 0
        self.words_seen = 0

    @property
    def text(self) -> str:
        """The frames so far, joined by one blank (`tts_text`) or by nothing (`llm_response`)."""
        if len(self.parts) > 1:
            self.parts = [self.glue.join(self.parts)]
        return self.parts[0] if self.parts else ""

    def append(self, frame: str) -> bool:
        """Adds a frame; true when that changed a property that rules read: emptiness, or being the
        generic error sentence.
        """
        before = self.length
        self.parts.append(frame)
        self.length = before + len(self.glue) + len(frame)
        if self.length == _ERROR_LENGTH or self.is_error_sentence or not before:
            was_error = self.is_error_sentence
            self.is_error_sentence = (
                self.length == _ERROR_LENGTH and self.text == GENERIC_ERROR_SENTENCE
            )
            return was_error != self.is_error_sentence or (not before and self.length > 0)
        return False

    def set_text(self, text: str) -> None:
        """Replaces the text as a whole."""
        self.parts = [text]
        self.length = len(text)
        self.is_error_sentence = text == GENERIC_ERROR_SENTENCE


class GroupEdits(Protocol):
    """Applies changes of groups to the merged timeline."""

    def place(self, group: TextGroup) -> None:
        """Inserts `group` at its key."""

    def displace(self, key: int) -> None:
        """Removes the group at `key`."""

    def reread(self, group: TextGroup) -> None:
        """Replays from the group: its text changed in a way that rules may read."""


class TextStream:
    """All groups and markers of one call's pipecat stream, in stream order."""

    def __init__(self, edits: GroupEdits, replays: Replays) -> None:
        self._edits = edits
        self._replays = replays
        self._items: list[TextGroup | tuple[str, int]] = []
        self._open: TextGroup | None = None
        self._count = 0
        self._has_speech = False
        self._stamps = array("d")
        # all stamps, from the first that is below an earlier one
        self._descended: set[float] | None = None
        self._last_stamp = -inf
        self._phrases: dict[float, list[tuple[TextGroup, RawFrame]]] = {}

    def marker(self, kind: str, stamp: float) -> None:
        """Closes the open group at a turn marker; equal neighbouring markers are one."""
        self._count += 1
        self._open = None
        last = self._items[-1] if self._items else None
        if not (isinstance(last, tuple) and last[0] == kind):
            self._items.append((kind, int(stamp)))

    def response(self, stamp: float, frame: str) -> None:
        """Adds an `llm_response`: counts only while the call has no `tts_text`."""
        self._count += 1
        if self._has_speech:
            return
        if self._open is not None:
            self._append(self._open, frame)
            return
        self._begin(TextGroup(order_key(int(stamp), PIPECAT_RANK, self._count), "", frame))

    def speech(self, stamp: float, frame: str) -> None:
        """Adds a `tts_text` frame, word or phrase."""
        self._count += 1
        if not self._has_speech:
            self._drop_responses()
        group = self._open
        is_phrase = " " in frame
        if (
            not is_phrase
            and stamp > self._last_stamp
            and group is not None
            and group.frames is None
        ):
            # Nine of ten frames: one more word of the open group, with a stamp of its own.
            self._last_stamp = stamp
            self._note(stamp)
            length = group.length
            new_length = length + 1 + len(frame)
            if length and new_length != _ERROR_LENGTH and not group.is_error_sentence:
                group.parts.append(frame)
                group.length = new_length
            else:
                self._append(group, frame)
            return
        is_repeated = self._remember(stamp)
        if is_repeated:
            self._drop_phrases_at(stamp)
            group = self._open
        if is_phrase:
            self._phrase(group, stamp, frame, is_dropped=is_repeated)
        elif group is None:
            self._begin(TextGroup(order_key(int(stamp), PIPECAT_RANK, self._count), " ", frame))
        elif group.frames is None:
            self._append(group, frame)
        else:
            self._word_after_phrase(
                group, group.frames, RawFrame(stamp, frame, self._count, is_phrase=False)
            )

    def groups(self) -> Iterator[TextGroup]:
        """Every group that is placed, in stream order."""
        return (
            item for item in self._items if isinstance(item, TextGroup) and item.key is not None
        )

    def last_time_ms(self) -> int | None:
        """Latest time of a group or marker; None without any. Markers are one when the text between
        them has vanished.
        """
        latest: int | None = None
        marker = ""
        for item in self._items:
            if isinstance(item, TextGroup):
                if item.key is None:
                    continue
                marker, time_ms = "", key_time_ms(item.key)
            else:
                if item[0] == marker:
                    continue
                marker, time_ms = item
            if latest is None or time_ms > latest:
                latest = time_ms
        return latest

    def _begin(self, group: TextGroup) -> None:
        self._open = group
        self._items.append(group)
        self._edits.place(group)

    def _append(self, group: TextGroup, frame: str) -> None:
        if group.append(frame):
            self._edits.reread(group)

    def _drop_responses(self) -> None:
        """P2: the first `tts_text` of the call removes every `llm_response`."""
        self._has_speech = True
        for group in self.groups():
            if group.key is not None:
                self._edits.displace(group.key)
        self._items = [item for item in self._items if isinstance(item, tuple)]
        self._open = None

    def _remember(self, stamp: float) -> bool:
        """Notes a stamp; true when an earlier `tts_text` has it too."""
        if stamp > self._last_stamp:
            self._last_stamp = stamp
            self._note(stamp)
            return False
        if self._descended is None:
            stamps = self._stamps
            if stamps[bisect_left(stamps, stamp)] == stamp:
                return True
            self._descended = set(stamps)
            self._stamps = array("d")
        elif stamp in self._descended:
            return True
        self._descended.add(stamp)
        return False

    def _note(self, stamp: float) -> None:
        """Keeps a stamp in an array of eight bytes each while stamps ascend, as in nearly every
        call.
        """
        if self._descended is None:
            self._stamps.append(stamp)
        else:
            self._descended.add(stamp)

    def _drop_phrases_at(self, stamp: float) -> None:
        """P3: a phrase whose stamp another frame shares is dropped."""
        for group, frame in self._phrases.pop(stamp, ()):
            frame.is_dropped = True
            self._rebuild(group)

    def _phrase(
        self, group: TextGroup | None, stamp: float, frame: str, *, is_dropped: bool
    ) -> None:
        if is_dropped:
            return  # a repeated stamp stays repeated, and a dropped frame takes no part in P4 or P5
        if group is None:
            group = TextGroup(order_key(int(stamp), PIPECAT_RANK, self._count), " ", frame)
            group.frames = []
            self._begin(group)
        elif group.frames is None:
            # The words before the first phrase never change, so one frame represents them all.
            first = group.key if group.key is not None else 0
            group.frames = [
                RawFrame(key_time_ms(first), group.text, first & _INDEX_MASK, is_phrase=False)
            ]
            self._append(group, frame)
        else:
            self._append_kept(group, stamp, frame)
        raw = RawFrame(stamp, frame, self._count, is_phrase=True)
        group.frames.append(raw)
        group.words_wanted, group.words_seen = len(frame.split()), 0
        self._phrases.setdefault(stamp, []).append((group, raw))

    def _append_kept(self, group: TextGroup, stamp: float, frame: str) -> None:
        if group.key is None:
            group.key = order_key(int(stamp), PIPECAT_RANK, self._count)
            group.set_text(frame)
            self._edits.place(group)
        else:
            self._append(group, frame)

    def _word_after_phrase(self, group: TextGroup, frames: list[RawFrame], word: RawFrame) -> None:
        frames.append(word)
        group.words_seen += 1
        if group.words_seen == group.words_wanted and _is_preview(
            frames, len(frames) - 1 - group.words_seen
        ):
            self._rebuild(group)
            return
        self._append_kept(group, word.stamp, word.text)
        if len(frames) == 1:
            group.frames = None  # a single word in a group that had lost all its phrases

    @staticmethod
    def _holds_phrase(frames: list[RawFrame]) -> bool:
        return any(raw.is_phrase for raw in frames)

    def _rebuild(self, group: TextGroup) -> None:
        """Applies P4 and P5 to one group again, after a phrase was dropped or recognised as a
        preview.
        """
        self._replays.elements += len(group.frames or ()) + group.length // CHARS_LIKE_AN_ELEMENT
        frames = [raw for raw in group.frames or () if not raw.is_dropped]
        kept = [raw for place, raw in enumerate(frames) if not _is_preview(frames, place)]
        old_key = group.key
        text = " ".join(raw.text for raw in kept)
        new_key = order_key(int(kept[0].stamp), PIPECAT_RANK, kept[0].index) if kept else None
        if kept and not self._holds_phrase(kept):
            for raw in frames:
                if raw.is_phrase:
                    self._forget_phrase(raw)
            group.frames = None
        else:  # a recognised preview still separates the words behind it from a phrase before it
            group.frames = frames
        phrase_place = max(
            (place for place, raw in enumerate(frames) if raw.is_phrase), default=len(frames)
        )
        group.words_wanted = (
            len(frames[phrase_place].text.split()) if phrase_place < len(frames) else 0
        )
        group.words_seen = len(frames) - 1 - phrase_place
        group.set_text(text)
        if new_key == old_key and old_key is not None:
            self._edits.reread(group)
            return
        if old_key is not None:
            self._edits.displace(old_key)
        group.key = new_key
        if new_key is not None:
            self._edits.place(group)

    def _forget_phrase(self, raw: RawFrame) -> None:
        rest = [entry for entry in self._phrases.get(raw.stamp, ()) if entry[1] is not raw]
        if rest:
            self._phrases[raw.stamp] = rest
        else:
            self._phrases.pop(raw.stamp, None)


def _is_preview(frames: list[RawFrame], place: int) -> bool:
    """P4: as many single words follow as the phrase has, and joined by one blank they are the
    phrase exactly.
    """
    raw = frames[place]
    if not raw.is_phrase:
        return False
    count = len(raw.text.split())
    following = frames[place + 1 : place + 1 + count]
    return (
        len(following) == count
        and not any(word.is_phrase for word in following)
        and " ".join(word.text for word in following) == raw.text
    )


# Finds the spoken part of a reply: EVA's check of audit texts against the text sent to speech
# synthesis (E3).

MIN_SPOKEN_CHARS = 20
"""Shortest common beginning, in normalised characters, that is no coincidence."""
_NO_LETTERS_OR_DIGITS: Final = re.compile(r"[\W_]+")


def without_eva_labels(text: str) -> str:
    """`text` with every label and every run of blanks as one blank."""
    for label in ALL_LABELS:
        text = text.replace(label, " ")
    return " ".join(text.split())


def normalised(text: str) -> str:
    """Letters and digits of `text` only, lower case, labels left out.

    Example:
        >>> normalised("[assistant interrupts] Sure, flight  AB-12!")
        'sureflightab12'
    """
    return _letters(_without_labels(text))


def _letters(text: str) -> str:
    kept = _NO_LETTERS_OR_DIGITS.sub("", text)
    # Letter by letter: the form of a last sigma would depend on the letters behind it.
    return kept.lower() if kept.isascii() else "".join(map(str.lower, kept))


def _without_labels(text: str) -> str:
    """As EVA compares texts: a line break in a label is a blank, and a label that touches a word
    leaves no blank behind.
    """
    text = " ".join(text.split())
    if "[" not in text:
        return text
    for label in ALL_LABELS:
        text = text.replace(label, "")
    return " ".join(text.split())


class SpokenText:
    """The text that speech synthesis got in one turn, normalised once for all replies that are
    compared with it.

    Attributes:
        chars: Its letters and digits.
    """

    def __init__(self, segments: Iterable[str]) -> None:
        spoken = [segment for segment in map(normalised, segments) if segment]
        self._joined = "".join(spoken)
        self._sorted = sorted(set(spoken))
        self.chars = len(self._joined)

    def prefix(self, text: str) -> str | None:
        """The part of `text` that the segments spoke.

        Returns:
            The whole text if one segment, or all joined, contain it; otherwise its longest
            beginning in words that some segment begins with; None when that is shorter than
            `MIN_SPOKEN_CHARS` or there is nothing to compare. A label in `text` counts as words in
            the cut, as the reference does.
        """
        wanted = normalised(text)
        if not wanted or not self._joined:
            return None
        if wanted in self._joined:
            return text
        sizes = []
        length = 0
        for word in _without_labels(text).split():
            length += len(_letters(word))
            sizes.append(length)
        # In sorted texts a neighbour of the place shares the longest beginning.
        place = bisect_left(self._sorted, wanted)
        nearest = self._sorted[max(0, place - 1) : place + 1]
        kept = _words_within(sizes, max(_common_length(wanted, segment) for segment in nearest))
        if kept == 0 or sizes[kept - 1] < MIN_SPOKEN_CHARS:
            return None
        return " ".join(text.split()[:kept])


def _common_length(wanted: str, segment: str) -> int:
    length = 0
    for ours, theirs in zip(wanted, segment, strict=False):
        if ours != theirs:
            break
        length += 1
    return length


def _words_within(sizes: Sequence[int], length: int) -> int:
    """Number of whole words that fit into `length` characters; words without letters or digits cost
    nothing.
    """
    count = 0
    for size in sizes:
        if size > length:
            break
        count += 1
    return count
