"""The figures of one run of the benchmark: shown as they come, and written by name for people who
compare runs.
"""

import json
import os
import platform
import sys
import sysconfig
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

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


def processor() -> str:
    """The processors of this machine that this process may use, by their name."""
    name = platform.processor() or platform.machine()
    about = Path("/proc/cpuinfo")
    if about.exists():
        named = [line for line in about.read_text().splitlines() if line.startswith("model name")]
        name = named[0].partition(":")[2].strip() if named else name
    number = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{number} x {name}"


class Figures:
    """Named figures, in the order in which they were measured."""

    def __init__(self) -> None:
        """Starts with no figure."""
        self.by_name: dict[str, dict[str, Any]] = {}

    def value(self, name: str) -> float | None:
        """A figure of this run; None without it."""
        value: float | None = self.by_name.get(name, {}).get("value")
        return value

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
        aims = {"goal": goal, "at_least": at_least}
        self.by_name[name] = {"value": round(value, 3), "unit": unit, "what": what} | {
            key: aim for key, aim in aims.items() if aim is not None
        }
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
        aim = "" if goal is None else f"   goal {goal:,g}"
        aim += "" if at_least is None else f"   goal {at_least:,g} or more"
        say(f"  {what:<{WIDTH}} {shown:>10} {unit}{aim}")

    def not_measured(self, name: str, what: str, why: str) -> None:
        """Reports why there is no such figure; its name stays in the file, without a value."""
        self.by_name[name] = {"value": None, "what": what, "why": why}
        say(f"  {what:<{WIDTH}} {'none':>10}   {why}")

    def write(self, file: Path) -> None:
        """Writes the figures as one JSON object, with the day, the machine and the versions of the
        measurement.
        """
        about = {
            "day": datetime.now(UTC).date().isoformat(),
            "processor": processor(),
            "python": interpreter(),
            "callgauge": version("callgauge"),
        }
        file.write_text(json.dumps(about | {"figures": self.by_name}, indent=2) + "\n")
