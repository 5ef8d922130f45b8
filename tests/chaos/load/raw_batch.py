"""Record batches made by hand and sent by hand: no client of ours would write them, and a broker
takes them all the same.

Kafka checks a batch's checksum, its length and how many records it says it has; what a header's key
is, or how large a compressed batch becomes, it does not ask. The format is that of magic 2.
"""

import gzip
import socket
import struct
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiokafka.record.util import calc_crc32c

ACKS_OF_ALL: Final = -1
PRODUCE: Final = 0
PRODUCE_VERSION: Final = 3
TIMEOUT_MS: Final = 5_000
_GZIP: Final = 1


class RawRecord(NamedTuple):
    """Key, value and headers, all as bytes."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes]] = ()


class RefusedError(Exception):
    """The broker did not take a batch, or did not answer."""


def batch(
    records: Sequence[RawRecord], *, is_compressed: bool = False, behind: bytes = b""
) -> bytes:
    """A record batch; with gzip if wanted, and then with some bytes behind gzip's output."""
    body = b"".join(_record(offset, record) for offset, record in enumerate(records))
    if is_compressed:
        body = gzip.compress(body, mtime=0) + behind
    now_ms = time.time_ns() // 1_000_000
    attributes = _GZIP if is_compressed else 0
    checked = (
        struct.pack(
            ">hiqqqhii", attributes, len(records) - 1, now_ms, now_ms, -1, -1, -1, len(records)
        )
        + body
    )
    crc = calc_crc32c(checked)
    return struct.pack(">qiibI", 0, 4 + 1 + 4 + len(checked), -1, 2, crc) + checked


def send(host: str, port: int, topic: str, partition: int, batches: bytes) -> None:
    """Gives a batch to the broker that leads the partition."""
    name = topic.encode()
    request = (
        struct.pack(">hhih", PRODUCE, PRODUCE_VERSION, 1, 5)
        + b"chaos"
        + struct.pack(">hhii", -1, ACKS_OF_ALL, TIMEOUT_MS, 1)
        + struct.pack(">h", len(name))
        + name
        + struct.pack(">iii", 1, partition, len(batches))
        + batches
    )
    try:
        with socket.create_connection((host, port), TIMEOUT_MS / 1_000) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])
    except OSError as error:
        raise RefusedError(f"{topic}[{partition}]: {error}") from error
    at = 4 + 4 + 2 + len(name) + 4 + 4  # correlation, topics, the name, partitions, the number
    (code,) = struct.unpack_from(">h", answer, at)
    if code:
        raise RefusedError(f"{topic}[{partition}]: the broker answers with error {code}")


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return data


def _record(offset: int, record: RawRecord) -> bytes:
    body = b"\x00" + _varint(0) + _varint(offset) + _sized(record.key) + _sized(record.value)
    body += _varint(len(record.headers)) + b"".join(
        _sized(key) + _sized(value) for key, value in record.headers
    )
    return _varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)  # zigzag
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
