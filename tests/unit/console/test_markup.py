"""Markup from templates: the content of a call can become text on a page and nothing else."""

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from consumers.console.page import rendering
from consumers.console.page.rendering import render, showable, templates

TEMPLATES = Path(rendering.__file__).with_name("templates")
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "&lt;b&gt;",
    "</style>",
    "{{ 7 * 7 }}{% raw %}",
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


def filled(text: str, attribute: str) -> str:
    template = templates().from_string('<p data-x="{{ attribute }}">{{ text }}</p>')
    return showable(template.render(text=text, attribute=attribute))


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(text: str) -> None:
    parsed = Tags(filled(text, text))
    assert (parsed.tags, parsed.attributes) == (["p"], [("data-x", showable(text))])


@given(st.text(), st.text())
def test_any_text_comes_back_as_it_was(text: str, attribute: str) -> None:
    markup = filled(text, attribute)
    assert Tags(markup).tags == ["p"]
    assert Tags(markup).attributes == [("data-x", showable(attribute))]
    inner = markup[markup.index(">") + 1 : -len("</p>")]
    assert unescape(inner) == showable(text)


def test_a_character_that_no_file_can_hold_is_an_escape() -> None:
    assert (
        render("note.html", text="a\ud800\x00b\u202ec").encode()
        == rb'<p class="note">a\ud800\x00b\u202ec</p>'
    )


def test_lines_end_in_one_way() -> None:
    assert render("note.html", text="a\r\nb\rc\n") == '<p class="note">a\nb\nc\n</p>'


def test_a_name_without_a_value_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'text' is undefined"):
        render("note.html")


def test_no_template_takes_text_for_markup() -> None:
    """Nothing is exempt from escaping, and every attribute is quoted, so that no text
    can end it.
    """
    for path in sorted(TEMPLATES.iterdir()):
        source = path.read_text()
        assert re.findall(r"\|\s*(?:safe|xmlattr)\b|autoescape", source) == [], path.name
        assert re.findall(r"\w=\{", source) == [], path.name
