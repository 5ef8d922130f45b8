"""The figures of one run of the benchmark: shown as they come, and written by name for people who compare runs."""

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

WIDTH: Final = 58


def say(text: str = "") -> None:
    """Prints one line of the report."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Figures:
    """Named figures, in the order in which they were measured."""

    def __init__(self) -> None:
        """Starts with no figure."""
        self.by_name: dict[str, float | None] = {}

    def add(self, name: str, value: float, what: str, unit: str, *, goal: float | None = None) -> None:
        """Shows a figure and keeps it.

        Args:
            name: Name in the JSON file; ends with its unit.
            value: The measured value.
            what: The figure in words.
            unit: Unit of the value, as people write it.
            goal: The value to reach; smaller is better for every figure.
        """
        self.by_name[name] = round(value, 3)
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
        aim = "" if goal is None else f"   goal {goal:,g}"
        say(f"  {what:<{WIDTH}} {shown:>10} {unit}{aim}")

    def not_measured(self, name: str, what: str, why: str) -> None:
        """Reports why there is no such figure; its name stays in the file, without a value."""
        self.by_name[name] = None
        say(f"  {what:<{WIDTH}} {'none':>10}   {why}")

    def write(self, file: Path) -> None:
        """Writes the figures as one JSON object, with the versions and the machine of the measurement."""
        about = {"python": platform.python_version(), "machine": platform.machine(), "callgauge": version("callgauge")}
        file.write_text(json.dumps({**about, **self.by_name}, indent=2) + "\n")
