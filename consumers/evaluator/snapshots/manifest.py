"""What a snapshot says of itself, under a seal that only holders of the key can make. Pure: bytes in, bytes out."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MAX_MANIFEST_BYTES: Final = 65_536
"""Ours have about a thousand."""
SEAL_BYTES: Final = hashlib.sha256().digest_size
_PURPOSE: Final = b"callgauge snapshot 1\n"
"""Goes into the seal, so that nothing that is sealed with the same key for something else is taken for a manifest."""

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Offset = Annotated[int, Field(ge=0)]


class Refusal(StrEnum):
    """Why a snapshot that should be there is not used. The partition is replayed then, as if there were none."""

    MISSING = "missing"
    WRONG_KEY = "wrong_key"
    DAMAGED = "damaged"
    OTHER_VERSION = "other_version"
    OTHER_SETTINGS = "other_settings"
    MISPLACED = "misplaced"
    STALE = "stale"
    INPUTS_MOVED = "inputs_moved"
    NOT_READ = "not_read"


class RefusedError(Exception):
    """A snapshot is not used.

    Attributes:
        reason: As it is counted.
    """

    def __init__(self, reason: Refusal, seen: str) -> None:
        self.reason = reason
        super().__init__(seen)


class Basis(BaseModel):
    """What must be the same for whoever writes a snapshot and whoever restores it.

    Attributes:
        group: The consumer group.
        code_version: The installed version; it stands in every score record.
        code_digest: As `code_digest` gives it.
        settings_digest: Of all settings that decide results.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: str
    code_version: str
    code_digest: _Digest
    settings_digest: _Digest


class Manifest(BaseModel):
    """One snapshot of one partition: what it covers and what it consists of.

    Attributes:
        snapshot_id: A name of its own, which each of its chunks carries.
        basis: Who can use it.
        number: The partition number.
        positions: By topic, the offset after the last record folded: where reading goes on.
        scores_end: Every record of `scores` below it is covered, and none at or after it.
        chunks: How many records follow with its bytes.
        size_bytes: Of all chunks.
        unpacked_bytes: Of the state that they unpack to.
        chunks_digest: SHA-256 of all chunks, one after the other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    snapshot_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    basis: Basis
    number: _Offset
    positions: Mapping[str, _Offset]
    scores_end: _Offset
    chunks: Annotated[int, Field(gt=0)]
    size_bytes: Annotated[int, Field(gt=0)]
    unpacked_bytes: Annotated[int, Field(gt=0)]
    chunks_digest: _Digest


def digest_of(chunks: Sequence[bytes]) -> str:
    """SHA-256 of the chunks, one after the other, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def sealed(manifest: Manifest, key: bytes) -> bytes:
    """The manifest as it is written: the seal, then the text. The digest in the text has the chunks under the seal too."""
    text = manifest.model_dump_json().encode()
    return _seal(text, key) + text


def opened(value: bytes | None, key: bytes) -> Manifest:
    """The manifest in a record, once its seal is right. Nothing else of a record is looked at before.

    Raises:
        RefusedError: It is no manifest that a holder of the key has written.
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
    """Whether the snapshot is one of this partition that we can go on with.

    Raises:
        RefusedError: It is not.
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
    """Whether these are the chunks that the manifest speaks of, all of them and in order.

    Raises:
        RefusedError: They are not.
    """
    if len(chunks) != manifest.chunks:
        raise RefusedError(Refusal.MISSING, f"{len(chunks)} of {manifest.chunks} chunks are there")
    size_bytes = sum(map(len, chunks))
    if size_bytes != manifest.size_bytes or digest_of(chunks) != manifest.chunks_digest:
        raise RefusedError(Refusal.DAMAGED, f"its {size_bytes} bytes are not those that were written")


def _seal(text: bytes, key: bytes) -> bytes:
    return hmac.digest(key, _PURPOSE + text, "sha256")
