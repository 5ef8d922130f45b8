"""The files for ClickHouse fit each other; tests/unit/history/test_answers.py runs those in SQL."""

import json
import re

from deploy.clickhouse.generate_tables import OUTPUT, tables
from schemas.columns import CALL_COLUMNS, TURN_COLUMNS
from schemas.topics import TOPICS
from tests.support.clickhouse.running import TABLES

TEXT = TABLES.read_text(encoding="utf-8")


def test_the_tables_are_as_generated() -> None:
    assert OUTPUT.read_text(encoding="utf-8") == tables(), (
        "run deploy/clickhouse/generate_tables.py"
    )


def test_the_tables_have_every_column_in_order() -> None:
    for table, columns in (("calls", CALL_COLUMNS), ("turns", TURN_COLUMNS)):
        (fields,) = re.findall(
            rf"^CREATE TABLE {table}\n\(\n(.*?)\n    row String", TEXT, re.MULTILINE | re.DOTALL
        )
        assert [line.split()[0].strip('"') for line in fields.splitlines()] == [
            column.name for column in columns
        ]


def test_both_ways_in_bring_the_same_topics_into_the_same_tables() -> None:
    config = json.loads((TABLES.parent / "connect.json").read_text())["config"]
    tables_of = dict(pair.split("=") for pair in config["topic2TableMap"].split(","))
    assert config["topics"].split(",") == list(tables_of)
    assert {topic.name for topic in TOPICS} >= set(tables_of)
    kafka = (TABLES.parent / "kafka.sql").read_text()
    topics = dict(re.findall(r"CREATE TABLE (\w+)[^;]*kafka_topic_list = '([\w.]+)'", kafka))
    views = dict(
        re.findall(r"TO (\w+) AS SELECT _key AS conversation_id, value FROM (\w+);", kafka)
    )
    assert {topics[source]: table for table, source in views.items()} == tables_of
    fields = {config["transforms.value.field"], config["transforms.key.field"]}
    for table in tables_of.values():
        (columns,) = re.findall(rf"CREATE TABLE {table} \((.*)\) ENGINE = Null", TEXT)
        assert {column.split()[0] for column in columns.split(", ")} == fields
