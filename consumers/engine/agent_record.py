"""The record of a conversation with an ElevenLabs agent beside the turns that were heard live: which of its turns is which.

A record groups into turns as the live events do: a turn begins when the caller speaks after the agent has. Its entries name
the live events by id; where they do not, turns are told by their place if there are as many, else by the caller's words.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from consumers.engine.speaking import SpeakingMachine
from schemas.elevenlabs_record import LATENCY_METRIC, ConversationRecord, RecordEntry
from schemas.latency_stages import CONVAI_METRICS, MAX_STAGE_SECONDS, SEVERAL, Several

MS_PER_SECOND: Final = 1_000
MS_DIGITS: Final = 3


class RecordedTurn(NamedTuple):
    """One turn of a record.

    Attributes:
        user_words: What the caller said, in small letters and with single blanks.
        ids: Of its entries: whether it is the caller's, and the id of the live event.
        latency_ms: What the caller felt, by ElevenLabs' own measurement; None where there is none.
        metrics: Seconds by name; of several entries' the one that `SEVERAL` says.
    """

    user_words: str
    ids: frozenset[tuple[bool, int]]
    latency_ms: float | None
    metrics: Mapping[str, float]


class AgentRecord:
    """One record, placed beside the turns of a call."""

    def __init__(self, record: ConversationRecord) -> None:
        self._turns = _turns(record)
        self._worth = _worth(record)
        self._places: dict[int, int] = {}

    def is_worth_less_than(self, record: ConversationRecord) -> bool:
        """Whether the other says more: it is of a call that is over, is longer, or is newer."""
        return self._worth < _worth(record)

    def place(self, machine: SpeakingMachine) -> set[int]:
        """Find each live turn in the record.

        Returns:
            The live turns that now stand for another turn of the record, or for none.
        """
        before, self._places = self._places, self._found(machine)
        return {turn for turn in before.keys() | self._places.keys() if before.get(turn) != self._places.get(turn)}

    def latency_ms(self, turn: int) -> float | None:
        """The latency of a live turn as ElevenLabs measured it; None where it did not."""
        place = self._places.get(turn)
        return None if place is None else self._turns[place].latency_ms

    def metrics(self, turn: int) -> Mapping[str, float]:
        """Seconds by ElevenLabs' name of a live turn's metrics; none where nothing was measured."""
        place = self._places.get(turn)
        return {} if place is None else self._turns[place].metrics

    def _found(self, machine: SpeakingMachine) -> dict[int, int]:
        by_id = {each: place for place, turn in enumerate(self._turns) for each in turn.ids}
        found: dict[int, int] = {}
        taken: set[int] = set()
        for turn in sorted(machine.words):
            said = [(words.is_user, words.event_id) for words in machine.words[turn] if words.event_id is not None]
            place = next((by_id[each] for each in sorted(said, reverse=True) if each in by_id), None)
            if place is not None and place not in taken:
                found[turn] = place
                taken.add(place)
        return found or self._found_by_words(machine)

    def _found_by_words(self, machine: SpeakingMachine) -> dict[int, int]:
        live = [(turn, words) for turn in sorted(machine.words) if (words := _user_words(machine, turn))]
        recorded = [(place, turn.user_words) for place, turn in enumerate(self._turns) if turn.user_words]
        found = {0: 0} if self._turns and 0 in machine.words and not self._turns[0].user_words else {}
        if len(live) == len(recorded):
            return found | {turn: place for (turn, _), (place, _) in zip(live, recorded, strict=True)}
        first = 0
        for turn, words in live:
            same = next((at for at in range(first, len(recorded)) if recorded[at][1] == words), None)
            if same is not None:
                found[turn] = recorded[same][0]
                first = same + 1
        return found


def _turns(record: ConversationRecord) -> tuple[RecordedTurn, ...]:
    grouped: list[list[RecordEntry]] = [[]]
    has_agent_spoken = False
    for entry in record.transcript:
        if entry.user_words and (has_agent_spoken or len(grouped) == 1):
            grouped.append([])
            has_agent_spoken = False
        has_agent_spoken = has_agent_spoken or bool(entry.agent_words)
        grouped[-1].append(entry)
    return tuple(map(_turn, grouped))


def _turn(entries: list[RecordEntry]) -> RecordedTurn:
    said = " ".join(entry.user_words for entry in entries if entry.user_words)
    measured = [(entry.role == "user", entry.metrics) for entry in entries]
    waits_s = (seconds.get(LATENCY_METRIC, 0.0) for is_user, seconds in measured if not is_user)
    # The first one: a turn with tools has several, and what is said later in it was not waited for from the caller's silence.
    wait_s = next((seconds for seconds in waits_s if 0 < seconds <= MAX_STAGE_SECONDS), None)
    return RecordedTurn(
        user_words=_plain(said),
        ids=frozenset(
            (entry.role == "user", entry.source_event_id)
            for entry in entries
            if entry.source_event_id is not None and (entry.user_words or entry.agent_words)
        ),
        latency_ms=round(wait_s * MS_PER_SECOND, MS_DIGITS) if wait_s is not None else None,
        metrics=_together(seconds for _, seconds in measured),
    )


def _together(entries: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """A turn with tools has several entries, and those that go on after a tool may repeat what was measured before it."""
    metrics: dict[str, float] = {}
    for seconds in entries:
        for name, elapsed in seconds.items():
            known = CONVAI_METRICS.get(name)
            if name not in metrics or (known is not None and SEVERAL[known.stage] is Several.LAST):
                metrics[name] = elapsed
    return metrics


def _user_words(machine: SpeakingMachine, turn: int) -> str:
    said = [words.ref for words in machine.words[turn] if words.is_user]
    return _plain(" ".join(text for text in said if isinstance(text, str)))


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _worth(record: ConversationRecord) -> tuple[bool, int, float]:
    return record.is_final, len(record.transcript), float(record.timestamp)
