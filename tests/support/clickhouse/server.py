"""ClickHouse's HTTP interface over chDB, the same engine in a process. `server.py FOLDER` prints
its port and serves until it is ended.

It runs in an environment that has chDB, and answers as ClickHouse does as far as history asks: a
query is the body, its parameters and the database are in the address.
"""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from chdb.session import Session

PASSWORD = "secret"  # noqa: S105  # of nothing


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    session: Session
    lock = threading.Lock()

    def do_POST(self) -> None:
        sql = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        given = {
            name: values[0]
            for name, values in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()
        }
        parameters = {
            name.removeprefix("param_"): value
            for name, value in given.items()
            if name.startswith("param_")
        }
        if self.headers.get("x-clickhouse-key", PASSWORD) != PASSWORD:
            self._answer(403, b"Code: 516. DB::Exception: Authentication failed")
            return
        try:
            with self.lock:
                self.session.query(f"USE {given.get('database', 'default')}")
                found = self.session.query(sql, "TSV", params=parameters).bytes() or b""
        except Exception as error:  # noqa: BLE001  # whatever it is, the client gets it
            self._answer(500, str(error).encode())
        else:
            self._answer(200, found)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    Handler.session = Session(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
