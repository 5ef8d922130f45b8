"""An evaluator of a later version: it writes two close reasons under other names, and a field that
this version does not know.

It also says the values of a running call more often, so that its revisions are others than those of
this version.
"""

from importlib import import_module
from pathlib import Path
from typing import Final

NEWER: Final = "CHAOS_NEWER"
"""Environment variable that makes an evaluator a newer one, when it is set."""
RENAMED: Final = {
    b'"close_reason":"ended"': b'"close_reason":"ended_by_caller"',
    b'"close_reason":"session_ended"': b'"close_reason":"session_ended_by_caller"',
}
"""How this version writes a reason, and how the newer one does."""
CHANGES: Final = (
    (
        "schemas.closed_sets",
        '    ENDED = "ended"\n    SESSION_ENDED = "session_ended"\n',
        '    ENDED = "ended_by_caller"\n    SESSION_ENDED = "session_ended_by_caller"\n',
    ),
    (
        "schemas.rows",
        "    close_reason: CloseReason | None = None\n",
        "    close_reason: CloseReason | None = None\n    closed_by: str = "
        "msgspec.field(default_factory=lambda: 'a later version')\n",
    ),
    ("consumers.engine.limits", "        30_000,\n", "        2_000,\n"),  # call_values_every_ms
    (
        "streamer.facts",
        '        return version("callgauge")\n',
        '        return version("callgauge") + ".later"\n',
    ),
)
"""By module, in the order in which they are imported: a line of it, and the line of a later
version.
"""


def install() -> None:
    """Makes this process the newer version; to be called before anything takes a name from these
    modules.
    """
    for name, old, new in CHANGES:
        module = import_module(name)
        path = Path(str(module.__file__))
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(
                f"{path.name} has no {old!r} any more: this version of callgauge cannot be made "
                "newer"
            )
        # our own text
        exec(compile(text.replace(old, new), path, "exec"), vars(module))  # noqa: S102


def is_newer(value: bytes) -> bool:
    """Whether it is a closing that the newer version wrote."""
    return any(new in value for new in RENAMED.values())


def as_this_version(value: bytes) -> bytes:
    """A row of the newer version as this one would have written it; any other as it is."""
    for old, new in RENAMED.items():
        value = value.replace(new, old)
    return value
