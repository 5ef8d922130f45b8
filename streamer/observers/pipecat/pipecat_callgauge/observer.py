"""The observer: pipecat's hooks around a reader of frames, and the way of its events to Kafka."""

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from callgauge_send import Call
from callgauge_send.events import Event
from loguru import logger
from pipecat.observers.base_observer import BaseObserver
from pipecat.processors.frame_processor import FrameDirection
from pipecat.transports.base_output import BaseOutputTransport

from pipecat_callgauge.frames import ByFrame, classes
from pipecat_callgauge.measurements import READ, AnswerLatencies
from pipecat_callgauge.reading import READERS, CallReader

MAX_REMEMBERED_FRAMES: Final = 512
"""Frames that are remembered to recognise their later pushes, where pipecat does not:
before 1.12.
"""

_TELLS_FIRST_PUSH: Final = (
    "observe_every_push" in inspect.signature(BaseObserver.__init__).parameters
)
_DOWNSTREAM: Final = FrameDirection.DOWNSTREAM
_WORDS: Final = ByFrame(dict.fromkeys(("TTSTextFrame",), True))
_BOTH_WAYS: Final = classes("ErrorFrame", "MetricsFrame", "TranscriptionFrame")
"""Frames that are no halves of a broadcast when they go upstream. A realtime model, which stands
behind the aggregator of the user's turns, sends its transcripts back to it.
"""


class CallgaugeObserver(BaseObserver):
    """Sends the events of one call to Kafka, for callgauge.

    Pass a new one to each worker: `PipelineWorker(pipeline,
    observers=[CallgaugeObserver(agent="desk")])`. It reads frames and changes none; the bot never
    waits for it, and nothing that fails in it reaches the bot.
    """

    def __init__(
        self,
        *,
        conversation_id: str | Callable[[], str] | None = None,
        agent: str | None = None,
        tenant: str | None = None,
        environment: str | None = None,
        goals: str | None = None,
        pipeline_type: str | None = None,
        bootstrap_servers: str | None = None,
        topic_prefix: str | None = None,
        kafka: Mapping[str, Any] | None = None,
        url: str | None = None,
        token: str | None = None,
        sink: Callable[[Event], None] | None = None,
        words: bool = True,
        tool_arguments: bool = True,
        tool_results: bool = False,
        vad_stop_secs: float | None = None,
        **options: Any,
    ) -> None:
        """Keeps the settings; nothing is connected before the first frame.

        Args:
            conversation_id: Id of the call, the same as in other sources of events; a function is
                asked once. By default it is a new UUID.
            agent: Name of the agent, by which scores are grouped. By default `CALLGAUGE_AGENT`.
            tenant: Customer or team. By default `CALLGAUGE_TENANT`.
            environment: For example `production`. By default `CALLGAUGE_ENVIRONMENT`.
            goals: Id of the goal set of this call; without it callgauge chooses by the agent.
            pipeline_type: `cascade`, which is the default in callgauge, `audio_llm` or `s2s`.
            bootstrap_servers: Brokers, `host:port` with commas. By default `CALLGAUGE_BOOTSTRAP`.
            topic_prefix: Text before the name of the topic. By default `CALLGAUGE_TOPIC_PREFIX`.
            kafka: Further arguments of `aiokafka.AIOKafkaProducer`, for TLS and logins.
            url: Address of callgauge's `POST /events`, in the place of Kafka. By default
                `CALLGAUGE_URL`.
            token: The bearer token for it. By default `CALLGAUGE_TOKEN`.
            sink: Takes the events in the place of both.
            words: Whether words of the user and the bot are sent.
            tool_arguments: Whether arguments of tools are sent.
            tool_results: Whether results of tools are sent. Whether a tool failed always is.
            vad_stop_secs: For pipecat before 0.0.102: the `stop_secs` of the voice activity
                detector.
            options: Further arguments of pipecat's base class.

        Raises:
            ValueError: An argument is none that `callgauge_send.Call` takes; the text says which.
        """
        super().__init__(**({"observe_every_push": False} if _TELLS_FIRST_PUSH else {}), **options)
        self._call = Call(
            conversation_id=conversation_id,
            agent=agent,
            tenant=tenant,
            environment=environment,
            goals=goals,
            pipeline_type=pipeline_type,
            bootstrap_servers=bootstrap_servers,
            topic_prefix=topic_prefix,
            kafka=kafka,
            url=url,
            token=token,
            sink=sink,
            producer="pipecat-callgauge",
            log=logger,
        )
        self._reader = CallReader(
            self._call.emit,
            words=words,
            tool_arguments=tool_arguments,
            tool_results=tool_results,
            vad_stop_secs=vad_stop_secs,
        )
        self._latencies = AnswerLatencies(self._call.emit)
        self._has_ended = False
        self._seen: set[int] = set()
        self._seen_in_order: deque[int] = deque()

    @property
    def conversation_id(self) -> str:
        """The id of the call, which is the key of its records."""
        return self._call.conversation_id

    @property
    def lost(self) -> Mapping[str, int]:
        """Dropped events so far, by what they contained; the same numbers are in records of the
        call.
        """
        return self._call.lost

    # pipecat's hooks. They take exactly one argument: versions before 1.0 count the arguments and
    # pass another shape to more.

    async def on_push_frame(self, data: Any) -> None:
        """Reads a frame when it is pushed for the first time."""
        kind = type(data.frame)
        read, is_read_by_pipecat = READERS[kind], READ[kind]
        if read is None and not is_read_by_pipecat:
            return
        # Of a broadcast, one half goes each way; without the upstream halves, nothing comes twice.
        if data.direction is not _DOWNSTREAM and not isinstance(data.frame, _BOTH_WAYS):
            return
        if not _TELLS_FIRST_PUSH and self._was_seen(data.frame.id):
            return
        try:
            if read is not None:
                self._call.begin()
                read(self._reader, data.frame, time.time())
            if is_read_by_pipecat:
                await self._latencies.follow(data)
        except Exception as error:  # noqa: BLE001 - an observer that raises once sees nothing more of its call
            self._call.missed(kind.__name__, error)

    async def on_process_frame(self, data: Any) -> None:
        """Reads words of the bot when they leave the output transport: then they are heard, and
        only these are.

        They are pushed first at synthesis, which may be seconds earlier, and to the end of a
        sentence that is then cut.
        """
        if _WORDS[type(data.frame)] is None or data.direction is not _DOWNSTREAM:
            return
        try:
            if isinstance(data.processor.previous, BaseOutputTransport):
                self._call.begin()
                self._reader.heard(data.frame, time.time())
        except Exception as error:  # noqa: BLE001 - as above
            self._call.missed(type(data.frame).__name__, error)

    async def on_pipeline_started(self) -> None:
        """Begins the call: every processor is ready."""
        try:
            self._call.begin()
            await self._latencies.pipeline_started()
        except Exception as error:  # noqa: BLE001 - as above
            self._call.missed("the start of the pipeline", error)

    async def cleanup(self) -> None:
        """Ends the call, and waits for the broker for `FLUSH_SECONDS` at most: pipecat waits for
        this without a limit.
        """
        await super().cleanup()  # type: ignore[no-untyped-call]  # pipecat gives it no types
        if self._has_ended:
            return
        self._has_ended = True
        await asyncio.sleep(0)  # pipecat's own reports come in tasks of their own
        await self._call.end(self._reader.end or "stopped")

    def _was_seen(self, frame_id: int) -> bool:
        if frame_id in self._seen:
            return True
        self._seen.add(frame_id)
        self._seen_in_order.append(frame_id)
        if len(self._seen_in_order) > MAX_REMEMBERED_FRAMES:
            self._seen.discard(self._seen_in_order.popleft())
        return False
