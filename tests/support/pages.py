"""The blocks of code of our pages, in their order."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
NAME_CHARS = 60
PAGES = [
    page.relative_to(ROOT).as_posix()
    for page in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "deploy").glob("*.md")),
    )
]
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_SAVED_AS = re.compile(r"[Ss]ave (?:this|your events) (?:as|to) `([\w.]+)`[^`]*\Z")


class Block(NamedTuple):
    """One block of a page.

    Attributes:
        page: Path of the page, from the root of the checkout.
        line: The line of the page with which it begins.
        language: The word behind the fence; empty if there is none.
        text: The code, without the indentation of a list.
        saved_as: The name under which the sentence before it says to save it; empty if it says no
            such thing.
    """

    page: str
    line: int
    language: str
    text: str
    saved_as: str

    @property
    def name(self) -> str:
        """The page and the beginning of the code."""
        return f"{self.page}: {self.text.splitlines()[0][:NAME_CHARS]}"


def blocks_of(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        code = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
        paragraph = text[: found.start()].rstrip().rpartition("\n\n")[2]
        saved_as = _SAVED_AS.search(paragraph)
        yield Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found[2],
            code,
            saved_as[1] if saved_as else "",
        )
