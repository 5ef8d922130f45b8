"""The times in which versions of agents were bad, as they were found. Pure: they outlive the quarter
of an hour in which the page of running calls tells of them.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import structs

from consumers.console.agents import PAUSE_MS, AgentNow, BadTime
from schemas.units import MINUTE_MS

MAX_BAD_TIMES: Final = 500
"""Bad times that are kept, those found last: 250 kB of a file, weeks of an installation that has
ten a day.
"""
_Key = tuple[str, str | None, int]
"""Agent, version, and since when it was bad."""
_FILE: Final = msgspec.json.Decoder(list[BadTime])


class BadTimes:
    """The bad times that were found, in this process and in those before it.

    Attributes:
        edition: Changes with what is worth writing to a file.
    """

    def __init__(self) -> None:
        self.edition = 0
        self._kept: OrderedDict[_Key, BadTime] = OrderedDict()
        self._told: dict[_Key, BadTime] = {}
        """The bad times that agents tell of now, as they told them last."""
        self._written_ms: dict[_Key, int] = {}
        """When those that last were worth writing last."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def newest_first(self) -> list[BadTime]:
        """All of them."""
        return sorted(self._kept.values(), key=lambda each: -each.since_ms)

    def note(self, agents: Iterable[AgentNow], now_ms: int, *, is_silent: bool = False) -> None:
        """Takes in all versions of agents as they are now; while no event of any call comes, nobody
        knows whether a bad one still is.
        """
        bad = {_key(each.bad): each.bad for each in agents if each.bad is not None}
        known = {(each.agent, each.version) for each in agents}
        for key in [each for each in self._told if each not in bad]:
            self._leave(key, is_none=key[:2] in known)
        for key, told in bad.items():
            if self._told.get(key) != told or (told.lasts and not is_silent):
                self._put(key, told, now_ms)
        while len(self._kept) > MAX_BAD_TIMES:
            self._kept.popitem(last=False)

    def _put(self, key: _Key, told: BadTime, now_ms: int) -> None:
        if key in self._told and key not in self._kept:
            return  # newer ones took its place
        before = self._kept.get(key)
        self._kept[key] = now = structs.replace(told, seen_ms=now_ms)
        self._told[key] = told
        has_turned = before is None or now.lasts != before.lasts
        if has_turned or not now.lasts or now_ms - self._written_ms.get(key, 0) >= MINUTE_MS:
            self._written_ms[key] = now_ms
            self.edition += 1

    def _leave(self, key: _Key, *, is_none: bool) -> None:
        """Lets go of one that its agent tells no more. It was none, if the agent is there: it was too
        short, or events of its calls were only missing. Otherwise it ended when it was seen last.
        """
        del self._told[key]
        self._written_ms.pop(key, None)
        time = self._kept.get(key)
        if time is None:
            return
        until_ms = time.seen_ms if time.until_ms is None else time.until_ms
        if is_none and (time.lasts or until_ms - time.since_ms < PAUSE_MS):
            del self._kept[key]
        else:
            self._kept[key] = structs.replace(time, until_ms=until_ms)
        self.edition += 1

    def encode(self) -> bytes:
        """All of them, for a file."""
        return msgspec.json.encode(list(self._kept.values()))

    def read(self, value: bytes) -> None:
        """Takes in those of an earlier process; one that lasted then ended when it was seen last,
        as far as anybody knows.

        Raises:
            msgspec.DecodeError: They were written by something else.
        """
        for each in _FILE.decode(value)[-MAX_BAD_TIMES:]:
            until_ms = each.seen_ms if each.until_ms is None else each.until_ms
            self._kept[_key(each)] = structs.replace(each, until_ms=until_ms)


def _key(time: BadTime) -> _Key:
    return time.agent, time.version, time.since_ms
