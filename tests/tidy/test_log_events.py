"""Every log line of ours has one event name, written in that line, so that a name in a log leads to
its place.
"""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.source_tree import PACKAGES, modules

EVENT = re.compile(r"[a-z]+(_[a-z0-9]+)+")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "fatal", "log", "msg"}
LOGGER = "log"  # the one name of a module's logger
SETS_UP_LOGGING = "consumers/runtime/logs.py"
OF_THEIR_OWN = "streamer/observers/"  # other distributions, which write to the log of the bot


def _offences(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(
            "structlog.get_logger("
        ):
            if ast.unparse(node) != f"{LOGGER} = structlog.get_logger()":
                yield f"{node.lineno}: a module's logger is `{LOGGER} = structlog.get_logger()`"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
            yield f"{node.lineno}: lines of ours go through structlog"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
        ):
            is_ours = re.match(rf"{LOGGER}\b", ast.unparse(node.func.value))
            if is_ours and not _is_event(node):
                yield (
                    f"{node.lineno}: the event is one literal, words in snake_case: "
                    f"{ast.unparse(node)}"
                )


def _is_event(call: ast.Call) -> bool:
    event = call.args[0] if len(call.args) == 1 else None
    return (
        isinstance(event, ast.Constant)
        and isinstance(event.value, str)
        and bool(EVENT.fullmatch(event.value))
    )


def test_every_log_line_has_one_event_name() -> None:
    found = [
        f"{path}:{offence}"
        for package in PACKAGES
        for path, tree in modules(package).items()
        if path.as_posix() != SETS_UP_LOGGING and not path.as_posix().startswith(OF_THEIR_OWN)
        for offence in _offences(tree)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "log.info('Partitions assigned')",
        "log.info('assigned')",  # one word is a word, not a name
        "log.warning(f'commit_{kind}')",
        "log.error(event)",
        "log.error()",
        "log.info('commit_failed %s', error)",
        "log.bind(a=1).info('Commit failed')",
        "logger = structlog.get_logger()",
        "log = structlog.get_logger('name')",
        "lines = logging.getLogger(__name__)",
    ],
)
def test_a_line_without_is_seen(line: str) -> None:
    assert len(list(_offences(ast.parse(line)))) == 1
