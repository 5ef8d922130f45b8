"""Sends the events of played calls to a running `serve`, by HTTP, as any sender does."""

import asyncio
import json
import sqlite3
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx2 as httpx
from pydantic import SecretStr
from pydantic_core import to_json

from consumers.runtime.private_files import is_locked
from consumers.runtime.process import OperatorError
from schemas.log import OutgoingRecord
from streamer.facts import ADDRESS_FILE, KEY_FILE, MAX_COMMAND_RECORDS, TOKEN_FILE
from streamer.sources.publisher import PublishError, Write

MAX_EVENTS: Final = 200
"""Events of one request."""
GATHER_SECONDS: Final = 0.02
"""How long events gather before they are sent together."""
ANSWER_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.5
MAX_TRIES: Final = 20
"""Tries of one request, some ten seconds, while `serve` starts again or its disk is full."""


class ServeAwayError(OperatorError):
    """Nothing serves this folder."""


def served_at(folder: Path, token: SecretStr | None) -> tuple[str, str]:
    """The address of the process that serves a folder, and its token: that of the settings,
    otherwise the one in the folder.

    Raises:
        ServeAwayError: There is none.
    """
    address = _line_of(folder, ADDRESS_FILE)
    if token is not None:
        return address, token.get_secret_value()
    if not (folder / TOKEN_FILE).exists():
        # one that was given its token writes none down
        raise ServeAwayError(
            f"{folder}: `callgauge serve` runs here, with a token of its settings, so nothing was "
            "sent. Give the same one as CALLGAUGE_INGEST__TOKEN."
        )
    return address, _line_of(folder, TOKEN_FILE)


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
            f"--folder {folder}, or send to Kafka with --bootstrap."
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
            f"({type(error).__name__}). If it is about to start or to end, try again; what it has "
            "taken is written."
        ) from error
    return answers


@asynccontextmanager
async def served_in(folder: Path, token: SecretStr | None) -> AsyncIterator[Write]:
    """Posts events to the process that serves a folder, in requests that are sent again until they
    are acknowledged; `token` is in the place of the folder's.

    Raises:
        ServeAwayError: Nothing serves the folder.
    """
    address, own_token = served_at(folder, token)
    headers = {
        "authorization": f"Bearer {own_token}",
        "content-type": "application/cloudevents-batch+json",
    }
    async with httpx.AsyncClient(
        base_url=address, headers=headers, timeout=ANSWER_SECONDS
    ) as client:

        async def write(records: Sequence[OutgoingRecord]) -> None:
            for begin in range(0, len(records), MAX_EVENTS):
                await _post(client, json.dumps([*map(_event, records[begin : begin + MAX_EVENTS])]))

        yield write


def _event(record: OutgoingRecord) -> dict[str, Any]:
    """A record as a CloudEvent in structured mode."""
    attributes = {
        name.removeprefix("ce_"): text.decode()
        for name, text in record.headers
        if name.startswith("ce_")
    }
    return {**attributes, "data": json.loads(record.value)}


async def _post(client: httpx.AsyncClient, events: str) -> None:
    key = {"idempotency-key": uuid.uuid4().hex}
    for tries in range(1, MAX_TRIES + 1):
        try:
            answer = await client.post("/events", content=events, headers=key)
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
    raise PublishError(f"{client.base_url} took no events for {MAX_TRIES * RETRY_SECONDS:.0f} s")
