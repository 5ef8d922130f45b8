"""Faults of one line in what writes, orders, closes and numbers: each is killed by a law or by a test of the evaluator.

A mutant that survives shows a missing law: add that, and leave the mutant where it is.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]
LAWS: Final = ("tests/unit/evaluator", "tests/unit/schemas/test_order.py", "tests/unit/engine", "tests/properties")
"""What may kill a mutant."""
NOT_COPIED: Final = shutil.ignore_patterns(".*", "__pycache__", "node_modules")
TESTS_FAILED: Final = 1
"""Exit code of pytest."""


class Mutant(NamedTuple):
    """A fault of one line.

    Attributes:
        fault: What it does, in a sentence.
        module: The file.
        old: Text that is there once.
        new: What it becomes.
        first: The tests that are expected to kill it, which therefore run first.
    """

    fault: str
    module: str
    old: str
    new: str
    first: str


def _mutant(block: str) -> Mutant:
    fault, where, *lines = block.splitlines()
    module, first = where.strip().split(", first ")
    old, new = ("\n".join(line[2:] for line in lines if line.startswith(sign)) for sign in ("- ", "+ "))
    return Mutant(fault, module, old, new, first)


_TABLE: Final = """\
a call closes without its fact
  consumers/evaluator/writer.py, first tests/properties/test_recovery.py
- records += closing
+ records += closing[:-1]

the order does not say that a call closed
  consumers/evaluator/writer.py, first tests/unit/evaluator/test_owners.py
- order.close(conversation_id)
+ pass

the last steps of a transaction are not in the order
  consumers/evaluator/writer.py, first tests/unit/evaluator/test_writer.py
- b"".join(decision.steps for decision in decisions)
+ b"".join(decision.steps for decision in decisions[:-1])

a decision counts as written one transaction too early
  consumers/evaluator/writer.py, first tests/unit/evaluator/test_writer.py
- self._done += count
+ self._done += count + 1

decisions of two versions share a record of the order
  consumers/evaluator/writer.py, first tests/unit/evaluator/test_writer.py
- if decisions and decision.version != decisions[0].version:
+ if False:

a producer that was fenced off in between goes on
  consumers/evaluator/writer.py, first tests/unit/evaluator/test_writer.py
- if self._epoch() != (former[0], former[1] + 1):
+ if self._epoch()[0] != former[0]:

the writer that a note names is not fenced off
  consumers/evaluator/takeover.py, first tests/unit/evaluator/test_takeover.py
- (order.writers | inputs[number].writers)
+ order.writers

the order is read to the first mark only
  consumers/evaluator/takeover.py, first tests/unit/evaluator/test_takeover.py
- rests, {number: mark.order for number, mark in marks.items()}
+ rests, ends

an order is used of which records are gone
  consumers/evaluator/takeover.py, first tests/unit/evaluator/test_takeover.py
- if noted is None or (noted and not starts[number] == noted <= marks[number].order):
+ if noted is None:

offsets that somebody else committed are obeyed
  consumers/evaluator/takeover.py, first tests/unit/evaluator/test_takeover.py
- inputs.committed |= dict.fromkeys(foreign, -1)
+ pass

a start may be forgotten that open calls need
  consumers/evaluator/recovery.py, first tests/unit/evaluator/test_recovery.py
- position <= watermarks.get(source, position)
+ position <= watermarks.get(source, position) + 1

a successor does not know which calls are closed
  consumers/evaluator/recovery.py, first tests/properties/test_recovery.py
- self._evaluator.has_closed(conversation_id)
+ pass

after a loss nothing is published again
  consumers/evaluator/recovery.py, first tests/unit/evaluator/test_replay.py
- if self.lost or version != self._version
+ if version != self._version

what is published again counts again
  consumers/evaluator/recovery.py, first tests/unit/evaluator/test_owners.py
- "revision": least_revision, "is_first": False, **counted
+ "revision": least_revision, **counted

a note beside a later offset counts as ours
  consumers/evaluator/recovery.py, first tests/unit/evaluator/test_recovery.py
- read < offset
+ read < 0

the offset is committed as if no call were open
  consumers/evaluator/partition.py, first tests/unit/evaluator/test_partition.py
- min(offset, watermarks.get(self._source_by_topic[topic], offset))
+ offset

steps without a decision are never written
  consumers/evaluator/partition.py, first tests/unit/evaluator/test_partition.py
- if not self.is_recovering and len(self._order):
-             self._put(())
+ if False:
+             self._put(())

the order does not say that revisions go on from another number
  consumers/evaluator/partition.py, first tests/unit/evaluator/test_owners.py
- self._order.renumber(step)
+ pass

a partition that stays ours reads on behind what waited
  consumers/evaluator/assignment.py, first tests/unit/evaluator/test_assignment.py
- each.read_again()
+ pass

time passes while what a former owner folded is folded
  consumers/evaluator/assignment.py, first tests/unit/evaluator/test_recovering.py
- if known_ms is not None and not was_recovering:
+ if known_ms is not None:

an input that lags does not hold the time back
  consumers/evaluator/reading.py, first tests/unit/evaluator/test_reading.py
- return min(times_ms) if
+ return max(times_ms) if

a producer's clock that steps back stops the merge
  consumers/evaluator/reading.py, first tests/unit/evaluator/test_reading.py
- max, initial=ahead.latest_ms
+ max, initial=0

an owner that goes back is not noticed
  schemas/order.py, first tests/unit/schemas/test_order.py
- if position < self.positions[source]:
+ if False:

time goes back in the order
  schemas/order.py, first tests/unit/schemas/test_order.py
- self.time_ms = max(self.time_ms, now_ms)
-         self._steps
+ self.time_ms = now_ms
+         self._steps

a closed call opens again
  consumers/engine/evaluator.py, first tests/unit/engine/test_evaluator.py
- if conversation_id in self._closed or isinstance(
+ if isinstance(

a record that is read again counts again
  consumers/engine/evaluator.py, first tests/unit/engine/test_evaluator.py
- if arrival.offset <= self._last_offsets
+ if arrival.offset < self._last_offsets

a call ends before an input that lags is read
  consumers/engine/evaluator.py, first tests/unit/engine/test_waiting_arrivals.py
- self._now_ms < call.end.due_ms <= broker_ms
+ call.end.due_ms <= broker_ms < self._now_ms

a record that waits does not hold the committed offset back
  consumers/engine/call.py, first tests/unit/engine/test_waiting_arrivals.py
- self.first_offsets.setdefault(source, arrival.offset)
-         broker_ms
+ broker_ms

a silence that lasts until the call is over is not found
  consumers/engine/call.py, first tests/unit/engine/turns/test_dead_air.py
- if not self.is_over:
-             self.live.reached(now_ms, out)
+ if False:
+             pass

a revision is left out
  consumers/engine/records.py, first tests/unit/engine/test_records.py
- else last.revision + 1
+ else last.revision + 2

a value that comes back counts as the first one
  consumers/engine/records.py, first tests/unit/engine/test_records.py
- had_value=had_value or has_value
+ had_value=has_value

after a loss values count once more
  consumers/engine/records.py, first tests/unit/engine/test_records.py
- not had_value and self.counts
+ not had_value
"""
MUTANTS: Final = tuple(map(_mutant, _TABLE.split("\n\n")))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree that nobody else uses."""
    copy = tmp_path_factory.mktemp("mutants") / "tree"
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
    return copy


@pytest.mark.long
def test_what_is_to_kill_mutants_passes_without_one(tree: Path) -> None:
    done = run_of(tree, *dict.fromkeys(mutant.first for mutant in MUTANTS))
    assert done.returncode == 0, done.stdout


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.fault for mutant in MUTANTS])
def test_no_mutant_survives(mutant: Mutant, tree: Path, record_property: Callable[[str, object], None]) -> None:
    path = tree / mutant.module
    text = path.read_text()
    assert text.count(mutant.old) == 1, (
        f"{mutant.module} has {text.count(mutant.old)} times {mutant.old!r}, expected once. The module has changed: give the mutant "
        f"{mutant.fault!r} the text that does the same now."
    )
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        done = run_of(tree, mutant.first, *LAWS)
    finally:
        path.write_text(text)
    killers = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    assert done.returncode == TESTS_FAILED, (
        f"{mutant.fault}: no test noticed it, or none could run:\n{done.stdout[-3000:]}"
    )
    assert killers, f"{mutant.fault}: a test hangs, and fails only when that lasts too long:\n{done.stderr[-3000:]}"
    record_property("mutant", f"{mutant.module}: {mutant.fault}: {killers[0]}")


def run_of(tree: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Runs these tests of the copy until one fails."""
    # Bytecode is not kept: it goes by the second in which a file was written, and mutants come faster.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPYCACHE"))
    }
    command = [
        sys.executable,
        "-B",
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "not kafka and not long",
        *tests,
    ]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
