"""Puts a reader before the public events of an agent session, and sees to it that the end of the
call is sent.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from callgauge_send import Call

from callgauge_livekit.reading import READERS, SessionReader

PRODUCER: Final = "callgauge-livekit"
USAGE: Final = "session_usage_updated"
"""The event of versions in which `metrics_collected` is deprecated; LiveKit warns whoever asks for
that one there.
"""


class Attached:
    """One observed session. The agent never waits for it, and nothing that fails in it reaches the
    agent.
    """

    def __init__(self, session: Any, call: Call, reader: SessionReader) -> None:
        """Listens to the session from now on."""
        self._call = call
        self._reader = reader
        self._end: asyncio.Task[bool] | None = None
        self._session = session
        self._output: Any = None
        self._played = self._reads("playback_started", SessionReader.played)
        skipped = "metrics_collected" if USAGE in _known_events() else USAGE
        for name, read in READERS.items():
            if name != skipped:
                session.on(name, self._reads(name, read))
        session.on("agent_state_changed", self._listen_to_output)
        session.on("close", self._closed)

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

    async def ended(self) -> bool:
        """Ends the call, unless the end of the session did, and waits for its last events for two
        seconds at most.

        In a job of LiveKit this happens by itself when the job shuts down.

        Returns:
            Whether all events have arrived.
        """
        if self._end is None:
            self._begin_end("stopped")
        return await self._end if self._end is not None else True

    def _reads(
        self, name: str, read: Callable[[SessionReader, Any], None]
    ) -> Callable[[Any], None]:
        def reads(event: Any) -> None:
            if self._end is not None:
                return
            try:
                read(self._reader, event)
            except Exception as error:  # noqa: BLE001 - nothing that fails here may reach the agent
                self._call.missed(name, error)

        return reads

    def _listen_to_output(self, _event: Any) -> None:
        """The output is there when the session has started, and may be another one later."""
        output = getattr(getattr(self._session, "output", None), "audio", None)
        if output is not None and output is not self._output and hasattr(output, "on"):
            self._output = output
            output.on("playback_started", self._played)

    def _closed(self, event: Any) -> None:
        reason = getattr(event, "reason", None)
        self._begin_end(str(getattr(reason, "value", reason) or "closed"))

    def _begin_end(self, reason: str) -> None:
        if self._end is not None:
            return
        try:
            self._reader.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._call.missed("the end of the session", error)
        self._end = asyncio.get_running_loop().create_task(self._call.end(reason), name=PRODUCER)


def attach(
    session: Any,
    *,
    words: bool = True,
    tool_arguments: bool = True,
    tool_results: bool = False,
    **options: Any,
) -> Attached:
    """Sends the events of a session to callgauge. Attach before `session.start()`, a session once.

    Args:
        session: The `AgentSession`.
        words: Whether words of the user and the agent are sent.
        tool_arguments: Whether arguments of tools are sent.
        tool_results: Whether results of tools are sent. Whether a tool failed always is.
        options: Arguments of `callgauge_send.Call`: `agent`, `environment`, `url` and `token`, or
            `bootstrap_servers`, and others. `conversation_id` is by default the id of LiveKit's
            job, or a new UUID where there is none.

    Returns:
        What knows the id of the call and what was lost, and can wait for the end.

    Raises:
        ValueError: An option is none that `callgauge_send.Call` takes; the text says which.
        RuntimeError: No event loop runs here.
    """
    asyncio.get_running_loop()
    job = _job()
    if options.get("conversation_id") is None and job is not None:
        options["conversation_id"] = job.job.id
    call = Call(producer=PRODUCER, **options)
    reader = SessionReader(
        call.emit,
        lambda: getattr(session, "current_agent", None),
        words=words,
        tool_arguments=tool_arguments,
        tool_results=tool_results,
    )
    attached = Attached(session, call, reader)
    try:
        call.begin()
    except Exception as error:  # noqa: BLE001 - a sink that raises is no fault of the agent
        call.missed("the start of the call", error)
    if job is not None:
        job.add_shutdown_callback(attached.ended)
    return attached


def _job() -> Any:
    """LiveKit's job in which this runs; None outside of one."""
    try:
        from livekit.agents import get_job_context

        return get_job_context()
    except (ImportError, RuntimeError):
        return None


def _known_events() -> tuple[str, ...]:
    """The events of this version of LiveKit."""
    try:
        from livekit.agents.voice.events import EventTypes
    except ImportError:
        return ()
    return get_args(EventTypes)
