"""History on a real broker: what it has equals what the topics have, whichever process is killed or frozen in between."""

import gzip
import signal
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from consumers.history.search import Question
from consumers.history.sqlite import HistoryFolderError, SqliteHistory
from schemas.scores.records import SCORE_RECORD
from tests.integration.processes import started, wait_for
from tests.integration.score_log import closings, records_on
from tests.support.conformance_data import needs_conformance, place_of

CALLS = 60
SECONDS = 90

pytestmark = [
    pytest.mark.kafka,
    needs_conformance("calls.jsonl.gz"),
    pytest.mark.service(limits__closing_grace_ms="1500"),
]


def first_calls(path: Path) -> Path:
    with gzip.open(place_of("calls.jsonl.gz"), "rt") as lines:
        path.write_text("".join(islice(lines, CALLS)))
    return path


def ids(folder: Path, *, closed: bool = True) -> set[Any]:
    """The calls in history that are closed, or not."""
    try:
        store = SqliteHistory(folder)
    except HistoryFolderError:  # it is not there yet
        return set()
    try:
        return {
            row["conversation_id"] for row in store.find(Question(0, 2**53, most=10_000)) if row["is_closed"] == closed
        }
    finally:
        store.close()


async def test_what_history_has_is_what_the_topics_have(environment: dict[str, str], tmp_path: Path) -> None:
    folder, calls = tmp_path / "history", first_calls(tmp_path / "calls.jsonl")
    history = environment | {"CALLGAUGE_HISTORY__FOLDER": str(folder)}
    with started(tmp_path / "run.log", "run", "--roles", "evaluator", **environment) as evaluator:
        evaluator.metrics(SECONDS)
        with started(tmp_path / "first.log", "run", "--roles", "history", **history) as first:
            first.metrics(SECONDS)
            with started(tmp_path / "replay.log", "replay", str(calls), "--speed", "10", "--keep-ids", **environment):
                wait_for("a running call in history", lambda: ids(folder, closed=False), SECONDS)
                first.signalled(signal.SIGKILL)
                assert len(ids(folder)) < CALLS, "it was killed too late"
                closed = await closings(environment, CALLS, SECONDS)
                assert len(closed) == CALLS
        with started(tmp_path / "second.log", "run", "--roles", "history", **history) as second:
            second.metrics(SECONDS)
            wait_for("all calls in history", lambda: len(ids(folder)) == CALLS, SECONDS)
            assert second.signalled(signal.SIGTERM)[0] == 0
        assert evaluator.signalled(signal.SIGTERM)[0] == 0
    newest: dict[tuple[str, str, int | None, int], Any] = {}
    for record in await records_on(environment, "scores"):
        if record.value is not None:
            score = SCORE_RECORD.validate_json(record.value)
            newest[score.conversation_id, score.name, score.turn, score.index] = score
    transcripts = {record.key.decode(): record.value for record in await records_on(environment, "transcripts")}
    store = SqliteHistory(folder)
    kept = [record for conversation_id in transcripts for record in store.records_of(conversation_id)]
    assert in_order(kept) == in_order(newest.values())
    assert {each: store.transcript_of(each) for each in transcripts} == transcripts
    store.close()


def in_order(records: Iterable[Any]) -> list[str]:
    return sorted(record.model_dump_json() for record in records)
