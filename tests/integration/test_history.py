"""History on a real broker: what it has equals what the topics have, whichever process is killed or
frozen in between.
"""

import asyncio
import gzip
import json
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from consumers.history.search import CallSearch
from consumers.history.sqlite import HistoryFolderError, SqliteHistory
from schemas.rows import Row, WordsRow, decode, decode_words
from tests.integration.metrics_page import total
from tests.integration.processes import Ended, ran_here, started, wait_for
from tests.integration.score_log import closed_rows, records_on
from tests.integration.test_commands_on_topics import named, sample_scoring, write
from tests.support.conformance_data import needs_conformance, place_of
from tests.unit.history.test_store import stored

SECONDS = 90

pytestmark = [
    pytest.mark.kafka,
    needs_conformance("calls.jsonl.gz"),
    pytest.mark.service(limits__closing_grace_ms="1500"),
]


def some_calls(path: Path, first: int, until: int) -> Path:
    with gzip.open(place_of("calls.jsonl.gz"), "rt") as lines:
        path.write_text("".join(islice(lines, first, until)))
    return path


def ids(folder: Path, *, closed: bool = True) -> set[Any]:
    """The calls in history that are closed, or not."""
    try:
        store = SqliteHistory(folder)
    except HistoryFolderError:  # it is not there yet
        return set()
    try:
        return {
            row["conversation_id"]
            for row in store.find(CallSearch(0, 2**53, most=10_000))
            if (row["state"] == "closed") is closed
        }
    finally:
        store.close()


@pytest.mark.parametrize(
    ("count", "speed"), [(60, "10"), pytest.param(200, "4", marks=pytest.mark.long)]
)
async def test_what_history_has_is_what_the_topics_have(
    count: int, speed: str, environment: dict[str, str], tmp_path: Path
) -> None:
    folder, calls = tmp_path / "history", some_calls(tmp_path / "calls.jsonl", 0, count)
    history = environment | {"CALLGAUGE_HISTORY__FOLDER": str(folder)}
    with started(
        tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment
    ) as evaluator:
        evaluator.metrics(SECONDS)
        with started(tmp_path / "first.log", "run", "--roles", "history", **history) as first:
            first.metrics(SECONDS)
            with started(
                tmp_path / "replay.log",
                "replay",
                str(calls),
                "--speed",
                speed,
                "--keep-ids",
                **environment,
            ):
                wait_for("a running call in history", lambda: ids(folder, closed=False), SECONDS)
                first.signalled(signal.SIGKILL)
                assert len(ids(folder)) < count, "it was killed too late"
                closed = await closed_rows(environment, count, SECONDS)
                assert len(closed) == count
        with started(tmp_path / "second.log", "run", "--roles", "history", **history) as second:
            second.metrics(SECONDS)
            wait_for("all calls in history", lambda: len(ids(folder)) == count, SECONDS)
            assert second.signalled(signal.SIGTERM)[0] == 0
        assert evaluator.signalled(signal.SIGTERM)[0] == 0
    await assert_is_that_of_the_topics(environment, folder)


async def assert_is_that_of_the_topics(environment: dict[str, str], folder: Path) -> None:
    """Compares history with `scores`, `words` and `transcripts`, row by row."""
    rows: dict[str, list[Row | WordsRow]] = {}
    for topic, decoded in (("scores", decode), ("words", decode_words)):
        for record in await records_on(environment, topic):
            if record.value is not None:
                row = decoded(record.value)
                rows.setdefault(row.conversation_id, []).append(row)
    transcripts = {
        record.key.decode(): record.value for record in await records_on(environment, "transcripts")
    }
    assert rows.keys() == transcripts.keys()
    store = SqliteHistory(folder)
    for name, of_call in rows.items():
        assert (store.call(name), store.transcript(name)) == (stored(of_call), transcripts[name])
    store.close()


async def test_a_call_is_labelled_and_forgotten_for_good(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, again = tmp_path / "history", tmp_path / "again"
    scoring = sample_scoring()
    transcript = scoring.transcript or b""

    def write_calls(*names: str) -> None:
        for topic, rows in (("scores", scoring.rows), ("words", scoring.words)):
            write(
                environment,
                *((name, named(row, name)) for name in names for row in rows),
                topic=topic,
            )
        write(environment, *((name, transcript) for name in names), topic="transcripts")

    write_calls("kept-call", "bad-call")

    async def ran_on(*arguments: str, at: Path = folder) -> Ended:
        return await asyncio.to_thread(
            ran_here, *arguments, **(environment | {"CALLGAUGE_HISTORY__FOLDER": str(at)})
        )

    note = "she gave jane@example.com"
    labelled = await ran_on(
        "call", "bad-call", "--label", "false-alarm", "--note", note, "--by", "anna"
    )
    assert (labelled.code, labelled.err) == (
        0,
        "Call bad-call: false-alarm: she gave [EMAIL], by anna.\n",
    )
    assert (await ran_on("call", "kept-call", "--label", "No Label")).code == 2
    await ran_on("call", "kept-call", "--label", "fine", "--by", "ben")
    await ran_on("call", "kept-call", "--unlabel", "fine", "--by", "ben")
    for said in (
        (await ran_on("call", "bad-call")).out,
        (await ran_on("call", "bad-call", "--json")).out,
    ):
        assert "she gave [EMAIL]" in said
    assert (
        await ran_on("report", "--from-topics", "bad-call", "-o", str(tmp_path / "r.html"))
    ).code == 0
    assert "she gave [EMAIL]" in (tmp_path / "r.html").read_text()

    def found(at: Path) -> list[Any]:
        return sorted(row["conversation_id"] for row in json.loads(find(at)))

    def find(at: Path, *arguments: str) -> str:
        since = ("--since", "2000-01-01", "--folder", str(at))
        return (
            ran_here("history", "find", *since, *arguments, "--json").out if at.exists() else "[]"
        )

    history = environment | {"CALLGAUGE_HISTORY__FOLDER": str(folder)}
    with started(tmp_path / "history.log", "run", "--roles", "history", **history) as role:
        role.metrics(SECONDS)
        wait_for("both calls", lambda: found(folder) == ["bad-call", "kept-call"], SECONDS)
        (row,) = json.loads(find(folder, "--label", "false-alarm"))
        (said,) = row["annotations"]
        assert (row["conversation_id"], said["by"], said["note"]) == (
            "bad-call",
            "anna",
            "she gave [EMAIL]",
        )
        assert json.loads(find(folder, "--label", "fine")) == []
        unasked = await ran_on("history", "forget", "--conversation", "bad-call")
        assert (unasked.code, "add --yes" in unasked.err) == (2, True)
        forgotten = await ran_on("history", "forget", "--conversation", "bad-call", "--yes")
        assert (forgotten.code, f"1 call deleted from {folder}" in forgotten.err) == (0, True)
        assert "Kafka cannot delete single records" in forgotten.err
        assert "7 days of words" in forgotten.err
        write_calls("bad-call")
        shown = await ran_on("call", "bad-call")
        assert (shown.code, "was deleted on request at" in shown.err) == (1, True)
        assert found(folder) == ["kept-call"]
    rebuilt = environment | {"CALLGAUGE_HISTORY__FOLDER": str(again)}
    with started(tmp_path / "again.log", "run", "--roles", "history", **rebuilt) as role:
        address = role.metrics(SECONDS)
        wait_for("the other call", lambda: found(again) == ["kept-call"], SECONDS)
        left_out = 2.0 * (len(scoring.rows) + len(scoring.words) + 1)
        forgotten_records = lambda: (  # noqa: E731
            total(address, "callgauge_history_records_total", outcome="forgotten") == left_out
        )
        wait_for("the end of the topics", forgotten_records, SECONDS)
    assert found(again) == ["kept-call"]
    tenant = await ran_on("history", "forget", "--tenant", "nobody", "--yes", at=again)
    assert (tenant.code, "0 calls deleted" in tenant.err) == (0, True)
    assert "--tenant NAME" in (await ran_on("history", "forget", "--yes")).err
