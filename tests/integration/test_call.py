"""`callgauge call ID` shows one call from the topics of a real Kafka, found by its id or by the end of it."""

import asyncio
import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from streamer.offline.scored_recordings import plan_from, score_all, scorings_of
from streamer.offline.scoring import RecordedScoring
from streamer.recordings.files import SAMPLE
from streamer.recordings.reader import goals_for
from streamer.settings.all_settings import Settings
from tests.integration.processes import Ended, ran_here
from tests.support.patience import patient


def sample_scoring() -> RecordedScoring:
    settings = Settings()
    plan = plan_from(settings, asks_judge=False, writes_transcripts=True)
    scored: list[RecordedScoring] = []
    calls = scorings_of([SAMPLE], plan, goals_for([SAMPLE], None), None)
    score_all(calls, settings, scored.append, lambda: None, asks_judge=False)
    return scored[0]


def write_calls(environment: dict[str, str], *calls: str) -> None:
    """The records of the sample call under each id; the last one has a transcript, and a record that is none."""
    scoring = sample_scoring()
    assert scoring.transcript is not None
    prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
    producer = Producer({"bootstrap.servers": environment["CALLGAUGE_BOOTSTRAP"]})
    for call in calls:
        for record in scoring.records:
            producer.produce(f"{prefix}scores", record.model_dump_json().encode(), key=call.encode())
    producer.produce(f"{prefix}transcripts", scoring.transcript, key=calls[-1].encode())
    producer.produce(f"{prefix}scores", b"{}", key=calls[-1].encode())
    assert producer.flush(patient(10)) == 0


async def test_a_call_is_found_and_shown(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_calls(environment, "a-sample-call", "b-sample-call", "sample-call")

    async def called(*arguments: str) -> Ended:
        return await asyncio.to_thread(ran_here, "call", *arguments, **environment)

    whole = await called("sample-call")
    assert (whole.code, whole.err) == (0, "1 records of a newer version, or of another program, were left out.\n")
    lines = whole.out.splitlines()
    assert lines[0] == "sample-call: agent airline-rebooking, environment test"
    assert "7 turns, ended: goodbye" in lines[1]
    assert "  turn 1: answered after 5.04 s (audio); dead air over 3 s" in lines
    assert "Goals sample: 6 of 6 reached" in lines
    assert lines[lines.index("Transcript:") + 1].startswith("  0:00  agent: Good morning")

    by_its_end = await called("b-sample-call")
    assert (by_its_end.code, by_its_end.out.splitlines()[0]) == (
        0,
        "b-sample-call: agent airline-rebooking, environment test",
    )
    assert "There is no transcript" in by_its_end.out

    document = json.loads((await called("b-sample-call", "--json")).out)
    assert (document["conversation_id"], document["transcript"]) == ("b-sample-call", None)
    assert {record["name"] for record in document["records"]} >= {"call_started", "turn", "closed"}
    assert json.loads((await called("sample-call", "--json")).out)["transcript"][0]["role"] == "agent"

    several = await called("mple-call")
    assert (several.code, several.out) == (1, "")
    assert [name for name in ("a-sample-call", "b-sample-call", "  sample-call") if name not in several.err] == []

    missing = await called("nobody")
    assert missing.code == 1
    assert "--since 7d" in missing.err
    assert (await called("all")).code == 1, "too few characters for an end"
    assert (await called("nobody", "--since", "yesterday")).code == 2
