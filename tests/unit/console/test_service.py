"""The console takes in rows and nothing else, begins two hours back, and goes on where its folder
has what it has read.
"""

from pathlib import Path

import pytest
from aiokafka import TopicPartition
from prometheus_client import CollectorRegistry

from consumers.console import service
from consumers.console.service import ConsoleRole
from consumers.console.settings import ConsoleSettings
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.kafka.connection import KafkaSettings, TopicsUnfitError
from consumers.runtime.process import OperatorError, wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.owners import PartitionRow
from schemas.rows import CallRow, Row, WordsRow, encode
from schemas.topics import SCORES_TOPIC, WORDS_TOPIC
from schemas.units import HOUR_MS
from tests.support.calls.console_calls import call_row, simulated, turn_row
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.kept_topics import KeptTopics
from tests.support.held_loop import in_short_time, seconds_of
from tests.support.known import some

SCORES, WORDS = TopicPartition(SCORES_TOPIC, 0), TopicPartition(WORDS_TOPIC, 0)


def role_of(folder: Path | None = None, **settings: object) -> ConsoleRole:
    given = ConsoleSettings.model_validate({"folder": folder} | settings)
    return ConsoleRole(
        KafkaSettings(), given, Redactor(), Instruments(CollectorRegistry(), ["console"])
    )


def record(
    value: bytes | None, offset: int = 0, at_ms: int = 0, topic: str = SCORES_TOPIC
) -> BrokerRecord:
    # a mark has no value
    return BrokerRecord(topic, offset, at_ms, b"c", value, 0)


async def take(role: ConsoleRole, *rows: Row | WordsRow, first: int = 0) -> None:
    polled = {}
    for tp in (SCORES, WORDS):
        of_topic = [row for row in rows if isinstance(row, WordsRow) is (tp is WORDS)]
        polled[tp] = [record(encode(row), place) for place, row in enumerate(of_topic, first)]
    await role.read_records(polled)


async def test_a_mark_is_left_out_and_what_cannot_be_read_is_counted() -> None:
    role = role_of()
    values = (None, b"{}", b'{"row":"of tomorrow"}', encode(call_row()), b'{"row":"call"}')
    await role.read_records({SCORES: [record(value, place) for place, value in enumerate(values)]})
    assert role.console.fleet.unreadable == 3
    assert role._next[SCORES] == len(values)
    assert [
        each.call.conversation_id for each in role.console.fleet.now(wall_clock_ms()).calls
    ] == ["c"]
    assert role.console.calls.edition("c") > 0
    assert role.console.calls.edition("d") == 0


async def test_a_partition_says_how_far_it_is_while_no_event_comes() -> None:
    role, now_ms = role_of(), wall_clock_ms()
    await take(role, *(call_row(name, known_ms=now_ms - 165_000) for name in ("a", "b", "c")))
    assert role.console.fleet.now(now_ms).is_stale
    row = PartitionRow(
        place=9,
        first=0,
        first_known_ms=0,
        known_ms=now_ms - 9_000,
        version="1",
        event_ms=now_ms - 160_000,
    )
    await role.read_records({SCORES: [record(None, 1)._replace(headers=(row.header(),))]})
    now = role.console.fleet.now(now_ms)
    assert (now.age, now.is_stale, now.silent_ms) == ("no event for 2:40", False, 160_000)


async def test_words_are_beside_the_rows_of_their_call_whichever_come_first() -> None:
    role = role_of()
    await take(role, WordsRow(conversation_id="c", turn=1, user="hello"))
    assert role.console.calls.call("c") is None
    before = role.console.calls.edition("c")
    await take(role, call_row(), turn_row(1))
    found = some(role.console.calls.call("c"))
    assert [each.user for each in found.words] == ["hello"]
    assert role.console.calls.edition("c") > before


async def test_reading_begins_as_long_ago_as_the_setting_says() -> None:
    now_ms = wall_clock_ms()
    ages = (5 * HOUR_MS, 3 * HOUR_MS, HOUR_MS, 0)
    topics = KeptTopics(*(record(b"{}", place, now_ms - age) for place, age in enumerate(ages)))
    role = role_of()
    assert await role._go_back(topics, [SCORES, WORDS]) == {SCORES: 4, WORDS: 0}
    assert (await topics.position(SCORES), await topics.position(WORDS)) == (2, 0)
    assert role.console.calls.since_ms is not None
    assert abs(role.console.calls.since_ms - (now_ms - 2 * HOUR_MS)) < HOUR_MS
    role._next[SCORES] = 3
    await role._go_back(topics, [SCORES, WORDS])
    assert await topics.position(SCORES) == 3, "after a fault it goes on"


async def test_a_folder_keeps_the_rows_and_the_place(tmp_path: Path) -> None:
    now_ms = wall_clock_ms()
    topics = KeptTopics(*(record(b"{}", place, now_ms - HOUR_MS) for place in range(9)))
    rows = [
        row
        for row in simulated(name="c")
        if not (isinstance(row, CallRow) and row.state == "closed")
    ]
    first = role_of(tmp_path / "rows")
    await first._go_back(topics, [SCORES])
    await take(first, *rows, first=2)
    first.console.calls.close()
    assert {
        each.stat().st_mode & 0o077 for each in (tmp_path / "rows", *(tmp_path / "rows").iterdir())
    } == {0}, "it has words"
    again = role_of(tmp_path / "rows")
    assert again.console.calls.call("c") is not None
    assert [
        each.call.conversation_id for each in again.console.fleet.now(wall_clock_ms()).calls
    ] == ["c"]
    await again._go_back(topics, [SCORES])
    assert await topics.position(SCORES) == 9, "no further than the end"
    assert again.console.calls.since_ms == 0, "it knows all"
    again.console.calls.close()


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match=r"file cannot be used .* so no page is served"):
        role_of(tmp_path / "file")


@pytest.mark.parametrize(
    ("has_words", "is_there", "topics"),
    [
        (True, True, {SCORES_TOPIC, WORDS_TOPIC}),
        (True, False, {SCORES_TOPIC}),
        (False, True, {SCORES_TOPIC}),
    ],
)
async def test_words_are_read_where_they_are_shown_and_this_user_may(
    monkeypatch: pytest.MonkeyPatch, *, has_words: bool, is_there: bool, topics: set[str]
) -> None:
    asked: list[str] = []

    async def counts(_kafka: object, names: list[str]) -> dict[str, int]:
        asked.extend(names)
        if WORDS_TOPIC in names and not is_there:
            raise TopicsUnfitError("words is missing")
        return dict.fromkeys(names, 2)

    monkeypatch.setattr(service, "partition_counts", counts)
    role = role_of(words=has_words)
    assert {tp.topic for tp in await role._partitions()} == topics
    assert len(await role._partitions()) == 2 * len(topics)
    assert (WORDS_TOPIC in asked) is has_words


async def test_a_page_of_half_an_hour_is_drawn_in_less_than_half_a_second() -> None:
    """Processor time, with the reading of its rows; the second time, because the first one compiles
    the templates.
    """
    from consumers.console.pages import call_boxes
    from consumers.view.calls import ReportedCall
    from tests.support.calls.long_calls import long_call

    role = role_of()
    role.console.calls.put(long_call(450))

    def draw() -> None:
        found = some(role.console.calls.call("long"))
        boxes = call_boxes(ReportedCall(*found[:4], "call", Redactor()), "")
        assert len("".join(boxes["call"].values())) > 300_000

    draw()
    in_short_time(lambda: seconds_of(draw), 0.5)


async def test_a_poll_of_several_partitions_is_one_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A poll has a few rows of each partition, and a transaction costs more than a row."""
    monkeypatch.setattr(service, "STEP_SECONDS", 60)
    role, put = role_of(), []
    monkeypatch.setattr(role.console.calls, "put", lambda *given: put.append(given))
    polled = {
        TopicPartition("scores", number): [record(encode(call_row(str(number))), number)]
        for number in range(12)
    }
    await role.read_records(polled)
    ((rows, positions),) = put
    assert len(rows) == 12
    assert positions == {("scores", number): number + 1 for number in range(12)}
