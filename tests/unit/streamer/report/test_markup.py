"""Markup from nested calls: the content of a call can become text on a page and nothing else."""

from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.report.drawing import Markup, document, element, joined, showable, style_sheet

HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "&lt;b&gt;",
    "</style>",
    "<!--",
    "]]>",
    "\x00\ud800\u202e",
]


class Tags(HTMLParser):
    """The parts of a document that are not text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_comment(self, data: str) -> None:
        self.tags.append(f"comment {data}")

    def handle_decl(self, decl: str) -> None:
        self.tags.append(f"declaration {decl}")

    def unknown_decl(self, data: str) -> None:
        self.tags.append(f"declaration {data}")


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(text: str) -> None:
    parsed = Tags(element("p", text, ["in a list", text], title=text))
    assert parsed.tags == ["p"]
    assert parsed.attributes == [("title", showable(text))]


@given(st.text(), st.text())
def test_any_text_comes_back_as_it_was(text: str, attribute: str) -> None:
    markup = element("p", text, data_x=attribute)
    assert Tags(markup).tags == ["p"]
    assert Tags(markup).attributes == [("data-x", showable(attribute))]
    inner = markup[markup.index(">") + 1 : -len("</p>")]
    assert unescape(inner) == showable(text)


def test_a_character_that_no_file_can_hold_is_replaced() -> None:
    assert element("p", "a\ud800\x00b").encode() == "<p>a\ufffd\ufffdb</p>".encode()


def test_lines_end_in_one_way() -> None:
    assert showable("a\r\nb\rc\n") == "a\nb\nc\n"


def test_attributes_are_left_out_when_there_is_nothing_to_say() -> None:
    assert element("a", class_="b", href=None, hidden=False, open=True, data_n=0) == '<a class="b" open data-n="0"></a>'


def test_elements_that_have_no_end() -> None:
    assert joined(element("br"), 1, None, "&") == "<br>1&amp;"


@pytest.mark.parametrize("name", ["", "a b", "p>", "on<"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        element(name)
    with pytest.raises(ValueError, match="no name"):
        element("p", **{f"{name}x>": 1})


def test_a_style_sheet_cannot_end_its_element() -> None:
    assert style_sheet("a > b {}") == "<style>a > b {}</style>"
    with pytest.raises(ValueError, match="end its element"):
        style_sheet("</style><script>")


def test_a_document_has_a_type() -> None:
    assert document(Markup("<html></html>")) == "<!doctype html>\n<html></html>\n"
