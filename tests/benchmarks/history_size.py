"""History with a million calls: how fast it is written, how large it is, and how long a person
waits for an answer.

The calls are recorded ones, each with an id, a time, an agent, hashes and waits of its own, because
these are what does not pack well. `python -m tests.benchmarks.history_size FOLDER` takes a quarter
of an hour and 13 GB; `--calls 50000` some minutes, and fewer have no call with the rare word. A day
that is there is not written again.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any, Final, NamedTuple

from msgspec import structs

from consumers.engine.limits import GoalRules, Limits
from consumers.history.search import COLUMNS, CallSearch, Condition, quoted
from consumers.history.sqlite import Batch, SqliteHistory, words_of
from consumers.runtime.private_files import FILE_MODE
from consumers.runtime.process import tune_python
from schemas.rows import CallRow, GoalsRow, Labels, Row, TurnRow, WordsRow
from schemas.units import DAY_MS
from streamer.history.comparison import ComparedPeriod, compared
from streamer.offline.scoring import ScoringPlan, scored
from streamer.recordings.reader import read_recordings
from tests.benchmarks.figures import Figures, say
from tests.support.conformance_data import RECORD, place_of
from tests.support.patience import unserved_seconds

DAYS: Final = 10
WRITTEN_DAYS: Final = 2
"""Days whose calls are written; the files of the others are copies of these, in which every call
has an id and a time of its own.
"""
FIRST_DAY: Final = 20_700
"""The first day, in days since 1970."""
COPIES: Final = 9
"""Calls that are copied, in the file, from each that the store writes: reading and size are the
same, and an hour becomes ten minutes.
"""
AGENTS: Final = 10
LEAST_TURNS: Final = 8
"""Simulated calls with fewer are left out."""
REAL: Final = 10
"""How often EVA's recording of a real call is among the calls, so that one has ten turns on
average.
"""
PROCESSES: Final = 2
RUNNING: Final = 1_000
"""Calls that run at the same time while it is measured how fast they are written."""
BATCH: Final = 2_000
"""Records that the role writes at once."""
READERS: Final = 20
READING_SECONDS: Final = 20.0
LOOKS: Final = 200
EVALUATOR_EVENTS: Final = 6_000
"""Events a second that one evaluator handles at most: docs/performance.md."""
RARE: Final = "471"
"""A word that one call in a thousand has; every call has a number, as people say numbers."""
COMMON: Final = "flight"


class Recorded(NamedTuple):
    """A recorded call whose id, times and so on are to be filled in.

    Attributes:
        rows: Its rows, and those of its words.
        transcript: Its transcript, with `@number@` in it.
        events: How many events it has.
        turns: How many turns.
    """

    rows: Sequence[Row | WordsRow]
    transcript: str
    events: int
    turns: int


def recorded_calls() -> list[Recorded]:
    """The recorded calls with enough turns."""
    plan = ScoringPlan(Limits(), GoalRules(asks_judge=False), "0.1.0", writes_transcripts=True)
    found = []
    for recorded in [
        *list(read_recordings(RECORD)) * REAL,
        *read_recordings(place_of("calls.jsonl.gz")),
    ]:
        scoring = scored(recorded, plan)
        (*_, closed) = [row for row in scoring.rows if isinstance(row, CallRow)]
        turns = len({row.turn for row in scoring.rows if isinstance(row, TurnRow)})
        if turns < LEAST_TURNS or not scoring.transcript:
            continue
        said = json.loads(scoring.transcript)
        said.append(said[-1] | {"message": "My number is @number@."})
        found.append(
            Recorded([*scoring.rows, *scoring.words], json.dumps(said), closed.events, turns)
        )
    return found


def id_of(number: int) -> str:
    """The id of a written call. Ids are as random as those of real calls, so that indexes are
    filled in no order.
    """
    return f"{Random(number).getrandbits(128):032x}"  # noqa: S311  # no secret


Generated = tuple[list[Row | WordsRow], tuple[str, int, bytes]]


def generated(recorded: Recorded, number: int, at_ms: int) -> Generated:
    """The rows and the transcript of a call."""
    random = Random(number)  # noqa: S311  # no secret
    name = f"{random.getrandbits(128):032x}"
    first_ms = next(row.first_known_ms for row in recorded.rows if isinstance(row, CallRow))
    labels, stretch = Labels(agent=f"agent-{number % AGENTS}"), random.lognormvariate(0, 0.6)
    rows: list[Row | WordsRow] = []
    last_ms = at_ms
    for row in recorded.rows:
        changed: dict[str, Any] = {"conversation_id": name}
        if not isinstance(row, GoalsRow):
            last_ms = changed["known_ms"] = at_ms + row.known_ms - first_ms
        if isinstance(row, CallRow | TurnRow):
            changed["labels"] = labels
        if isinstance(row, CallRow):
            changed["first_known_ms"] = at_ms
            for wait in ("p50_ms", "p95_ms", "longest_wait_ms"):
                changed[wait] = (getattr(row, wait) or 0.0) * stretch
        if isinstance(row, TurnRow) and isinstance(row.wait_ms, float):
            changed["wait_ms"] = row.wait_ms * stretch
        rows.append(structs.replace(row, **changed))
    said = recorded.transcript.replace("@number@", str(number % 1_000))
    return rows, (name, last_ms, said.encode())


def batches(calls: Sequence[Recorded], numbers: range, day_ms: int) -> Iterator[Batch]:
    """What the role would read of the calls of a day."""
    rows: list[Row | WordsRow] = []
    transcripts: list[tuple[str, int, bytes]] = []
    for place, number in enumerate(numbers):
        of_call, transcript = generated(
            calls[number % len(calls)], number, day_ms + place * 80_000_000 // len(numbers)
        )
        rows += of_call
        transcripts.append(transcript)
        if len(rows) > BATCH or place == len(numbers) - 1:
            yield Batch(rows, transcripts, {("scores", 0): number}, at_ms=day_ms)
            rows, transcripts = [], []


def write_day(folder: Path, day: int, calls: int, recorded: Sequence[Recorded]) -> None:
    """Writes a day in a folder of its own, and moves its file to the others."""
    tune_python()
    store = SqliteHistory(folder / f"day-{day}", writes=True, retention_days=3_660)
    number = calls // (COPIES + 1)
    for batch in batches(
        recorded, range(day * number, (day + 1) * number), (FIRST_DAY + day) * DAY_MS
    ):
        store.write(batch)
    store.close()
    (file,) = store.folder.glob("calls-*.sqlite")
    _copy(file, (FIRST_DAY + day) * DAY_MS)
    file.rename(_file(folder, day))


def _copy(file: Path, day_ms: int) -> None:
    """Gives each call of a file copies with ids, times and waits of their own, and the same records
    in all tables and the index.
    """
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA synchronous = OFF")
    calls = connection.execute("SELECT max(id) FROM call").fetchone()[0]
    for copy in range(1, COPIES + 1):
        name = f"substr(conversation_id, {3 * copy + 1}) || substr(conversation_id, 1, {3 * copy})"
        columns = {each: quoted(each) for each in COLUMNS}
        columns["conversation_id"] = name
        columns["longest_wait_ms"] += f" * (1 + {copy} / 50.0)"
        for each in ("first_known_ms", "known_ms"):
            columns[each] = f"({each} - {day_ms} + {copy} * 8000000) % 86000000 + {day_ms}"
        for statement in (
            f"INSERT INTO call SELECT id + {copy * calls}, {name}, revision, known_ms, is_closed, "  # noqa: S608
            "bytes, row, packed "
            f"FROM call WHERE id <= {calls}",
            (
                f"INSERT INTO calls SELECT call + {copy * calls}, {', '.join(columns.values())} "  # noqa: S608
                "FROM "
                f"calls WHERE call <= {calls}"
            ),
            (
                f"INSERT INTO transcript SELECT call + {copy * calls}, value FROM transcript WHERE "  # noqa: S608
                f"call <= {calls}"
            ),
        ):
            connection.execute(statement)
    for call, value in connection.execute(
        "SELECT call, value FROM transcript WHERE call <= ?", [calls]
    ).fetchall():
        text = words_of(zlib.decompress(value))
        rows = [(call + copy * calls, text) for copy in range(1, COPIES + 1)]
        connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint (TRUNCATE)")
    connection.close()


def _file(folder: Path, day: int) -> Path:
    return folder / f"calls-{date(1970, 1, 1) + timedelta(days=FIRST_DAY + day)}.sqlite"


def _copy_day(folder: Path, written: int, day: int) -> None:
    if _file(folder, day).exists():
        return
    new = folder / "copy"
    shutil.copyfile(_file(folder, written), new)
    new.chmod(FILE_MODE)
    later_ms = (day - written) * DAY_MS
    connection = sqlite3.connect(new)
    name = (
        f"conversation_id = '{day:02x}' || substr(conversation_id, 3), known_ms = known_ms + "
        f"{later_ms}"
    )
    connection.execute(f"UPDATE call SET {name}")  # noqa: S608
    connection.execute(f"UPDATE calls SET {name}, first_known_ms = first_known_ms + {later_ms}")  # noqa: S608
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint (TRUNCATE)")
    connection.close()
    new.rename(_file(folder, day))


def measure_writing(figures: Figures, folder: Path, recorded: Sequence[Recorded]) -> None:
    """Writes calls that run at the same time, so that each batch has parts of all of them."""
    store = SqliteHistory(folder / "running", writes=True)
    calls = [
        generated(recorded[number % len(recorded)], number, FIRST_DAY * DAY_MS)
        for number in range(RUNNING)
    ]
    rows = [row for place in zip_longest(*(rows for rows, _ in calls)) for row in place if row]
    seconds, records = 0.0, len(rows) + len(calls)
    transcripts = [transcript for _, transcript in calls]
    for at in range(0, len(rows), BATCH):
        last = transcripts if at + BATCH >= len(rows) else []
        batch = Batch(rows[at : at + BATCH], last, {("scores", 0): at}, at_ms=FIRST_DAY * DAY_MS)
        begin = time.process_time()
        store.write(batch)
        seconds += time.process_time() - begin
    store.close()
    of_a_call = mean(len(call.rows) + 1 for call in recorded)
    published = EVALUATOR_EVENTS * of_a_call / mean(call.events for call in recorded)
    figures.add(
        "history_write_us",
        seconds / records * 1e6,
        "processor time of a record that is written",
        "us",
    )
    figures.add(
        "history_published", published, "records that one evaluator publishes in a second", ""
    )
    figures.add(
        "history_write_times", records / seconds / published, "times that, written", "", at_least=5
    )


def write_days(figures: Figures, folder: Path, calls: int, recorded: Sequence[Recorded]) -> None:
    """Writes the days that are not there, by several processes."""
    wanted = [day for day in range(WRITTEN_DAYS) if not _file(folder, day).exists()]
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        pool.starmap(
            write_day, [(folder, day, calls // DAYS, recorded) for day in wanted], chunksize=1
        )
    for day in range(WRITTEN_DAYS, DAYS):
        _copy_day(folder, day % WRITTEN_DAYS, day)
    size = sum(file.stat().st_size for file in folder.glob("calls-*"))
    figures.add(
        "history_turn_rows", calls * mean(call.turns for call in recorded), "rows of turns", ""
    )
    figures.add("history_call_bytes", size / calls, "bytes of a call", "B")


def written(calls: int) -> int:
    """How many calls the store itself wrote: the first of all."""
    return WRITTEN_DAYS * (calls // DAYS // (COPIES + 1))


def took_ms(work: Callable[[], object]) -> float:
    """How long some work took."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1_000


def answers(folder: Path, ask: Callable[[SqliteHistory], Any]) -> Any:
    """What a command waits for: history is opened for each question."""
    store = SqliteHistory(folder)
    try:
        return ask(store)
    finally:
        store.close()


def _days(first: int, last: int) -> ComparedPeriod:
    return ComparedPeriod((FIRST_DAY + first) * DAY_MS, (FIRST_DAY + last) * DAY_MS)


SLOW: Final = [Condition("p95_ms", ">", 5_000)]
WORST: Final = CallSearch(*_days(DAYS - 2, DAYS - 1), [Condition("labels.agent", "=", "agent-3")])


def measure_reading(figures: Figures, folder: Path, calls: int) -> None:
    """Asks as people do."""
    # no secret
    numbers = [Random(place).randrange(written(calls)) for place in range(LOOKS)]  # noqa: S311
    # a lambda with a default
    looks = [took_ms(lambda n=n: _found(folder, n)) for n in numbers]  # type: ignore[misc]
    figures.add("history_id_p50_ms", median(looks), "a call by its id, p50", "ms", goal=50)
    figures.add(
        "history_id_worst_ms",
        max(looks),
        f"a call by its id, the slowest of {LOOKS}",
        "ms",
        goal=50,
    )
    ever = CallSearch(*_days(-1, DAYS + 1))
    for name, what, goal, ask in (
        ("worst", "a day's worst 50 of an agent", 500, lambda store: store.find(WORST)),
        (
            "rare_word",
            "a word of few calls",
            2_000,
            lambda store: store.find(ever._replace(words=[RARE])),
        ),
        (
            "common_word",
            "a word of many calls",
            2_000,
            lambda store: store.find(ever._replace(words=[COMMON])),
        ),
        (
            "compare",
            "two days compared",
            5_000,
            lambda store: compared(store, _days(1, 2), _days(2, 3)),
        ),
        (
            "where",
            "the worst 50 with a condition",
            None,
            lambda store: store.find(ever._replace(conditions=SLOW)),
        ),
    ):
        assert answers(folder, ask), name
        best = min(took_ms(lambda ask=ask: answers(folder, ask)) for _ in range(3))  # type: ignore[misc]
        figures.add(f"history_{name}_ms", best, f"{what}, best of 3", "ms", goal=goal)


def _found(folder: Path, number: int) -> None:
    assert answers(folder, lambda store: store.call(id_of(number)))


def reads(folder: Path, seed: int, calls: int, ready: Any, stop: Any, answered: Any) -> None:
    """Asks for calls, four in a second, until told to stop; gives how long each answer took, then
    without waits for a processor.
    """
    random = Random(seed)  # noqa: S311  # no secret
    store = SqliteHistory(folder)
    waits: list[tuple[float, float]] = []
    store.call(id_of(0))  # opens the files
    ready.release()
    while not stop.wait(random.expovariate(4)):
        number = random.randrange(written(calls))
        before_s = unserved_seconds()
        wait_ms = took_ms(lambda number=number: store.call(id_of(number)))  # type: ignore[misc]
        waits.append((wait_ms, wait_ms - 1_000 * (unserved_seconds() - before_s)))
    store.close()
    answered.put(waits)


def measure_readers(
    figures: Figures, folder: Path, calls: int, recorded: Sequence[Recorded]
) -> None:
    """Writes into the newest day while readers ask."""
    more = batches(recorded, range(calls, 2 * calls), (FIRST_DAY + DAYS - 1) * DAY_MS)
    store = SqliteHistory(folder, writes=True, retention_days=3_660)
    context = multiprocessing.get_context("spawn")
    ready, stop, answered = context.Semaphore(0), context.Event(), context.Queue()
    readers = [
        context.Process(target=reads, args=(folder, seed, calls, ready, stop, answered))
        for seed in range(READERS)
    ]
    for reader in readers:
        reader.start()
    for _ in readers:
        ready.acquire()
    records, until = 0, time.monotonic() + READING_SECONDS
    while time.monotonic() < until:
        batch = next(more)
        store.write(batch)
        records += len(batch.rows)
        time.sleep(0.5)  # as the role polls
    stop.set()
    answers_ms = [answer for _ in readers for answer in answered.get()]
    waits, own = (sorted(each) for each in zip(*answers_ms, strict=True))
    for reader in readers:
        reader.join()
    store.close()
    what = f"{READERS} readers while it is written, {len(waits)} answers, p50"
    figures.add("history_readers_p50_ms", median(waits), what, "ms")
    figures.add(
        "history_readers_worst_ms",
        waits[-1],
        f"the slowest of them ({records:,} records written)",
        "ms",
        goal=200,
    )
    what = f"the slowest without waits for a processor (load {os.getloadavg()[0]:.0f})"
    figures.add("history_readers_own_ms", own[-1], what, "ms", goal=200)


def main() -> None:
    """Writes the calls, unless they are there, and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calls", type=int, default=1_000_000)
    arguments = parser.parse_args()
    figures = Figures()
    say(
        f"{arguments.calls:,} calls on {DAYS} days from "
        f"{datetime.fromtimestamp(FIRST_DAY * DAY_MS / 1_000, UTC).date()}"
    )
    recorded = recorded_calls()
    arguments.folder.mkdir(exist_ok=True)
    measure_writing(figures, arguments.folder, recorded)
    write_days(figures, arguments.folder, arguments.calls, recorded)
    measure_reading(figures, arguments.folder, arguments.calls)
    measure_readers(figures, arguments.folder, arguments.calls, recorded)


if __name__ == "__main__":
    main()
