"""A call as pages, reports and `callgauge call` show it: one function of its rows, whether it runs
or is over. Pure.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs

from consumers.view.words import MOST_CHARS, Redacts, shortened
from schemas.annotations import Annotation
from schemas.closed_sets import Anchor, Speaker
from schemas.goals.goal_set import GoalSet
from schemas.rows import (
    CallRow,
    GoalsRow,
    NotApplicable,
    OwnRow,
    Progress,
    Silence,
    Sound,
    TurnRow,
    Unscored,
    Value,
    WordsRow,
    number,
)
from schemas.scores.running import heard_ms

_LEAST_OVERLAP_MS: Final = 1.0
"""As in EVA: less is a matter of clocks."""
QUIET_MS: Final = 45_000
"""Time without an event of a call that goes on, from which it may be over."""
_OUTLIER_MS: Final = 600_000
"""A clock that is further than this from every sound says nothing of when the call was."""

# Stretches of speech, of overlap and of silence, on the call's own clock.


class SpeechStretch(NamedTuple):
    """Somebody speaks; times in epoch milliseconds. Where only the beginning is known both are the
    same.
    """

    speaker: Speaker
    turn: int
    start_ms: float
    end_ms: float


class Interval(NamedTuple):
    """A piece of a call, in epoch milliseconds; `turn` is the one in which it began."""

    start_ms: float
    end_ms: float
    turn: int

    @property
    def length_ms(self) -> float:
        """How long it is."""
        return self.end_ms - self.start_ms


def overlaps(stretches: Sequence[SpeechStretch], least_ms: float) -> list[Interval]:
    """Where both speak for at least so long; the turn is that of who came in."""
    users = _joined(each for each in stretches if each.speaker is Speaker.USER)
    assistants = _joined(each for each in stretches if each.speaker is Speaker.ASSISTANT)
    found, user_at, assistant_at = [], 0, 0
    while user_at < len(users) and assistant_at < len(assistants):
        user, assistant = users[user_at], assistants[assistant_at]
        second = max(user, assistant, key=lambda each: each.start_ms)
        both = Interval(second.start_ms, min(user.end_ms, assistant.end_ms), second.turn)
        if both.length_ms >= least_ms:
            found.append(both)
        if user.end_ms <= assistant.end_ms:
            user_at += 1
        else:
            assistant_at += 1
    return found


def _joined(stretches: Iterable[SpeechStretch]) -> list[Interval]:
    """As pieces that do not touch, in their order; each has the turn of its last stretch."""
    pieces: list[Interval] = []
    for _, turn, start_ms, end_ms in sorted(
        stretches, key=lambda each: (each.start_ms, each.end_ms, each.turn)
    ):
        if pieces and start_ms <= pieces[-1].end_ms:
            last = pieces.pop()
            pieces.append(Interval(last.start_ms, max(last.end_ms, end_ms), turn))
        else:
            pieces.append(Interval(start_ms, end_ms, turn))
    return pieces


class Wait(NamedTuple):
    """How long the caller waited for the answer of a turn, or why nobody knows, and how the end of
    their speech is known.
    """

    turn: int
    value: Value
    anchor: Anchor | None


class ReportedCall:
    """A call as its rows have it, at its end or at any moment of it.

    Attributes:
        row: The row of the call.
        turns: The rows of its turns in their order, without withdrawn ones.
        goals: Its goal set.
        goals_row: The row that has it.
        words: What was said, by turn; empty where it is hidden, or not kept.
        anchor_id: Beginning of the ids of its parts.
        annotations: What people say of it, in the order of their times.
        own: Values of one's own measures.
        start_ms: When it began, on its own clock.
        end_ms: When it ended, or up to when it is known.
        stretches: Who spoke when, as they began. While the call goes on, so does the newest speech
            of which no end is known.
        overlaps: Where both spoke.
        silences: Its dead air, each from its beginning to the answer.
    """

    def __init__(
        self,
        row: CallRow,
        turns: Iterable[TurnRow],
        goals: GoalsRow | None,
        words: Iterable[WordsRow],
        anchor_id: str,
        redactor: Redacts,
        annotations: Sequence[Annotation] = (),
        own: Sequence[OwnRow] = (),
    ) -> None:
        """Rows may come in any order. Words are redacted already; `redactor` is for every other
        text.
        """
        self.row = row
        self.conversation_id = row.conversation_id
        self.turns = sorted(
            (each for each in turns if each.status != "withdrawn"), key=lambda each: each.turn
        )
        self.goals_row = goals
        self.goals = None if goals is None else GoalSet.model_validate(goals.goal_set)
        self.words = {each.turn: each for each in words}
        self._by_turn = {each.turn: each for each in self.turns}
        self.anchor_id = anchor_id
        self.annotations = annotations
        self.own = own
        self._redactor = redactor
        sounds = [
            (speaker, each.turn, sound)
            for each in self.turns
            for speaker, of_side in (
                (Speaker.USER, each.user_sounds),
                (Speaker.ASSISTANT, each.assistant_sounds),
            )
            for sound in of_side
        ]
        sounds.sort(key=lambda each: each[2].start_ms)
        self.start_ms, self.end_ms = span_of(row, [sound for _, _, sound in sounds])
        self.stretches = tuple(self._stretches(sounds))
        self.overlaps = overlaps(self.stretches, _LEAST_OVERLAP_MS)
        self.silences = sorted(
            self._drawn(each.turn, found) for each in self.turns for found in each.dead_air
        )

    @property
    def is_closed(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.row.state == "closed"

    @property
    def is_over(self) -> bool:
        """Whether it has ended; its values may still change, by late events or by verdicts."""
        return self.row.state != "running"

    @property
    def quiet_ms(self) -> int:
        """How long no event of a call that goes on has come, as far as its row says; 0 for less
        than `QUIET_MS`, which an agent can speak for.
        """
        quiet_ms = self.row.known_ms - heard_ms(self.row)
        return 0 if self.is_over or quiet_ms < QUIET_MS else quiet_ms

    @property
    def length_ms(self) -> float:
        """From its first event to its last."""
        return self.end_ms - self.start_ms

    def status(self, turn: TurnRow) -> str:
        """How far the row of a turn can still change."""
        return "final" if self.is_closed else turn.status

    @cached_property
    def waits(self) -> list[Wait]:
        """By turn how long the caller waited. For the greeting nobody did."""
        return [
            Wait(each.turn, each.wait_ms, each.anchor)
            for each in self.turns
            if each.turn >= 1 and each.wait_ms is not None
        ]

    @cached_property
    def waits_ms(self) -> dict[int, float]:
        """The waits that are known and not negative, by turn."""
        known = {wait.turn: number(wait.value) for wait in self.waits}
        return {turn: value for turn, value in known.items() if value is not None and value >= 0}

    @property
    def slowest_turn(self) -> int | None:
        """The turn with the longest of those."""
        return max(self.waits_ms, key=self.waits_ms.__getitem__, default=None)

    @property
    def dead_airs(self) -> int | None:
        """How often there was dead air; None where it cannot be known."""
        is_measured = (
            self.row.speech is not None and number(self.row.speech.dead_air_ms) is not None
        )
        is_known = self.row.dead_airs or self.stretches or is_measured
        return self.row.dead_airs if is_known else None

    @property
    def progress(self) -> Progress | None:
        """Progress after the newest turn that is judged."""
        return None if self.row.goals is None else self.row.goals.progress

    @property
    def unjudged_turns(self) -> list[int]:
        """The turns that were left and of which a judge's verdict is pending; empty once the call
        is closed.

        A turn has its progress as soon as every question about it is answered, or cannot be.
        """
        if self.row.goals is None or not self.row.goals.by_judge or self.is_closed:
            return []
        return [
            each.turn
            for each in self.turns
            if each.turn >= 1 and each.status != "open" and each.progress is None
        ]

    @property
    def missing_turns(self) -> list[int]:
        """Turns that the call had and of which there is no row here: their rows were read by nobody
        who kept them.
        """
        there = {each.turn for each in self.turns}
        return [turn for turn in range(1, (self.row.turn or 0) + 1) if turn not in there]

    def shown(self, text: str, most: int = MOST_CHARS) -> str:
        """A text of the call as a person may see it."""
        return shortened(self._redactor.redact(text), most)

    def offset_ms(self, time_ms: float) -> float:
        """A moment as counted from the start of the call."""
        return time_ms - self.start_ms

    def has_turn(self, turn: int) -> bool:
        """Whether the transcript has the turn."""
        return turn in self.words or turn in self._by_turn

    def row_of(self, turn: int) -> TurnRow | None:
        """The row of a turn; None where only its words are known."""
        return self._by_turn.get(turn)

    def turn_anchor(self, turn: int) -> str:
        """The id of a turn in the transcript."""
        return f"{self.anchor_id}-t{turn}"

    def _stretches(self, sounds: Sequence[tuple[Speaker, int, Sound]]) -> Iterator[SpeechStretch]:
        newest = {speaker: place for place, (speaker, _, _) in enumerate(sounds)}
        for place, (speaker, turn, sound) in enumerate(sounds):
            end_ms: float = sound.start_ms
            if sound.end_ms is not None:
                end_ms = max(sound.start_ms, sound.end_ms)
            elif not self.is_over and place == newest[speaker]:
                end_ms = max(sound.start_ms, self.end_ms - self.quiet_ms)
            yield SpeechStretch(speaker, turn, sound.start_ms, end_ms)

    def _drawn(self, turn: int, silence: Silence) -> Interval:
        """Dead air up to the answer; without one up to when the caller spoke again, or as far as
        the call is known.
        """
        end_ms: float | None = silence.until_ms
        if end_ms is None:
            later = (each.start_ms for each in self.stretches if each.start_ms > silence.since_ms)
            end_ms = next(later, self.end_ms)
        return Interval(
            silence.since_ms, max(silence.since_ms + silence.threshold_ms, end_ms), turn
        )


def span_of(row: CallRow, sounds: Sequence[Sound] = ()) -> tuple[float, float]:
    """From when to when a call is shown, on its own clock; without its sounds they are taken to be
    within what its row says. Of a call that goes on the broker's clock tells how far it has come.
    """
    first_ms = sounds[0].start_ms if sounds else None
    last_ms = max(
        (each.start_ms if each.end_ms is None else each.end_ms for each in sounds), default=None
    )
    start_ms = row.began_ms if row.began_ms is not None else first_ms
    if start_ms is None:
        start_ms = row.first_known_ms
    end_ms = (
        row.ended_ms if row.ended_ms is not None else start_ms + row.known_ms - row.first_known_ms
    )
    if first_ms is None or last_ms is None:
        return start_ms, max(start_ms, end_ms)
    start_ms = min(start_ms, first_ms) if first_ms - start_ms <= _OUTLIER_MS else first_ms
    end_ms = max(end_ms, last_ms) if end_ms - last_ms <= _OUTLIER_MS else last_ms
    return start_ms, end_ms


# The values in a row of a turn or of a call, one by one under their names.

_VALUES_OF_A_TURN: Final = (
    *(
        "after_tools_ms",
        "stages",
        "turn_taking",
        "talk",
        "stt_wer",
        "user_disagreement",
        "assistant_disagreement",
    ),
    *("estimate_error", "conciseness", "speakability", "transcription_accuracy_key_entities"),
)
_VALUES_OF_A_CALL: Final = (
    *("faithfulness", "conversation_progression", "user_behavioral_fidelity", "stt_wer"),
    *("transcript_disagreement", "user_disagreement", "assistant_disagreement"),
    *("stages", "waits", "unscored_turns", "cost_dollars"),
)
_VALUES_OF_GOALS: Final = ("tool_correctness", "success_final_turn", "unscored_subgoals")


class ScorePart(NamedTuple):
    """One value.

    Attributes:
        name: The name of its field.
        value: It; None for a score of several numbers.
        fields: Its other values, by name.
        meaning: Its description in the contract; empty where the name says all.
    """

    name: str
    value: Value | None
    fields: Mapping[str, Any]
    meaning: str = ""


def parts_of(row: TurnRow | CallRow) -> Iterator[ScorePart]:
    """Every measured value, but no wait of the greeting, in which nobody waits."""
    if isinstance(row, TurnRow):
        if row.turn >= 1 and row.wait_ms is not None:
            yield ScorePart(
                "wait_ms", row.wait_ms, {"anchor": row.anchor, "source": row.wait_source}
            )
        yield from _parts(row, _VALUES_OF_A_TURN)
        return
    for metric, score in row.eva.items():
        yield part_of(metric, score)
    yield from _parts(row, _VALUES_OF_A_CALL)
    if row.goals is not None:
        yield from _parts(row.goals, _VALUES_OF_GOALS)


def own_parts(call: ReportedCall, turn: int | None) -> Iterator[ScorePart]:
    """The values of one's own measures of a turn; None is of the call."""
    for row in call.own:
        if row.turn == turn:
            yield ScorePart(
                row.measure,
                row.value,
                {"label": row.label, "not_measured": row.reason},
                "A measure of one's own.",
            )


def _parts(row: Struct, names: Iterable[str]) -> Iterator[ScorePart]:
    for name in names:
        value = getattr(row, name)
        if value not in (None, (), {}):
            yield part_of(name, value)


def part_of(name: str, value: object) -> ScorePart:
    """A value as one part."""
    match value:
        case Unscored() | NotApplicable() | float():
            return ScorePart(name, value, {})
        case Struct():
            fields = structs.asdict(value)
            number_of = fields.pop("result", None)
            if name == "estimate_error":
                number_of = fields.pop("error_ms")
            return ScorePart(name, number_of, fields, _meaning(type(value)))
        case _:
            return ScorePart(name, None, {name: value})


@cache
def _meaning(kind: type[Struct]) -> str:
    return (inspect.getdoc(kind) or "").split("\n\n")[0].replace("`", "").replace("\n", " ")
