"""The demo as a person starts it, with and without a terminal, and its head start and browser."""

import itertools
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from io import StringIO
from pathlib import Path
from queue import Queue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.roles import demo
from streamer.roles.demo import place_of_command, split_at, why_no_browser
from streamer.settings.all_settings import Settings
from streamer.sources.simulator.traffic import simulated_traffic
from streamer.terminal import Screen
from tests.support.known import some
from tests.support.patience import patient

ROOT = Path(__file__).parents[4]
DEMO = [
    *(sys.executable, "-m", "streamer.cli.main"),
    *("demo", "--no-browser", "--port", "0", "--calls", "2"),
]
START_SECONDS = 60  # a bound, not a goal: the machine may be busy


def environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CALLGAUGE_", "OPENAI_"))
    }
    return {**kept, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}


def test_without_a_terminal_it_prints_tables_and_ends_by_itself() -> None:
    ended = subprocess.run(
        [*DEMO, "--seconds", str(patient(4))],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=patient(START_SECONDS),
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("callgauge demo: calls are scored while they run.")
    assert "has a bad version" in lines[0]
    assert "temporary folder" in lines[1]
    assert re.match(r"  t=\$\(date \+%s\); curl http://127\.0\.0\.1:\d+/events", lines[3])
    assert re.fullmatch(r"  callgauge top --folder \S+", lines[4])
    assert re.fullmatch(
        r"See the calls: http://127\.0\.0\.1:\d+/   Metrics: http://127\.0\.0\.1:\d+/metrics",
        lines[5],
    )
    assert "browser" not in ended.stdout, "nobody wants one"
    (told,) = [line for line in lines if "All agents are well. " in line]
    assert re.fullmatch(r"\d\d:\d\d:\d\d  .* See http://127\.0\.0\.1:\d+/", told)
    assert [
        line
        for line in lines
        if re.match(r"\d+ calls running, \d in trouble, .*, http://127\.0\.0\.1:\d+/", line)
    ]
    (over,) = [place for place, line in enumerate(lines) if line.startswith("Over: ")]
    assert re.match(r"Over: \d calls ended, \d+ were running, \d+ events were sent", lines[over])
    assert re.match(r"answers \d+ \(p50 .*\)  subgoals \d+  interruptions \d+", lines[over + 1])
    assert any(line.strip().startswith("callgauge report sample") for line in lines[over:])
    assert "\x1b" not in ended.stdout


def test_it_names_the_place_of_the_command_where_a_shell_does_not_find_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = tmp_path / ".venv/bin/callgauge"
    command.parent.mkdir(parents=True)
    command.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(command), "demo"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert place_of_command() == " (callgauge is .venv/bin/callgauge)"
    monkeypatch.setenv("PATH", str(command.parent))
    assert place_of_command() == ""


def test_on_a_terminal_it_shows_the_calls_and_ctrl_c_ends_it() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        DEMO, cwd=ROOT, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs
    ) as shown:
        os.close(theirs)
        try:
            seen = read_until(ours, b"running", START_SECONDS, after=b"status")
            found = some(re.search(rb"http://127\.0\.0\.1:\d+/metrics", seen))
            # an address on loopback that we started
            with urllib.request.urlopen(found[0].decode(), timeout=patient(5)) as page:  # noqa: S310
                metrics = page.read().decode()
            assert "callgauge_calls_started_total" in metrics
            assert "callgauge_events_total" in metrics
            shown.send_signal(signal.SIGINT)
            seen = read_until(ours, b"events were sent", 10)
            assert shown.wait(patient(10)) == 0
            assert b"Traceback" not in seen
        finally:
            shown.kill()
            os.close(ours)


class Shows(webbrowser.BaseBrowser):
    """A browser with a window."""

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        return True


@pytest.mark.parametrize(
    ("is_terminal", "display", "browser", "why"),
    [
        (True, ":0", Shows("window"), None),
        (False, ":0", Shows("window"), "this is no terminal"),
        (True, None, Shows("window"), "there is no DISPLAY"),
        (True, ":0", webbrowser.GenericBrowser("lynx"), "only one for terminals was found"),
        (True, ":0", None, "none was found"),
    ],
)
def test_a_browser_opens_where_there_is_one_to_see(
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
    display: str | None,
    browser: webbrowser.BaseBrowser | None,
    why: str | None,
) -> None:
    def get() -> webbrowser.BaseBrowser:
        if browser is None:
            raise webbrowser.Error
        return browser

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(demo, "CONTAINER_MARKS", ())
    monkeypatch.setattr(webbrowser, "get", get)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    if display is not None:
        monkeypatch.setenv("DISPLAY", display)
    assert why_no_browser(is_terminal=is_terminal) == why


@pytest.mark.parametrize(
    ("why", "said"),
    [(None, "Your browser opens it"), ("there is no DISPLAY", "No browser is opened: there is no")],
)
def test_it_says_whether_a_browser_opens_the_page(
    monkeypatch: pytest.MonkeyPatch, why: str | None, said: str
) -> None:
    opened: Queue[str] = Queue()
    monkeypatch.setattr(demo, "why_no_browser", lambda *, is_terminal: why)
    monkeypatch.setattr(webbrowser, "open", opened.put)
    console = Screen(file=StringIO(), force_terminal=True)
    shown = demo.Demo(Settings(), console, concurrent_calls=1, seed=1, opens_browser=True)
    shown._page_url = "http://127.0.0.1:8080/"
    with console.capture() as captured:
        shown._open_page()
    assert said in captured.get()
    if why is None:
        assert opened.get(timeout=patient(10)) == shown._page_url
    assert opened.empty()


def test_no_browser_opens_in_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "CONTAINER_MARKS", (tmp_path,))
    assert why_no_browser(is_terminal=True) == "this is a container"


def test_the_first_calls_have_a_past_with_latencies_and_goals(tmp_path: Path) -> None:
    """The calls are a minute old at the start; otherwise most of these lines would have no time to
    appear.
    """
    with (
        (tmp_path / "demo.log").open("w+") as log,
        subprocess.Popen(
            [*DEMO[:-2], "--calls", "12"],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        ) as shown,
    ):
        try:
            deadline_seconds = time.monotonic() + patient(START_SECONDS)
            happened = r"answers \d\d+ .* subgoals [1-9]\d*  interruptions [1-9]\d*  dead air 0 "
            while not re.search(happened, text := Path(log.name).read_text()):
                assert time.monotonic() < deadline_seconds, text
                time.sleep(0.2)
            assert re.search(r"\d calls running, 0 in trouble", text), "it begins well"
        finally:
            shown.kill()


def test_a_taken_port_is_told_and_the_next_free_one_is_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [*DEMO[:-4], "--port", str(port), "--calls", "1", "--seconds", "0.1"],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=patient(START_SECONDS),
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    found = some(re.search(rf"Port {port} is taken, so the demo is on port (\d+)\.", ended.stdout))
    assert f"Metrics: http://127.0.0.1:{found[1]}/metrics" in ended.stdout


def read_until(terminal: int, wanted: bytes, seconds: float, after: bytes = b"") -> bytes:
    """Reads the terminal up to and including `wanted` somewhere after the first `after`."""
    seen = b""
    deadline_seconds = time.monotonic() + patient(seconds)
    while wanted not in seen.partition(after)[2] if after else wanted not in seen:
        left_seconds = deadline_seconds - time.monotonic()
        assert left_seconds > 0, seen
        if select.select([terminal], [], [], left_seconds)[0]:
            seen += os.read(terminal, 65_536)
    return seen


START_MS = 1_790_000_000_000
CALLS = 12


@given(seed=st.integers(0, 50), head_ms=st.integers(0, 200_000), lines=st.integers(1, 5))
def test_past_and_present_are_the_traffic(seed: int, head_ms: int, lines: int) -> None:
    def traffic() -> list[tuple[str, int, bytes]]:
        calls = simulated_traffic(seed, concurrent_calls=lines, start_ms=START_MS, limit=CALLS)
        return [
            (call.conversation_id, event.arrival_ms, event.value)
            for call in calls
            for event in call.events
        ]

    past, calls = split_at(
        simulated_traffic(seed, concurrent_calls=lines, start_ms=START_MS, limit=CALLS), head_ms
    )
    present = list(calls)
    assert all(event.arrival_ms < START_MS + head_ms for _, event in past)
    assert [event.arrival_ms for _, event in past] == sorted(event.arrival_ms for _, event in past)
    assert [call.start_offset_ms for call in present] == sorted(
        call.start_offset_ms for call in present
    )
    for call in present:
        assert call.start_offset_ms >= 0
        assert call.events[0].arrival_ms == START_MS + head_ms + call.start_offset_ms
    both = [(call, event.arrival_ms, event.value) for call, event in past]
    both += [
        (call.conversation_id, event.arrival_ms, event.value)
        for call in present
        for event in call.events
    ]
    assert sorted(both) == sorted(traffic())


def test_endless_traffic_stays_lazy() -> None:
    past, calls = split_at(simulated_traffic(1, concurrent_calls=3, start_ms=START_MS), 60_000)
    assert past
    assert len(list(itertools.islice(calls, 20))) == 20
