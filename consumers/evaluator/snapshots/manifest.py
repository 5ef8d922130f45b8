"""The manifest of a snapshot, under a seal that only holders of the key can make. Pure: bytes in, bytes out."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consumers.evaluator.recall.journal_piece import JournalPlace

MAX_MANIFEST_BYTES: Final = 65_536
"""Largest manifest that is read; a real one has about a thousand bytes."""
SEAL_BYTES: Final = hashlib.sha256().digest_size
_PURPOSE: Final = b"callgauge snapshot 1\n"
"""Part of the seal, so that data sealed with the same key for another purpose is not taken for a manifest."""

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Offset = Annotated[int, Field(ge=0)]


class Refusal(StrEnum):
    """Why a snapshot is not used. Then the partition is replayed as if there were none."""

    MISSING = "missing"
    WRONG_KEY = "wrong_key"
    DAMAGED = "damaged"
    OTHER_VERSION = "other_version"
    OTHER_SETTINGS = "other_settings"
    MISPLACED = "misplaced"
    STALE = "stale"
    INPUTS_MOVED = "inputs_moved"
    TOO_FAR_BACK = "too_far_back"
    DIFFERS = "differs"
    NOT_READ = "not_read"


class RefusedError(Exception):
    """A snapshot cannot be used.

    Attributes:
        reason: Label value of the metric.
    """

    def __init__(self, reason: Refusal, seen: str) -> None:
        self.reason = reason
        super().__init__(seen)


class Basis(BaseModel):
    """Everything that must be equal in the writer and the reader of a snapshot.

    Attributes:
        group: The consumer group.
        code_version: The installed version, which every score record carries.
        code_digest: The result of `code_digest`.
        settings_digest: Digest of all settings that decide results.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: str
    code_version: str
    code_digest: _Digest
    settings_digest: _Digest


class Manifest(BaseModel):
    """Description of one snapshot of one partition.

    Attributes:
        snapshot_id: Unique id, which each of its chunks carries.
        basis: Decides which evaluators can use it.
        number: The partition number.
        positions: By topic, the offset after the last folded record, at which reading goes on.
        scores_end: The snapshot covers the records of `scores` below this offset; those above it have the journal's later pieces.
        journal: Its moment in the journal of the partition; None if there was no journal.
        chunks: Number of records with its bytes, which follow.
        size_bytes: Size of all chunks.
        unpacked_bytes: Size of the unpacked state.
        chunks_digest: SHA-256 of all chunks in order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    snapshot_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    basis: Basis
    number: _Offset
    positions: Mapping[str, _Offset]
    scores_end: _Offset
    journal: JournalPlace | None = None
    chunks: Annotated[int, Field(gt=0)]
    size_bytes: Annotated[int, Field(gt=0)]
    unpacked_bytes: Annotated[int, Field(gt=0)]
    chunks_digest: _Digest


def digest_of(chunks: Sequence[bytes]) -> str:
    """Returns the SHA-256 of the chunks in order, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def sealed(manifest: Manifest, key: bytes) -> bytes:
    """Returns the bytes of the manifest: the seal, then the text. The seal covers the chunks through their digest in the text."""
    text = manifest.model_dump_json().encode()
    return _seal(text, key) + text


def opened(value: bytes | None, key: bytes) -> Manifest:
    """Reads the manifest in a record, after verifying its seal before anything else.

    Raises:
        RefusedError: No holder of the key wrote it, or it is not a manifest.
    """
    if value is None or not SEAL_BYTES < len(value) <= MAX_MANIFEST_BYTES:
        raise RefusedError(Refusal.DAMAGED, "the record is no manifest of a snapshot")
    seal, text = value[:SEAL_BYTES], value[SEAL_BYTES:]
    if not hmac.compare_digest(seal, _seal(text, key)):
        raise RefusedError(Refusal.WRONG_KEY, "the manifest is not sealed with our key")
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:  # a holder of the key wrote it, so another version
        raise RefusedError(Refusal.OTHER_VERSION, "the manifest has another form than this version writes") from error


def require_fit(manifest: Manifest, basis: Basis, number: int) -> None:
    """Checks that this process can go on from the snapshot, and that it is of this partition.

    Raises:
        RefusedError: It cannot.
    """
    theirs = manifest.basis
    if (manifest.number, theirs.group) != (number, basis.group):
        raise RefusedError(
            Refusal.MISPLACED,
            f"it is of partition {manifest.number} of the group {theirs.group}, not of {number} of {basis.group}",
        )
    if (theirs.code_version, theirs.code_digest) != (basis.code_version, basis.code_digest):
        raise RefusedError(
            Refusal.OTHER_VERSION,
            f"it is of version {theirs.code_version} ({theirs.code_digest[:8]}), and this is {basis.code_version} "
            f"({basis.code_digest[:8]})",
        )
    if theirs.settings_digest != basis.settings_digest:
        raise RefusedError(
            Refusal.OTHER_SETTINGS, "it was taken with other limits, goal rules, redaction or transcripts"
        )


def require_whole(manifest: Manifest, chunks: Sequence[bytes]) -> None:
    """Checks that these are all chunks of the manifest, in order.

    Raises:
        RefusedError: A chunk is missing, wrong or out of order.
    """
    if len(chunks) != manifest.chunks:
        raise RefusedError(Refusal.MISSING, f"{len(chunks)} of {manifest.chunks} chunks are there")
    size_bytes = sum(map(len, chunks))
    if size_bytes != manifest.size_bytes or digest_of(chunks) != manifest.chunks_digest:
        raise RefusedError(Refusal.DAMAGED, f"its {size_bytes} bytes are not those that were written")


def _seal(text: bytes, key: bytes) -> bytes:
    return hmac.digest(key, _PURPOSE + text, "sha256")
