"""HTML and SVG as nested calls. Every value except `Markup` is text and is escaped here, so no text of a call becomes markup."""

import re
from collections.abc import Iterable
from html import escape
from typing import Final

_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")
_LINE_END: Final = re.compile(r"\r\n?")
_UNSHOWABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that HTML forbids, and halves of surrogate pairs, which no file can hold."""
_VOID: Final = frozenset({"br", "link", "meta"})

Attribute = str | int | float | bool | None
"""None and False leave the attribute out, True is one without a value."""


class Markup(str):
    """Text that is markup already. Only this module makes it."""

    __slots__ = ()


Child = str | int | Iterable["Child"] | None
"""The content of an element: markup, text, several of them, or nothing."""

NOTHING: Final = Markup()


def element(tag: str, *children: Child, **attributes: Attribute) -> Markup:
    """One element.

    Args:
        tag: Its name.
        children: Its content; texts are escaped.
        attributes: Underscores in names become hyphens; one at the end is dropped (`class_`).

    Example:
        >>> element("p", "1 < 2", class_="sum", data_turn=3)
        '<p class="sum" data-turn="3">1 &lt; 2</p>'
    """
    start = "".join([_required_name(tag), *(_attribute(name, value) for name, value in attributes.items())])
    if tag in _VOID:
        return Markup(f"<{start}>")
    return Markup(f"<{start}>{joined(*children)}</{tag}>")


def joined(*children: Child) -> Markup:
    """Several pieces one after the other; texts among them are escaped.

    Example:
        >>> joined("a & b", [element("br"), 1], None)
        'a &amp; b<br>1'
    """
    return Markup("".join(map(_rendered, children)))


def style_sheet(text: str) -> Markup:
    """A style element. Its text is ours and cannot be escaped, so it may not end the element.

    Raises:
        ValueError: It would.
    """
    if "</" in text:
        raise ValueError("a style sheet with '</' in it would end its element early: write it otherwise")
    return Markup(f"<style>{text}</style>")


def document(root: Markup) -> Markup:
    """A whole document around its root element."""
    return Markup(f"<!doctype html>\n{root}\n")


def showable(text: str) -> str:
    """The text with lines that end in one way, and a replacement for each character that no page can hold.

    Example:
        >>> showable("a" + chr(0) + "b") == "a" + chr(0xFFFD) + "b"
        True
    """
    return _UNSHOWABLE.sub("\ufffd", _LINE_END.sub("\n", text))


def _rendered(child: Child) -> str:
    match child:
        case None:
            return ""
        case Markup():
            return child
        case str():
            return escape(showable(child))
        case int():
            return str(child)
    return "".join(map(_rendered, child))


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    written = _required_name(name.rstrip("_").replace("_", "-"))
    return f" {written}" if value is True else f' {written}="{escape(showable(str(value)))}"'


def _required_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an element or an attribute")
    return name
