"""Records in `scores` that are not ours: another program wrote them by mistake. They must do no
harm.
"""

import json
from typing import Final

KEY_START: Final = b"foreign-"
VALUES: Final[tuple[bytes | None, ...]] = (
    b"",
    b"\xff\xfe\x00",
    b"[1, 2",
    b"7",
    json.dumps({"hello": "world"}).encode(),
    json.dumps({"schema_version": 99}).encode(),
    json.dumps({"kind": "closed", "name": "closed"}).encode(),
    json.dumps({"name": "closed", "schema_version": "two"}).encode(),
    json.dumps({"row": "call", "state": "closed"}).encode(),
    json.dumps({"row": "of a later version"}).encode(),
    json.dumps({"text": "x" * 500_000}).encode(),
    b"[" * 20_000,
    None,
)


def is_foreign(key: bytes | None) -> bool:
    """Whether a record of `scores` with this key is one of these."""
    return key is not None and key.startswith(KEY_START)
