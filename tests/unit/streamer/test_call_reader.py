"""A call is read from topics in memory: its scores, its events in the log, its transcript, and why something is missing."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from aiokafka.errors import TopicAuthorizationFailedError

from consumers.runtime.kafka.connection import murmur2_place
from schemas.closed_sets import InputSource
from schemas.scores.records import AnyScoreRecord, ClosedFact
from schemas.topics import TOPIC_BY_SOURCE
from streamer import one_call
from streamer.offline.contexts import arrivals_of
from streamer.offline.scoring import RecordedScoring, plan_from, scored
from streamer.one_call import CallReader, FoundCall
from streamer.recordings.files import SAMPLE
from streamer.recordings.reader import goals_for, read_recordings
from streamer.settings.all_settings import Settings
from streamer.sources.replay import in_time_order, with_control_events
from tests.benchmarks.traffic import BrokerRecord
from tests.support.calls.log_records import PlacedRecords
from tests.support.fakes.kept_topics import KeptTopics

CALL = "sample-call"
PARTITIONS = 3
NUMBER = murmur2_place(CALL.encode(), PARTITIONS)


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> RecordedScoring:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        (sample,) = read_recordings(SAMPLE)
        return scored(sample, plan_from(Settings(), goals_for([SAMPLE], None), writes_transcripts=True))


@pytest.fixture(autouse=True)
def _counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def counts(_: object, names: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(names, PARTITIONS)

    monkeypatch.setattr(one_call, "partition_counts", counts)


def log_of(scoring: RecordedScoring) -> PlacedRecords:
    """The events of the recording, and behind them a verdict, an event of another call and one that came after the close."""
    log = PlacedRecords(partition=NUMBER)
    call = with_control_events(scoring.call)
    arrivals = [each for each in arrivals_of(CALL, in_time_order(call), []) if each is not None]
    for each in arrivals:
        record = BrokerRecord(TOPIC_BY_SOURCE[each.source], each.offset, each.broker_time_ms, CALL.encode(), each.value)
        log.tick(each.broker_time_ms)
        log.event(each.source, record)
    last = arrivals[-1]
    for source, key in ((InputSource.JUDGE, CALL), (InputSource.AUDIT, "another"), (InputSource.AUDIT, CALL)):
        topic = TOPIC_BY_SOURCE[source]
        log.event(source, BrokerRecord(topic, 10_000 + len(log.records), last.broker_time_ms, key.encode(), last.value))
    return log


def scores_on(scoring: RecordedScoring, through: int | None) -> list[BrokerRecord]:
    """Its records, with the offset in the log up to which it was evaluated; without its close where that is None."""
    records: Sequence[AnyScoreRecord] = scoring.records
    written: list[BrokerRecord] = []
    for record in records:
        if isinstance(record, ClosedFact):
            if through is None:
                continue
            record = record.model_copy(update={"through": {"events": through}})
        value = record.model_dump_json().encode()
        written.append(BrokerRecord("scores", len(written), record.caused_at_ms, CALL.encode(), value, NUMBER))
    return written


async def read(topics: KeptTopics) -> FoundCall:
    reader = CallReader(Settings(), CALL, topics, PARTITIONS)
    found = await reader.find(0, lambda _: None)
    return await reader.read(CALL, found.calls[CALL])


async def test_a_closed_call_has_the_events_up_to_its_close_and_its_transcript(scoring: RecordedScoring) -> None:
    log = log_of(scoring)
    assert scoring.transcript is not None
    transcript = BrokerRecord("transcripts", 0, 10**13, CALL.encode(), scoring.transcript, NUMBER)
    through = len(log.records) - 4
    found = await read(KeptTopics(*scores_on(scoring, through), *log.records, transcript))
    assert found.call.closed is not None
    assert found.call.events == through // 2 + 1
    assert found.transcript is not None
    assert found.remarks == []
    assert found.call.context() is not None


async def test_a_call_that_goes_on_is_read_to_the_end_of_the_log_without_verdicts(scoring: RecordedScoring) -> None:
    log = log_of(scoring)
    found = await read(KeptTopics(*scores_on(scoring, None), *log.records))
    assert found.call.closed is None
    assert found.call.events == (len(log.records) - 3) // 2 + 1
    assert (found.transcript, found.remarks) == (None, [])


async def test_what_is_missing_is_told(scoring: RecordedScoring) -> None:
    found = await read(KeptTopics(*scores_on(scoring, 10)))
    assert found.call.events == 0
    assert found.remarks[0].startswith("events does not have its events any more")
    assert found.remarks[1].startswith("There is no transcript")
    assert found.reported().records


async def test_without_the_right_to_read_the_log_the_scores_are_shown(
    scoring: RecordedScoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> Any:
        raise TopicAuthorizationFailedError({"events"})

    monkeypatch.setattr(one_call, "events_of", refuse)
    found = await read(KeptTopics(*scores_on(scoring, None)))
    assert found.remarks == [
        "This user may not read events, so words and the arguments and answers of tools are not shown."
    ]
    assert found.reported().records


async def test_an_event_without_a_score_is_told_once_though_it_is_in_the_log_twice() -> None:
    log = PlacedRecords(partition=1)
    for term in range(2):
        log.term = term
        log.event(InputSource.AUDIT, BrokerRecord("audit.events", 0, 10**12, CALL.encode(), b"{}"))
    other = BrokerRecord("scores", 0, 10**12, b"other", b"{}", 0)
    reader = CallReader(Settings(), CALL, KeptTopics(other, *log.records), PARTITIONS)
    found = await reader.find(0, lambda _: None)
    assert found.calls == {}
    assert "but 1 event of it came" in str(await reader.not_found(found, "in the last day"))
