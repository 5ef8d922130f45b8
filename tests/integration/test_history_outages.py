"""The role `history` is frozen, its disk is full, its folder is read-only while calls run: then its
content is that of the topics, and nobody has noticed.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.metrics_page import total
from tests.integration.processes import Process, started, wait_for
from tests.integration.score_log import closed_rows
from tests.integration.test_history import SECONDS, assert_is_that_of_the_topics, ids, some_calls
from tests.support.conformance_data import needs_conformance

FEW, MANY = (12, "10"), pytest.param(200, "4", marks=pytest.mark.long)
"""How many calls run, and how many times faster than they were."""
DISK_BYTES = 3_000_000
DISK_BYTES_OF_CALL = 60_000

pytestmark = [
    pytest.mark.kafka,
    needs_conformance("calls.jsonl.gz"),
    pytest.mark.service(limits__closing_grace_ms="1500"),
]

Fault = Callable[[Path, Process, str], "Iterator[None]"]


def frozen(_: Path, role: Process, address: str) -> Iterator[None]:
    role.send(signal.SIGSTOP)
    yield
    role.send(signal.SIGCONT)


def disk_full(folder: Path, role: Process, address: str) -> Iterator[None]:
    rest = folder / "rest"
    with pytest.raises(OSError, match="No space left"):
        rest.write_bytes(bytes(2 * shutil.disk_usage(folder).free))
    yield
    waits(role, address)
    rest.unlink()


def read_only(folder: Path, role: Process, address: str) -> Iterator[None]:
    # A file of a new day cannot be made. Root may write everywhere, so for it the folder itself
    # cannot be changed.
    change = ("chattr", "+i", "-i") if os.geteuid() == 0 else ("chmod", "u-w", "u+w")
    subprocess.run([*change[:2], folder], check=True)
    try:
        yield
        waits(role, address)
    finally:
        subprocess.run([change[0], change[2], folder], check=True)


def waits(role: Process, address: str) -> None:
    """It says why nothing is kept, and what to do."""
    failures = "callgauge_history_write_failures_total"
    wait_for("a write that fails", lambda: total(address, failures) > 0, SECONDS)
    assert "Make room on its disk, and see to the rights of the folder." in role.text
    assert role.is_running


@contextmanager
def disk(folder: Path, size: int) -> Iterator[None]:
    """A disk of its own for a folder."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"a disk of its own needs the right to mount: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("fault", [frozen, disk_full, read_only])
@pytest.mark.parametrize(("count", "speed"), [FEW, MANY])
async def test_after_an_outage_history_is_whole_and_the_others_did_not_notice(
    fault: Fault, count: int, speed: str, environment: dict[str, str], tmp_path: Path
) -> None:
    folder, calls = tmp_path / "history", some_calls(tmp_path / "calls.jsonl", 0, count)
    history = environment | {"CALLGAUGE_HISTORY__FOLDER": str(folder)}
    with (
        disk(folder, DISK_BYTES + count * DISK_BYTES_OF_CALL)
        if fault is disk_full
        else contextmanager(lambda: iter([None]))(),
        started(
            tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment
        ) as evaluator,
        started(tmp_path / "history.log", "run", "--roles", "history", **history) as role,
    ):
        evaluator.metrics(SECONDS)
        address = role.metrics(SECONDS)
        wait_for("its first file", (folder / "annotations.sqlite").exists, SECONDS)
        with started(
            tmp_path / "replay.log",
            "replay",
            str(calls),
            "--speed",
            speed,
            "--keep-ids",
            **environment,
        ):
            if fault is not read_only:  # its file of the day must not be there yet
                wait_for("a running call in history", lambda: ids(folder, closed=False), SECONDS)
            outage = contextmanager(fault)(folder, role, address)
            with outage:
                assert len(await closed_rows(environment, count, SECONDS)) == count
                assert "error" not in evaluator.text
                assert len(ids(folder)) < count, "it began too late"
        wait_for("all calls in history", lambda: len(ids(folder)) == count, SECONDS)
        assert role.signalled(signal.SIGTERM)[0] == 0
        await assert_is_that_of_the_topics(environment, folder)
