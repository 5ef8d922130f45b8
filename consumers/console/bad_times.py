"""The times in which versions of agents were bad, as they were found. Pure: they outlive the quarter
of an hour in which the page of running calls tells of them.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct, structs

from consumers.console.agents import PAUSE_MS, AgentNow
from schemas.scores.latency_stages import Stage
from schemas.scores.trouble import TroubleKind
from schemas.units import MINUTE_MS

MAX_BAD_TIMES: Final = 500
"""Bad times that are kept, those found last: 150 kB of a file, weeks of an installation that has
ten a day.
"""


class BadTime(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A time in which a version of an agent was bad. The attributes are those of `AgentNow`, as they
    were when it was seen last.

    Attributes:
        seen_ms: When that was, by the broker's clock in epoch ms; a minute late while it lasts.
    """

    agent: str
    version: str | None = None
    bad_since_ms: int
    bad_until_ms: int | None = None
    ended_with_call: bool = False
    affected_began_ms: int | None = None
    calls_affected: int
    calls_meanwhile: int
    tenants_affected: tuple[tuple[str, int], ...] = ()
    environments_affected: tuple[str, ...] = ()
    trouble: TroubleKind | None = None
    stage: Stage | None = None
    seen_ms: int


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
        self._open: dict[_Key, int] = {}
        """Those that last, each with when it was written last."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def newest_first(self) -> list[BadTime]:
        """All of them."""
        return sorted(self._kept.values(), key=lambda each: -each.bad_since_ms)

    def note(self, agents: Iterable[AgentNow], now_ms: int) -> None:
        """Takes in all versions of agents as they are now."""
        whole = {(each.agent, each.version): each for each in agents}
        bad = {
            (*version, each.bad_since_ms): each
            for version, each in whole.items()
            if each.bad_since_ms is not None
        }
        for key in [each for each in self._kept if each not in bad and each[:2] in whole]:
            self._drop_if_none(key)
        for key, each in bad.items():
            before = self._kept.get(key)
            if before is not None and each.bad_until_ms == before.bad_until_ms is not None:
                continue  # nothing of it changes any more
            told = {name: getattr(each, name) for name in _TOLD}
            self._kept[key] = BadTime(**told, seen_ms=now_ms)
            written_ms = self._open.get(key, 0)
            if each.bad_until_ms is not None:
                self._open.pop(key, None)
                self.edition += 1
            elif now_ms - written_ms >= MINUTE_MS:
                self._open[key] = now_ms
                self.edition += 1
        while len(self._kept) > MAX_BAD_TIMES:
            self._open.pop(self._kept.popitem(last=False)[0], None)

    def _drop_if_none(self, key: _Key) -> None:
        """Drops one of which nothing is said any more, if it was none: events of its calls were only
        missing, or it was too short.
        """
        time = self._kept[key]
        lasts = key in self._open
        if lasts or (time.bad_until_ms or time.seen_ms) - time.bad_since_ms < PAUSE_MS:
            del self._kept[key]
            self._open.pop(key, None)
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
            until_ms = each.seen_ms if each.bad_until_ms is None else each.bad_until_ms
            self._kept[each.agent, each.version, each.bad_since_ms] = structs.replace(
                each, bad_until_ms=until_ms
            )


_TOLD: Final = tuple(name for name in BadTime.__struct_fields__ if name != "seen_ms")
