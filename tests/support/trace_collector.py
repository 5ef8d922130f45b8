"""A collector of traces on loopback, which keeps the bodies that frameworks post."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def collecting(folder: Path) -> Iterator[str]:
    """The address to which traces are posted; each body becomes a file of the folder, in the order
    of their coming.
    """
    folder.mkdir()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = self.headers.get("Content-Length")
            body = self._in_chunks() if length is None else self.rfile.read(int(length))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            is_json = "json" in self.headers["Content-Type"]
            name = f"{len(list(folder.iterdir())):03}.{'json' if is_json else 'pb'}"
            (folder / name).write_bytes(body)
            answer = b"{}" if is_json else b""
            self.send_response(200)
            self.send_header("Content-Type", self.headers["Content-Type"])
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def _in_chunks(self) -> bytes:
            """A body without a length, as Node sends it."""
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
