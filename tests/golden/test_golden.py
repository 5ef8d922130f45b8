"""The golden files: what the engine publishes about known calls, byte for byte. `rows.txt` is of
the rows, and `beside.txt` of the questions to judges and the transcripts.

A change that is not meant to change a value leaves them as they are. One that is meant to runs
`python -m tests.golden.test_golden`, which writes them anew, and names the difference in its
commit. To see a difference, write what a call publishes before and after: `python -m
tests.golden.test_golden rows SOURCE ID` (or `beside`).
"""

import hashlib
import sys
from pathlib import Path
from typing import Final

import pytest

from consumers.engine.admission import Arrival
from consumers.engine.effects import PublishRow, PublishTranscript, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from schemas.rows import encode
from tests.golden.calls import RECORDED, WIRE_FILES, calls_of
from tests.properties.evaluation import EveryCall
from tests.support.calls.rows_of_calls import effects_in_steps

RULES: Final = GoalRules(asks_judge=True)

GOLDEN_FILES: Final = ("rows", "beside")


def _published(arrivals: list[Arrival]) -> dict[str, list[bytes]]:
    """The lines of one call with goals, by golden file, time passing as its records arrive."""
    evaluator = PartitionEvaluator(
        Limits(), "test", ChosenGoals(EveryCall(), RULES), writes_transcripts=True
    )
    lines: dict[str, list[bytes]] = {name: [] for name in GOLDEN_FILES}
    for effect in effects_in_steps(evaluator, arrivals):
        match effect:
            case PublishRow():
                lines["rows"].append(encode(effect.row))
            case RequestVerdict():
                lines["beside"].append(effect.request.model_dump_json().encode())
            case PublishTranscript():
                lines["beside"].append(effect.value)
    assert evaluator.open_calls == (), "the golden files hold the close of every call"
    return lines


def _golden_lines(source: str) -> dict[str, list[str]]:
    """The lines of the calls of a source, by golden file."""
    golden: dict[str, list[str]] = {name: [] for name in GOLDEN_FILES}
    for call, arrivals in calls_of(source):
        for name, lines in _published(arrivals).items():
            digest = hashlib.blake2b(b"\n".join(lines), digest_size=12).hexdigest()
            golden[name].append(f"{source} {call} {len(lines)} {digest}")
    return golden


def _path(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.txt")


def _lines_of(source: str, name: str) -> list[str]:
    """The lines of a source as a golden file has them."""
    return [line for line in _path(name).read_text().splitlines() if line.startswith(f"{source} ")]


@pytest.mark.parametrize("source", [*WIRE_FILES, *RECORDED])
def test_what_is_published_about_known_calls_has_not_changed(source: str) -> None:
    for name, lines in _golden_lines(source).items():
        golden = _lines_of(source, name)
        changed = sorted({*lines} ^ {*golden})
        assert lines == golden, (
            f"{len(changed)} lines of {source} differ in {name}.txt, such as {changed[:2]}: see "
            "the top of this file"
        )


def _main(arguments: list[str]) -> None:
    if arguments:
        name, source, conversation_id = arguments
        arrivals = dict(calls_of(source))[conversation_id]
        sys.stdout.buffer.writelines(line + b"\n" for line in _published(arrivals)[name])
        return
    golden: dict[str, list[str]] = {name: [] for name in GOLDEN_FILES}
    for source in (*WIRE_FILES, *RECORDED):
        try:
            lines = _golden_lines(source)
        except (OSError, pytest.skip.Exception):
            # without the conformance data its calls stay as they were: their tests are skipped too
            lines = {name: _lines_of(source, name) for name in GOLDEN_FILES}
            print(f"{source} is not here: its lines stay as they were")
        for name in GOLDEN_FILES:
            golden[name] += lines[name]
    for name, lines_of_all in golden.items():
        _path(name).write_text("".join(f"{line}\n" for line in lines_of_all))


if __name__ == "__main__":
    _main(sys.argv[1:])
