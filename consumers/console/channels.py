"""What a page shows, as parts of markup, and what a reader lacks of it.

There is one state for all readers of the same page, and no queue: a reader gets the parts that are
newer than what it has, whether it is one step behind or comes back after a minute. A reader that
does not read costs nothing.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Final, TypeVar

Boxes = Mapping[str, Mapping[str, str]]
"""By the id of an element of the page, its children in order: by the id of each its markup, as a
text of JSON (`encoded`).
"""
_Shown = TypeVar("_Shown", str, list[str])
_Known = tuple[_Shown, int]
"""A part that is shown, and the version in which it changed last."""
MAX_EVENTS: Final = 8
"""Events of one version that are kept, one for each version that readers come from."""


def encoded(boxes: Mapping[str, Mapping[str, str]]) -> Boxes:
    """The same with each markup as a text of JSON. Long ones take milliseconds: make them where
    nobody waits.
    """
    return {
        box: {part: json.dumps(markup) for part, markup in parts.items()}
        for box, parts in boxes.items()
    }


def message(
    parts: Mapping[str, str], order: Mapping[str, list[str]], facts: Mapping[str, object]
) -> str:
    """Parts of a page by their ids, encoded, and the order of the parts of boxes, as one JSON
    object.
    """
    written = ",".join([f"{json.dumps(part)}:{markup}" for part, markup in parts.items()])
    rest = json.dumps({"order": order, **facts}, separators=(",", ":"))
    return f'{{"parts":{{{written}}},{rest[1:]}'


def whole_message(boxes: Boxes) -> str:
    """All parts of a page, as one JSON object."""
    parts = {part: markup for children in boxes.values() for part, markup in children.items()}
    return message(parts, {box: list(children) for box, children in boxes.items()}, {})


class Channel:
    """The newest state of one page.

    Attributes:
        name: Differs from that of every other channel: a version of another one says nothing of
            this.
        version: Grows with each change; 0 before the first state.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 0
        self._parts: dict[tuple[str, str], _Known[str]] = {}
        self._orders: dict[str, _Known[list[str]]] = {}
        self._events: dict[int, bytes] = {}
        self._facts: dict[str, object] = {}
        self._has_news = asyncio.Event()

    def update(self, boxes: Boxes, **facts: object) -> None:
        """Takes the new state; readers are woken only if it differs from the last one, or if there
        are facts.

        Args:
            boxes: The whole state.
            facts: Values for the scripts of the page that belong to this version.
        """
        version = self.version + 1
        parts = {
            (box, part): _known(self._parts.get((box, part)), markup, version)
            for box, children in boxes.items()
            for part, markup in children.items()
        }
        orders = {
            box: _known(self._orders.get(box), list(children), version)
            for box, children in boxes.items()
        }
        if facts or any(since == version for _, since in (*parts.values(), *orders.values())):
            self.version, self._facts = version, facts
            self._parts, self._orders = parts, orders
            self._events.clear()
            self._has_news.set()
            self._has_news = asyncio.Event()

    def event(self, since: int = 0) -> bytes:
        """What a reader lacks that has the version `since`, as a server-sent event; 0 gives
        everything.
        """
        since = since if 0 < since <= self.version else 0
        event = self._events.get(since)
        if event is None:
            parts = {part: markup for (_, part), (markup, at) in self._parts.items() if at > since}
            order = {box: ids for box, (ids, at) in self._orders.items() if at > since}
            event = (
                f"id: {self.name}.{self.version}\ndata: {message(parts, order, self._facts)}\n\n"
            ).encode()
            if len(self._events) < MAX_EVENTS:
                self._events[since] = event
        return event

    async def newer_than(self, version: int) -> int:
        """Waits until there is a newer version, and returns it."""
        while self.version == version:
            await self._has_news.wait()
        return self.version


def _known(before: _Known[_Shown] | None, now: _Shown, version: int) -> _Known[_Shown]:
    return before if before is not None and before[0] == now else (now, version)
