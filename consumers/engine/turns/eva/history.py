"""EVA's history of a call: its events by EVA's loading rules, the merged timeline, and the context at any moment."""

from collections.abc import Mapping
from typing import NamedTuple

from consumers.engine.turns.eva.labels import EMPTY_UTTERANCES
from consumers.engine.turns.eva.metric_context import metric_context
from consumers.engine.turns.eva.text_groups import TextGroup, TextStream
from consumers.engine.turns.eva.turn_machine import EvaTurnMachine
from consumers.engine.turns.eva.turn_state import text_mark
from consumers.engine.turns.timeline.elements import (
    AUDIT_RANK,
    SIMULATOR_RANK,
    TIME_SHIFT,
    ElementKind,
    order_key,
)
from consumers.engine.turns.timeline.timeline import Replays, Timeline
from schemas.events.call import PipelineType
from schemas.metric_context import MetricContext

MAX_PENDING_TEXT_UPDATES = 64
"""Text updates kept for audit entries that have not arrived yet; an audio-LLM call has one in flight."""


class CallerLine(NamedTuple):
    """The end of the simulated caller's stream, in the stream's own order.

    Attributes:
        has_events: Whether the stream has any event.
        last_reason: Reason in the last event, if that is about the state of the line; otherwise None.
    """

    has_events: bool
    last_reason: str | None


class EvaHistory:
    """Events of the three sources in, `context` out. The context is exact after every event, in whatever order the sources
    arrive.

    Each source must keep its own order; a change of the pipeline type folds everything again.
    """

    def __init__(self, pipeline_type: PipelineType = PipelineType.CASCADE) -> None:
        self.pipeline_type = pipeline_type
        self.replays = Replays()
        self.machine = EvaTurnMachine(pipeline_type, self.replays)
        self.timeline = Timeline(self.machine, TIME_SHIFT, self.replays)
        self.text_stream = TextStream(self, self.replays)
        self._audit_count = 0
        self._simulator_count = 0
        self._line_state: tuple[int, str | None] = (0, None)
        self._last_audit_ms: int | None = None
        self._last_simulator_ms: int | None = None
        self._last_user_key: int | None = None
        self._user_keys: dict[int, int] = {}
        self._text_updates: dict[int, str] = {}

    def audit(self, kind: ElementKind | None, time_ms: int, payload: object) -> int:
        """Adds an entry of the audit log; `kind` is None for one that no rule reads.

        Returns:
            Its key in the merged history.
        """
        self._audit_count += 1
        if self._last_audit_ms is None or time_ms > self._last_audit_ms:
            self._last_audit_ms = time_ms
        key = order_key(time_ms, AUDIT_RANK, self._audit_count)
        if kind is not None:
            self.timeline.insert(key, kind, payload)
        return key

    def text_at(self, key: int) -> str:
        """The current text of the element with this key; empty without one."""
        payload = self.timeline.payload(key)
        return payload.text if isinstance(payload, TextGroup) else payload if isinstance(payload, str) else ""

    def text_mark(self, key: int) -> int:
        """A number that changes with the text of the element with this key, for the price of a length; 0 without a text."""
        payload = self.timeline.payload(key)
        return (
            payload.length if isinstance(payload, TextGroup) else text_mark(payload) if isinstance(payload, str) else 0
        )

    def audit_user(self, time_ms: int, text: str, turn_id: int | None) -> int:
        """Adds the caller's turn as the agent received it, perhaps a placeholder.

        Returns:
            Its key in the merged history.
        """
        self._last_user_key = order_key(time_ms, AUDIT_RANK, self._audit_count + 1)
        if turn_id is not None:
            text = self._text_updates.pop(turn_id, text)
            self._user_keys[turn_id] = self._last_user_key
        return self.audit(ElementKind.AUDIT_USER, time_ms, text)

    def update_user_text(self, text: str, turn_id: int | None) -> bool:
        """Replaces a placeholder by the text: in the entry with `turn_id`, or in the last.

        Returns:
            False when there is no such entry and the update cannot wait for it.
        """
        key = self._last_user_key if turn_id is None else self._user_keys.get(turn_id)
        if key is not None:
            self.timeline.replace(key, text)
            return True
        if turn_id is None or len(self._text_updates) >= MAX_PENDING_TEXT_UPDATES:
            return False
        self._text_updates[turn_id] = text
        return True

    def simulator(self, kind: ElementKind | None, time_ms: int, payload: object) -> None:
        """Adds an event of the simulated caller; `kind` is None for one that no rule reads."""
        self._simulator_count += 1
        if kind is ElementKind.USER_SPEECH and isinstance(payload, str) and payload.strip() in EMPTY_UTTERANCES:
            return
        if self._last_simulator_ms is None or time_ms > self._last_simulator_ms:
            self._last_simulator_ms = time_ms
        if kind is not None:
            self.timeline.insert(order_key(time_ms, SIMULATOR_RANK, self._simulator_count), kind, payload)

    def line_state(self, details: object) -> None:
        """Notes the details of the simulated caller's newest event, which was about the line."""
        reason = details.get("reason") if isinstance(details, Mapping) else None
        self._line_state = (self._simulator_count, reason if isinstance(reason, str) else None)

    @property
    def caller_line(self) -> CallerLine:
        """The end of the simulated caller's stream."""
        place, reason = self._line_state
        return CallerLine(self._simulator_count > 0, reason if place == self._simulator_count else None)

    def set_pipeline_type(self, pipeline_type: PipelineType) -> None:
        """Folds the call again from its first event by the rules of another pipeline."""
        if pipeline_type is self.pipeline_type:
            return
        elements = [element for element in self.timeline if element[1] != ElementKind.TEXT_GROUP]
        if pipeline_type is not PipelineType.S2S:
            elements += [
                (group.key, ElementKind.TEXT_GROUP, group)
                for group in self.text_stream.groups()
                if group.key is not None
            ]
            elements.sort(key=lambda element: element[0])
        touched = set(self.machine.turns)
        self.pipeline_type = pipeline_type
        self.machine = EvaTurnMachine(pipeline_type, self.replays)
        self.timeline = Timeline(self.machine, TIME_SHIFT, self.replays)
        for key, kind, payload in elements:
            self.timeline.insert(key, kind, payload)
        self.replays.elements += len(elements)
        self.machine.touch(touched)

    def place(self, group: TextGroup) -> None:
        """Adds a text group; in speech-to-speech calls it is no part of the history."""
        if group.key is None:
            return
        if self.pipeline_type is not PipelineType.S2S:
            self.timeline.insert(group.key, ElementKind.TEXT_GROUP, group)

    def displace(self, key: int) -> None:
        """Removes a text group."""
        if self.pipeline_type is not PipelineType.S2S:
            self.timeline.remove(key)

    def reread(self, group: TextGroup) -> None:
        """Replays from a text group that changed in a way that rules read."""
        if group.key is not None and self.pipeline_type is not PipelineType.S2S:
            self.timeline.reread(group.key)

    def release(self) -> None:
        """Cuts the cycle with the text stream."""
        del self.text_stream

    def session_end_s(self) -> float:
        """End of sound without an end (E1): the session's end, otherwise the last event; epoch seconds."""
        return (self.machine.session_ended_ms or self.last_time_ms() or 0) / 1000

    def last_time_ms(self) -> int | None:
        """Time of the last event of the merged history; None while it is empty."""
        times = [self._last_audit_ms, self._last_simulator_ms]
        if self.pipeline_type is not PipelineType.S2S:
            times.append(self.text_stream.last_time_ms())
        return max((time for time in times if time is not None), default=None)

    def context(self, ended_reason: str | None) -> MetricContext:
        """EVA's result for the events so far: the core with the tail added to a copy."""
        return metric_context(self.machine, self.pipeline_type, self.last_time_ms(), ended_reason)
