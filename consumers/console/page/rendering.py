"""Fills the templates of the report, in which every value except `Markup` is escaped: no text of a
call becomes markup.
"""

import re
from collections.abc import Callable, Hashable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from consumers.runtime.visible import visible
from consumers.view import words

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES: Final = Path(__file__).with_name("templates")
STYLE: Final = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
ICON: Final = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect "
    "x='1' y='2' width='9' height='5' rx='1' fill='%230072b2'/%3E%3Crect x='6' y='9' width='9' "
    "height='5' rx='1' fill='%23d55e00'/%3E%3C/svg%3E"
)
_LINE_BREAK: Final = re.compile(r"(?<=[>}])\n\s*|\n\s*(?=[<{])|\n\Z")
"""A line break beside a tag, by which people read templates: the page has none there, for browsers
show it as a space.
"""
_LINE_END: Final = re.compile(r"\r\n?")
_KEPT: Final = "\n\t\xa0\xad\u200c\u200d\u2002\u2003\u2007\u2009\u202f\u3000"
"""Line breaks, the spaces of typography, and what joins or parts letters in the scripts of Persia
and India.
"""
_FILTERS: Final = (
    words.anchor_in_words,
    words.clock,
    words.counted,
    words.duration,
    words.in_words,
    words.json_text,
    words.number,
    words.outcome,
    words.percent,
    words.seconds,
    words.seconds_if_known,
    words.time_of_day,
    words.title,
)


def render(template: str, **values: Any) -> Markup:
    """The markup that a template makes of the values; None is nothing."""
    # escaped by the template
    return Markup(showable(templates().get_template(template).render(values)))  # noqa: S704


MOST_KEPT: Final = 6_000
"""Small parts of pages that are kept: rows of running calls, and turns of calls with an open page.
They have some 2 kB each.
"""
MOST_KEPT_CHARS: Final = 4_000
"""Characters of the texts in one of them; a part with more is drawn each time, so all together have
100 MB at most.
"""


@lru_cache(maxsize=MOST_KEPT)
def kept(template: str, **values: Hashable) -> Markup:
    """What the macro `part` of a template makes of the values: a part that is mostly the same when
    a page is drawn again.

    Values are data, never markup, for markup equals its text.
    """
    return Markup(showable(_part_of(template)(**values)))  # noqa: S704  # escaped by the template


@cache
def _part_of(template: str) -> Callable[..., str]:
    macro: Callable[..., str] = templates().get_template(template).module.part  # type: ignore[attr-defined]
    return macro


def showable(text: str) -> str:
    r"""The text with lines that end in one way, and an escape for each character that a page cannot hold, or that turns it around.

    Example:
        >>> showable("a" + chr(0) + "b")
        'a\\x00b'
    """
    return visible(_LINE_END.sub("\n", text), _KEPT)


@cache
def templates() -> "Environment":
    """The templates, and the filters that write values in them; a name that has no value is an
    error.
    """
    # only commands that write a report need it
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FunctionLoader(
            lambda name: _LINE_BREAK.sub("", (_TEMPLATES / name).read_text(encoding="utf-8"))
        ),
        finalize=lambda value: "" if value is None else value,
        auto_reload=False,
    )
    made.filters |= {each.__name__: each for each in _FILTERS}
    return made
