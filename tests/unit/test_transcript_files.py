"""A folder of transcripts: whole files under safe names, and plain words where there is no place for them."""

import gzip
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.transcript_files import MAX_NAME_CHARS, TranscriptFiles, TranscriptFolderError, file_stem

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
    """The disk is full when the content is to be kept: what was there before is there still, and nothing half."""
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


def test_a_safe_id_is_its_own_name() -> None:
    assert file_stem("1.1.2-run_7") == "1.1.2-run_7"
    assert not file_stem("../up").startswith(".")
