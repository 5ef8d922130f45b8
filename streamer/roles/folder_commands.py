"""What commands write through the process that serves a folder: labels and notes, deletions, and
refused events once more.

They show the key that the process puts into the folder at its start: who may read the folder may
write so, and no sender of events may.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, SecretStr, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from consumers.log.commits import NotWrittenError
from consumers.log.file import Decided, FileLog
from consumers.runtime.http import challenge, given_token, is_token
from schemas.annotations import AnyAnnotation
from schemas.wire import MAX_NAME_CHARS
from streamer.facts import ANNOTATIONS_PATH, MAX_COMMAND_RECORDS, PUT_BACK_PATH
from streamer.history.said import record_in_log

MAX_BODY_BYTES: Final = 8 * 2**20
"""Most bytes of a request: `MAX_COMMAND_RECORDS` records with long notes."""

_Key = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
_Said = Annotated[list[tuple[_Key, AnyAnnotation | None]], Field(max_length=MAX_COMMAND_RECORDS)]
_Refused = Annotated[
    list[tuple[Annotated[int, Field(ge=0)], _Key]], Field(max_length=MAX_COMMAND_RECORDS)
]
_SAID: Final[TypeAdapter[list[tuple[str, AnyAnnotation | None]]]] = TypeAdapter(_Said)
_REFUSED: Final[TypeAdapter[list[tuple[int, str]]]] = TypeAdapter(_Refused)

Body = TypeVar("Body")


class FolderCommands:
    """Takes what commands write.

    Attributes:
        key: What they have to show.
        routes: The routes.
    """

    def __init__(self, log_file: FileLog) -> None:
        """Makes a key and the routes."""
        self.key = secrets.token_urlsafe(24)
        self._log = log_file
        self.routes: Sequence[BaseRoute] = [
            Route(
                ANNOTATIONS_PATH, self._answering(_SAID, self._take_annotations), methods=["POST"]
            ),
            Route(PUT_BACK_PATH, self._answering(_REFUSED, self._log.put_back), methods=["POST"]),
        ]

    def _answering(
        self, body: TypeAdapter[Body], work: Callable[[Body], Awaitable[Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode("latin-1")
            if (token := given_token(given)) is None or not is_token(token, SecretStr(self.key)):
                return Response(status_code=401, headers={"WWW-Authenticate": challenge(given)})
            content = bytearray()
            async for piece in request.stream():
                content += piece
                if len(content) > MAX_BODY_BYTES:
                    return PlainTextResponse(
                        f"More than {MAX_BODY_BYTES} bytes; nothing was written.", 413
                    )
            try:
                return JSONResponse(await work(body.validate_json(bytes(content))))
            except ValidationError as error:
                return PlainTextResponse(f"{error}; nothing was written.", 422)
            except NotWrittenError as error:
                return PlainTextResponse(f"The disk took nothing: {error}.", 503)

        return answer

    async def _take_annotations(self, said: Sequence[tuple[str, AnyAnnotation | None]]) -> None:
        await self._log.publish(Decided([record_in_log(key, value) for key, value in said]))
