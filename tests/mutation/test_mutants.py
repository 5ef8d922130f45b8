"""Faults of one line in what merges, appends, folds, closes, numbers and keeps: each is killed by a
law or by a test.

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
    "tests/unit/log",
    "tests/unit/store",
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
- if (generation, offset) < known:
+ if (generation, offset + 1) < known:

an event of an input as it was before is dropped in silence
  schemas/log.py, first tests/unit/schemas/test_log.py
- if generation < known[0]:
+ if False:

what a tick says is in the log may come again
  schemas/log.py, first tests/unit/schemas/test_log.py
- self._next[place] = max(reached, self._next.get(place, reached))
+ self._next.setdefault(place, reached)

what a replaced sequencer appends counts
  schemas/log.py, first tests/unit/schemas/test_log.py
- self.term = term
-         source, place = _source(number), (number, partition)
+ source, place = _source(number), (number, partition)

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
- if term >= least_term:
+ if True:

what another appends before a term begins is not read
  consumers/sequencer/appending.py, first tests/unit/sequencer/test_appending.py
- (found.read_up_to[number], end)
+ (end, end)

after a pause others overtake what an input may still have
  consumers/sequencer/merge.py, first tests/unit/sequencer/test_merge.py
- elif now_ms - self.told_ms > SILENT_MS:
+ elif False:

a producer may bring our headers with it
  consumers/sequencer/appending.py, first tests/unit/sequencer/test_appending.py
- if header[0] not in OUR_HEADERS
+ if header[0]

what the last step of a transaction decided is not written
  consumers/evaluator/decisions.py, first tests/unit/evaluator/test_writer.py
- in newest(decisions)]
+ in newest(decisions[:-1])]

the row says less than the transaction has
  consumers/evaluator/decisions.py, first tests/unit/evaluator/test_writer.py
- decisions[-1].row.header()
+ decisions[0].row.header()

a decision counts as written one transaction too early
  consumers/evaluator/decisions.py, first tests/unit/evaluator/test_writer.py
- while self._decisions and id(self._decisions[0]) in done:
+ while self._decisions:

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
  consumers/evaluator/partition.py, first tests/properties/test_recovery.py
- arrival.offset >= place or
+ True or

a successor does not know which calls are closed
  consumers/evaluator/partition.py, first tests/properties/test_recovery.py
- evaluator.has_closed(conversation_id)
+ pass

a successor does not know which calls gave way
  consumers/evaluator/partition.py, first tests/unit/evaluator/test_partition.py
- self._evaluator.evict(evicted, arrival)
+ pass

what is published again counts again
  consumers/engine/rows.py, first tests/unit/engine/test_rows.py
- self._news.clear()
+ pass

a successor publishes the last step before the place again
  consumers/evaluator/partition.py, first tests/properties/test_recovery.py
- return place >= until
+ return place >= until - 1

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
- self._again, self._version = chain.from_iterable(by_call), ""
+ self._again = chain.from_iterable(by_call)

a second successor counts what the first one did not
  consumers/evaluator/takeover.py, first tests/unit/evaluator/test_takeover.py
- is_cut or revision < missed
+ is_cut

revisions begin again with a log that was recreated
  consumers/evaluator/takeover.py, first tests/unit/evaluator/test_takeover.py
- base += revision_at(row.place)
+ pass

a closed call opens again
  consumers/engine/evaluator.py, first tests/unit/engine/test_evaluator.py
- if conversation_id in self._closed or isinstance(
+ if isinstance(

a silence that lasts until the call is over is not found
  consumers/engine/call.py, first tests/properties/test_silence.py
- self.live.reached(due_ms)
+ pass

what time decides has the place of the last event
  consumers/engine/evaluator.py, first tests/unit/engine/test_admission.py
- revision = self.base + revision_at(place)
+ pass

an event that is sent again is another event
  consumers/log/file.py, first tests/unit/log/test_file.py
- return blake2b(named[SOURCE_HEADER] + b"\\0" + named[ID_HEADER], digest_size=12).digest()
+ return None

two sources may not use one id
  consumers/log/file.py, first tests/unit/log/test_file.py
- return blake2b(named[SOURCE_HEADER] + b"\\0" + named[ID_HEADER], digest_size=12).digest()
+ return blake2b(named[ID_HEADER], digest_size=12).digest()

an event can be put back any number of times
  consumers/log/file.py, first tests/unit/log/test_file.py
- blake2b(b"\\0put back\\0" + first, digest_size=12).digest()
+ None

time of the file goes back with a clock that is a little behind it
  consumers/log/file.py, first tests/unit/log/test_file.py
- return max(last_ms, now_ms)
+ return now_ms

time in which nobody listened is silence of the callers
  consumers/log/file.py, first tests/unit/log/test_file.py
- [now_ms, now_ms - last_ms]
+ [now_ms, None]

an append does not say that nobody listened before it
  consumers/log/file.py, first tests/unit/log/test_file.py
- now_ms - last_ms <= GAP_MS
+ True

an answer leaves its question open
  consumers/log/file.py, first tests/unit/log/test_file.py
- if answers is not None:
+ if False:

rows are written without the place up to which they were decided
  consumers/log/file.py, first tests/unit/log/test_file.py
- _set_state(self._writer, "row", decided.row.model_dump_json())
+ pass

a call that comes again after it had closed is not read at a start
  consumers/log/file.py, first tests/unit/log/test_file.py
- "UPDATE call SET closed = NULL WHERE key = ?"
+ "UPDATE call SET closed = closed WHERE key = ?"

a call that ended without a row stays open in the file
  consumers/log/file.py, first tests/unit/evaluator/test_on_file.py
- if key not in open_calls]
+ if key in open_calls]

forgetting a call deletes the events of one that is open
  consumers/log/file.py, first tests/unit/log/test_file.py
- "SELECT id FROM call WHERE key = ? AND closed IS NOT NULL", [key]
+ "SELECT id FROM call WHERE key = ?", [key]

what was deleted stays readable in free pages
  consumers/log/file.py, first tests/unit/log/test_file.py
- while await self.commits.of(lambda: free_some(self._writer)):
+ while False:

a commit does not wait for the disk
  consumers/log/file.py, first tests/unit/log/test_file.py
- "PRAGMA synchronous = FULL"
+ "PRAGMA synchronous = OFF"

of two steps of one transaction the first is written although the second fails
  consumers/store/rows.py, first tests/unit/log/test_file.py
- connection.execute("ROLLBACK")
+ connection.execute("COMMIT")

what waits when the log closes is lost
  consumers/log/commits.py, first tests/unit/log/test_file.py
- await self.of(lambda: None)
+ pass

the disk takes nothing, and the log says that it does
  consumers/log/commits.py, first tests/unit/log/test_file.py
- future.set_exception(results)
+ future.set_result(None)

events of a call that is open are deleted by age
  consumers/log/retention.py, first tests/unit/log/test_file.py
- [first, DELETED_IN_A_STEP]
+ [2**62, DELETED_IN_A_STEP]

a file grows beyond its size
  consumers/log/retention.py, first tests/unit/log/test_file.py
- or self.bytes > self._max_bytes
+ or False

a stretch of the log begins in the middle of what is void
  consumers/log/stretches.py, first tests/unit/log/test_stretches.py
- isinstance(found, Tick) and bool(found.inputs)
+ True

of one call more is kept than fits into memory
  consumers/log/stretches.py, first tests/unit/log/test_stretches.py
- kept = min(MAX_KEPT, sum(size <= MAX_KEPT_BYTES for size in sizes))
+ kept = len(list(sizes))

records of another call of its batch are taken for those of the call
  consumers/log/stretches.py, first tests/unit/log/test_stretches.py
- bool(record.key == self._key)
+ True

an older term makes a repeat an event of a call
  consumers/log/stretches.py, first tests/unit/log/test_stretches.py
- term is not None and term > self._term
+ term is not None

a shard appends what belongs to another
  consumers/sequencer/appending.py, first tests/unit/sequencer/test_appending.py
- if number % shards != shard:
+ if False:

a record that can never be an event is appended
  consumers/sequencer/appending.py, first tests/unit/sequencer/test_appending.py
- refused.append((each.source, unfit))
+ pass

a record that was deleted and came anew is taken for the old one
  consumers/sequencer/merge.py, first tests/unit/sequencer/test_identity.py
- return seen.time_ms == self.time_ms and self.checksum in {None, seen.checksum}
+ return True

a record of another time is taken for the one whose time is known
  consumers/sequencer/merge.py, first tests/unit/sequencer/test_identity.py
- return seen.time_ms == self.time_ms and self.checksum
+ return self.checksum

a recreated input keeps its generation
  consumers/sequencer/merge.py, first tests/unit/sequencer/test_identity.py
- self.generation + 1, FROM_THE_FIRST
+ self.generation, FROM_THE_FIRST

known time falls
  consumers/sequencer/service.py, first tests/unit/sequencer/test_service.py
- max(self.known_ms, min(reader.partitions_ms, known_ms(inputs, now_ms)))
+ min(reader.partitions_ms, known_ms(inputs, now_ms))

a partition that nobody knows yet does not stop the time
  consumers/sequencer/service.py, first tests/unit/sequencer/test_service.py
- min(reader.partitions_ms, known_ms(inputs, now_ms))
+ known_ms(inputs, now_ms)

events of a new generation come before the tick that tells of it
  consumers/sequencer/service.py, first tests/unit/sequencer/test_service.py
- self._owes_tick = True  # a successor
+ pass  # a successor

records that were deleted unread are not counted
  consumers/sequencer/reading.py, first tests/unit/sequencer/test_reading_inputs.py
- if FROM_THE_FIRST < expected < first and self._counts_lost:
+ if False:

an end counts as of the moment of its answer
  consumers/sequencer/reading.py, first tests/unit/sequencer/test_reading_inputs.py
- each.told(asked_ms, end, handed_then, hides_any=hides_any)
+ each.told(self._clock.now_ms(), end, handed_then, hides_any=hides_any)

records that readers may not see yet do not stop the time
  consumers/sequencer/reading.py, first tests/unit/sequencer/test_reading_inputs.py
- hides_any=hides_any)
+ hides_any=False)

an older row takes the place of the newest one
  consumers/store/rows.py, first tests/unit/store/test_rows.py
- isinstance(row, CallRow) and row.revision >= revision
+ isinstance(row, CallRow)

a row that is read twice is counted twice
  consumers/store/rows.py, first tests/unit/store/test_rows.py
- more -= int(there)
+ pass

a call is seen as it was known later
  consumers/store/rows.py, first tests/unit/store/test_rows.py
- if known_ms <= until_ms:
+ if True:

open calls go before closed ones
  consumers/store/rows.py, first tests/unit/store/test_rows.py
- "SELECT conversation_id FROM call ORDER BY is_closed DESC, known_ms LIMIT ?"
+ "SELECT conversation_id FROM call ORDER BY is_closed, known_ms LIMIT ?"

a closed call loses the rows that it had before
  consumers/store/rows.py, first tests/unit/store/test_rows.py
- _packed(dict(self._all(call)) | new)
+ _packed(new)

a write that failed changes the bytes that are counted
  consumers/store/rows.py, first tests/unit/store/test_rows.py
- self._rows.bytes = before
+ pass

what an unpublished row counted is lost with it
  schemas/rows.py, first tests/unit/evaluator/test_writer.py
- tuple(dict.fromkeys((*older, *newer))) if older else newer
+ newer

a row that is too large is written whole
  schemas/rows.py, first tests/unit/schemas/test_rows.py
- if len(value) <= MAX_ROW_BYTES or not isinstance(row, (TurnRow, CallRow)):
+ if True:

a row that is too large loses a field and does not say so
  schemas/rows.py, first tests/unit/schemas/test_rows.py
- **{name: _smaller(row, name, empty), "left_out": (*row.left_out, name)}
+ **{name: _smaller(row, name, empty)}

of the goals of a row that is too large nothing is left
  schemas/rows.py, first tests/unit/schemas/test_rows.py
- if name != "goals" or not isinstance(row, CallRow) or row.goals is None:
+ if True:

what is said again has the revision of what follows
  schemas/rows.py, first tests/unit/evaluator/test_partition.py
- return 2 * place - 1
+ return 2 * place
"""
MUTANTS: Final = tuple(map(_mutant, _TABLE.split("\n\n")))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree that nobody else uses."""
    copy = tmp_path_factory.mktemp("mutants") / "tree"
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
    return copy


def test_the_text_of_each_mutant_is_in_its_module_once() -> None:
    """A module that changes takes its mutant along at once: who tries them all does that rarely."""
    lost = [
        f"{mutant.fault}: {found} times in {mutant.module}"
        for mutant in MUTANTS
        if (found := (ROOT / mutant.module).read_text().count(mutant.old)) != 1
    ]
    assert not lost, "Give the mutant the text that does the same now."


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
