"""A file with a result, as a report or a table: it is written whole or not at all, and its owner
alone reads it.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from consumers.runtime.private_files import make_file
from consumers.runtime.process import OperatorError


class ResultFileError(OperatorError):
    """The file cannot be written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path}: this file cannot be written: {why}. Nothing was written; name another place "
            "for it."
        )
        self.path = path


def require_place(path: Path) -> None:
    """Checks the place before anything is read, so that no one waits for a file that cannot be
    written.

    Raises:
        ResultFileError: It is a folder, or its folder is missing or not ours.
    """
    folder = path.parent
    if path.is_dir():
        raise ResultFileError(path, "it is a folder")
    if not folder.is_dir():
        raise ResultFileError(path, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise ResultFileError(path, f"the folder {folder} is not ours to write in")


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Gives the place beside the file to write to; it gets the file's name at the end, and is
    deleted if the block fails.

    Its owner alone can read it, because it has words of people.

    Raises:
        ResultFileError: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        make_file(beside)
        yield beside
        beside.replace(path)
    except OSError as error:
        raise ResultFileError(path, error.strerror or type(error).__name__) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
