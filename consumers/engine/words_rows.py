"""The rows of words of one call: what was said in each turn, and what its tools were asked and
answered, without personal data.

A text is redacted when it is complete, because half a number is not recognised. The words of the
caller are complete when the agent begins to answer, or when the caller has waited for that until
dead air begins; those of the agent when its sound has ended, and both when the call has left the
turn. Later words of a turn make another row of it.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final, NamedTuple

from consumers.engine.redaction.redactor import MAX_CHARS, MAX_CHARS_PER_STEP, CallRedactor
from consumers.engine.transcripts import TranscriptTexts, left_out, length
from consumers.engine.turns.eva import text_mark
from consumers.engine.turns.heard import HeardTurn, HeardTurns, Purpose, answer_of, cut_off_turns
from consumers.engine.turns.live import LiveCall
from schemas.rows import (
    MAX_TEXT_BYTES,
    MAX_TOOL_TEXT_BYTES,
    MAX_TOOLS,
    CallRow,
    ToolWords,
    WordsRow,
)

MAX_TURNS_OF_ONE_STEP: Final = 100
"""Turns of which one step finds the words: 10 ms. The others wait for the next step."""


class _Use(NamedTuple):
    """A use of a tool."""

    number: int
    tool: str
    arguments: object
    answer: object


class _Said(NamedTuple):
    """What the row of a turn is made from, with personal data."""

    user: str = ""
    assistant: str = ""
    written: str = ""
    uses: tuple[_Use, ...] = ()

    @property
    def digest(self) -> int:
        """A number that changes with it. Values of tools are shared with the call, so their text is
        compared.
        """
        uses = tuple(
            (use.number, use.tool, repr(use.arguments), repr(use.answer)) for use in self.uses
        )
        return text_mark(repr((self.user, self.assistant, self.written, uses)))


class CallWords:
    """Makes the rows of words of one call. An event that changes no turn and no words costs
    nothing.

    Attributes:
        is_due: Whether there may be a row to write.
    """

    def __init__(self, redactor: CallRedactor) -> None:
        self.is_due = False
        self._redactor = redactor
        self._texts = TranscriptTexts(redactor)
        self._texts.longest_value = MAX_CHARS  # so much of a value is searched
        self._changed: set[int] = set()  # turns that the call has not left
        self._due: set[int] = set()  # turns that it has left
        self._made: dict[int, int] = {}  # by turn, the digest of what its newest row is made from
        self._seen: dict[
            int, tuple[int, bool]
        ] = {}  # by turn, what tells that no text of it is another than at the last look
        self._spoken: set[int] = set()  # turns in which the agent's spoken words are known
        self._turn = -2  # the turn that the call is in
        self._looks = self._dead_airs = 0  # looks at its complete texts
        self._is_answered = self._has_user = self._is_look_due = False

    def follow(
        self, live: LiveCall, touched: AbstractSet[int], with_tools: AbstractSet[int]
    ) -> None:
        """Follows the turns that an event has changed: these, those with other uses of tools, and
        those with other words.
        """
        machine, view_of = live.machine, live.turns.view
        changed = touched
        if machine.reworded:
            changed, machine.reworded = changed | machine.reworded, set()
        turn = machine.turn
        for each in with_tools:
            self._seen.pop(each, None)
        for each in changed:
            (self._due if each < turn else self._changed).add(each)
            view = view_of(each)
            # the answer before it was cut off
            if view is not None and view.user_interrupted and each <= turn:
                self._due.add(each - 1)
        if turn != self._turn:
            left = {each for each in self._changed if each < turn}
            self._due |= left
            self._changed -= left
            self._turn, self._looks, self._is_answered, self._has_user = (
                turn,
                0,
                False,
                turn in self._made,
            )
        if turn in changed and (view := view_of(turn)) is not None and view.has_assistant:
            is_answered = live.is_answer_over(turn)
            if is_answered and not self._is_answered:
                self._is_answered, self._looks = True, 0
            if is_answered or not (self._has_user or view.is_user_speaking):
                # A turn of many utterances has few rows: after the first, second, fourth of them.
                self._looks += 1
                self._is_look_due |= not self._looks & (self._looks - 1)
        self.is_due = self._is_look_due or bool(self._due)

    def follow_silences(self, dead_airs: int) -> None:
        """Follows how often dead air was found: what the caller has said before it is complete."""
        if dead_airs != self._dead_airs:
            self._dead_airs, self._is_look_due, self.is_due = dead_airs, True, True

    @property
    def since(self) -> int:
        """The first turn whose words the next rows may be made from."""
        return min(self._due, default=self._turn) - 1

    def rows(
        self, live: LiveCall, heard: HeardTurns, call: CallRow, revision: int
    ) -> Iterator[WordsRow]:
        """The rows of turns with new complete texts: as many as a step may find and redact; others
        stay due.

        Args:
            live: The call.
            heard: Its turns as they are now, with their words from `since` on.
            call: Its row.
            revision: Of the present step.
        """
        turns = list(islice(sorted(self._due), MAX_TURNS_OF_ONE_STEP))
        self._due.difference_update(turns)
        if self._is_look_due:
            self._is_look_due = False
            turns.append(self._turn)
        known_ms = max(live.broker_ms, call.known_ms)
        left_out_before = self._redactor.texts_left_out
        for place, number in enumerate(turns):
            news = self._news(live, heard, number)
            if news is None:
                continue
            said, digest = news
            row = self._row(said, number, call, revision, known_ms)
            if self._redactor.texts_left_out > left_out_before:
                # This step may redact no more. The next one goes on, and has what is redacted by
                # now.
                self._redactor.texts_left_out = left_out_before
                self._due.update(turns[place:])
                self._seen.pop(number, None)
                break
            self._made[number] = digest
            self._has_user |= number == self._turn and bool(said.user)
            yield row
        self.is_due = bool(self._due)

    def finish(self, live: LiveCall) -> None:
        """Has the rest written, because the call is over: its last turn, and what has changed
        unseen.
        """
        self._is_answered = True
        self._due |= live.heard().numbers() | self._made.keys()
        self.is_due = bool(self._due)

    def say_again(self, live: LiveCall, call: CallRow, revision: int) -> Iterator[WordsRow]:
        """All rows so far once again, with this revision."""
        heard = live.heard()
        for number in sorted(self._made):
            self._redactor.left_chars = MAX_CHARS_PER_STEP  # nearly all of it is redacted already
            yield self._row(
                self._said_in(live, heard, number), number, call, revision, call.known_ms
            )

    def _news(self, live: LiveCall, heard: HeardTurns, number: int) -> tuple[_Said, int] | None:
        """Returns the complete words of a turn and their digest; None if its newest row says the
        same.
        """
        turn = heard.turn(number)
        if turn is None:
            self._seen.pop(number, None)
        else:
            seen = turn.words.mark, number != self._turn or self._is_answered
            if (
                seen == self._seen.get(number)
                and number in self._spoken
                and not self._may_be_cut(live, turn)
            ):
                return None
            self._seen[number] = seen
        said = self._said_in(live, heard, number)
        digest = said.digest
        is_same = digest == self._made[number] if number in self._made else not any(said)
        return None if is_same else (said, digest)

    def _said_in(self, live: LiveCall, heard: HeardTurns, number: int) -> _Said:
        """What was said in a turn, as far as it is complete."""
        turn = heard.turn(number)
        if turn is None:
            self._know_speech(number, "")
            return _Said()
        user = turn.user.said(Purpose.SPOKEN)
        if number == self._turn and not self._is_answered:
            return _Said(user)
        spoken = turn.assistant.said(Purpose.SPOKEN)
        self._know_speech(number, spoken)
        answer, written = answer_of(turn, spoken, knows_speech=bool(self._spoken)), ""
        if self._may_be_cut(live, turn) and number in cut_off_turns(
            heard.turns((number - 1, number, number + 1))
        ):
            whole = turn.assistant.said(Purpose.WRITTEN)
            if len(whole) >= len(spoken) > 0 and whole != answer:
                written = whole
        return _Said(user, answer, written, _uses_in(turn))

    @staticmethod
    def _may_be_cut(live: LiveCall, turn: HeardTurn) -> bool:
        views = live.turns.view(turn.number), live.turns.view(turn.number + 1)
        return turn.words.is_corrected or any(
            view is not None and view.user_interrupted for view in views
        )

    def _know_speech(self, number: int, spoken: str) -> None:
        """Notes whether spoken words of the turn are known. The first ones of a call change its
        other turns, and so does their loss.
        """
        knew = bool(self._spoken)
        if spoken:
            self._spoken.add(number)
        else:
            self._spoken.discard(number)
        if bool(self._spoken) is not knew:
            self._due.update(self._made.keys() - {number})

    def _row(
        self, said: _Said, number: int, call: CallRow, revision: int, known_ms: int
    ) -> WordsRow:
        missing: list[str] = []
        return WordsRow(
            conversation_id=call.conversation_id,
            turn=number,
            revision=revision,
            known_ms=known_ms,
            tenant=call.labels.tenant,
            user=self._text("user", said.user, missing),
            assistant=self._text("assistant", said.assistant, missing),
            written=self._text("written", said.written, missing),
            tools=self._tools(said.uses, missing),
            left_out=tuple(missing),
        )

    def _text(self, name: str, text: str, missing: list[str]) -> str:
        shown = self._texts.text(text) or ""
        within = cut(shown, MAX_TEXT_BYTES)
        if within is not shown:
            missing.append(name)
        return within

    def _tools(self, uses: tuple[_Use, ...], missing: list[str]) -> tuple[ToolWords, ...]:
        made = []
        for use in uses[:MAX_TOOLS]:
            texts = []
            is_whole = True
            for value, redacted in (
                (use.arguments, self._texts.parameters),
                (use.answer, self._texts.answer),
            ):
                text = ""
                if value is not None:
                    chars = length(value)
                    text = redacted(value, chars)
                    is_whole &= text != left_out(chars)
                within = cut(text, MAX_TOOL_TEXT_BYTES)
                is_whole &= within is text
                texts.append(within)
            made.append(ToolWords(use.number, use.tool, *texts))
            if not is_whole:
                missing.append(f"tools.{use.number}")
        if len(uses) > MAX_TOOLS:
            missing.append("tools")
        return tuple(made)


CUT: Final = "…"
"""Ends a text that was cut."""
_MOST_BYTES_OF_A_CHARACTER: Final = 4


def cut(text: str, most_bytes: int) -> str:
    """The text in at most so many bytes of UTF-8, between two characters; the same object if
    nothing is cut.

    Example:
        >>> cut("four words are here", 12), cut("äöü", 6)
        ('four word…', 'äöü')
    """
    if len(text) * _MOST_BYTES_OF_A_CHARACTER <= most_bytes:
        return text
    encoded = text.encode()
    if len(encoded) <= most_bytes:
        return text
    return encoded[: most_bytes - len(CUT.encode())].decode(errors="ignore") + CUT


def _uses_in(turn: HeardTurn) -> tuple[_Use, ...]:
    return tuple(
        _Use(use.index, use.tool, use.arguments, None if use.is_withheld else use.answer)
        for use in turn.tools
    )
