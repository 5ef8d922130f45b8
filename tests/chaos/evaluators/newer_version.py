"""An evaluator of a later version: it writes one close reason under another name, and a field that nobody knows yet."""

from pathlib import Path
from typing import Final

NEWER: Final = "CHAOS_NEWER"
"""Environment variable that makes an evaluator a newer one, when it is set."""
OLD_REASON: Final = b'"reason":"ended"'
NEW_REASON: Final = b'"reason":"ended_by_caller"'
_CHANGES: Final = (
    ('    ENDED = "ended"\n', '    ENDED = "ended_by_caller"\n'),
    ('    name: Literal["closed"] = "closed"\n', '    name: Literal["closed"] = "closed"\n    closed_by: str = "a later version"\n'),
)  # fmt: skip


def install() -> None:
    """Makes this process the newer version; to be called before anything takes a name from `schemas.scores.all_records`."""
    from schemas.scores import all_records as scores

    path = Path(scores.__file__)
    text = path.read_text()
    for old, new in _CHANGES:
        if text.count(old) != 1:
            raise ValueError(f"{path.name} has no {old!r} any more: this version of callgauge cannot be made newer")
        text = text.replace(old, new)
    exec(compile(text, path, "exec"), vars(scores))  # noqa: S102  # our own text


def as_this_version(value: bytes) -> bytes:
    """A record of the newer version as this one would have written it; any other as it is."""
    return value.replace(NEW_REASON, OLD_REASON) if NEW_REASON in value else value
