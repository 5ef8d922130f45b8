"""Log lines: one event name each, for people or for machines, and none of the callers' words."""

import io
import json
import logging

import pytest
import structlog

from consumers.runtime.logs import (
    KIND_SECONDS,
    MOST_OF_A_KIND,
    about_record,
    configure_logging,
    is_json,
)
from consumers.runtime.settings import LogFormat
from tests.support.fakes.broker_records import BrokerRecord


def test_json_lines_hold_the_event_and_its_facts() -> None:
    output = io.StringIO()
    configure_logging("json", stream=output)
    structlog.get_logger().info("partitions_assigned", partitions=[0, 1])
    line = json.loads(output.getvalue())
    assert {
        "event": "partitions_assigned",
        "level": "info",
        "partitions": [0, 1],
    }.items() <= line.items()
    assert line["timestamp"].endswith("Z")


def test_libraries_speak_the_same_way_from_warnings_up() -> None:
    output = io.StringIO()
    configure_logging("json", stream=output)
    logging.getLogger("aiokafka.conn").info("connected")
    logging.getLogger("aiokafka.conn").warning("Unable to connect to %s", "a:1")
    line = json.loads(output.getvalue())
    assert (line["event"], line["logger"], line["level"]) == (
        "library_message",
        "aiokafka.conn",
        "warning",
    )
    assert line["message"] == "Unable to connect to a:1"


def test_a_library_s_text_comes_first_for_people() -> None:
    output = io.StringIO()
    configure_logging("console", stream=output)
    logging.getLogger("aiokafka.conn").warning("Unable to connect to %s", "a:1")
    assert "Unable to connect to a:1" in output.getvalue()
    assert "library_message" not in output.getvalue()


def test_a_connection_of_a_cancelled_start_is_no_line() -> None:
    output = io.StringIO()
    configure_logging("json", stream=output)
    logging.getLogger("asyncio").error(
        "Unclosed AIOKafkaConnection\nconn: <AIOKafkaConnection host=a port=1>"
    )
    assert output.getvalue() == ""
    logging.getLogger("callgauge").error("Unclosed AIOKafkaConnection")
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    lines = [json.loads(line)["message"] for line in output.getvalue().splitlines()]
    assert lines == ["Unclosed AIOKafkaConnection", "Task exception was never retrieved"]


def test_what_a_library_repeats_is_left_out_and_counted() -> None:
    output = io.StringIO()
    configure_logging("json", stream=output)
    (handler,) = logging.getLogger().handlers

    def written(at_seconds: float, text: str = "Unable to connect to node %s") -> list[str]:
        output.truncate(output.seek(0))
        for node in range(100):
            record = logging.LogRecord("aiokafka", logging.ERROR, "", 0, text, (node,), None)
            record.created = at_seconds
            handler.handle(record)
        return [json.loads(line)["message"] for line in output.getvalue().splitlines()]

    assert written(1_000) == [f"Unable to connect to node {node}" for node in range(MOST_OF_A_KIND)]
    assert written(1_000 + KIND_SECONDS / 2) == []
    assert len(written(1_001, "Another %s")) == MOST_OF_A_KIND
    later = written(1_000 + KIND_SECONDS)
    assert later[:2] == [
        "Unable to connect to node 0 (190 more such lines were left out)",
        "Unable to connect to node 1",
    ]
    assert len(later) == MOST_OF_A_KIND


@pytest.mark.parametrize(
    ("key", "conversation_id"),
    [(b"c-1", "c-1"), (None, None), (b"", ""), (b"\xff", "\ufffd"), (b"x" * 1_000_000, "x" * 200)],
)
def test_a_line_about_a_record_says_which(key: bytes | None, conversation_id: str | None) -> None:
    assert about_record(BrokerRecord(key=key, partition=3, offset=41)) == {
        "conversation_id": conversation_id,
        "topic": "scores",
        "partition": 3,
        "offset": 41,
    }


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_format_machines_get_json_and_people_get_text() -> None:
    for output, is_for_machines in ((io.StringIO(), True), (Terminal(), False)):
        configure_logging("auto", stream=output)
        structlog.get_logger().info("partitions_assigned", partitions=[0])
        assert output.getvalue().startswith("{") is is_for_machines
        assert is_json("auto", output) is is_for_machines
    assert is_json("json", Terminal())
    assert not is_json("console", io.StringIO())


def test_lines_for_people_are_plain_text_where_there_is_no_terminal() -> None:
    output = io.StringIO()
    configure_logging("console", stream=output)
    structlog.get_logger().warning("commit_failed", error="x")
    assert "commit_failed" in output.getvalue()
    assert "\x1b" not in output.getvalue()


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_shows_no_local_variables(log_format: LogFormat) -> None:
    output = io.StringIO()
    configure_logging(log_format, stream=output)
    said_by_caller = {"a": "my card number is 4"}
    try:
        said_by_caller["b"]
    except KeyError:
        structlog.get_logger().exception("batch_failed")
    assert "KeyError: 'b'" in output.getvalue().replace('\\"', '"')
    assert "my card number" not in output.getvalue()


def test_the_level_holds_for_our_own_lines() -> None:
    output = io.StringIO()
    configure_logging("console", "warning", stream=output)
    structlog.get_logger().info("evaluator_ready")
    assert output.getvalue() == ""
    configure_logging("console", "debug", stream=output)
    structlog.get_logger().debug("evaluator_ready")
    assert "evaluator_ready" in output.getvalue()
