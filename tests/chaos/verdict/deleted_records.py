"""Records are kept here before a run deletes them, so that the judgement has every record that
there ever was.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.verdict.topic_reader import ReadRecord

MOST_VALUE_BYTES: Final = 2 * 1_048_576
"""More of an input record is not kept: it is refused for its size, with any content."""


class Deletion(NamedTuple):
    """Records of one input partition that may have gone before the sequencer read them.

    Attributes:
        topic: The input.
        partition: Partition number there.
        made: How often the input had been recreated.
        first: The first offset that may be unread.
        end: The first that was not deleted.
    """

    topic: str
    partition: int
    made: int
    first: int
    end: int


class Excuse(NamedTuple):
    """Why records of a topic may come after the time that was known: they were hidden from every
    reader.

    Attributes:
        topic: The input.
        since_ms: Broker time of the first that may.
        until_ms: Broker time of the last that may.
    """

    topic: str
    since_ms: int
    until_ms: int

    def has(self, topic: str, time_ms: int) -> bool:
        """Whether a record of this time is one of them."""
        return topic == self.topic and self.since_ms <= time_ms <= self.until_ms


class DeletedRecords:
    """Records that are deleted, in files; by topic, how often that was recreated, and partition, in
    order.

    Attributes:
        made: By topic, how often it was recreated.
    """

    def __init__(self, folder: Path) -> None:
        """Keeps them in this folder, which need not be there yet."""
        self._folder = folder
        self.made: dict[str, int] = {}

    def keep(self, topic: str, partition: int, records: Iterable[ReadRecord]) -> None:
        """Keeps records that come after those kept before."""
        self._folder.mkdir(exist_ok=True)
        with self._file(topic, partition, self.made.get(topic, 0)).open("a") as file:
            for record in map(shortened, records):
                texts = [_text_of(part) for part in (record.key, record.value)]
                headers = [[name, _text_of(value)] for name, value in record.headers]
                file.write(json.dumps([record.offset, record.timestamp_ms, *texts, headers]) + "\n")

    def of(self, topic: str, partition: int, made: int = 0) -> Iterator[ReadRecord]:
        """Kept records of one partition."""
        path = self._file(topic, partition, made)
        if not path.exists():
            return
        with path.open() as file:
            for line in file:
                offset, timestamp_ms, key, value, headers = json.loads(line)
                found = tuple((name, _bytes_of(header) or b"") for name, header in headers)
                yield ReadRecord(
                    partition, offset, timestamp_ms, _bytes_of(key), _bytes_of(value), found
                )

    def _file(self, topic: str, partition: int, made: int) -> Path:
        return self._folder / f"{topic}-{partition}-{made}.jsonl"


def _text_of(part: bytes | None) -> str | None:
    return None if part is None else base64.b64encode(part).decode()


def _bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def shortened(record: ReadRecord) -> ReadRecord:
    """The record without most of a value that is too large for everybody."""
    value = record.value
    return (
        record
        if value is None or len(value) <= MOST_VALUE_BYTES
        else record._replace(value=value[:MOST_VALUE_BYTES])
    )


def with_deleted(
    deleted: Iterable[ReadRecord], still_there: Iterable[ReadRecord]
) -> Iterator[ReadRecord]:
    """Every record there ever was, in order."""
    next_offset = 0
    for records in (deleted, still_there):
        for record in records:
            # a deletion may have been repeated, or have come to nothing
            if record.offset >= next_offset:
                next_offset = record.offset + 1
                yield shortened(record)
