"""The content of a compressed batch, and never more memory for it than the bound."""

import gzip
import struct
import subprocess
import sys

import cramjam
import pytest

from consumers.runtime.kafka import batches as decompression
from consumers.runtime.kafka.batches import (
    MAX_UNPACKED_BATCH_BYTES,
    BatchTooLargeError,
    DecompressionError,
    decompressed,
)
from tests.support.brokers.record_bytes import LZ4, PACK, SNAPPY, ZSTD

HEAD = b"head"


def java_snappy(*blocks: bytes) -> bytes:
    packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    return decompression._SNAPPY_BLOCKS + b"".join(struct.pack(">i", len(block)) + block for block in packed)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("plain", [b"", b"x", b"hello " * 50_000, bytes(MAX_UNPACKED_BATCH_BYTES)])
def test_what_was_packed_comes_out_behind_the_head(codec: int, plain: bytes) -> None:
    assert decompressed(codec, PACK[codec](plain), HEAD) == HEAD + plain


def test_every_shape_that_producers_write() -> None:
    assert decompressed(SNAPPY, java_snappy(b"a" * 100, b"", b"b" * 70_000), b"") == b"a" * 100 + b"b" * 70_000
    assert decompressed(1, gzip.compress(b"a") + gzip.compress(b"b"), b"") == b"ab"
    linked = bytes(cramjam.lz4.compress(b"a" * 100_000))
    assert decompressed(LZ4, linked, b"") == b"a" * 100_000
    one_block = bytes(cramjam.snappy.compress_raw(b"a" * 100_000))
    assert decompressed(SNAPPY, one_block, b"") == b"a" * 100_000


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_one_byte_more_than_the_bound_is_too_large(codec: int) -> None:
    with pytest.raises(BatchTooLargeError):
        decompressed(codec, PACK[codec](bytes(MAX_UNPACKED_BATCH_BYTES + 1)), HEAD)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("spoil", [lambda packed: packed[:-3], lambda _: b"", lambda _: b"\xff" * 100])
def test_what_the_codec_does_not_write_is_refused(codec: int, spoil: object) -> None:
    assert callable(spoil)
    with pytest.raises(DecompressionError):
        decompressed(codec, spoil(PACK[codec](b"hello " * 1_000)), HEAD)


@pytest.mark.parametrize("length", [-1, 0, 5_000, 2**31 - 1])
def test_a_snappy_block_of_another_length_is_refused(length: int) -> None:
    whole = java_snappy(b"a" * 100)
    with pytest.raises(DecompressionError):
        decompressed(SNAPPY, whole[:16] + struct.pack(">i", length) + whole[20:], b"")


def test_blocks_count_together() -> None:
    with pytest.raises(BatchTooLargeError):
        decompressed(SNAPPY, java_snappy(*[bytes(MAX_UNPACKED_BATCH_BYTES // 4)] * 5), b"")


def test_a_block_that_says_it_is_endless_takes_no_room() -> None:
    with pytest.raises(BatchTooLargeError, match="4294967295 in one block"):
        decompressed(SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 20, b"")


_PEAK = """
import sys
from consumers.runtime.kafka.batches import BatchTooLargeError, decompressed
def peak_kb():  # of this program alone: getrusage counts what its parent had as well
    return int(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])
packed = sys.stdin.buffer.read()
before = peak_kb()
try:
    decompressed(int(sys.argv[1]), packed, b"")
except BatchTooLargeError:
    print((peak_kb() - before) // 1024)
"""


@pytest.mark.parametrize("codec", [1, SNAPPY, LZ4, ZSTD])
def test_zeros_without_end_take_no_more_than_the_bound(codec: int) -> None:
    packed = PACK[codec](bytes(8 * MAX_UNPACKED_BATCH_BYTES))
    done = subprocess.run([sys.executable, "-c", _PEAK, str(codec)], input=packed, capture_output=True, check=True)
    assert int(done.stdout) < 1.5 * MAX_UNPACKED_BATCH_BYTES / 2**20
