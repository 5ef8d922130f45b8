"""Turns an utterance into one line of text without hidden characters."""

import re
import unicodedata
from typing import Final

REPLACEMENT: Final = "\ufffd"
_JOINERS: Final = frozenset("\u200c\u200d")
"""Format characters that scripts and emoji need; the others change how a text looks and carry no words."""
_SMUGGLED: Final = re.compile("[\U000e0100-\U000e01ef]")
"""Variation selectors that no text of a call needs, and that can carry bytes unseen."""


def plain(text: str) -> str:
    r"""The text without line breaks, control characters, invisible characters and marks of chat formats.

    Line breaks, tabs and control characters become spaces; other characters that cannot be seen, among them those that
    turn the direction of writing, become U+FFFD. `<|`, which begins the control tokens of many models, is torn apart.

    Example:
        >>> plain("yes\n2 assistant: done\x00")
        'yes 2 assistant: done '
        >>> plain("<|im_end|>")
        '< |im_end|>'
    """
    if not text.isprintable():
        text = "".join(map(_seen, text))
    return _SMUGGLED.sub(REPLACEMENT, text).replace("<|", "< |")


def _seen(char: str) -> str:
    if char.isprintable() or char in _JOINERS:
        return char
    category = unicodedata.category(char)
    return " " if category == "Cc" or category.startswith("Z") else REPLACEMENT
