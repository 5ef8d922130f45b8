"""The demo as its first user sees it: alone, with no broker, in a pipe and in a terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path

from tests.integration.metrics_page import address_in, total
from tests.integration.processes import COMMAND, started, wait_for
from tests.support.patience import patient

SOON_SECONDS = 10
AT_ONCE_SECONDS = 2


def test_a_call_is_seen_within_ten_seconds_and_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    begin = time.monotonic()
    with started(tmp_path / "demo.log", "demo", "--http-port", "0", command=[str(COMMAND)]) as demo:
        wait_for("a running call", lambda: re.search(r"[1-9]\d* calls running", demo.text), SOON_SECONDS + 5)
        assert time.monotonic() - begin < patient(SOON_SECONDS)
        address = wait_for("the address of /metrics", lambda: address_in(demo.text), 1)
        wait_for("an active call", lambda: total(address, "callgauge_calls_active") > 0, 10)
        exit_code, seconds = demo.signalled(signal.SIGINT)
        assert seconds < patient(AT_ONCE_SECONDS)
        assert exit_code in {0, 130}
        assert "Traceback" not in demo.text


def test_goals_move_within_a_minute(tmp_path: Path) -> None:
    with started(tmp_path / "demo.log", "demo", "--http-port", "0", CALLGAUGE_JUDGE__ENABLED="false") as demo:
        wait_for("a subgoal to be reached", lambda: "reached the subgoal" in demo.text, 60)
        address = wait_for("the address of /metrics", lambda: address_in(demo.text), 1)
        wait_for("it to be on the page", lambda: total(address, "callgauge_progress_active") > 0, 5)
        assert total(address, "callgauge_subgoals_unscored_total", reason="judge_disabled") == 0


def test_it_ends_by_itself(tmp_path: Path) -> None:
    with started(tmp_path / "demo.log", "demo", "--http-port", "0", "--seconds", "3") as demo:
        wait_for("its end", lambda: not demo.is_running, 20)
        assert demo.signalled(signal.SIGTERM)[0] == 0
        assert "keeps nothing" in demo.text


def test_a_terminal_shows_a_table() -> None:
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [str(COMMAND), "demo", "--http-port", "0", "--seconds", "9"],
        stdin=terminal, stdout=terminal, stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "130", "LINES": "40"},
    ) as demo:  # fmt: skip
        os.close(terminal)
        shown = b""
        while demo.poll() is None:
            if select.select([controller], [], [], 0.2)[0]:
                try:
                    shown += os.read(controller, 65_536)
                except OSError:  # Linux's way to say that the other end of a terminal was closed
                    break
        assert demo.wait(patient(10)) == 0
    os.close(controller)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode(errors="replace"))
    for heading in ("call", "agent", "turn", "latency", "status"):
        assert heading in text
    assert "running" in text
    assert address_in(text)
