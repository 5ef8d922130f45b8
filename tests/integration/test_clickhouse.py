"""ClickHouse reads the topics of a real broker, committed records alone, and computes the rows of calls every ten seconds.

What reads is chDB, which has ClickHouse's reader of Kafka, but runs it only when it is asked. A server runs it by itself.
"""

from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaProducer

from consumers.history.clickhouse import ClickHouseHistory
from consumers.history.rows import call_row
from consumers.history.search import Question
from consumers.history.settings import HistorySettings
from schemas.annotations import Annotation
from tests.integration.processes import wait_for
from tests.support.clickhouse.running import TABLES, ClickHouse, running_clickhouse
from tests.unit.history.test_store import TRANSCRIPT, call, in_order, valued

SECONDS = 90
EVER = Question(0, 2**53)
FOLDER = TABLES.parent

pytestmark = [pytest.mark.kafka, pytest.mark.long]


@pytest.fixture
def server(environment: dict[str, str]) -> Iterator[ClickHouse]:
    with running_clickhouse() as there:
        prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
        names = {f"'{name}'": f"'{prefix}{name}'" for name in ("scores", "transcripts", "annotations")}
        replaced = {"kafka:9092": environment["CALLGAUGE_BOOTSTRAP"], "callgauge-clickhouse": f"{prefix}clickhouse"}
        there.run_file(FOLDER / "kafka.sql", names | replaced)
        there.run("SYSTEM START VIEW call_from_score")
        yield there


async def test_what_the_topics_have_is_found(environment: dict[str, str], server: ClickHouse) -> None:
    prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
    writer = AIOKafkaProducer(
        bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"], transactional_id=f"{prefix}clickhouse-test"
    )
    label = Annotation(by="anna", at_ms=1, label="false-alarm", note="the caller was on hold")

    async def write(conversation_id: str) -> None:
        key = conversation_id.encode()
        for _, value in valued(call(conversation_id)):
            await writer.send(f"{prefix}scores", value, key=key)
        await writer.send(f"{prefix}scores", None, key=key)  # the mark of an evaluator
        await writer.send(f"{prefix}transcripts", TRANSCRIPT, key=key)
        await writer.send(f"{prefix}annotations", label.model_dump_json().encode(), key=key)

    async with writer:
        async with writer.transaction():
            await write("kept")
            await write("gone")
        await writer.begin_transaction()
        await write("aborted")
        await writer.abort_transaction()
        async with writer.transaction():
            await write("last")
    store = ClickHouseHistory(HistorySettings(clickhouse_url=server.address))

    queries = {topic: server.query_of(f"{topic}_from_topic") for topic in ("score", "transcript", "annotation")}
    for topic in queries:
        server.run(f"DROP VIEW {topic}_from_topic")  # nobody may ask a table that a view reads

    def read(topic: str, found: Callable[[], set[object]]) -> bool:
        sql = f"INSERT INTO {topic}_in {queries[topic]} SETTINGS stream_like_engine_allow_direct_select = 1"
        server.run(sql, allowed="Local: Timed out")  # by a broker that has much to do
        return found() >= {"kept", "gone", "last"}

    def calls(*words: str) -> set[object]:
        return {row["conversation_id"] for row in store.find(EVER._replace(words=words))}

    wait_for("labels", lambda: read("annotation", lambda: set(store.labelled("false-alarm"))), SECONDS)
    wait_for("rows of calls", lambda: read("score", calls), SECONDS)
    wait_for("words", lambda: read("transcript", lambda: calls("rebooking")), SECONDS)
    assert "aborted" not in calls()
    (row,) = store.find(EVER._replace(ids=["kept"]))
    assert row == call_row(call("kept"))
    records, transcript = store.call_records("kept")
    assert in_order(records) == in_order(call("kept"))
    assert transcript == TRANSCRIPT
    assert store.call_records("aborted") == ([], None)
    # ClickHouse's reader of Kafka passes over records without a value, so a person says it.
    server.run("INSERT INTO forgotten VALUES ('gone')")
    assert calls() == {"kept", "last"}
    server.run_file(FOLDER / "forget.sql")
    counted = "SELECT countIf(conversation_id = 'gone'), countIf(conversation_id = 'kept') FROM "
    for table in ("score", "call", "transcript", "annotation"):
        gone, kept = map(int, server.run(f"{counted}{table} FORMAT TSV").split())
        assert (gone, kept > 0) == (0, True), table
    store.close()
