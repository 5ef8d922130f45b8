"""Every link of README, ARCHITECTURE and the pages to another file leads to it, and to a heading that it has."""

import re
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT

RUNBOOKS = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "deploy" / "runbooks").glob("*.md"))]
_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: str) -> list[str]:
    """The links of a page that lead nowhere."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    found = []
    for path, anchor in _LINK.findall(text):
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            found.append(f"{path}#{anchor}")
    return found


@pytest.mark.parametrize(
    "page", [*PAGES, *RUNBOOKS, "ARCHITECTURE.md", "CHANGELOG.md", "streamer/pipecat_observer/README.md"]
)
def test_links_lead_somewhere(page: str) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A b\n[here](#a-b) [there](nowhere.md) [no part](#c) [out](https://example.com/x)\n")
    assert broken(str(page)) == ["nowhere.md#", "#c"]
