"""What people said can be read by the user of the process alone, in whatever file callgauge writes
it.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.history.sqlite import SqliteHistory
from consumers.runtime.private_files import ensure_file, make_file, make_folder, network_kind
from streamer.offline.judge_in_process import KeptVerdicts
from streamer.result_file import written_whole
from tests.support.calls.judge_questions import judge_settings


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277], ids=oct, autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def is_private(path: Path) -> bool:
    return not mode_of(path) & (stat.S_IRWXG | stat.S_IRWXO)


def test_files_and_folders_are_their_owners_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_file(tmp_path / "a" / "b" / "file")
    assert [mode_of(tmp_path / each) for each in ("a", "a/b", "a/b/file")] == [0o700, 0o700, 0o600]
    ensure_file(tmp_path / "a" / "ensured")
    assert is_private(tmp_path / "a" / "ensured")


def test_what_is_there_keeps_its_rights_and_a_link_is_not_followed(tmp_path: Path) -> None:
    there, target = tmp_path / "there", tmp_path / "target"
    there.touch()
    there.chmod(0o640)
    there.write_text("kept")
    ensure_file(there)
    assert (mode_of(there), there.read_text()) == (0o640, "kept")
    tmp_path.chmod(0o750)
    make_folder(tmp_path)
    assert mode_of(tmp_path) == 0o750
    (tmp_path / "link").symlink_to(target)
    make_file(tmp_path / "link")
    assert not (tmp_path / "link").is_symlink()
    assert not target.exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_result_is_its_owners_alone(tmp_path: Path, is_there: bool) -> None:
    place = tmp_path / "report.html"
    if is_there:
        place.write_text("older")
        place.chmod(0o644)
    with written_whole(place) as beside:
        assert mode_of(beside) == 0o600
        beside.write_text("what the caller said")
    assert (mode_of(place), place.read_text()) == (0o600, "what the caller said")


def test_everything_in_the_folder_of_a_history_is_its_owners_alone(tmp_path: Path) -> None:
    store = SqliteHistory(
        tmp_path / "deep" / "history", writes=True, keeps_words=True, retention_days=9
    )
    found = [tmp_path / "deep", *(tmp_path / "deep").rglob("*")]
    assert "lock.sqlite" in {path.name for path in found}
    assert all(is_private(path) for path in found)
    store.close()


def test_kept_verdicts_are_their_owners_alone(tmp_path: Path) -> None:
    KeptVerdicts(tmp_path / "verdicts.jsonl", judge_settings()).close()
    assert is_private(tmp_path / "verdicts.jsonl")


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ("/dev/sda1 / ext4 rw 0 0\nserver:/export {folder} nfs4 rw 0 0\n", "nfs4"),
        ("//server/share / cifs rw 0 0\n", "cifs"),
        ("server:/export / nfs rw 0 0\n/dev/sdb1 {folder} ext4 rw 0 0\n", None),
        ("/dev/sda1 / ext4 rw 0 0\nserver:/export {folder}-too nfs rw 0 0\n", None),
        ("", None),
    ],
)
def test_a_folder_on_a_network_file_system_is_known_by_the_nearest_mount(
    tmp_path: Path, mounts: str, kind: str | None
) -> None:
    table = tmp_path / "mounts"
    table.write_text(mounts.format(folder=tmp_path / "data"))
    assert network_kind(tmp_path / "data" / "calls", table) == kind
    assert network_kind(tmp_path / "data", table) == kind


def test_where_no_list_of_mounts_is_nothing_is_said(tmp_path: Path) -> None:
    assert network_kind(tmp_path, tmp_path / "none") is None
