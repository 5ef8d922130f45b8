"""An OpenAI-compatible endpoint over real HTTP that follows a script, and remembers its requests.

It runs in a thread of its own, so that tests may block and the judge may be another process. It
speaks just enough of HTTP/1.1 to misbehave on every level: late, not at all, with errors, with half
a body.
"""

import asyncio
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.patience import patient

CACHE_BLOCK_CHARS = 512
"""A prefix counts as cached in blocks of this size, as real endpoints cache in blocks of tokens."""
CHARS_PER_TOKEN = 4


@dataclass
class Asked:
    """One request as it came in.

    Attributes:
        began: When, on the monotonic clock; `ended` when its answer began, None until then.
        at_once: Requests on their way at that moment, this one included.
        cached_chars: How many of its first characters had been seen at the beginning of an earlier
            one.
    """

    body: dict[str, Any]
    headers: dict[str, str]
    began: float
    at_once: int
    cached_chars: int = 0
    ended: float | None = None

    @property
    def system(self) -> str:
        return str(self.body["messages"][0]["content"])

    @property
    def user(self) -> str:
        return str(self.body["messages"][1]["content"])

    @property
    def prompt_chars(self) -> int:
        return len(self.system) + len(self.user)

    @property
    def is_repeat(self) -> bool:
        """Whether the client sends it again."""
        return self.headers.get("x-stainless-retry-count", "0") != "0"


@dataclass(frozen=True)
class Does:
    """The endpoint's answer to one request.

    Attributes:
        text: The model's text; None with a refusal.
        delay_seconds: Before anything is sent.
        gate: Nothing is sent before it is set, which the script does.
        status: Of HTTP; other than 200 it has an error's body.
        body: Sent as it is in place of a completion.
        cut_at: So many bytes of the body are sent, then the connection is closed.
        hangs: Nothing is ever sent.
        resets: The connection is torn down in place of an answer.
        endless: Sent again and again after the beginning of an answer, until the client has gone.
        pause_seconds: Before each of those.
    """

    text: str | None = None
    refusal: str | None = None
    finish_reason: str = "stop"
    delay_seconds: float = 0.0
    gate: asyncio.Event | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    cut_at: int | None = None
    hangs: bool = False
    resets: bool = False
    endless: bytes | None = None
    pause_seconds: float = 0.0
    counts_tokens: bool = True

    async def due(self) -> None:
        """Returns when the answer is to be sent."""
        if self.hangs:
            await asyncio.Event().wait()
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(self.delay_seconds)


def grades(letter: str, explanation: str = "turn 1 shows it", **more: Any) -> Does:
    """A structured answer to a question about a subgoal."""
    return Does(text=json.dumps({"explanation": explanation, "grade": letter}), **more)


def fails(status: int, **headers: str) -> Does:
    """An error; header names with underscores for dashes."""
    return Does(
        status=status, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


Script = Callable[[Asked], Does]


class ScriptedOpenAI:
    """The endpoint; `script` may be changed at any time. `endless_bytes` counts the sent bytes of
    answers without end.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.endless_bytes = 0
        self.url = ""
        self._at_once = 0
        self._blocks: set[bytes] = set()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(),), daemon=True
        )

    @property
    def most_at_once(self) -> int:
        return max((asked.at_once for asked in self.asked), default=0)

    @property
    def prompt_chars(self) -> int:
        return sum(asked.prompt_chars for asked in self.asked)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(patient(10))
        self._loop.close()

    async def _serve(self) -> None:
        handling: set[asyncio.Task[None]] = set()

        def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._talk(reader, writer))
            handling.add(task)
            task.add_done_callback(handling.discard)

        server = await asyncio.start_server(take, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in handling:
            task.cancel()
        await asyncio.gather(*handling, return_exceptions=True)
        await server.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                while await self._exchange(reader, writer):
                    pass
            finally:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; false when the connection ends."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:] if line)
        }
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self._at_once += 1
        asked = Asked(body, headers, time.monotonic(), self._at_once)
        asked.cached_chars = self._seen_before(asked.system + asked.user)
        self.asked.append(asked)
        does = self.script(asked)
        # the client says no more until it has an answer, so: it left
        gone = asyncio.ensure_future(reader.read(1))
        due = asyncio.ensure_future(does.due())
        try:
            done, _ = await asyncio.wait([gone, due], return_when=asyncio.FIRST_COMPLETED)
            if gone in done:
                return False
        finally:
            for each in (gone, due):
                each.cancel()
            await asyncio.gather(gone, due, return_exceptions=True)
            # Before the answer is out: who has it may look here, or ask again, at once.
            self._at_once -= 1
            asked.ended = time.monotonic()
        return await self._answer(writer, asked, does)

    async def _answer(self, writer: asyncio.StreamWriter, asked: Asked, does: Does) -> bool:
        if does.resets:
            writer.transport.abort()
            return False
        body = does.body if does.body is not None else _body(asked, does)
        lines = [
            f"HTTP/1.1 {does.status} Scripted",
            "content-type: application/json",
            f"content-length: {len(body) if does.endless is None else 10**12}",
            *(f"{name}: {value}" for name, value in does.headers.items()),
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body[: does.cut_at])
        await writer.drain()
        while does.endless is not None:  # a client that has gone ends it with an error
            await asyncio.sleep(does.pause_seconds)
            writer.write(does.endless)
            await writer.drain()
            self.endless_bytes += len(does.endless)
        return does.cut_at is None

    def _seen_before(self, prompt: str) -> int:
        digest, seen, is_seen = hashlib.blake2b(), 0, True
        for start in range(0, len(prompt) - CACHE_BLOCK_CHARS + 1, CACHE_BLOCK_CHARS):
            digest.update(prompt[start : start + CACHE_BLOCK_CHARS].encode())
            block = digest.digest()
            is_seen = is_seen and block in self._blocks
            seen += CACHE_BLOCK_CHARS if is_seen else 0
            self._blocks.add(block)
        return seen


def _body(asked: Asked, does: Does) -> bytes:
    if does.status != 200:
        return json.dumps(
            {"error": {"message": "scripted", "type": "scripted", "code": None}}
        ).encode()
    usage = {
        "prompt_tokens": asked.prompt_chars // CHARS_PER_TOKEN,
        "completion_tokens": len(does.text or "") // CHARS_PER_TOKEN,
        "total_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": asked.cached_chars // CHARS_PER_TOKEN},
    }
    message = {"role": "assistant", "content": does.text, "refusal": does.refusal}
    completion = {
        "id": "scripted",
        "object": "chat.completion",
        "created": 0,
        "model": asked.body["model"],
        "choices": [
            {"index": 0, "message": message, "finish_reason": does.finish_reason, "logprobs": None}
        ],
        **({"usage": usage} if does.counts_tokens else {}),
    }
    return json.dumps(completion).encode()


@contextmanager
def scripted_openai(script: Script) -> Iterator[ScriptedOpenAI]:
    """The endpoint for the length of the block."""
    server = ScriptedOpenAI(script)
    server.start()
    try:
        yield server
    finally:
        server.stop()
