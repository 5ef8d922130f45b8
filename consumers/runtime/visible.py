"""Text that did not come from our code, before a person sees it on a terminal, in a log or on a
page.
"""

import re
from typing import Final

_SUSPECT: Final = re.compile(r"[^ -~]")


def visible(text: str, kept: str = "") -> str:
    r"""The text with an escape in place of each character that cannot be seen: what was said must
    not control a terminal.

    Control characters clear a screen or fake lines, marks of direction turn what follows around,
    and characters without a width make two ids look alike.

    Args:
        text: Any text. What is visible already stays as it is, so a second call changes nothing.
        kept: Characters that stay although they cannot be seen, for example line breaks.

    Example:
        >>> visible("a\x1b[31mb\n\u202ec")
        'a\\x1b[31mb\\n\\u202ec'
        >>> visible("fine, ключ 😀")
        'fine, ключ 😀'
    """
    if text.isprintable():
        return text
    return _SUSPECT.sub(lambda found: _escaped(found.group(), kept), text)


def _escaped(char: str, kept: str) -> str:
    return char if char.isprintable() or char in kept else char.encode("unicode_escape").decode()
