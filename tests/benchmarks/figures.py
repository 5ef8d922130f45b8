"""The figures of one run of the benchmark: shown as they come, and written by name for people who
compare runs.
"""

import json
import platform
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path
from typing import Final

WIDTH: Final = 58


def say(text: str = "") -> None:
    """Prints one line of the report."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def interpreter() -> str:
    """Which Python is measured: its version, and whether its configuration names PGO, which is
    worth a tenth of the time and more.

    A distribution can build with PGO and not say so in the configuration, as Debian does.
    """
    has_pgo = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return (
        f"Python {platform.python_version()}, "
        f"{'built with PGO' if has_pgo else 'PGO not in its configuration'}"
    )


class Figures:
    """Named figures, in the order in which they were measured."""

    def __init__(self) -> None:
        """Starts with no figure."""
        self.by_name: dict[str, float | None] = {}

    def add(
        self,
        name: str,
        value: float,
        what: str,
        unit: str,
        *,
        goal: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Shows a figure and keeps it.

        Args:
            name: Name in the JSON file; ends with its unit.
            value: The measured value.
            what: The figure in words.
            unit: Unit of the value, as people write it.
            goal: The most that it should be.
            at_least: The least that it should be, where larger is better.
        """
        self.by_name[name] = round(value, 3)
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
        aim = "" if goal is None else f"   goal {goal:,g}"
        aim += "" if at_least is None else f"   goal {at_least:,g} or more"
        say(f"  {what:<{WIDTH}} {shown:>10} {unit}{aim}")

    def not_measured(self, name: str, what: str, why: str) -> None:
        """Reports why there is no such figure; its name stays in the file, without a value."""
        self.by_name[name] = None
        say(f"  {what:<{WIDTH}} {'none':>10}   {why}")

    def write(self, file: Path) -> None:
        """Writes the figures as one JSON object, with the versions and the machine of the
        measurement.
        """
        about = {
            "python": interpreter(),
            "machine": platform.machine(),
            "callgauge": version("callgauge"),
        }
        file.write_text(json.dumps({**about, **self.by_name}, indent=2) + "\n")
