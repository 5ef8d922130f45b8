"""A server on this machine that answers each request as a test decides."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

STOP_WITHIN_SECONDS = 0.01


class Request(NamedTuple):
    """One request, with its body whole."""

    path: str
    headers: Message
    body: bytes


class Answer(NamedTuple):
    """One answer; `headers` come besides the length of the body."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


@contextmanager
def answering(answer: Callable[[Request], Answer]) -> Iterator[str]:
    """Serves GET and POST, each request in a thread of its own; gives the address, without a slash
    at its end.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content, headers = answer(Request(self.path, self.headers, body))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(
        target=partial(server.serve_forever, poll_interval=STOP_WITHIN_SECONDS)
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
