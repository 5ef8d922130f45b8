"""A call is read from topics in memory: its rows, its words, its context from the log, and why
something is missing.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from aiokafka.errors import TopicAuthorizationFailedError

from consumers.runtime.kafka.connection import TopicsUnfitError, murmur2_place
from consumers.runtime.process import OperatorError
from schemas.closed_sets import InputSource
from schemas.rows import CallRow, Row, TurnRow, WordsRow, encode
from schemas.topics import TOPIC_BY_SOURCE, WORDS_TOPIC
from schemas.units import DAY_MS
from streamer import one_call
from streamer.offline.contexts import arrivals_of, folded_recording
from streamer.offline.scoring import plan_from, scored
from streamer.one_call import CallSource, FoundCall
from streamer.recordings.files import SAMPLE
from streamer.recordings.reader import goals_for, read_recordings
from streamer.settings.all_settings import Settings
from streamer.sources.replay import in_time_order, with_control_events
from tests.support.calls.log_records import PlacedRecords
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.kept_topics import KeptTopics

CALL = "sample-call"
PARTITIONS = 3
NUMBER = murmur2_place(CALL.encode(), PARTITIONS)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        (sample,) = read_recordings(SAMPLE)
        return scored(sample, plan_from(Settings(), goals_for([SAMPLE], None))).rows


@pytest.fixture(autouse=True)
def _counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def counts(_: object, names: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(names, PARTITIONS)

    monkeypatch.setattr(one_call, "partition_counts", counts)


def log_of() -> PlacedRecords:
    """The events of the sample, and behind them a verdict, an event of another call and one that
    came after the close.
    """
    (sample,) = read_recordings(SAMPLE)
    log = PlacedRecords(partition=NUMBER)
    call = with_control_events(sample)
    arrivals = [each for each in arrivals_of(CALL, in_time_order(call), []) if each is not None]
    for each in arrivals:
        record = BrokerRecord(
            TOPIC_BY_SOURCE[each.source],
            each.offset,
            each.broker_time_ms,
            CALL.encode(),
            each.value,
        )
        log.tick(each.broker_time_ms)
        log.event(each.source, record)
    last = arrivals[-1]
    for source, key in (
        (InputSource.JUDGE, CALL),
        (InputSource.AUDIT, "another"),
        (InputSource.AUDIT, CALL),
    ):
        topic = TOPIC_BY_SOURCE[source]
        log.event(
            source,
            BrokerRecord(
                topic, 10_000 + len(log.records), last.broker_time_ms, key.encode(), last.value
            ),
        )
    return log


def written(
    rows: Sequence[Row | WordsRow], topic: str = "scores", **places: int
) -> list[BrokerRecord]:
    """The rows as their topic has them."""
    records = []
    for offset, row in enumerate(rows):
        if isinstance(row, CallRow):
            row.partition = NUMBER
            for name, place in places.items():
                setattr(row, name, place)
        records.append(
            BrokerRecord(
                topic, offset, getattr(row, "known_ms", 0), CALL.encode(), encode(row), NUMBER
            )
        )
    return records


def reader_of(topics: KeptTopics) -> CallSource:
    return CallSource(Settings(), CALL, topics, PARTITIONS)


async def read(topics: KeptTopics, since_ms: int = 0) -> FoundCall:
    reader = reader_of(topics)
    found = await reader.find(since_ms, lambda _: None)
    return await reader.read(CALL, found)


async def test_a_call_is_its_newest_rows_with_its_words(rows: list[Row]) -> None:
    words = [
        WordsRow(conversation_id=CALL, turn=1, known_ms=each, user=f"said {each}")
        for each in (10**12, 10**13)
    ]
    other = BrokerRecord(WORDS_TOPIC, 9, 10**13, b"another", encode(words[0]), NUMBER)
    found = await read(KeptTopics(*written(rows), *written(words, WORDS_TOPIC), other))
    assert found.rows.call.state == "closed"
    newest = {row.turn: row.revision for row in rows if isinstance(row, TurnRow)}
    assert {row.turn: row.revision for row in found.rows.turns} == newest
    assert found.rows.goals is not None
    assert [each.user for each in found.rows.words] == [f"said {10**13}"]
    assert found.remarks == []


async def test_rows_from_before_the_search_are_read_too(rows: list[Row]) -> None:
    # the goals come first
    records = written(rows, first_known_ms=rows[1].known_ms - DAY_MS)  # type: ignore[union-attr]
    half = len(records) // 2
    earlier = [each._replace(timestamp=each.timestamp - DAY_MS) for each in records[:half]]
    records = [*earlier, *records[half:]]
    found = await read(KeptTopics(*records), since_ms=records[-1].timestamp)
    assert (found.reported().missing_turns, found.remarks) == ([], [])
    kept = KeptTopics(*records)
    (tp,) = kept._records
    kept.first[tp] = (
        max(place for place, row in enumerate(rows) if isinstance(row, TurnRow) and row.turn == 1)
        + 1
    )
    assert (await read(kept)).remarks == ["scores does not have the rows of 1 turn any more."]


async def test_a_call_that_goes_on_is_followed_to_its_close(rows: list[Row]) -> None:
    running = [row for row in rows if not (isinstance(row, CallRow) and row.state == "closed")]
    topics = KeptTopics(*written(running))
    reader = reader_of(topics)
    call = await reader.read(CALL, await reader.find(0, lambda _: None))
    assert not call.reported().is_closed
    (tp,) = topics._records
    word = WordsRow(conversation_id=CALL, turn=1, known_ms=10**13, user="a last word")
    topics._records[tp] = written(rows)
    topics._records[type(tp)(WORDS_TOPIC, NUMBER)] = written([word], WORDS_TOPIC)
    states = [call.rows.call.state async for _ in reader.follow(call)]
    assert states[-1] == "closed"
    assert [each.user for each in call.rows.words] == ["a last word"]


async def test_without_the_right_to_read_words_the_rows_are_shown(
    rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counts(_: object, names: Iterable[str]) -> dict[str, int]:
        if WORDS_TOPIC in names:
            raise TopicsUnfitError("words is missing")
        return dict.fromkeys(names, PARTITIONS)

    monkeypatch.setattr(one_call, "partition_counts", counts)
    found = await read(KeptTopics(*written(rows)))
    assert (found.has_words, found.remarks) == (
        False,
        [
            "This user may not read words, or there is none, so words and the arguments and "
            "answers of tools are not shown."
        ],
    )
    assert found.reported().turns


async def test_the_context_is_that_of_the_events_between_the_places_of_the_row(
    rows: list[Row],
) -> None:
    log = log_of()
    records = written(rows, first_place=1, last_place=len(log.records) - 4)
    found = await read(KeptTopics(*records))
    context = await reader_of(KeptTopics(*records, *log.records)).context(found)
    (sample,) = read_recordings(SAMPLE)
    whole = folded_recording(with_control_events(sample))[0].context()
    assert (context["id"], context["turns_by"]) == (CALL, whole.turns_by)
    assert context["context"]["conversation_trace"] == _redacted(
        whole.to_dict()["conversation_trace"]
    )
    with pytest.raises(OperatorError, match="events does not have its events any more"):
        await reader_of(KeptTopics(*records)).context(found)


def _redacted(value: Any) -> Any:
    from consumers.engine.redaction.redactor import Redactor

    return Redactor().redact_value(value)


async def test_without_the_right_to_read_the_log_there_is_no_context(
    rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await read(KeptTopics(*written(rows)))

    async def refuse(*_: object, **__: object) -> Any:
        raise TopicAuthorizationFailedError({"events"})

    monkeypatch.setattr(one_call, "partition_counts", refuse)
    with pytest.raises(OperatorError, match="this user may not read events"):
        await reader_of(KeptTopics()).context(found)


async def test_rows_of_another_version_are_no_call(rows: list[Row]) -> None:
    record = BrokerRecord("scores", 0, 10**12, CALL.encode(), b'{"row":"of tomorrow"}', NUMBER)
    with pytest.raises(OperatorError, match="no row of this call that this version can read"):
        await read(KeptTopics(record))
    found = await read(KeptTopics(record, *written(rows)))
    assert found.newest is not None
    assert found.newest.unreadable == 1


async def test_an_event_without_a_row_is_told_once_though_it_is_in_the_log_twice() -> None:
    log = PlacedRecords(partition=1)
    for term in range(2):
        log.term = term
        log.event(InputSource.AUDIT, BrokerRecord("audit.events", 0, 10**12, CALL.encode(), b"{}"))
    other = BrokerRecord("scores", 0, 10**12, b"other", b"{}", 0)
    reader = reader_of(KeptTopics(other, *log.records))
    found = await reader.find(0, lambda _: None)
    assert found.calls == {}
    assert "but 1 event of it came" in str(await reader.not_found(found, "in the last day"))
