"""An evaluator fed by hand: events in milliseconds since the call began, results as rows."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Self

from consumers.engine.admission import Arrival
from consumers.engine.effects import Count, Effect, PublishRow, PublishTranscript
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.events.codec import decode
from schemas.events.envelope import Envelope
from schemas.metrics.catalogue import metric_named
from schemas.rows import CallRow, NotApplicable, Row, Silence, ToolUse, TurnRow, Unscored, Value
from tests.support.calls.wire_calls import SOURCE_OF

Json = dict[str, Any]

T0_MS = 1_790_000_000_000


def rows_of(effects: Iterable[Effect]) -> list[Row]:
    """Everything that effects write to `scores`, in that order."""
    return [effect.row for effect in effects if isinstance(effect, PublishRow)]


def closings_of(effects: Iterable[Effect]) -> list[CallRow]:
    """The last row of each call that effects close."""
    return [row for row in rows_of(effects) if isinstance(row, CallRow) and row.state == "closed"]


def transcripts_of(effects: Iterable[Effect]) -> list[bytes]:
    """The transcripts that effects write."""
    return [effect.value for effect in effects if isinstance(effect, PublishTranscript)]


def assert_in_catalogue(count: Count) -> None:
    """The metric exists, with these labels, and closed sets of values hold these."""
    labels = metric_named(count.metric).label_set
    for label, value in zip(labels, count.labels, strict=True):
        assert not label.values or value in label.values, (
            f"{count.metric} has no {label.name}={value}"
        )


class Feed:
    """One evaluator and its effects so far. Times given in ms count from `T0_MS`; the broker takes
    events at once. What happens in a call is told in one go: `feed.spoke(...).advance(...)`.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.evaluator = PartitionEvaluator(limits or Limits(), "test")
        self.effects: list[Effect] = []
        self.latest: list[Effect] = []
        self._next_offset = 0
        self._taken: list[Arrival | int] = []

    def send(
        self,
        stream: str,
        event: Json,
        at_ms: int,
        *,
        broker_ms: int | None = None,
        key: str = "call",
        offset: int | None = None,
        envelope: Envelope | None = None,
    ) -> Self:
        """One event, logged at `at_ms`."""
        source = SOURCE_OF[stream]
        value = json.dumps({"timestamp": T0_MS + at_ms} | event).encode()
        offset = self._next_offset if offset is None else offset
        self._next_offset = offset + 1
        taken_ms = T0_MS + (at_ms if broker_ms is None else broker_ms)
        arrival = Arrival(
            source, offset, taken_ms, key, decode(source, value, envelope), value, envelope
        )
        self._taken.append(arrival)
        return self._keep(self.evaluator.receive(arrival))

    def advance(self, now_ms: int) -> Self:
        """Broker time has come to `now_ms`, and every call that is over closes."""
        self._taken.append(T0_MS + now_ms)
        return self._keep(self.evaluator.advance(T0_MS + now_ms))

    def close_all(self) -> Self:
        """Every call that is over closes, while broker time stands still."""
        closed: list[Effect] = []
        while self.evaluator.closing_calls:
            closed += self.evaluator.close_some()
        return self._keep(closed)

    def hand_over(self, successor: PartitionEvaluator) -> Self:
        """Another evaluator goes on: it folds again from the first record of the oldest open call
        on, and says nothing.
        """
        closed = {closing.conversation_id for closing in closings_of(self.effects)} - set(
            self.evaluator.open_calls
        )
        for conversation_id in closed:
            successor.has_closed(conversation_id)
        first = self.evaluator.low_watermark()
        evicted = {
            offset: conversation_id for conversation_id, offset in self.evaluator.evicted.items()
        }
        for taken in self._taken:
            if isinstance(taken, int):
                successor.pass_time(taken)
            elif (
                first is not None and taken.offset >= first and taken.conversation_id not in closed
            ):
                if taken.offset in evicted:
                    successor.evict(evicted[taken.offset], taken)
                successor.receive(taken)
        self.evaluator = successor
        return self

    def _keep(self, effects: Sequence[Effect]) -> Self:
        self.latest = list(effects)
        self.effects += effects
        return self

    # Acts of callers, bots and agents; times are those of the sound, events are logged `behind_ms`
    # later.

    def user_audio(
        self,
        start_ms: int,
        end_ms: int | None = None,
        *,
        text: str | None = "Hello",
        behind_ms: int = 0,
    ) -> Self:
        """The simulated caller is heard from `start_ms` (to `end_ms`) and means to say `text`."""
        self._audio("audio_start", "simulated_user", start_ms, behind_ms)
        if text is not None:
            self.send(
                "user_sim", {"type": "user_speech", "data": {"text": text}}, start_ms + behind_ms
            )
        if end_ms is not None:
            self._audio("audio_end", "simulated_user", end_ms, behind_ms)
        return self

    def assistant_audio(
        self, start_ms: int, end_ms: int | None = None, *, behind_ms: int = 0
    ) -> Self:
        """The assistant is heard, and its words reach speech synthesis as it begins."""
        self._audio("audio_start", "assistant", start_ms, behind_ms).bot_text(
            "Certainly.", start_ms + behind_ms
        )
        if end_ms is not None:
            self._audio("audio_end", "assistant", end_ms, behind_ms)
        return self

    def _audio(self, kind: str, role: str, at_ms: int, behind_ms: int) -> Self:
        sound_s = (T0_MS + at_ms) / 1000
        return self.send(
            "user_sim",
            {"event_type": kind, "user": role, "audio_timestamp": sound_s},
            at_ms + behind_ms,
        )

    def bot_text(self, word: str, at_ms: int) -> Self:
        """The first word of an utterance goes to speech synthesis, behind the marker without which
        it would be the last's.
        """
        return self.send(
            "pipecat", {"type": "turn_start", "data": {"frame": "turn_start"}}, at_ms
        ).send("pipecat", {"type": "tts_text", "data": {"frame": word}}, at_ms)

    def speech(self, kind: str, at_ms: int, *, behind_ms: int = 0) -> Self:
        """pipecat's speech event of this kind, noticed `behind_ms` late."""
        moment = {"kind": kind, "timestamp": (T0_MS + at_ms) / 1000}
        return self.send("pipecat", {"type": "speech_event", "data": moment}, at_ms + behind_ms)

    def spoke(self, who: str, start_ms: int, end_ms: int) -> Self:
        """The bot reports the whole speech of a `user` or of the `bot`."""
        return self.speech(f"{who}_speech_started", start_ms).speech(
            f"{who}_speech_stopped", end_ms
        )

    def ruling(self, line: str, at_ms: int, *, times: int = 1) -> Self:
        """EVA's line for the turn decision, once per destination."""
        for _ in range(times):
            self.send("pipecat", {"type": line, "data": {"frame": "frame"}}, at_ms)
        return self

    def heard(self, text: str, at_ms: int) -> Self:
        """The agent understood a turn of the caller."""
        return self.send("audit", {"message_type": "user", "value": text}, at_ms)

    def tool_call(self, tool: str, at_ms: int) -> Self:
        """A tool is about to run."""
        return self.send(
            "audit", {"message_type": "tool_call", "value": {"tool": tool, "parameters": {}}}, at_ms
        )

    def tool_answer(self, tool: str, at_ms: int, response: object = "done") -> Self:
        """A tool has answered."""
        return self.send(
            "audit",
            {"message_type": "tool_response", "value": {"tool": tool, "response": response}},
            at_ms,
        )

    # Results.

    def rows(self, key: str = "call") -> list[Row]:
        """Everything written to `scores` so far of a call."""
        return [row for row in rows_of(self.effects) if row.conversation_id == key]

    def turn_rows(self, turn: int | None = None, key: str = "call") -> list[TurnRow]:
        """All rows of one turn, or of every turn, in the order in which they were written."""
        rows = self.rows(key)
        return [
            row for row in rows if isinstance(row, TurnRow) and (turn is None or row.turn == turn)
        ]

    def call_rows(self, key: str = "call") -> list[CallRow]:
        """All rows of a call, in the order in which they were written."""
        return [row for row in self.rows(key) if isinstance(row, CallRow)]

    def turn(self, turn: int, key: str = "call") -> TurnRow:
        """The newest row of a turn."""
        return self.turn_rows(turn, key)[-1]

    def call(self, key: str = "call") -> CallRow:
        """The newest row of a call."""
        return self.call_rows(key)[-1]

    def values(self, name: str, turn: int | None = None, key: str = "call") -> list[Any]:
        """What a field of a turn, or of the call, has been, in order, each value once until the
        next one.
        """
        rows: list[Any] = list(self.call_rows(key) if turn is None else self.turn_rows(turn, key))
        values = [getattr(row, name) for row in rows]
        return [
            value for place, value in enumerate(values) if place == 0 or value != values[place - 1]
        ]

    def news(self, turn: int | None = None, key: str = "call") -> list[str]:
        """What has counted in a turn, or in the call, in order."""
        rows: list[Any] = list(self.call_rows(key) if turn is None else self.turn_rows(turn, key))
        return [name for row in rows for name in row.news]

    def latencies(self, key: str = "call") -> dict[int, float | str]:
        """By turn: the newest wait in ms, or why it is not known."""
        newest = {row.turn: row.wait_ms for row in self.turn_rows(key=key) if row.turn}
        return {turn: plain(wait_ms) for turn, wait_ms in newest.items() if wait_ms is not None}

    def silences(self, key: str = "call") -> list[tuple[int, Silence]]:
        """The silences that became dead air, in order, each with its turn."""
        rows = {row.turn: row for row in self.turn_rows(key=key)}
        found = [(turn, silence) for turn, row in rows.items() for silence in row.dead_air]
        return sorted(found, key=lambda each: each[1].number)

    def interruptions(self, key: str = "call") -> list[tuple[int, str]]:
        """Who began to speak over the other, as is known now, with the turn."""
        rows = {row.turn: row for row in self.turn_rows(key=key)}
        return [(turn, by.value) for turn, row in sorted(rows.items()) for by in row.interruptions]

    def tools(self, key: str = "call") -> dict[tuple[int, int], ToolUse]:
        """The uses of tools, by turn and index."""
        rows = {row.turn: row for row in self.turn_rows(key=key)}
        return {(turn, use.index): use for turn, row in sorted(rows.items()) for use in row.tools}

    def turns(self, key: str = "call") -> set[int]:
        """The turns that an open call has."""
        return self.evaluator._calls[key].live.turns.turns

    def status(self, turn: int, key: str = "call") -> str:
        """How far a turn of an open call can still change."""
        return self.evaluator._calls[key].live.turns.status(turn)

    def counts(self, metric: str) -> Counter[tuple[str, ...]]:
        """Sums of Count effects and drained counts, by labels."""
        total: Counter[tuple[str, ...]] = Counter()
        self.effects += self.evaluator.drain_counts()
        for effect in self.effects:
            if isinstance(effect, Count) and effect.metric == metric:
                assert_in_catalogue(effect)
                total[effect.labels] += effect.by
        return total


def plain(value: Value) -> float | str:
    """The value, or the reason why there is none."""
    if isinstance(value, Unscored):
        return str(value.reason)
    return value.reason if isinstance(value, NotApplicable) else value
