"""Frames of pipecat by their meaning. Versions of pipecat differ in their classes, so these are
looked up by name.
"""

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from pipecat.frames import frames as known
from pipecat.frames.frames import Frame

T = TypeVar("T")


def classes(*names: str) -> tuple[type[Frame], ...]:
    """Returns the classes of frames with these names, as far as this version of pipecat
    has them.
    """
    found = (getattr(known, name, None) for name in names)
    return tuple(each for each in found if isinstance(each, type))


HAS_USER_TURN_TEXTS: Final = bool(classes("LLMContextUserTurnFrame"))
"""Whether the context aggregator reports the text of the user's turns: from 1.13 on. Before, each
transcription is a message.
"""


class ByFrame(dict[type, "T | None"], Generic[T]):
    """A value for each class of frames and its subclasses. It learns, so that looking up costs one
    step.
    """

    def __init__(self, by_name: Mapping[str, T]) -> None:
        """Keeps the values of the classes that this version has."""
        super().__init__()
        self._known = {each: value for name, value in by_name.items() for each in classes(name)}

    def __missing__(self, kind: type) -> "T | None":
        found = next((self._known[each] for each in kind.__mro__ if each in self._known), None)
        self[kind] = found
        return found
