"""History with a million calls: how fast it is written, how large it is, and how long a person waits for an answer.

The calls are recorded ones, each with an id, a time, an agent, hashes and waits of its own, because these are what does not pack well.
`python -m tests.benchmarks.history_size FOLDER` takes a quarter of an hour and 13 GB; `--calls 50000` some minutes, and fewer have no call
with the rare word. A day that is there is not written again.
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

from consumers.history.rows import COLUMN_NAMES
from consumers.history.search import Condition, Question
from consumers.history.sqlite import WINDOW_BITS, Batch, SqliteHistory, words_of
from consumers.runtime.private_files import FILE_MODE
from consumers.runtime.process import tune_python
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord, ClosedFact, TurnValues
from schemas.units import DAY_MS
from streamer.history.comparison import Period, compared
from streamer.notebook import score
from tests.benchmarks.figures import Figures, say
from tests.support.conformance_data import RECORD, place_of
from tests.support.patience import unserved_seconds

DAYS: Final = 10
WRITTEN_DAYS: Final = 2
"""Days whose calls are written; the files of the others are copies of these, in which every call has an id and a time of its own."""
FIRST_DAY: Final = 20_700
"""The first day, in days since 1970."""
COPIES: Final = 9
"""Calls that are copied, in the file, from each that the store writes: reading and size are the same, and an hour becomes ten minutes."""
AGENTS: Final = 10
LEAST_TURNS: Final = 8
"""Simulated calls with fewer are left out."""
REAL: Final = 10
"""How often EVA's recording of a real call is among the calls, so that one has ten turns on average."""
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
        records: Its records, each with the time since the first one.
        transcript: Its transcript.
        events: How many events it has.
        turns: How many rows of turns.
    """

    records: Sequence[tuple[str, int]]
    transcript: str
    events: int
    turns: int


def recorded_calls() -> list[Recorded]:
    """The recorded calls with enough turns."""
    found = []
    for call in [*score(RECORD) * REAL, *score(place_of("calls.jsonl.gz"))]:
        turns = sum(isinstance(record, TurnValues) for record in call.records)
        closed = next(record for record in call.records if isinstance(record, ClosedFact))
        if turns < LEAST_TURNS or not call.transcript:
            continue
        first_ms = call.records[0].caused_at_ms
        texts = [(_template(record), record.caused_at_ms - first_ms) for record in call.records]
        said = [turn.model_dump(mode="json") for turn in call.transcript]
        said.append(said[-1] | {"message": "My number is @number@."})
        found.append(Recorded(texts, _filled_in(json.dumps(said)), closed.events, turns))
    return found


def _template(record: AnyScoreRecord) -> str:
    fields = record.model_dump(mode="json")
    fields |= {"conversation_id": "@id@", "caused_at_ms": "@at@", "input_hash": "@hash@", "record_id": "@hash@"}
    fields["labels"]["agent"] = "@agent@"
    if isinstance(record, TurnValues) and "value" in fields["voice_to_voice_ms"]:
        fields["voice_to_voice_ms"]["value"] = "@wait@"
    return _filled_in(json.dumps(fields, separators=(",", ":")))


def _filled_in(text: str) -> str:
    """A text with `@name@` as one for the operator %."""
    text = text.replace("%", "%%").replace('"@at@"', "%(at)d").replace('"@wait@"', "%(wait).1f")
    for name in ("id", "hash", "agent", "number"):
        text = text.replace(f"@{name}@", f"%({name})s")
    return text


def id_of(number: int) -> str:
    """The id of a written call. Ids are as random as those of real calls, so that indexes are filled in no order."""
    return f"{Random(number).getrandbits(128):032x}"  # noqa: S311  # no secret


Generated = tuple[list[tuple[AnyScoreRecord, bytes]], tuple[str, int, bytes]]


def generated(recorded: Recorded, number: int, at_ms: int) -> Generated:
    """The records and the transcript of a call."""
    random = Random(number)  # noqa: S311  # no secret
    name = f"{random.getrandbits(128):032x}"
    fill: dict[str, Any] = {"id": name, "agent": f"agent-{number % AGENTS}", "number": number % 1_000}
    scores = []
    for text, after_ms in recorded.records:
        fill["at"], fill["hash"] = at_ms + after_ms, f"{random.getrandbits(128):032x}"
        fill["wait"] = random.lognormvariate(7, 0.6)
        value = (text % fill).encode()
        scores.append((SCORE_RECORD.validate_json(value), value))
    return scores, (name, scores[-1][0].caused_at_ms, (recorded.transcript % fill).encode())


def batches(calls: Sequence[Recorded], numbers: range, day_ms: int) -> Iterator[Batch]:
    """What the role would read of the calls of a day."""
    scores: list[tuple[AnyScoreRecord, bytes]] = []
    transcripts: list[tuple[str, int, bytes]] = []
    for place, number in enumerate(numbers):
        records, transcript = generated(calls[number % len(calls)], number, day_ms + place * 80_000_000 // len(numbers))
        scores += records
        transcripts.append(transcript)
        if len(scores) > 2_000 or place == len(numbers) - 1:
            yield Batch(scores, transcripts, {("scores", 0): number})
            scores, transcripts = [], []


def write_day(folder: Path, day: int, calls: int, recorded: Sequence[Recorded]) -> None:
    """Writes a day in a folder of its own, and moves its file to the others."""
    tune_python()
    store = SqliteHistory(folder / f"day-{day}", writes=True, retention_days=3_660)
    number = calls // (COPIES + 1)
    for batch in batches(recorded, range(day * number, (day + 1) * number), (FIRST_DAY + day) * DAY_MS):
        store.write(batch)
    store.close()
    (file,) = store.folder.glob("calls-*.sqlite")
    _copy(file, (FIRST_DAY + day) * DAY_MS)
    file.rename(_file(folder, day))


def _copy(file: Path, day_ms: int) -> None:
    """Gives each call of a file copies with ids, times and waits of their own, and the same records in all tables and the index."""
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA synchronous = OFF")
    calls = connection.execute("SELECT max(id) FROM call").fetchone()[0]
    (dictionary,) = connection.execute("SELECT value FROM dictionary").fetchone()
    for copy in range(1, COPIES + 1):
        columns = dict(zip(COLUMN_NAMES, COLUMN_NAMES, strict=True))
        columns["conversation_id"] = (
            f"substr(conversation_id, {3 * copy + 1}) || substr(conversation_id, 1, {3 * copy})"
        )
        columns["longest_wait_ms"] += f" * (1 + {copy} / 50.0)"
        for name in ("started_ms", "changed_ms"):
            columns[name] = f"({name} - {day_ms} + {copy} * 8000000) % 86000000 + {day_ms}"
        connection.execute(
            f"INSERT INTO call SELECT id + {copy * calls}, {', '.join(columns.values())} FROM call WHERE id <= {calls}"  # noqa: S608
        )
        for table, others in (
            ("turn", "turn, revision, record"),
            ("moment", "subject, revision, record"),
            ("transcript", "value"),
        ):
            connection.execute(
                f"INSERT INTO {table} SELECT call + {copy * calls}, {others} FROM {table} WHERE call <= {calls}"  # noqa: S608
            )
    for call, value in connection.execute("SELECT call, value FROM transcript WHERE call <= ?", [calls]).fetchall():
        text = words_of(zlib.decompressobj(-WINDOW_BITS, zdict=dictionary).decompress(value))
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
    connection.execute(
        f"UPDATE call SET conversation_id = '{day:02x}' || substr(conversation_id, 3), "  # noqa: S608
        f"started_ms = started_ms + {later_ms}, changed_ms = changed_ms + {later_ms}"
    )
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint (TRUNCATE)")
    connection.close()
    new.rename(_file(folder, day))


def measure_writing(figures: Figures, folder: Path, recorded: Sequence[Recorded]) -> None:
    """Writes calls that run at the same time, so that each batch has parts of all of them."""
    store = SqliteHistory(folder / "running", writes=True)
    calls = [generated(recorded[number % len(recorded)], number, FIRST_DAY * DAY_MS) for number in range(RUNNING)]
    scores = [record for place in zip_longest(*(scores for scores, _ in calls)) for record in place if record]
    seconds, records = 0.0, len(scores) + len(calls)
    transcripts = [transcript for _, transcript in calls]
    for at in range(0, len(scores), BATCH):
        batch = Batch(scores[at : at + BATCH], transcripts if at + BATCH >= len(scores) else [], {("scores", 0): at})
        begin = time.process_time()
        store.write(batch)
        seconds += time.process_time() - begin
    store.close()
    of_a_call = mean(len(call.records) + 1 for call in recorded)
    published = EVALUATOR_EVENTS * of_a_call / mean(call.events for call in recorded)
    figures.add("history_write_us", seconds / records * 1e6, "processor time of a record that is written", "us")
    figures.add("history_published", published, "records that one evaluator publishes in a second", "")
    figures.add("history_write_times", records / seconds / published, "times that, written", "", at_least=5)


def write_days(figures: Figures, folder: Path, calls: int, recorded: Sequence[Recorded]) -> None:
    """Writes the days that are not there, by several processes."""
    wanted = [day for day in range(WRITTEN_DAYS) if not _file(folder, day).exists()]
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        pool.starmap(write_day, [(folder, day, calls // DAYS, recorded) for day in wanted], chunksize=1)
    for day in range(WRITTEN_DAYS, DAYS):
        _copy_day(folder, day % WRITTEN_DAYS, day)
    size = sum(file.stat().st_size for file in folder.glob("calls-*"))
    figures.add("history_turn_rows", calls * mean(call.turns for call in recorded), "rows of turns", "")
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


def _days(first: int, last: int) -> Period:
    return Period((FIRST_DAY + first) * DAY_MS, (FIRST_DAY + last) * DAY_MS)


SLOW: Final = [Condition("p95_ms", ">", 5_000)]
WORST: Final = Question(*_days(DAYS - 2, DAYS - 1), [Condition("agent", "=", "agent-3")])


def measure_reading(figures: Figures, folder: Path, calls: int) -> None:
    """Asks as people do."""
    numbers = [Random(place).randrange(written(calls)) for place in range(LOOKS)]  # noqa: S311  # no secret
    looks = [took_ms(lambda n=n: _found(folder, n)) for n in numbers]  # type: ignore[misc]  # a lambda with a default
    figures.add("history_id_p50_ms", median(looks), "a call by its id, p50", "ms", goal=50)
    figures.add("history_id_worst_ms", max(looks), f"a call by its id, the slowest of {LOOKS}", "ms", goal=50)
    ever = Question(*_days(-1, DAYS + 1))
    for name, what, goal, ask in (
        ("worst", "a day's worst 50 of an agent", 500, lambda store: store.find(WORST)),
        ("rare_word", "a word of few calls", 2_000, lambda store: store.find(ever._replace(words=[RARE]))),
        ("common_word", "a word of many calls", 2_000, lambda store: store.find(ever._replace(words=[COMMON]))),
        ("compare", "two days compared", 5_000, lambda store: compared(store, _days(1, 2), _days(2, 3))),
        ("where", "the worst 50 with a condition", None, lambda store: store.find(ever._replace(conditions=SLOW))),
    ):  # fmt: skip
        assert answers(folder, ask), name
        best = min(took_ms(lambda ask=ask: answers(folder, ask)) for _ in range(3))  # type: ignore[misc]
        figures.add(f"history_{name}_ms", best, f"{what}, best of 3", "ms", goal=goal)


def _found(folder: Path, number: int) -> None:
    assert all(answers(folder, lambda store: store.call_records(id_of(number))))


def reads(folder: Path, seed: int, calls: int, ready: Any, stop: Any, answered: Any) -> None:
    """Asks for calls, four in a second, until told to stop; gives how long each answer took, then without waits for a processor."""
    random = Random(seed)  # noqa: S311  # no secret
    store = SqliteHistory(folder)
    waits: list[tuple[float, float]] = []
    store.call_records(id_of(0))  # opens the files
    ready.release()
    while not stop.wait(random.expovariate(4)):
        number = random.randrange(written(calls))
        before_s = unserved_seconds()
        wait_ms = took_ms(lambda number=number: store.call_records(id_of(number)))  # type: ignore[misc]
        waits.append((wait_ms, wait_ms - 1_000 * (unserved_seconds() - before_s)))
    store.close()
    answered.put(waits)


def measure_readers(figures: Figures, folder: Path, calls: int, recorded: Sequence[Recorded]) -> None:
    """Writes into the newest day while readers ask."""
    more = batches(recorded, range(calls, 2 * calls), (FIRST_DAY + DAYS - 1) * DAY_MS)
    store = SqliteHistory(folder, writes=True, retention_days=3_660)
    context = multiprocessing.get_context("spawn")
    ready, stop, answered = context.Semaphore(0), context.Event(), context.Queue()
    readers = [
        context.Process(target=reads, args=(folder, seed, calls, ready, stop, answered)) for seed in range(READERS)
    ]
    for reader in readers:
        reader.start()
    for _ in readers:
        ready.acquire()
    records, until = 0, time.monotonic() + READING_SECONDS
    while time.monotonic() < until:
        batch = next(more)
        store.write(batch)
        records += len(batch.scores)
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
        "history_readers_worst_ms", waits[-1], f"the slowest of them ({records:,} records written)", "ms", goal=200
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
        f"{arguments.calls:,} calls on {DAYS} days from {datetime.fromtimestamp(FIRST_DAY * DAY_MS / 1_000, UTC).date()}"
    )
    recorded = recorded_calls()
    arguments.folder.mkdir(exist_ok=True)
    measure_writing(figures, arguments.folder, recorded)
    write_days(figures, arguments.folder, arguments.calls, recorded)
    measure_reading(figures, arguments.folder, arguments.calls)
    measure_readers(figures, arguments.folder, arguments.calls, recorded)


if __name__ == "__main__":
    main()
