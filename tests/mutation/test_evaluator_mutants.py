"""Faults of one line in what merges, appends, folds, closes and numbers: each is killed by a law or
by a test of the evaluator.

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
LAWS: Final = (
    "tests/unit/sequencer",
    "tests/unit/evaluator",
    "tests/unit/schemas/test_log.py",
    "tests/unit/engine",
    "tests/properties",
)
"""What may kill a mutant."""
NOT_COPIED: Final = shutil.ignore_patterns(".*", "__pycache__", "node_modules")
NO_TEST_FAILED, TESTS_FAILED = 0, 1
"""Exit codes of pytest."""


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
    old, new = (
        "\n".join(line[2:] for line in lines if line.startswith(sign)) for sign in ("- ", "+ ")
    )
    return Mutant(fault, module, old, new, first)


_TABLE: Final = """\
a repeat is an event
  schemas/log.py, first tests/unit/schemas/test_log.py
- if (generation, offset) < self._next
+ if (generation, offset + 1) < self._next

what a tick says is in the log may come again
  schemas/log.py, first tests/unit/schemas/test_log.py
- self._next[place] = max(reached, self._next.get(place, reached))
+ self._next.setdefault(place, reached)

what a replaced sequencer appends counts
  schemas/log.py, first tests/unit/schemas/test_log.py
- self.term = term
-         place = number, partition
+ place = number, partition

time goes back in the log
  schemas/log.py, first tests/unit/schemas/test_log.py
- max(self.known_ms, tick.known_ms)
+ tick.known_ms

reading begins at a tick that says less than is in front of it
  schemas/log.py, first tests/unit/schemas/test_log.py
- if says_all:
+ if True:

an input that lags does not hold the time back
  consumers/sequencer/merge.py, first tests/unit/sequencer/test_merge.py
- return min((each.known_ms for each in inputs if
+ return max((each.known_ms for each in inputs if

an end is known although a record before it waits
  consumers/sequencer/merge.py, first tests/unit/sequencer/test_merge.py
- and not (self.records and self.records[0].offset < end)
+ and True

a producer's clock that steps back stops the merge
  consumers/sequencer/merge.py, first tests/properties/test_merge.py
- max, initial=self._read_ms
+ max, initial=0

an input that was recreated is taken for the old one
  consumers/sequencer/merge.py, first tests/unit/sequencer/test_identity.py
- if end < handed:
+ if False:

a sequencer begins where one stood that was replaced
  consumers/sequencer/appending.py, first tests/unit/sequencer/test_appending.py
- if term == self._tick_term:
+ if True:

a later batch is sent although an earlier one was lost
  consumers/sequencer/appending.py, first tests/unit/sequencer/test_appending.py
- raise acknowledged
+ continue

no time is told between the events of a backlog
  consumers/sequencer/appending.py, first tests/properties/test_backlog.py
- if passed_ms - self._told_ms[number] >= self._tick_ms:
+ if False:

time is told in front of an event although something older is not in the log
  consumers/sequencer/appending.py, first tests/unit/sequencer/test_appending.py
- min(record.timestamp, known_ms)
+ record.timestamp

void ticks at the end of the log are believed
  consumers/sequencer/appending.py, first tests/unit/sequencer/test_appending.py
- term is not None and term >= least_term
+ term is not None

after a pause others overtake what an input may still have
  consumers/sequencer/merge.py, first tests/unit/sequencer/test_merge.py
- elif now_ms - self.told_ms > SILENT_MS:
+ elif False:

a producer may bring our headers with it
  consumers/sequencer/appending.py, first tests/unit/sequencer/test_appending.py
- if header[0] not in OUR_HEADERS
+ if header[0]

a call closes without its fact
  consumers/evaluator/writer.py, first tests/properties/test_recovery.py
- records += closing
+ records += closing[:-1]

the row says less than the transaction has
  consumers/evaluator/writer.py, first tests/properties/test_recovery.py
- decisions[-1].row.header()
+ decisions[0].row.header()

a decision counts as written one transaction too early
  consumers/evaluator/writer.py, first tests/unit/evaluator/test_writer.py
- and id(self._decisions[0]) in done
+ and True

the producers that the row names are not fenced off
  consumers/evaluator/takeover.py, first tests/unit/evaluator/test_takeover.py
- self.row, self.writers = row, set()
+ self.row, self.writers = row, set[str]()
+             return

what closed a while before the first open call is not known
  consumers/evaluator/takeover.py, first tests/unit/evaluator/test_takeover.py
- row.first_known_ms - self._overlap_ms
+ row.first_known_ms

an older row counts
  consumers/evaluator/takeover.py, first tests/unit/evaluator/test_takeover.py
- if (row := row_in(record.headers)) is not None:
-             self.row,
+ if (row := row_in(record.headers)) is not None and self.row is None:
+             self.row,

a log that lost records of open calls counts as whole
  consumers/evaluator/takeover.py, first tests/unit/evaluator/test_takeover.py
- is_cut = is_anew or first > row.first
+ is_cut = is_anew

a successor has the goals of a call too soon
  consumers/evaluator/recovery.py, first tests/properties/test_recovery.py
- arrival.offset >= place or
+ True or

a successor does not know which calls are closed
  consumers/evaluator/recovery.py, first tests/properties/test_recovery.py
- evaluator.has_closed(conversation_id)
+ pass

a successor does not know which calls gave way
  consumers/evaluator/recovery.py, first tests/unit/evaluator/test_partition.py
- self._evaluator.evict(evicted, arrival)
+ pass

what is published again counts again
  consumers/evaluator/recovery.py, first tests/unit/evaluator/test_partition.py
- "revision": revision, "is_first": False, **counted
+ "revision": revision, **counted

a successor publishes the last step before the place again
  consumers/evaluator/recovery.py, first tests/properties/test_recovery.py
- return place >= until if
+ return place >= until - 1 if

a successor begins as if no call were open
  consumers/evaluator/partition.py, first tests/properties/test_recovery.py
- oldest is None or begins[1].offset < oldest
+ True

time passes before the events in front of a tick
  consumers/evaluator/partition.py, first tests/unit/evaluator/test_partition.py
- self.evaluator.pass_time(self._reader.known_ms, tick.place)
+ self.evaluator.pass_time(self.last_ms, tick.place)

what was over closes with a revision below what is published again
  consumers/evaluator/partition.py, first tests/properties/test_recovery.py
- self.evaluator.close_as(revision)
+ pass

an owner that ends while it publishes again leaves its successor nothing to do
  consumers/evaluator/partition.py, first tests/unit/evaluator/test_partition.py
- self._again, self._version = withheld.again(calls, revision), ""
+ self._again = withheld.again(calls, revision)

a second successor counts what the first one did not
  consumers/evaluator/takeover.py, first tests/unit/evaluator/test_takeover.py
- is_cut or revision < missed
+ is_cut

revisions begin again with a log that was recreated
  consumers/evaluator/takeover.py, first tests/unit/evaluator/test_takeover.py
- row.base + revision_at(row.place)
+ row.base

a closed call opens again
  consumers/engine/evaluator.py, first tests/unit/engine/test_evaluator.py
- if conversation_id in self._closed or isinstance(
+ if isinstance(

a silence that lasts until the call is over is not found
  consumers/engine/call.py, first tests/unit/engine/turns/test_dead_air.py
- if not self.is_over:
-             self.live.reached(now_ms, out)
+ if False:
+             pass

what time decides has the place of the last event
  consumers/engine/evaluator.py, first tests/unit/engine/test_admission.py
- else revision_at(place))
+ else revision_at(self._place))

a silent fold knows less than one that makes records
  consumers/engine/records.py, first tests/unit/engine/test_records.py
- return cast("Record", Unsaid(cause.broker_ms))
+ return None

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
def test_no_mutant_survives(
    mutant: Mutant, tree: Path, record_property: Callable[[str, object], None]
) -> None:
    path = tree / mutant.module
    text = path.read_text()
    assert text.count(mutant.old) == 1, (
        f"{mutant.module} has {text.count(mutant.old)} times {mutant.old!r}, expected once. The "
        "module has changed: give the mutant "
        f"{mutant.fault!r} the text that does the same now."
    )
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        # Alone: named together with its folder, a file has no turn before the others of the folder.
        done = run_of(tree, mutant.first)
        if done.returncode == NO_TEST_FAILED:
            done = run_of(tree, *LAWS)
    finally:
        path.write_text(text)
    killers = [
        line.split(" - ")[0]
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    assert done.returncode == TESTS_FAILED, (
        f"{mutant.fault}: no test noticed it, or none could run:\n{done.stdout[-3000:]}"
    )
    assert killers, (
        f"{mutant.fault}: a test hangs, and fails only when that lasts too "
        f"long:\n{done.stderr[-3000:]}"
    )
    record_property("mutant", f"{mutant.module}: {mutant.fault}: {killers[0]}")


def run_of(tree: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Runs these tests of the copy until one fails."""
    # Bytecode is not kept: it goes by the second in which a file was written, and mutants come
    # faster.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "PYTHONPYCACHE"))
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
        "--hypothesis-profile",
        "unshrunk",
        "-m",
        "not kafka and not long",
        *tests,
    ]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
