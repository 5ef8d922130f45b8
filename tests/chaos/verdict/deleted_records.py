"""Records are kept here before a run deletes them from the inputs, so that the judgement has every record that there ever was."""

import base64
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.verdict.checker import Coordinates
from tests.chaos.verdict.topic_reader import ReadRecord

MOST_VALUE_BYTES: Final = 2 * 1_048_576
"""More of an input record is not kept: it is refused for its size, with any content."""
NOTICED_MS: Final = 20_000
"""So long after a deletion a call may begin that its evaluator still counts among those that lost records."""


class Deletion(NamedTuple):
    """Records of one partition number that went before they were read, or may have.

    Attributes:
        partition: The number.
        at_ms: When.
        ranges: By topic, the first offset that an evaluator may have needed and the first that was kept.
        closed: Keys of the calls of this number that were over by then: they lost nothing.
    """

    partition: int
    at_ms: int
    ranges: Mapping[str, tuple[int, int]]
    closed: frozenset[bytes]

    def has(self, topic: str, offset: int) -> bool:
        """Whether this record may have gone unread."""
        first, kept = self.ranges.get(topic, (0, 0))
        return first <= offset < kept

    def calls(self, records: Iterable[tuple[str, ReadRecord]]) -> set[bytes]:
        """Keys of the calls that may have lost records, of all records there ever were with their topics."""
        return {
            record.key
            for topic, record in records
            if record.key
            and record.key not in self.closed
            and (self.has(topic, record.offset) or 0 <= record.timestamp_ms - self.at_ms <= NOTICED_MS)
        }


class DeletedRecords:
    """Records that are deleted, in files; by topic and partition, in order."""

    def __init__(self, folder: Path) -> None:
        """Keeps them in this folder, which need not be there yet."""
        self._folder = folder

    def keep(self, topic: str, partition: int, records: Iterable[ReadRecord]) -> None:
        """Keeps records that come after those kept before."""
        self._folder.mkdir(exist_ok=True)
        with self._file(topic, partition).open("a") as file:
            for record in map(shortened, records):
                texts = [
                    None if part is None else base64.b64encode(part).decode() for part in (record.key, record.value)
                ]
                file.write(json.dumps([record.offset, record.timestamp_ms, *texts]) + "\n")

    def of(self, topic: str, partition: int) -> Iterator[ReadRecord]:
        """Kept records of one partition."""
        path = self._file(topic, partition)
        if not path.exists():
            return
        with path.open() as file:
            for line in file:
                offset, timestamp_ms, *texts = json.loads(line)
                key, value = (None if text is None else base64.b64decode(text) for text in texts)
                yield ReadRecord(partition, offset, timestamp_ms, key, value)

    def _file(self, topic: str, partition: int) -> Path:
        return self._folder / f"{topic}-{partition}.jsonl"


def shortened(record: ReadRecord) -> ReadRecord:
    """The record without most of a value that is too large for everybody."""
    value = record.value
    return (
        record if value is None or len(value) <= MOST_VALUE_BYTES else record._replace(value=value[:MOST_VALUE_BYTES])
    )


def gone(deletions: Sequence[Deletion], refused: Collection[Coordinates]) -> frozenset[Coordinates]:
    """Refused records that may have been deleted unread, so that no evaluator refused them."""
    return frozenset(
        (topic, partition, offset)
        for topic, partition, offset in refused
        if any(each.partition == partition and each.has(topic, offset) for each in deletions)
    )
