"""The record of a conversation with an ElevenLabs agent beside the turns that were heard live: which of its turns is which.

A record groups into turns as the live events do: a turn begins when the caller speaks after the agent has. Its entries name
the live events by id; where they do not, turns are told by their place if there are as many, else by the caller's words.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from consumers.engine.turns.bot.turn_machine import BotTurnMachine
from consumers.engine.turns.bot.usage import TokenUsage
from schemas.events.elevenlabs_record import LATENCY_METRIC, ConversationRecord, RecordEntry
from schemas.scores.latency_stages import CONVAI_METRICS, MAX_STAGE_SECONDS, SEVERAL, Several

MS_PER_SECOND: Final = 1_000
MS_DIGITS: Final = 3
MAX_AMOUNT: Final = 1e12
"""No turn uses more tokens, or costs more."""
_PIECE_CHARS: Final = 64
"""Characters of a text that take as long to read as a turn does."""


class RecordedTurn(NamedTuple):
    """One turn of a record.

    Attributes:
        user_words: What the caller said, in small letters and with single blanks.
        ids: Of its entries: whether it is the caller's, and the id of the live event.
        latency_ms: What the caller felt, by ElevenLabs' own measurement; None where there is none.
        metrics: Seconds by name; of several entries' the one that `SEVERAL` says.
        usage: Tokens and their prices by model.
    """

    user_words: str
    ids: frozenset[tuple[bool, int]]
    latency_ms: float | None
    metrics: Mapping[str, float]
    usage: Mapping[str, TokenUsage] = {}

    @property
    def measured(self) -> tuple[object, ...]:
        """All that it says beside which turn it is."""
        return self[2:]


class AgentRecord:
    """One record, placed beside the turns of a call.

    Attributes:
        agent_id: ElevenLabs' id of the agent; None where the record does not say.
    """

    def __init__(self, record: ConversationRecord) -> None:
        self.agent_id = record.agent_id
        self._turns = _turns(record)
        self._worth = _worth(record)
        self._places: dict[int, int] = {}
        self._place_by_id = {each: place for place, turn in enumerate(self._turns) for each in turn.ids}
        self._spoken = [place for place, turn in enumerate(self._turns) if turn.user_words]
        self._places_by_words: dict[str, list[int]] = {}
        for place in self._spoken:
            self._places_by_words.setdefault(self._turns[place].user_words, []).append(place)

    def is_worth_less_than(self, record: ConversationRecord) -> bool:
        """Whether the other says more: it is of a call that is over, is longer, or is newer."""
        return self._worth < _worth(record)

    @property
    def placed(self) -> dict[int, RecordedTurn]:
        """The live turns that were found in the record, and what it has of each."""
        return {turn: self._turns[place] for turn, place in self._places.items()}

    def place(self, machine: BotTurnMachine) -> int:
        """Find each live turn in the record.

        Returns:
            How much was read for it: turns, and pieces of text.
        """
        self._places = self._found(machine)
        return sum(1 + sum(1 + _pieces(words.ref) for words in said) for said in machine.words.values())

    def forget(self) -> None:
        """The turns are others now, which are not in the record."""
        self._places = {}

    def latency_ms(self, turn: int) -> float | None:
        """The latency of a live turn as ElevenLabs measured it; None where it did not."""
        place = self._places.get(turn)
        return None if place is None else self._turns[place].latency_ms

    def metrics(self, turn: int) -> Mapping[str, float]:
        """Seconds by ElevenLabs' name of a live turn's metrics; none where nothing was measured."""
        place = self._places.get(turn)
        return {} if place is None else self._turns[place].metrics

    def usage(self, turn: int) -> Mapping[str, TokenUsage]:
        """Tokens and their prices by model of a live turn; none where nobody counted."""
        place = self._places.get(turn)
        return {} if place is None else self._turns[place].usage

    def _found(self, machine: BotTurnMachine) -> dict[int, int]:
        by_id = self._place_by_id
        found: dict[int, int] = {}
        placed: set[int] = set()
        for turn in sorted(machine.words):
            said = [(words.is_user, words.event_id) for words in machine.words[turn] if words.event_id is not None]
            place = next((by_id[each] for each in sorted(said, reverse=True) if each in by_id), None)
            if place is not None and place not in placed:
                found[turn] = place
                placed.add(place)
        return found or self._found_by_words(machine)

    def _found_by_words(self, machine: BotTurnMachine) -> dict[int, int]:
        live = [(turn, words) for turn in sorted(machine.words) if (words := _user_words(machine, turn))]
        found = {0: 0} if self._turns and 0 in machine.words and not self._turns[0].user_words else {}
        if len(live) == len(self._spoken):
            return found | {turn: place for (turn, _), place in zip(live, self._spoken, strict=True)}
        first = 0
        for turn, words in live:
            places = self._places_by_words.get(words, [])
            at = bisect_left(places, first)
            if at < len(places):
                found[turn] = places[at]
                first = places[at] + 1
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
        usage=_used(entry.llm_usage for entry in entries),
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


def _used(entries: Iterable[object]) -> Mapping[str, TokenUsage]:
    """Tokens of a turn by model. Equal counts are one told twice: what a model is sent grows from request to request."""
    counted: list[tuple[str, TokenUsage]] = []
    for entry in entries:
        by_model = entry.get("model_usage") if isinstance(entry, Mapping) else None
        if isinstance(by_model, Mapping):
            counted += [
                (str(model), _token_usage(each)) for model, each in by_model.items() if isinstance(each, Mapping)
            ]
    usage: dict[str, TokenUsage] = {}
    for model, used in dict.fromkeys(counted):
        usage[model] = usage.get(model, TokenUsage()).plus(used)
    return usage


def _token_usage(counts: Mapping[str, object]) -> TokenUsage:
    kinds = [counts.get(kind) for kind in ("input", "input_cache_read", "input_cache_write", "output_total")]
    found = [each if isinstance(each, Mapping) else {} for each in kinds]
    tokens = [int(_amount(each.get("tokens"))) for each in found]
    return TokenUsage(*tokens, *(_amount(each.get("price")) for each in found))


def _amount(value: Any) -> float:
    """A number of tokens or of dollars; what cannot be one counts for nothing."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= MAX_AMOUNT else 0.0


def _user_words(machine: BotTurnMachine, turn: int) -> str:
    said = [words.ref for words in machine.words[turn] if words.is_user]
    return _plain(" ".join(text for text in said if isinstance(text, str)))


def _pieces(ref: int | str) -> int:
    return len(ref) // _PIECE_CHARS if isinstance(ref, str) else 0


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _worth(record: ConversationRecord) -> tuple[bool, int, float]:
    return record.is_final, len(record.transcript), float(record.timestamp)
