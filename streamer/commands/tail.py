"""The work of the command `tail`: follows the run, and shows how far it is."""

import asyncio
from contextlib import nullcontext
from pathlib import Path

from rich.progress import Progress, SpinnerColumn, TextColumn

from consumers.runtime.kafka.connection import require_access
from consumers.runtime.process import first_of
from streamer.cluster.rights import TRAFFIC_NEEDS
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.sources.publisher import EventPublisher
from streamer.sources.tail.followed_record import CallFacts
from streamer.sources.tail.followed_run import FollowedRun, TailProgress
from streamer.sources.tail.positions import PositionFile
from streamer.terminal import error_console, say

_SHOW_SECONDS = 0.5
_ONCE = (
    "The conversation ids are those of the records, and a call closes once: if these topics had a run of the same records "
    "before, no event of this run counts. Then stop it, delete the position, and start it with --run-name NAME."
)


async def follow(
    settings: Settings, run_dir: Path, position: Path, facts: CallFacts, *, is_endless: bool
) -> tuple[bool, TailProgress]:
    """Sends until the run is over or a signal comes; gives whether it is over, and how far it was sent."""
    file = PositionFile(position)
    with file.locked(), stop_on_signals() as stop:
        known = file.read(settings.bootstrap, settings.topic_prefix)
        is_new = not known.calls
        run = FollowedRun(run_dir, file, known, facts, say)

        async def work() -> None:
            await require_access(settings.kafka, TRAFFIC_NEEDS)
            say(f"Following {run_dir} to {settings.bootstrap}; the position is in {position}. Ctrl-C ends it.")
            if is_new and facts.run_name is None:
                say(_ONCE)
            async with EventPublisher(settings.kafka, ce_source="callgauge.tail") as publisher:
                await run.send(publisher, is_endless=is_endless)

        await first_of(stop.wait(), work(), _show(run))
        return not stop.is_set(), run.progress


async def _show(run: FollowedRun) -> None:
    """One line on the terminal with the progress, until cancelled."""
    console = error_console()
    with (
        Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console)
        if console.is_terminal
        else nullcontext() as line
    ):
        task = line.add_task("") if line else None
        while True:
            if line is not None and task is not None:
                line.update(task, description=progress_text(run.progress))
            await asyncio.sleep(_SHOW_SECONDS)


def progress_text(progress: TailProgress) -> str:
    """The progress of a followed run, in words."""
    return f"{progress.open_calls} calls open, {progress.ended_calls} ended, {progress.events} events sent"
