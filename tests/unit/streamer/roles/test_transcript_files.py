"""A folder of transcripts: whole files under safe names, and plain words if there is no place for them."""

import gzip
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.roles.transcript_files import MAX_NAME_CHARS, TranscriptFiles, TranscriptFolderError, file_stem

VALUE = b'[{"role":"user"}]'


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def files(tmp_path: Path) -> TranscriptFiles:
    made = TranscriptFiles(tmp_path / "a" / "b", packs=False)
    made.prepare()
    return made


def test_a_transcript_becomes_a_file_named_after_its_call(files: TranscriptFiles, tmp_path: Path) -> None:
    path = files.write("conv-1", VALUE)
    assert path == files.path_of("conv-1") == tmp_path / "a" / "b" / "conv-1.json"
    assert path.read_bytes() == VALUE
    assert names_in(path.parent) == ["conv-1.json"], "nothing else is left"


def test_a_second_one_replaces_the_first(files: TranscriptFiles) -> None:
    files.write("conv-1", b"[]")
    assert files.write("conv-1", VALUE).read_bytes() == VALUE


def test_packed_files_are_the_same_for_the_same_transcript(tmp_path: Path) -> None:
    files = TranscriptFiles(tmp_path, packs=True)
    path = files.write("conv-1", VALUE)
    first = path.read_bytes()
    assert path.name == "conv-1.json.gz"
    assert gzip.decompress(first) == VALUE
    assert files.write("conv-1", VALUE).read_bytes() == first


def test_a_file_is_there_as_a_whole_or_not_at_all(files: TranscriptFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the content is synced: the earlier file is still there, and no partial file."""
    path = files.write("conv-1", VALUE)

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for name in ("conv-1", "conv-2"):
        with pytest.raises(OSError, match="No space left"):
            files.write(name, b"x" * 1_000)
    assert path.read_bytes() == VALUE
    assert names_in(path.parent) == ["conv-1.json"]


def test_what_a_killed_process_had_begun_is_taken_away(files: TranscriptFiles) -> None:
    folder = files.path_of("x").parent
    (folder / ".conv-1.json.77.part").write_bytes(b"[{")
    (folder / "notes.txt").write_text("mine")
    files.prepare()
    assert names_in(folder) == ["notes.txt"]


@pytest.mark.parametrize("made_of", ["a file", "a path below a file"])
def test_a_folder_that_cannot_be_is_told_in_plain_words(tmp_path: Path, made_of: str) -> None:
    (tmp_path / "taken").write_text("")
    folder = tmp_path / "taken" if made_of == "a file" else tmp_path / "taken" / "below"
    with pytest.raises(TranscriptFolderError) as told:
        TranscriptFiles(folder, packs=False).prepare()
    assert str(told.value).startswith(f"Transcripts: the folder {folder} cannot be written to (")
    assert "nothing was started" in str(told.value)


@given(st.text(min_size=1, max_size=300))
def test_any_id_makes_a_safe_name(conversation_id: str) -> None:
    stem = file_stem(conversation_id)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", stem)
    assert len(stem) <= MAX_NAME_CHARS + 17
    assert Path(stem).name == stem
    assert file_stem(conversation_id) == stem


@pytest.mark.parametrize(
    ("one", "other"),
    [("a/b", "a_b"), ("a/b", "a:b"), ("x" * 101, "x" * 102), ("é", "è"), (".", ".."), ("-a", ".a")],
)
def test_different_ids_have_different_names(one: str, other: str) -> None:
    assert file_stem(one) != file_stem(other)


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o377], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_files_and_the_folders_made_for_them_are_their_owners_alone(tmp_path: Path) -> None:
    files = TranscriptFiles(tmp_path / "a" / "b", packs=False)
    before = mode_of(tmp_path)
    assert not files.prepare()
    path = files.write("conv-1", VALUE)
    assert [mode_of(each) for each in (path, path.parent, path.parent.parent)] == [0o600, 0o700, 0o700]
    assert mode_of(tmp_path) == before, "what is not ours stays as it is"


@pytest.mark.parametrize(("mode", "is_open"), [(0o755, True), (0o701, True), (0o750, False), (0o700, False)])
def test_a_folder_that_is_there_keeps_its_rights_and_says_whether_it_is_open(
    tmp_path: Path, mode: int, is_open: bool
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(mode)
    assert TranscriptFiles(folder, packs=False).prepare() is is_open
    assert mode_of(folder) == mode


def test_an_older_file_that_others_could_read_is_replaced_by_one_that_they_cannot(files: TranscriptFiles) -> None:
    files.path_of("conv-1").write_text("[]")
    files.path_of("conv-1").chmod(0o644)
    assert mode_of(files.write("conv-1", VALUE)) == 0o600


def test_links_are_not_followed(files: TranscriptFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links stay unused under the name of a transcript, under a guessed name of a part, and under a left-over part."""
    target = tmp_path / "another"
    target.write_text("mine")
    folder = files.path_of("conv-1").parent
    files.path_of("conv-1").symlink_to(target)
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: iter(["guessed", "new"]))
    part = folder / ".conv-1.json.guessed.part"
    part.symlink_to(target)
    path = files.write("conv-1", VALUE)
    assert not path.is_symlink()
    assert path.read_bytes() == VALUE
    assert part.is_symlink()
    monkeypatch.undo()
    files.prepare()
    assert names_in(folder) == ["conv-1.json"]
    assert target.read_text() == "mine"


def test_a_folder_with_the_name_of_a_part_keeps_nobody_from_starting(files: TranscriptFiles) -> None:
    (files.path_of("x").parent / ".odd.part").mkdir()
    files.prepare()
    assert files.write("conv-1", VALUE).read_bytes() == VALUE


def test_a_safe_id_is_its_own_name() -> None:
    assert file_stem("1.1.2-run_7") == "1.1.2-run_7"
    assert not file_stem("../up").startswith(".")
