"""Finds the conversation ids that end with a part of one."""

from typing import Final

LEAST_CHARS: Final = 4
"""Characters of the end of an id that are looked for: fewer would find many calls."""


def is_wanted(conversation_id: str, wanted: str) -> bool:
    """Whether the id is the wanted one, or ends with it."""
    return conversation_id == wanted or (len(wanted) >= LEAST_CHARS and conversation_id.endswith(wanted))
