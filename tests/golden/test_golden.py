"""The golden files: what the engine publishes about known calls, byte for byte. `rows.txt` is of
the rows, and `beside.txt` of the questions to judges and the transcripts.

A change that is not meant to change a value leaves them as they are. One that is meant to runs
`python -m tests.golden.test_golden`, which writes them anew, and names the difference in its
commit. To see a difference, write what a call publishes before and after: `python -m
tests.golden.test_golden rows SOURCE ID` (or `beside`).
"""

import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from consumers.engine.admission import Arrival
from consumers.engine.effects import PublishTranscript, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from schemas.rows import encode
from tests.golden.calls import RECORDED, WIRE_FILES, Call, calls_of
from tests.properties.evaluation import EveryCall
from tests.support.calls.rows_of_calls import effects_in_steps, rows_in_steps
from tests.support.conformance_data import CONFORMANCE

RULES: Final = GoalRules(asks_judge=True)

Published = Callable[[list[Arrival]], Iterator[bytes]]


def _rows(arrivals: list[Arrival]) -> Iterator[bytes]:
    """The rows of one call with goals, a line each, time passing as its records arrive."""
    return map(encode, rows_in_steps(arrivals, ChosenGoals(EveryCall(), RULES)))


def _beside(arrivals: list[Arrival]) -> Iterator[bytes]:
    """The questions to judges about the same call, and its transcript, a line each."""
    evaluator = PartitionEvaluator(
        Limits(), "golden", ChosenGoals(EveryCall(), RULES), writes_transcripts=True
    )
    for effect in effects_in_steps(evaluator, arrivals):
        if isinstance(effect, RequestVerdict):
            yield effect.request.model_dump_json().encode()
        elif isinstance(effect, PublishTranscript):
            yield effect.value
    assert evaluator.open_calls == (), "the golden files hold the close of every call"


def _golden_line(source: str, call: Call, published: Published) -> str:
    name, arrivals = call
    lines = list(published(arrivals))
    digest = hashlib.blake2b(b"\n".join(lines), digest_size=12).hexdigest()
    return f"{source} {name} {len(lines)} {digest}"


GOLDEN_FILES: Final[dict[str, Published]] = {"rows": _rows, "beside": _beside}


def _path(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.txt")


@pytest.mark.parametrize("name", GOLDEN_FILES)
@pytest.mark.parametrize("source", [*WIRE_FILES, *RECORDED])
def test_what_is_published_about_known_calls_has_not_changed(source: str, name: str) -> None:
    lines = [_golden_line(source, call, GOLDEN_FILES[name]) for call in calls_of(source)]
    golden = [
        line for line in _path(name).read_text().splitlines() if line.startswith(f"{source} ")
    ]
    changed = sorted({*lines} ^ {*golden})
    assert lines == golden, (
        f"{len(changed)} lines of {source} differ, such as {changed[:2]}: see the top of this file"
    )


def _main(arguments: list[str]) -> None:
    if arguments:
        name, source, conversation_id = arguments
        arrivals = dict(calls_of(source))[conversation_id]
        sys.stdout.buffer.writelines(line + b"\n" for line in GOLDEN_FILES[name](arrivals))
        return
    assert CONFORMANCE.is_dir(), (
        "the golden files are written with the conformance data, or they would lose its calls"
    )
    for name, published in GOLDEN_FILES.items():
        sources = (*WIRE_FILES, *RECORDED)
        golden = [
            _golden_line(source, call, published) for source in sources for call in calls_of(source)
        ]
        _path(name).write_text("\n".join(golden) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
