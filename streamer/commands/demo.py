"""The work of the command `demo`: runs it until a signal."""

from rich.console import Console

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.logs import configure_logging
from consumers.runtime.process import first_of
from streamer.roles.demo import Demo
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals


async def run_demo(settings: Settings, console: Console, seconds: float | None, calls: int, seed: int) -> None:
    """Runs the demo for some seconds; None means until a signal."""
    configure_logging(settings.log_format, "warning", redact=Redactor(settings.redaction).redact)
    with stop_on_signals() as stop:
        await first_of(stop.wait(), Demo(settings, console, concurrent_calls=calls, seed=seed).run(seconds))
