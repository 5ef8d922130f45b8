"""The work of the command `report`: writes the page."""

import contextlib
import os
from pathlib import Path

from consumers.runtime.process import OperatorError


class ReportFileError(OperatorError):
    """The page cannot be written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path}: the report cannot be written here: {why}. Nothing was written; name another --html file."
        )
        self.path = path


def require_place(path: Path) -> None:
    """Checks the place before anything is read, so that nobody waits for a page that cannot be written."""
    folder = path.parent
    if path.is_dir():
        raise ReportFileError(path, "it is a folder")
    if not folder.is_dir():
        raise ReportFileError(path, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise ReportFileError(path, f"the folder {folder} is not ours to write in")


def write_page(path: Path, text: str) -> None:
    """Writes the whole file or none of it."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise ReportFileError(path, error.strerror or type(error).__name__) from error
