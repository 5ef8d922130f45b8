"""`callgauge trials --from-topics` compares past live calls of a real Kafka by their final records."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from schemas.scores.records import AnyScoreRecord
from streamer.offline.scored_recordings import plan_from, score_all, scorings_of
from streamer.offline.scoring import RecordedScoring
from streamer.recordings.reader import read_recorded_goals
from streamer.settings.all_settings import Settings
from tests.integration.processes import Ended, ended
from tests.support.patience import patient
from tests.unit.streamer.cli.test_score import BOOKS, SAYS_YES, T0_MS, call, goals, write_calls, write_goals

SINCE = "2026-09-01"
"""Before the moment of the calls."""
EARLIER_MS = 90 * 24 * 3_600_000


def scored(folder: Path, *calls: dict[str, Any]) -> dict[str, list[AnyScoreRecord]]:
    """Every record of each call, in all its revisions."""
    paths = [write_calls(folder / "calls.jsonl", *calls)]
    sets = read_recorded_goals(write_goals(folder / "goals.json", goals("any", SAYS_YES, BOOKS, agents=("desk",))))
    settings = Settings()
    found: list[RecordedScoring] = []
    plan = plan_from(settings, asks_judge=False)
    score_all(scorings_of(paths, plan, sets, None), settings, found.append, lambda: None, asks_judge=False)
    return {scoring.call.conversation_id: scoring.records for scoring in found}


async def test_live_calls_are_compared_by_their_final_records(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records = scored(
        tmp_path,
        call("good", "yes", "book it", agent="desk"),
        call("stuck/1", "yes", "hello", agent="desk"),
        call("open", "yes", agent="desk"),
        call("damaged", "yes", agent="desk"),
        call("joined late", "yes", "book it", agent="desk"),
        call("long ago", "yes", "book it", agent="desk"),
    )
    records["open"] = [record for record in records["open"] if record.name != "closed"]
    records["joined late"] = [record for record in records["joined late"] if record.name in ("progress", "closed")]
    shifted = {"caused_at_ms": T0_MS - EARLIER_MS}
    records["long ago"] = [record.model_copy(update=shifted) for record in records["long ago"]]
    producer = Producer({"bootstrap.servers": environment["CALLGAUGE_BOOTSTRAP"]})
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}scores"
    # The calls run at the same time.
    longest = max(map(len, records.values()))
    for place in range(longest):
        for name, of_call in records.items():
            if name == "damaged" and place == 1:
                producer.produce(topic, b'{"name": "subgoal"}', key=name.encode())
            if place < len(of_call):
                producer.produce(topic, of_call[place].model_dump_json().encode(), key=name.encode())
    assert producer.flush(patient(10)) == 0

    async def trials(*arguments: str, **more: str) -> Ended:
        return await asyncio.to_thread(ended, "trials", "--from-topics", *arguments, **environment, **more)

    first = await trials("--since", SINCE, "--json", CALLGAUGE_CONSOLE_URL="https://example.com/callgauge/")
    assert first.code == 1, "a record could not be read"
    result = json.loads(first.out)
    (group,) = result["goal_sets"]
    assert (group["trials"], group["successes"], group["mean_progress"]) == (2, 1, 0.75)
    assert [each["place"] for each in group["calls"]] == [
        "https://example.com/callgauge/calls/good",
        "https://example.com/callgauge/calls/stuck%2F1",
    ]
    assert group["stalls"] == [{"turn": 2, "calls": ["https://example.com/callgauge/calls/stuck%2F1"]}]
    assert result["left_out"] == {"not over": 1, "with records that cannot be read": 1, "began before --since": 1}
    assert "1 records of a newer version, or of another program, were left out" in first.err

    table = await trials("--since", SINCE)
    assert "stalled in turn 2: 1 call: stuck/1" in table.out, "without an address the id is named"

    nothing = await trials("--since", "1s")
    assert (nothing.code, nothing.out) == (1, "")
    assert "There is nothing to compare" in nothing.err
