"""How a stranger sees a first call of each source: what its page says, pasted as it stands there,
with a free port.

The commands are those of an environment of the stranger's, and bots run in one of their own;
`python -m tests.routes` makes both.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from tests.integration.processes import wait_for
from tests.support.conformance_data import place_of
from tests.support.pages import ROOT, blocks_of
from tests.support.webhooks import SECRET
from tests.unit.streamer.sources.http.test_frameworks import CALL_OF_VAPI, call_of_openai

GOAL_SECONDS: Final = 60.0
"""From the installed command to the first call on the page."""
AS_WRITTEN: Final = "127.0.0.1:8070"
"""The address of the pages."""
PIPECAT: Final = "streamer/observers/pipecat/README.md"
SESSION: Final = ROOT / "tests/support/livekit_agents/session.py"
ROWS: Final = re.compile(r'href="\./calls/')
"""A call in the table of the first page, or of the page of past calls."""


class Bots(NamedTuple):
    """Where bots run.

    Attributes:
        python: Of their environment.
        path: Where it finds the bots of tests, and observers that are not installed.
    """

    python: Path
    path: str


class Took(NamedTuple):
    """Seconds from the command that starts `serve` until it has printed its lines, a call is on the
    page, and a latency counts.
    """

    ready: float
    on_page: float
    measured: float


class Reader:
    """Someone who follows a page in a folder.

    Attributes:
        folder: The folder.
        bots: Where the reader's bots run.
        printed: What `serve` has printed.
    """

    def __init__(self, folder: Path, commands: Path, bots: Bots) -> None:
        """`commands` is the folder with the command."""
        self.folder, self.bots, self.printed = folder, bots, ""
        left = ("CALLGAUGE_", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(left)}
        self._environment = kept | {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "XDG_DATA_HOME": str(folder / "data"),
            "COLUMNS": "200",
            "CALLGAUGE_LOG_FORMAT": "console",
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """Where `serve` listens."""
        (address,) = re.findall(r"^callgauge serves (\S+)/ ", self.printed, re.M)
        return str(address)

    @property
    def token(self) -> str:
        """The token of senders, which opens the pages too where they need one."""
        (token,) = re.findall(r"CALLGAUGE_TOKEN=(\S+)", self.printed)
        return str(token)

    def serve(self, page: str) -> None:
        """Starts `callgauge serve` as the page says, and waits for what it prints."""
        lines = [line for block in blocks_of(page) for line in block.text.splitlines()]
        command = next(
            (line for line in lines if re.search(r"callgauge serve( --folder \S+)?$", line)),
            "callgauge serve",
        )
        secret = self.folder / "elevenlabs-webhook"
        secret.write_text(SECRET)
        self.start(
            "serve", f"{command.replace('/run/secrets/elevenlabs-webhook', str(secret))} --port 0"
        )
        self.printed = wait_for(
            lambda: self._text("serve"), lambda: self._printed("pipecat and LiveKit: "), 30
        )

    def paste(self, page: str, *languages: str, having: str = "") -> str:
        """The first block of the page with this text in it, with the address that was printed."""
        blocks = (block.text for block in blocks_of(page) if block.language in languages)
        return next(text for text in blocks if having in text).replace(
            AS_WRITTEN, self.address.removeprefix("http://")
        )

    def start(self, name: str, script: str, *arguments: str, **environment: str) -> None:
        """Starts a script of the shell in the folder."""
        with (self.folder / f"{name}.txt").open("wb") as output:
            self._running[name] = subprocess.Popen(
                ["sh", "-ec", script, name, *arguments],
                cwd=self.folder,
                env=self._environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_bot(self, script: str, *arguments: str) -> None:
        """Starts a script of the shell, in which `python` is that of the bots, and the lines of the
        printed environment hold.
        """
        (given,) = re.findall(r"pipecat and LiveKit: (.*)", self.printed)
        path = f"{self.bots.python.parent}:{self._environment['PATH']}"
        self.start(
            "bot", f"export {given}\n{script}", *arguments, PATH=path, PYTHONPATH=self.bots.path
        )

    def sees(self) -> bool:
        """Whether a call is on the page, as a browser gets it."""
        self._require_no_failure()
        return any(ROWS.search(self._page(name)) for name in ("", "past"))

    def measures(self) -> bool:
        """Whether a latency counts."""
        self._require_no_failure()
        return (
            re.search(
                r"^callgauge_turn_response_latency_seconds_count\S* [1-9]",
                self._page("metrics"),
                re.M,
            )
            is not None
        )

    def close(self) -> None:
        """Ends all that runs."""
        for process in reversed(self._running.values()):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _printed(self, text: str) -> str:
        self._require_no_failure()
        printed = self._text("serve")
        return printed if text in printed else ""

    def _page(self, name: str) -> str:
        headers = {"Authorization": f"Bearer {self.token}"}
        return (
            httpx.get(f"{self.address}/{name}", headers=headers, timeout=10).raise_for_status().text
        )

    def _text(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text(errors="replace")

    def _require_no_failure(self) -> None:
        for name, process in self._running.items():
            assert process.poll() in (None, 0), (
                f"{name} ended with {process.poll()}:\n{self._text(name)[-3_000:]}"
            )


# What a reader of each page does.


def _http(reader: Reader) -> None:
    (line,) = re.findall(r"^ +(t=.*curl .*)$", reader.printed, re.M)
    reader.start("curl", line)


def _pipecat(reader: Reader) -> None:
    reader.start_bot("exec python -W ignore -m tests.support.pipecat_bots plain")


def _livekit(reader: Reader) -> None:
    attach = reader.paste("docs/sources/livekit.md", "python")
    reader.start_bot(
        'exec python -W ignore "$@"', str(SESSION), "call", "--turns", "2", "--attach", attach
    )


def _otlp(reader: Reader) -> None:
    export = reader.paste("docs/sources/otlp.md", "sh", having="export")
    bot = (
        "exec python -W ignore -m tests.support.pipecat_bots plain --folder . --traces "
        '"$OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"'
    )
    reader.start_bot(f"{export}\n{bot}")


def _elevenlabs(reader: Reader) -> None:
    reader.start(
        "webhook", 'exec python3 -c "$1"', reader.paste("docs/sources/elevenlabs.md", "python")
    )


def _vapi(reader: Reader) -> None:
    server = json.loads(reader.paste("docs/sources/vapi.md", "json"))["server"]
    url = httpx.URL(server["url"])
    headers = {
        name: value.replace("TOKEN", reader.token) for name, value in server["headers"].items()
    }
    with httpx.Client(headers={**headers, "Host": url.host}) as proxy:
        for message in CALL_OF_VAPI:
            proxy.post(f"{reader.address}{url.path}", json=message).raise_for_status()


def _openai(reader: Reader) -> None:
    events = [{**each} for each in call_of_openai() if not each["type"].startswith("call_")]
    for event in events:  # which the session gives without
        del event["conversation_id"], event["timestamp"]
    feed = (
        "import sys\nfor event in json.loads(sys.argv[1]):\n    note(event)\n    time.sleep(0.1)\n"
    )
    end = 'note({"type": "call_ended"}, reason="goodbye")\ntime.sleep(1)\n'
    page = reader.paste("docs/sources/openai-realtime.md", "python")
    reader.start("session", 'exec python3 -c "$@"', f"{page}\n{feed}{end}", json.dumps(events))


def _eva(reader: Reader) -> None:
    record = place_of("record_1.1.2")
    command = reader.paste("docs/sources/eva.md", "sh", having="callgauge replay")
    if record.exists():
        shutil.copytree(record, reader.folder / "output/my-run/records/1.1.2")
    else:
        command = command.replace("output/my-run", "sample")
    reader.start("replay", command)


class Route(NamedTuple):
    """The way of one source: its page, and what sends a call once `serve` runs."""

    page: str
    send: Callable[[Reader], None]


ROUTES: Final[Mapping[str, Route]] = {
    "HTTP": Route("docs/serve.md", _http),
    "pipecat": Route(PIPECAT, _pipecat),
    "LiveKit": Route("docs/sources/livekit.md", _livekit),
    "OTLP": Route("docs/sources/otlp.md", _otlp),
    "ElevenLabs": Route("docs/sources/elevenlabs.md", _elevenlabs),
    "Vapi": Route("docs/sources/vapi.md", _vapi),
    "OpenAI realtime": Route("docs/sources/openai-realtime.md", _openai),
    "EVA": Route("docs/sources/eva.md", _eva),
}


@contextmanager
def _reading(folder: Path, commands: Path, bots: Bots) -> Iterator[Reader]:
    folder.mkdir(exist_ok=True)
    reader = Reader(folder, commands, bots)
    try:
        yield reader
    finally:
        reader.close()


def followed(source: str, folder: Path, commands: Path, bots: Bots) -> Took:
    """Follows the page of a source from the start of `serve` on.

    Args:
        source: Its name in `ROUTES`.
        folder: A folder of the reader's, which is made.
        commands: The folder with the command `callgauge`.
        bots: Where bots run.

    Raises:
        AssertionError: A program of the page failed, or a minute was not enough.
    """
    route, began = ROUTES[source], time.monotonic()
    with _reading(folder, commands, bots) as reader:
        reader.serve(route.page)
        ready = time.monotonic() - began
        route.send(reader)
        wait_for(f"a call of {source} on the page", reader.sees, GOAL_SECONDS)
        on_page = time.monotonic() - began
        wait_for(f"a latency of {source}", reader.measures, GOAL_SECONDS)
        return Took(ready, on_page, time.monotonic() - began)
