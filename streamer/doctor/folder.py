"""Examines the folder of a `serve`, and the process that serves it, for what keeps calls from being
taken, judged and kept.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from consumers.log.file import FILE_NAME, LogFileError, LogFileState, reading
from consumers.log.retention import MAX_BYTES, NEARLY_FULL
from consumers.runtime.private_files import is_locked
from consumers.runtime.process import wall_clock_ms
from schemas.topics import duration
from streamer.doctor.examination import (
    answer_of,
    goals_and_finding,
    judge_finding,
    state_findings,
)
from streamer.doctor.findings import Finding, Verdict, counted
from streamer.facts import ADDRESS_FILE, TOKEN_FILE
from streamer.served_folder import history_of, is_served
from streamer.settings.all_settings import Settings

LEAST_FREE_BYTES: Final = 2**30
"""Free space below which a person is told: an hour of a hundred calls at a time takes a third of
it.
"""


async def examine_folder(settings: Settings, folder: Path) -> AsyncGenerator[Finding, None]:
    """Runs every check, one after the other. Nothing is written.

    Args:
        settings: The settings of `serve`.
        folder: Its folder.
    """
    for finding in await asyncio.to_thread(lambda: list(_findings(settings, folder))):
        yield finding


def _findings(settings: Settings, folder: Path) -> Iterator[Finding]:
    sets, of_goals = goals_and_finding(settings)
    yield of_goals
    yield judge_finding(settings, sets)
    for remark in settings.left_out_by_serve():
        yield Finding(
            "settings", Verdict.WARNING, remark, "Leave it out, or see docs/serve.md for Kafka."
        )
    if not is_served(folder):
        seen = f"{folder}: no `callgauge serve` has kept calls here: there is no {FILE_NAME}"
        yield Finding(
            "folder",
            Verdict.WRONG,
            seen,
            "Name the folder that `serve` has, or start it with this one.",
        )
        return
    yield from _folder_findings(folder)
    is_served_now = is_locked(folder)
    yield from _process_findings(settings, folder, is_served_now=is_served_now)
    try:
        with reading(folder) as log:
            state = log.state()
    except LogFileError as error:
        yield Finding(
            "log",
            Verdict.WRONG,
            str(error).rstrip("."),
            "See to the disk; docs/serve.md says what is lost without it.",
        )
        return
    yield _log_finding(state)
    yield newest_finding(state, wall_clock_ms())
    history = history_of(folder, settings)
    if broken := sorted(path.name for path in history.glob("*.broken-*")):
        seen = f"set aside in {history} as damaged: {', '.join(broken)}; their calls are not found"
        what_to_do = "See to the disk. Delete them when you do not miss them."
        yield Finding("history", Verdict.WARNING, seen, what_to_do)


def _folder_findings(folder: Path) -> Iterator[Finding]:
    check = "folder"
    if os.name == "posix" and folder.stat().st_mode & 0o077:
        seen = f"others than its user may look into {folder}, which has what people said"
        yield Finding(check, Verdict.WARNING, seen, f"Take the rights away: chmod go-rwx {folder}")
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        seen = f"{_megabytes(free)} free on its disk: when it is full, senders get 503"
        yield Finding(check, Verdict.WARNING, seen, "Make room.")
    else:
        yield Finding(check, Verdict.OK, f"{folder}: {_megabytes(free)} free on its disk")


def _process_findings(
    settings: Settings, folder: Path, *, is_served_now: bool
) -> Iterator[Finding]:
    check, place = "serve", folder / ADDRESS_FILE
    address = place.read_text(encoding="utf-8").strip() if place.exists() else None
    if not is_served_now:
        what_to_do = (
            f"Start `callgauge serve --folder {folder}`; it goes on with what was acknowledged."
        )
        seen = "no process serves this folder, so senders wait"
        yield Finding(check, Verdict.WARNING, seen, what_to_do)
        return
    if address is None:
        seen = (
            "a process writes this folder, and does not say yet where it listens: it starts or "
            "ends, or is a command that writes"
        )
        yield Finding(
            check, Verdict.WARNING, seen, "Look again in some seconds; if it stays so, see its log."
        )
        return
    token = settings.http_token or settings.console.token
    if token is None and (place := folder / TOKEN_FILE).exists():
        token = SecretStr(place.read_text(encoding="utf-8").strip())
    answer = answer_of(address, "/state", token)
    if answer is None:
        seen = f"the process that serves this folder does not answer at {address}"
        yield Finding(
            check,
            Verdict.WRONG,
            seen,
            "See its log, and end and start it again if that says nothing.",
        )
    else:
        yield from state_findings(settings, address, *answer, wall_clock_ms())


def _log_finding(state: LogFileState) -> Finding:
    seen = f"{FILE_NAME} has {_megabytes(state.bytes)} of {_megabytes(MAX_BYTES)}"
    if state.bytes > NEARLY_FULL * MAX_BYTES:
        what_to_do = (
            "Nothing, unless events of the last days must be evaluated again. More calls than this "
            "are for Kafka."
        )
        return Finding(
            "log", Verdict.WARNING, f"{seen}; the oldest events go before their 7 days", what_to_do
        )
    return Finding("log", Verdict.OK, f"{seen}; {counted(state.open_calls, 'call')} open")


SILENT_WITH_CALLS_MS: Final = 20_000
"""While calls are open, so long without an event is a finding: a caller or an agent speaks sooner."""
QUIET_MS: Final = 60_000
"""The same without open calls: those that fell silent have been closed, and senders may be away."""


def newest_finding(state: LogFileState, now_ms: int) -> Finding:
    """Whether events come, and lately enough for the calls that are open."""
    check = "producers"
    if state.newest_ms is None:
        what_to_do = (
            "Start a sender, or `callgauge simulate --folder`; the line that `serve` prints sends "
            "a first call."
        )
        return Finding(
            check,
            Verdict.WARNING,
            "no event is in the log: none was sent, or retention took them",
            what_to_do,
        )
    age_ms = max(0, now_ms - state.newest_ms)
    seen = f"the last event came {duration(age_ms - age_ms % 1_000)} ago"
    if state.open_calls and age_ms >= SILENT_WITH_CALLS_MS:
        return Finding(
            check,
            Verdict.WARNING,
            f"{counted(state.open_calls, 'call')} open, and {seen}",
            "Nothing if these calls have ended without `call_ended`. Otherwise check the "
            "senders, their address and token, and the network.",
        )
    if age_ms >= QUIET_MS:
        return Finding(
            check,
            Verdict.WARNING,
            seen,
            "Nothing if no call runs. Else see the logs of the senders, their address and token.",
        )
    return Finding(check, Verdict.OK, seen)


def _megabytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
