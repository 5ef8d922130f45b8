"""Texts reach a terminal through `streamer/terminal.py` only, which makes every character of them
visible.
"""

import re

import pytest

from tests.tidy.source_tree import kept_texts

WRITES = re.compile(
    r"typer\.(?:secho|echo)\(|(?<![.\w])print\(|std(?:out|err)\.write\b|\bConsole\(\w*[^):]|import .*\bConsole$"
)
EXEMPT = {
    "streamer/terminal.py": "the door",
    "streamer/cli/app.py": "help and version, which have no text of others; they load nothing",
    "streamer/offline/call_work.py": "one step of the interpreter, with `visible_json`",
}
OF_THEIR_OWN = "streamer/observers/"  # other distributions


def _writes(text: str) -> list[str]:
    return [
        line.strip()
        for line in text.splitlines()
        if WRITES.search(line) and not line.strip().startswith(("#", ">>>"))
    ]


def test_texts_reach_a_terminal_through_one_door() -> None:
    found = {
        path.as_posix(): lines
        for path, text in kept_texts().items()
        if path.parts[0] in {"consumers", "streamer", "schemas"}
        and path.suffix == ".py"
        and (lines := _writes(text))
        if not path.as_posix().startswith(OF_THEIR_OWN)
    }
    assert {name: lines for name, lines in found.items() if name not in EXEMPT} == {}
    assert set(EXEMPT) == set(found)


@pytest.mark.parametrize(
    "line",
    [
        "typer.echo(x)",
        "print(x)",
        "sys.stderr.write(x)",
        "map(sys.stdout.write, y)",
        "Console(stderr=True)",
    ],
)
def test_another_way_is_seen(line: str) -> None:
    assert _writes(line) == [line]
    assert _writes(f"# {line}") == []
