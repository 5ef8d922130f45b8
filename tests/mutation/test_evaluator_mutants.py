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


WRITER: Final = "consumers/evaluator/writer.py"
TAKEOVER: Final = "consumers/evaluator/takeover.py"
RECOVERY: Final = "consumers/evaluator/recovery.py"
PARTITION: Final = "consumers/evaluator/partition.py"
ASSIGNMENT: Final = "consumers/evaluator/assignment.py"
READING: Final = "consumers/evaluator/reading.py"
ORDER: Final = "schemas/order.py"
ENGINE: Final = "consumers/engine/evaluator.py"
CALL: Final = "consumers/engine/call.py"
RECORDS: Final = "consumers/engine/records.py"

UNIT: Final = "tests/unit/evaluator/"
PROPERTIES: Final = "tests/properties/"

MUTANTS: Final = (
    Mutant("a call closes without its fact", WRITER,
           "records += closing\n", "records += closing[:-1]\n", f"{PROPERTIES}test_recovery.py"),
    Mutant("the order does not say that a call closed", WRITER,
           "order.close(conversation_id)", "pass", f"{UNIT}test_owners.py"),
    Mutant("the last steps of a transaction are not in the order", WRITER,
           'b"".join(decision.steps for decision in decisions)', 'b"".join(decision.steps for decision in decisions[:-1])',
           f"{UNIT}test_writer.py"),
    Mutant("a decision counts as written one transaction too early", WRITER,
           "self._done += count", "self._done += count + 1", f"{UNIT}test_writer.py"),
    Mutant("decisions of two versions share a record of the order", WRITER,
           "if decisions and decision.version != decisions[0].version:", "if False:", f"{UNIT}test_writer.py"),
    Mutant("a producer that was fenced off in between goes on", WRITER,
           "if self._epoch() != (former[0], former[1] + 1):", "if self._epoch()[0] != former[0]:", f"{UNIT}test_writer.py"),
    Mutant("the writer that a note names is not fenced off", TAKEOVER,
           "(order.writers | inputs[number].writers)", "order.writers", f"{UNIT}test_takeover.py"),
    Mutant("the order is read to the first mark only", TAKEOVER,
           "rests, {number: mark.order for number, mark in marks.items()}", "rests, ends", f"{UNIT}test_takeover.py"),
    Mutant("of several notes the latest place in the order counts", TAKEOVER,
           "return min(orders, default=0)", "return max(orders, default=0)", f"{UNIT}test_takeover.py"),
    Mutant("offsets that somebody else committed are obeyed", TAKEOVER,
           "inputs.committed |= dict.fromkeys(foreign, -1)", "pass", f"{UNIT}test_takeover.py"),
    Mutant("a start may be forgotten that open calls need", RECOVERY,
           "position <= watermarks.get(source, position)", "position <= watermarks.get(source, position) + 1",
           f"{UNIT}test_recovery.py"),
    Mutant("a successor does not know which calls are closed", RECOVERY,
           "self._evaluator.has_closed(conversation_id)", "pass", f"{PROPERTIES}test_recovery.py"),
    Mutant("after a loss nothing is published again", RECOVERY,
           "if self.lost or version != self._version", "if version != self._version", f"{UNIT}test_replay.py"),
    Mutant("what is published again counts again", RECOVERY,
           '"revision": least_revision, "is_first": False, **counted', '"revision": least_revision, **counted',
           f"{UNIT}test_owners.py"),
    Mutant("a note beside a later offset counts as ours", RECOVERY,
           "read < offset", "read < 0", f"{UNIT}test_recovery.py"),
    Mutant("the offset is committed as if no call were open", PARTITION,
           "min(offset, watermarks.get(self._source_by_topic[topic], offset))", "offset", f"{UNIT}test_partition.py"),
    Mutant("steps without a decision are never written", PARTITION,
           "if not self.is_recovering and len(self._order):\n            self._put(())", "if False:\n            self._put(())",
           f"{UNIT}test_partition.py"),
    Mutant("the order does not say that revisions go on from another number", PARTITION,
           "self._order.renumber(step)", "pass", f"{UNIT}test_owners.py"),
    Mutant("a partition that stays ours reads on behind what waited", ASSIGNMENT,
           "each.read_again()", "pass", f"{UNIT}test_assignment.py"),
    Mutant("time passes while what a former owner folded is folded", ASSIGNMENT,
           "if known_ms is not None and not was_recovering:", "if known_ms is not None:", f"{UNIT}test_assignment.py"),
    Mutant("an input that lags does not hold the time back", READING,
           "return min(times_ms) if", "return max(times_ms) if", f"{UNIT}test_reading.py"),
    Mutant("a producer's clock that steps back stops the merge", READING,
           "max, initial=ahead.latest_ms", "max, initial=0", f"{UNIT}test_reading.py"),
    Mutant("an owner that goes back is not noticed", ORDER,
           "if position < self.positions[source]:", "if False:", "tests/unit/schemas/test_order.py"),
    Mutant("time goes back in the order", ORDER,
           "self.time_ms = max(self.time_ms, now_ms)\n        self._steps", "self.time_ms = now_ms\n        self._steps",
           "tests/unit/schemas/test_order.py"),
    Mutant("a closed call opens again", ENGINE,
           "if conversation_id in self._closed or isinstance(", "if isinstance(", "tests/unit/engine/test_evaluator.py"),
    Mutant("a record that is read again counts again", ENGINE,
           "if arrival.offset <= self._last_offsets", "if arrival.offset < self._last_offsets",
           "tests/unit/engine/test_evaluator.py"),
    Mutant("a call ends before an input that lags is read", ENGINE,
           "self._now_ms < call.end.due_ms <= broker_ms", "call.end.due_ms <= broker_ms < self._now_ms",
           "tests/unit/engine/test_waiting_arrivals.py"),
    Mutant("a record that waits does not hold the committed offset back", CALL,
           "self.first_offsets.setdefault(source, arrival.offset)\n        broker_ms", "broker_ms",
           "tests/unit/engine/test_waiting_arrivals.py"),
    Mutant("a scored call has no end of its last silence", CALL,
           "if not self.is_over:\n            self.live.reached(now_ms, out)", "if False:\n            pass",
           "tests/unit/engine/test_call.py"),
    Mutant("a revision is left out", RECORDS,
           "else last.revision + 1", "else last.revision + 2", "tests/unit/engine/test_records.py"),
    Mutant("a value that comes back counts as the first one", RECORDS,
           "had_value=had_value or has_value", "had_value=has_value", "tests/unit/engine/test_records.py"),
    Mutant("after a loss values count once more", RECORDS,
           "not had_value and self.counts", "not had_value", "tests/unit/engine/test_records.py"),
)  # fmt: skip


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
    assert done.returncode == TESTS_FAILED, (
        f"{mutant.fault}: no test noticed it, or none could run:\n{done.stdout[-3000:]}"
    )
    killer = next(line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))).split(" - ")[0]
    record_property("mutant", f"{mutant.module}: {mutant.fault}: {killer}")


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
