"""The demo as its first user sees it: alone, with no broker, in a pipe and in a terminal."""

import re
import signal
from pathlib import Path

from tests.integration.metrics_page import page, total
from tests.integration.processes import COMMAND, started, wait_for
from tests.support.held_loop import times_slower

SOON_SECONDS = 15
"""Of a processor, for everything up to the first call that is seen: it takes about five."""


def test_a_call_is_seen_soon_and_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    with started(tmp_path / "demo.log", "demo", "--port", "0", command=[str(COMMAND)]) as demo:
        wait_for("a running call", lambda: re.search(r"[1-9]\d* calls running", demo.text), 30)
        assert demo.processor_seconds < SOON_SECONDS * times_slower()
        address = demo.metrics()
        wait_for("an active call", lambda: total(address, "callgauge_calls_active") > 0, 10)
        assert demo.signalled(signal.SIGINT)[0] in {0, 130}
        assert "Traceback" not in demo.text


def test_past_calls_and_versions_are_there_and_gone_with_the_demo(tmp_path: Path) -> None:
    environment = {
        "TMPDIR": str(tmp_path),
        "CALLGAUGE_CONSOLE__PORT": "0",
        "CALLGAUGE_JUDGE__ENABLED": "false",
    }
    with started(
        tmp_path / "demo.log", "demo", "--port", "0", "--calls", "12", **environment
    ) as demo:
        found = wait_for("its page", lambda: re.search(r"See the calls: (\S+)", demo.text), 30)
        past, versions = f"{found[1]}past", f"{found[1]}versions"
        wait_for("past calls", lambda: "200 calls of the last two days are there" in demo.text, 120)
        lots = "a_agent={0}&a_version=v4&b_agent={0}&b_version=v5".format("airline-rebooking")
        compared = page(f"{versions}?{lots}", "text/html")
        assert re.search(r"Version v5 is slower by 1\.\d+ s", compared)
        assert 'href="./calls/' in page(past, "text/html")
        lately = f"{past}?since=10m"
        wait_for("a call of now", lambda: 'href="./calls/' in page(lately, "text/html"), 120)
        assert list(tmp_path.glob("callgauge-demo-*/*"))
        demo.signalled(signal.SIGINT)
    assert list(tmp_path.glob("callgauge-demo-*")) == []


def test_goals_move_within_a_minute(tmp_path: Path) -> None:
    with started(
        tmp_path / "demo.log", "demo", "--port", "0", CALLGAUGE_JUDGE__ENABLED="false"
    ) as demo:
        wait_for("a subgoal to be reached", lambda: re.search(r"subgoals [1-9]", demo.text), 60)
        address = demo.metrics()
        wait_for("it to be on the page", lambda: total(address, "callgauge_progress_active") > 0, 5)
        assert total(address, "callgauge_subgoals_unscored_total", reason="judge_disabled") == 0
