"""Puts frames before an observer as pipecat's worker does, and keeps the events that come out."""

from types import SimpleNamespace
from typing import Any

from pipecat.frames.frames import Frame
from pipecat.processors.frame_processor import FrameDirection
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat_callgauge import CallgaugeObserver

DOWN, UP = FrameDirection.DOWNSTREAM, FrameDirection.UPSTREAM


class Observed:
    """An observer whose events are kept."""

    def __init__(self, **options: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.observer = CallgaugeObserver(
            conversation_id="call-1", sink=self.events.append, **options
        )
        self._line = BaseOutputTransport(TransportParams())

    async def push(
        self, *frames: Frame, direction: FrameDirection = DOWN, first: bool = True
    ) -> None:
        for frame in frames:
            source = SimpleNamespace(name="Source#0")
            data: Any = SimpleNamespace(
                frame=frame,
                direction=direction,
                source=source,
                destination=None,
                timestamp=0,
                first_push=first,
            )
            await self.observer.on_push_frame(data)

    async def leaves_the_line(self, *frames: Frame) -> None:
        for frame in frames:
            processor = SimpleNamespace(previous=self._line, name="Next#0")
            data: Any = SimpleNamespace(
                frame=frame, direction=DOWN, processor=processor, timestamp=0
            )
            await self.observer.on_process_frame(data)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The data of the events of this type."""
        return [event["data"] for event in self.events if event["type"] == kind]

    @property
    def moments(self) -> list[str]:
        return [moment["kind"] for moment in self.of("speech_event")]
