"""A command as the installed entry point runs it, in this process, and what it printed."""

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from schemas.rows import Row, decode
from streamer.cli import main as cli
from tests.support.calls.rows_of_calls import turns_of
from tests.support.fakes.engine_feed import plain

Json = dict[str, Any]


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def rows(self) -> list[Row]:
        return [decode(line.encode()) for line in self.out.splitlines()]

    @property
    def progress(self) -> list[float | str]:
        """The final progress of each turn, or the reason why it is unknown."""
        progress = [
            turn.progress for turn in turns_of(self.rows).values() if turn.progress is not None
        ]
        return [plain(each.result) for each in progress]

    @property
    def sets(self) -> list[Json]:
        """The goal sets that `trials --json` compared."""
        return list(json.loads(self.out)["goal_sets"])

    @property
    def metrics(self) -> dict[str, Json]:
        """The metrics of each trace or call, by its id."""
        return {line["id"]: line["metrics"] for line in self.lines}


Command = Callable[..., Ended]


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *first: str
) -> Command:
    """Runs `callgauge` with these words first; no judge of the person who runs the
    tests is asked.
    """
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["callgauge", *first, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Ended(int(ended.value.code or 0), *capsys.readouterr())

    return run
