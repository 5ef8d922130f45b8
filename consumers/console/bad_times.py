"""The times in which versions of agents were bad, as they were found. Pure: they outlive the quarter
of an hour in which the page of running calls tells of them.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from consumers.console.agents import PAUSE_MS, AgentNow
from schemas.scores.latency_stages import Stage
from schemas.scores.trouble import TroubleKind
from schemas.units import MINUTE_MS

MAX_BAD_TIMES: Final = 500
"""Bad times that are kept, those found last: 250 kB of a file, weeks of an installation that has
ten a day.
"""
MOST_WHOSE: Final = 3
"""Tenants and environments that a bad time names."""


class BadTime(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A time in which a version of an agent was bad, as `AgentNow` told it last.

    Attributes:
        agent: Its name.
        version: Its version; null where its calls name none.
        bad_since_ms: As in `AgentNow`.
        bad_until_ms: When it ended; null while it lasts.
        ended_with_call: As in `AgentNow`.
        affected_began_ms: As in `AgentNow`.
        calls_affected: As in `AgentNow`.
        calls_meanwhile: As in `AgentNow`.
        tenants_affected: The tenants that had most of those calls, each with how many.
        tenants_more: How many more tenants had some.
        environments_affected: Their environments, that with the most first.
        before: As in `AgentNow`.
        trouble: As in `AgentNow`.
        stage: As in `AgentNow`.
        seen_ms: When that was, by the broker's clock in epoch ms.
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
    tenants_more: int = 0
    environments_affected: tuple[str, ...] = ()
    before: tuple[tuple[TroubleKind | None, Stage | None], ...] = ()
    trouble: TroubleKind | None = None
    stage: Stage | None = None
    seen_ms: int


_Key = tuple[str, str | None, int]
"""Agent, version, and since when it was bad."""
_FILE: Final = msgspec.json.Decoder(list[BadTime])
_AS_IT_IS: Final = tuple(
    name
    for name in BadTime.__struct_fields__
    if name not in {"tenants_affected", "tenants_more", "environments_affected", "seen_ms"}
)


class BadTimes:
    """The bad times that were found, in this process and in those before it.

    Attributes:
        edition: Changes with what is worth writing to a file.
    """

    def __init__(self) -> None:
        self.edition = 0
        self._kept: OrderedDict[_Key, BadTime] = OrderedDict()
        self._told: dict[_Key, dict[str, Any]] = {}
        """The bad times that agents tell of now, as they told them last."""
        self._written_ms: dict[_Key, int] = {}
        """When those that last were worth writing last."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def newest_first(self) -> list[BadTime]:
        """All of them."""
        return sorted(self._kept.values(), key=lambda each: -each.bad_since_ms)

    def note(self, agents: Iterable[AgentNow], now_ms: int, *, is_silent: bool = False) -> None:
        """Takes in all versions of agents as they are now; while no event of any call comes, nobody
        knows whether a bad one still is.
        """
        bad = {
            (each.agent, each.version, each.bad_since_ms): each
            for each in agents
            if each.bad_since_ms is not None
        }
        known = {(each.agent, each.version) for each in agents}
        for key in [each for each in self._told if each not in bad]:
            self._leave(key, is_none=key[:2] in known)
        for key, each in bad.items():
            told = _told(each)
            if self._told.get(key) != told or (each.bad_until_ms is None and not is_silent):
                self._put(key, told, now_ms)
        while len(self._kept) > MAX_BAD_TIMES:
            self._kept.popitem(last=False)

    def _put(self, key: _Key, told: dict[str, Any], now_ms: int) -> None:
        if key in self._told and key not in self._kept:
            return  # newer ones took its place
        before = self._kept.get(key)
        self._kept[key] = now = BadTime(**told, seen_ms=now_ms)
        self._told[key] = told
        lasts = now.bad_until_ms is None
        has_turned = before is None or lasts != (before.bad_until_ms is None)
        if has_turned or not lasts or now_ms - self._written_ms.get(key, 0) >= MINUTE_MS:
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
        until_ms = time.seen_ms if time.bad_until_ms is None else time.bad_until_ms
        if is_none and (time.bad_until_ms is None or until_ms - time.bad_since_ms < PAUSE_MS):
            del self._kept[key]
        else:
            self._kept[key] = structs.replace(time, bad_until_ms=until_ms)
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


def _told(each: AgentNow) -> dict[str, Any]:
    tenants = [whose for whose in each.tenants_affected if whose[0] != "unknown"]
    places = [name for name in each.environments_affected if name != "unknown"]
    return {name: getattr(each, name) for name in _AS_IT_IS} | {
        "tenants_affected": tuple(tenants[:MOST_WHOSE]),
        "tenants_more": max(0, len(tenants) - MOST_WHOSE),
        "environments_affected": tuple(places[:MOST_WHOSE]),
    }
