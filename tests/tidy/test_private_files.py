"""What writes a file is known: files with words of people are made by
`consumers/runtime/private_files.py`, for their owner alone.
"""

import re

import pytest

from tests.tidy.source_tree import kept_texts

MAKES = re.compile(
    r"\.write_(?:text|bytes)\(|\bopen\([^)]*[\"'][wax]\+?b?\+?[\"']|\.touch\(|\.mkdir\(|\bmkd?s?temp\(|mkstemp\(|NamedTemporaryFile\(|"
    r"TemporaryDirectory\(|\bos\.open\(|sqlite3\.connect\(|ParquetWriter\("
)
KNOWN = {
    "consumers/runtime/private_files.py": "the door",
    "consumers/console/serving.py": "a list of bad times, in a file that the door made",
    "consumers/history/sqlite.py": "databases in files that the door made",
    "consumers/log/file.py": "databases in files that the door made",
    "consumers/store/rows.py": "a database in memory, or in a file that the door made",
    "streamer/cli/report.py": "beside a result, by the door",
    "streamer/tables.py": "beside a result, by the door",
    "streamer/offline/judge_in_process.py": "a file that the door made",
    "streamer/roles/transcript_files.py": "a name that nobody can know, with the same rights",
    "streamer/roles/serving.py": "an address: no words",
    "streamer/roles/demo.py": "a temporary folder, which Python makes for its owner alone",
    "streamer/sources/watch.py": "a position: no words",
    "streamer/deploy_files.py": "files of the release: no words",
    "streamer/cli/app.py": "the end of a pipe",
}
OF_THEIR_OWN = "streamer/observers/"  # other distributions


def _makes(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if MAKES.search(line)]


def test_whatever_makes_files_is_known() -> None:
    found = {
        path.as_posix(): lines
        for path, text in kept_texts().items()
        if path.parts[0] in {"consumers", "streamer", "schemas", "callgauge.py"}
        and path.suffix == ".py"
        if not path.as_posix().startswith(OF_THEIR_OWN) and (lines := _makes(text))
    }
    assert {name: lines for name, lines in found.items() if name not in KNOWN} == {}
    assert set(KNOWN) == set(found)


@pytest.mark.parametrize(
    "line",
    [
        'path.open("wb")',
        "open(path, 'a+b')",
        "path.write_text(x)",
        "sqlite3.connect(path)",
        "folder.mkdir()",
    ],
)
def test_another_way_is_seen(line: str) -> None:
    assert _makes(line) == [line]
    assert _makes('path.open("rb")') == []
