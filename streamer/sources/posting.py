"""Sends the events of played calls to a running `serve`, by HTTP, as any sender does."""

import asyncio
import json
import sqlite3
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Never, Self

import httpx2 as httpx
from pydantic import SecretStr
from pydantic_core import to_json

from consumers.runtime.private_files import is_locked
from consumers.runtime.process import OperatorError, end_tasks
from streamer.facts import ADDRESS_FILE, KEY_FILE, MAX_COMMAND_RECORDS, TOKEN_FILE
from streamer.sources.publisher import PublishError, record_of
from streamer.sources.replay import WireEvent

MAX_EVENTS: Final = 200
"""Events of one request."""
MAX_WAITING: Final = 5_000
"""Events that wait to be sent; publishing waits when there are more."""
GATHER_SECONDS: Final = 0.02
"""How long events gather before they are sent together."""
ANSWER_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.5
MAX_TRIES: Final = 20
"""Tries of one request, some ten seconds, while `serve` starts again or its disk is full."""
CLOSE_SECONDS: Final = 3.0


class ServeAwayError(OperatorError):
    """Nothing serves this folder."""


def served_at(folder: Path, token: SecretStr | None) -> tuple[str, str]:
    """The address of the process that serves a folder, and its token: that of the settings,
    otherwise the one in the folder.

    Raises:
        ServeAwayError: There is none.
    """
    address = _line_of(folder, ADDRESS_FILE)
    return address, _line_of(folder, TOKEN_FILE) if token is None else token.get_secret_value()


def _line_of(folder: Path, name: str) -> str:
    """What stands in a file of a folder that is served: a process that was killed leaves its
    address there.
    """
    try:
        if not is_locked(folder):
            raise FileNotFoundError(0, "no process serves the folder")
        return (folder / name).read_text(encoding="utf-8").strip()
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ServeAwayError(
            f"{folder}: no `callgauge serve` runs here ({why}), so nothing was sent. Start it with "
            f"--folder {folder}, or "
            "send to Kafka with --bootstrap."
        ) from error


async def post_command(folder: Path, path: str, records: Sequence[Any]) -> list[Any]:
    """Has the process that serves a folder write records; returns its answers when they are on its
    disk.

    Raises:
        ServeAwayError: Nothing serves the folder.
        PublishError: It did not take them.
    """
    address, key = _line_of(folder, ADDRESS_FILE), _line_of(folder, KEY_FILE)
    answers: list[Any] = []
    try:
        async with httpx.AsyncClient(base_url=address, timeout=ANSWER_SECONDS) as client:
            for begin in range(0, len(records), MAX_COMMAND_RECORDS):
                body = to_json(records[begin : begin + MAX_COMMAND_RECORDS])
                answer = await client.post(
                    path, content=body, headers={"authorization": f"Bearer {key}"}
                )
                if not answer.is_success:
                    raise PublishError(
                        f"{address} did not take it ({answer.status_code}): {answer.text[:200]}"
                    )
                answers += answer.json() or ()
    except httpx.HTTPError as error:
        raise ServeAwayError(
            f"{folder}: the process that serves it does not answer at {address} "
            f"({type(error).__name__}). If it is about to start or to "
            "end, try again; what it has taken is written."
        ) from error
    return answers


class EventPoster:
    """Posts events in order, in requests that are sent again until they are acknowledged."""

    def __init__(self, folder: Path, *, ce_source: str, token: SecretStr | None = None) -> None:
        """Connected inside `async with`; `ce_source` names the producer, and `token` is in the
        place of the folder's.
        """
        self._folder = folder
        self._token = token
        self._ce_source = ce_source
        self._waiting: deque[dict[str, Any]] = deque()
        self._grown, self._sent = asyncio.Event(), asyncio.Event()
        self._in_flight = 0
        self._failure: Exception | None = None

    async def __aenter__(self) -> Self:
        """Finds the address.

        Raises:
            ServeAwayError: Nothing serves the folder.
        """
        address, token = served_at(self._folder, self._token)
        headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/cloudevents-batch+json",
        }
        self._client = httpx.AsyncClient(base_url=address, headers=headers, timeout=ANSWER_SECONDS)
        self._sending = asyncio.create_task(self._send_for_ever())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Sends the rest, for at most `CLOSE_SECONDS`, and disconnects.

        Raises:
            PublishError: Something was not acknowledged. An error that is already on its way says
                more.
        """
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.flush()
        except (TimeoutError, PublishError) as failure:
            if error is None:
                raise PublishError(
                    f"The last events were not acknowledged by {self._client.base_url}."
                ) from failure
        finally:
            await end_tasks([self._sending])
            await self._client.aclose()

    async def publish(self, conversation_id: str, event: WireEvent) -> None:
        """Takes one event; waits while too many are on their way.

        Raises:
            PublishError: An earlier one could not be sent.
        """
        while len(self._waiting) >= MAX_WAITING and self._failure is None:
            self._sent.clear()
            await self._sent.wait()
        self._require_no_failure()
        _, _, value, headers = record_of(conversation_id, event, self._ce_source)
        attributes = {
            name.removeprefix("ce_"): text.decode()
            for name, text in headers
            if name.startswith("ce_")
        }
        self._waiting.append({**attributes, "data": json.loads(value)})
        self._grown.set()

    async def flush(self) -> None:
        """Waits until every event is acknowledged.

        Raises:
            PublishError: One of them was not.
        """
        while (self._waiting or self._in_flight) and self._failure is None:
            self._sent.clear()
            await self._sent.wait()
        self._require_no_failure()

    def _require_no_failure(self) -> None:
        if self._failure is not None:
            raise PublishError(f"Events could not be sent: {self._failure}") from self._failure

    async def _send_for_ever(self) -> Never:
        while True:
            self._grown.clear()
            if not self._waiting:
                await self._grown.wait()
            await asyncio.sleep(GATHER_SECONDS)
            events = [self._waiting.popleft() for _ in range(min(MAX_EVENTS, len(self._waiting)))]
            self._in_flight = len(events)
            try:
                await self._post(events)
            except (httpx.HTTPError, PublishError) as error:
                self._failure = error
            self._in_flight = 0
            self._sent.set()
            if self._failure is not None:
                await asyncio.Event().wait()

    async def _post(self, events: list[dict[str, Any]]) -> None:
        key = {"idempotency-key": uuid.uuid4().hex}
        for tries in range(1, MAX_TRIES + 1):
            try:
                answer = await self._client.post("/events", content=json.dumps(events), headers=key)
            except httpx.TransportError:
                if tries == MAX_TRIES:
                    raise
            else:
                if answer.status_code not in {429, 503}:
                    # refused events are counted and named there
                    if answer.status_code not in {202, 207, 422}:
                        raise PublishError(f"{answer.status_code}: {answer.text[:200]}")
                    return
            await asyncio.sleep(RETRY_SECONDS)
        raise PublishError(
            f"{self._client.base_url} took no events for {MAX_TRIES * RETRY_SECONDS:.0f} s"
        )
