"""An evaluator fed by hand: events in milliseconds since the call began, results by name and turn."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from consumers.engine.admission import Arrival
from consumers.engine.effects import CloseCall, Count, Effect, PublishScore
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.events.codec import decode
from schemas.events.envelope import Envelope
from schemas.metrics.catalogue import metric_named
from schemas.scores.records import AnyScoreRecord, CallValues, Result, Scored, TurnValues, Unscored
from tests.support.calls.wire_calls import SOURCE_OF

Json = dict[str, Any]

T0_MS = 1_790_000_000_000
LATENCY = "voice_to_voice_latency_ms"


def records_of(effects: Iterable[Effect]) -> list[AnyScoreRecord]:
    """Everything that effects write to `scores`, in that order."""
    records: list[AnyScoreRecord] = []
    for effect in effects:
        match effect:
            case PublishScore(record):
                records.append(record)
            case CloseCall(_, closing):
                records += closing
            case Count():
                pass
    return records


def closings_of(effects: Iterable[Effect]) -> list[CloseCall]:
    """The calls that effects close."""
    return [effect for effect in effects if isinstance(effect, CloseCall)]


def said(record: AnyScoreRecord) -> Json:
    """The content of a record, without its time and offsets: equal for equal knowledge."""
    how = {"revision", "record_id", "is_first", "first_known", "offsets", "through", "caused_at_ms"}
    return record.model_dump(mode="json", exclude=how)


def assert_in_catalogue(count: Count) -> None:
    """The metric exists, with these labels, and closed sets of values hold these."""
    labels = metric_named(count.metric).label_set
    for label, value in zip(labels, count.labels, strict=True):
        assert not label.values or value in label.values, f"{count.metric} has no {label.name}={value}"


class Feed:
    """One evaluator and its effects so far. Times given in ms count from `T0_MS`; the broker takes events at once."""

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
    ) -> Sequence[Effect]:
        """One event, logged at `at_ms`."""
        source = SOURCE_OF[stream]
        value = json.dumps({"timestamp": T0_MS + at_ms} | event).encode()
        offset = self._next_offset if offset is None else offset
        self._next_offset = offset + 1
        taken_ms = T0_MS + (at_ms if broker_ms is None else broker_ms)
        arrival = Arrival(source, offset, taken_ms, key, decode(source, value, envelope), value, envelope)
        self._taken.append(arrival)
        return self._keep(self.evaluator.receive(arrival))

    def advance(self, now_ms: int) -> Sequence[Effect]:
        """Broker time has come to `now_ms`, and every call that is over closes."""
        self._taken.append(T0_MS + now_ms)
        return self._keep(self.evaluator.advance(T0_MS + now_ms))

    def close_all(self) -> Sequence[Effect]:
        """Every call that is over closes, while broker time stands still."""
        closed: list[Effect] = []
        while self.evaluator.closing_calls:
            closed += self.evaluator.close_some()
        return self._keep(closed)

    def hand_over(self, successor: PartitionEvaluator) -> None:
        """Another evaluator goes on: it folds again from the first record of the oldest open call on, and says nothing."""
        closed = {closing.conversation_id for closing in closings_of(self.effects)} - set(self.evaluator.open_calls)
        for conversation_id in closed:
            successor.has_closed(conversation_id)
        first = self.evaluator.low_watermark()
        evicted = {offset: conversation_id for conversation_id, offset in self.evaluator.evicted.items()}
        for taken in self._taken:
            if isinstance(taken, int):
                successor.pass_time(taken)
            elif first is not None and taken.offset >= first and taken.conversation_id not in closed:
                if taken.offset in evicted:
                    successor.evict(evicted[taken.offset], taken)
                successor.receive(taken)
        self.evaluator = successor

    def _keep(self, effects: Sequence[Effect]) -> Sequence[Effect]:
        self.latest = list(effects)
        self.effects += effects
        return effects

    # Acts of callers, bots and agents; times are those of the sound, events are logged `behind_ms` later.

    def user_audio(
        self, start_ms: int, end_ms: int | None = None, *, text: str | None = "Hello", behind_ms: int = 0
    ) -> None:
        """The simulated caller is heard from `start_ms` (to `end_ms`) and means to say `text`."""
        self._audio("audio_start", "simulated_user", start_ms, behind_ms)
        if text is not None:
            self.send("user_sim", {"type": "user_speech", "data": {"text": text}}, start_ms + behind_ms)
        if end_ms is not None:
            self._audio("audio_end", "simulated_user", end_ms, behind_ms)

    def assistant_audio(self, start_ms: int, end_ms: int | None = None, *, behind_ms: int = 0) -> None:
        """The assistant is heard, and its words reach speech synthesis as it begins."""
        self._audio("audio_start", "assistant", start_ms, behind_ms)
        self.bot_text("Certainly.", start_ms + behind_ms)
        if end_ms is not None:
            self._audio("audio_end", "assistant", end_ms, behind_ms)

    def _audio(self, kind: str, role: str, at_ms: int, behind_ms: int) -> None:
        sound_s = (T0_MS + at_ms) / 1000
        self.send("user_sim", {"event_type": kind, "user": role, "audio_timestamp": sound_s}, at_ms + behind_ms)

    def bot_text(self, word: str, at_ms: int) -> None:
        """The first word of an utterance goes to speech synthesis, behind the marker without which it would be the last's."""
        self.send("pipecat", {"type": "turn_start", "data": {"frame": "turn_start"}}, at_ms)
        self.send("pipecat", {"type": "tts_text", "data": {"frame": word}}, at_ms)

    def speech(self, kind: str, at_ms: int, *, behind_ms: int = 0) -> None:
        """pipecat's speech event of this kind, noticed `behind_ms` late."""
        moment = {"kind": kind, "timestamp": (T0_MS + at_ms) / 1000}
        self.send("pipecat", {"type": "speech_event", "data": moment}, at_ms + behind_ms)

    def spoke(self, who: str, start_ms: int, end_ms: int) -> None:
        """The bot reports the whole speech of a `user` or of the `bot`."""
        self.speech(f"{who}_speech_started", start_ms)
        self.speech(f"{who}_speech_stopped", end_ms)

    def ruling(self, line: str, at_ms: int, *, times: int = 1) -> None:
        """EVA's line for the turn decision, once per destination."""
        for _ in range(times):
            self.send("pipecat", {"type": line, "data": {"frame": "frame"}}, at_ms)

    def heard(self, text: str, at_ms: int) -> None:
        """The agent understood a turn of the caller."""
        self.send("audit", {"message_type": "user", "value": text}, at_ms)

    def tool_call(self, tool: str, at_ms: int) -> None:
        """A tool is about to run."""
        self.send("audit", {"message_type": "tool_call", "value": {"tool": tool, "parameters": {}}}, at_ms)

    def tool_answer(self, tool: str, at_ms: int, response: object = "done") -> None:
        """A tool has answered."""
        self.send("audit", {"message_type": "tool_response", "value": {"tool": tool, "response": response}}, at_ms)

    # Results.

    def records(self, name: str | None = None, turn: int | None = None) -> list[Any]:
        """Everything written to `scores` so far, of this name and turn."""
        found = records_of(self.effects)
        return [r for r in found if (name is None or r.name == name) and (turn is None or r.turn == turn)]

    def nth(self, record: AnyScoreRecord) -> int:
        """Which revision of its subject a record is, from 1, in the order in which they were written; revisions never fall."""
        subject = record.name, record.turn, record.index
        written = [each for each in self.records() if (each.name, each.turn, each.index) == subject]
        assert [each.revision for each in written] == sorted(each.revision for each in written)
        return written.index(record) + 1

    def latencies(self) -> dict[int | None, float | str]:
        """By turn: the newest latency in ms, or why it is not known, by its own record or by that of the turn."""
        newest: dict[int | None, float | str] = {}
        for record in self.records():
            if record.name == LATENCY:
                newest[record.turn] = value_of(record)
            elif isinstance(record, TurnValues) and record.turn:
                newest[record.turn] = plain(record.voice_to_voice_ms)
        return newest

    def turns(self, key: str = "call") -> set[int]:
        """The turns that an open call has."""
        return self.evaluator._calls[key].live.turns.turns

    def status(self, turn: int, key: str = "call") -> str:
        """How far a turn of an open call can still change."""
        return self.evaluator._calls[key].live.turns.status(turn).value

    def turn_values(self, turn: int) -> TurnValues:
        """The newest record of the turn."""
        record = self.records("turn", turn)[-1]
        assert isinstance(record, TurnValues)
        return record

    def call_values(self) -> CallValues:
        """The newest record of the call as a whole."""
        record = self.records("call")[-1]
        assert isinstance(record, CallValues)
        return record

    def counts(self, metric: str) -> Counter[tuple[str, ...]]:
        """Sums of Count effects and drained counts, by labels."""
        total: Counter[tuple[str, ...]] = Counter()
        self.effects += self.evaluator.drain_counts()
        for effect in self.effects:
            if isinstance(effect, Count) and effect.metric == metric:
                assert_in_catalogue(effect)
                total[effect.labels] += effect.by
        return total


def value_of(record: Any) -> float | str:
    """The value of a record or of a part of one, or the reason why there is none."""
    return plain(record.result)


def plain(result: Result) -> float | str:
    """The value, or the reason why there is none."""
    match result:
        case Scored(value=value):
            return value
        case Unscored(reason=reason):
            return str(reason)
        case not_applicable:
            return not_applicable.reason
