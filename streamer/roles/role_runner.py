"""Keeps one role running: a failed role is started again after a pause, and the log says once why.

A supervisor that restarts the process would do the same. A bare machine has no supervisor, and the end of one role would
end the other roles and the HTTP pages. So a role that has worked before is started again here: as a new member of its
group with nothing in memory, like in a new process. A role that has never worked ends the process at once, and so does a
role that fails again and again: a person has to see that.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import structlog

from consumers.runtime.process import finish_unless
from consumers.runtime.registry import Instruments
from schemas.closed_sets import RoleName

FIRST_PAUSE_SECONDS: Final = 1.0
"""From the end of a role to its next start; twice as long after each failure of a row."""
LONGEST_PAUSE_SECONDS: Final = 60.0
"""Bound of the pause: a restored right or topic is noticed within a minute."""
QUIET_SECONDS: Final = 60.0
"""A role that has worked for this long has recovered: its next failure begins a new row."""
MOST_RESTARTS: Final = 10
"""Restarts of one row, some 5 minutes of pauses, after which the process ends and its supervisor sees it."""

_DIGITS: Final = re.compile(r"\d+")

log = structlog.get_logger()


class RunsUntilStopped(Protocol):
    """A role, as its process sees it.

    Attributes:
        ready: Set when the role first does its work; cleared when it stops.
    """

    ready: asyncio.Event

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop` is set; then finishes, commits and returns. Raises its failure."""

    def problems(self) -> Sequence[str]:
        """The reasons why the role does not work now, a sentence each, for `/readyz`; waiting for the broker is one."""

    def stalled(self) -> Sequence[str]:
        """The faults that only a restart repairs, a sentence each, for `/healthz`; waiting for the broker is none."""


class RoleRunner:
    """One role; every restart creates a new object.

    Attributes:
        was_ready: Set when the role first does its work, and never cleared.
    """

    def __init__(
        self,
        name: RoleName,
        make: Callable[[], RunsUntilStopped],
        instruments: Instruments,
        may_start: Callable[[], Awaitable[None]],
        *,
        is_restarted: bool,
    ) -> None:
        """Creates the role; nothing is connected before `run`. Call it inside a running event loop.

        Args:
            name: Name of the role.
            make: Creates the role, ready to run.
            instruments: Gets the metrics of the role and the number of restarts.
            may_start: Called before each start but the first; raises the obstacle.
            is_restarted: Whether a failed role is started again. On a broker that stores nothing it cannot continue.
        """
        self.was_ready = asyncio.Event()
        self._name = name
        self._make = make
        self._instruments = instruments
        self._may_start = may_start
        self._is_restarted = is_restarted
        self._role = self._made()
        self._ready_at: float | None = None
        self._restarts = 0  # of this row
        self._failure: Exception | None = None
        self._shown = ""
        self._starts_at: float | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Runs the role until `stop` is set, again and again if need be.

        Raises:
            Exception: The failure of the role: before it ever worked, while it stopped, or too often in a row.
        """
        while True:
            try:
                if self._failure is not None:
                    await finish_unless(stop, self._asked())
                if not stop.is_set():
                    await self._run_once(stop)
            except Exception as error:  # every kind of error: a new start has none of the state that led to it
                if stop.is_set() or not self._may_go_on(error):
                    raise
                self._failure = error
            else:
                return
            self._role = self._made()  # the failed object shows nothing any more
            await self._pause(stop)

    def problems(self) -> Sequence[str]:
        """The reasons why the role does not work now, for `/readyz`. An error is named by its class: its text may be confidential."""
        if self._role.ready.is_set() or self._failure is None:
            return self._role.problems() or (() if self._role.ready.is_set() else (f"{self._name}: not ready yet",))
        when = "now" if self._starts_at is None else f"in {max(0.0, self._starts_at - time.monotonic()):.0f} s"
        return (
            f"{self._name}: ended with {type(self._failure).__name__} and starts again {when} (restart {self._restarts} of "
            f"{MOST_RESTARTS}); the log says why: role_failed",
        )

    def stalled(self) -> Sequence[str]:
        """The faults that only a restart of the process repairs, for `/healthz`; waiting for the next start is none."""
        return () if self._starts_at is not None else self._role.stalled()

    def _made(self) -> RunsUntilStopped:
        with self._instruments.registering(self._name):
            return self._make()

    async def _asked(self) -> None:
        await self._may_start()

    async def _run_once(self, stop: asyncio.Event) -> None:
        watching = asyncio.create_task(self._note_ready(self._role))
        try:
            await self._role.run(stop)
        finally:
            watching.cancel()

    async def _note_ready(self, role: RunsUntilStopped) -> None:
        await role.ready.wait()
        self._ready_at = time.monotonic()
        self.was_ready.set()
        if self._restarts:
            log.info("role_works_again", role=self._name, restarts=self._restarts)

    def _may_go_on(self, error: Exception) -> bool:
        """Whether there is another start; logs a new failure."""
        if not self._is_restarted or not self.was_ready.is_set():
            return False
        ready_at, self._ready_at = self._ready_at, None
        if ready_at is not None and time.monotonic() - ready_at >= QUIET_SECONDS:
            self._restarts, self._shown = 0, ""
        if self._restarts >= MOST_RESTARTS:
            log.error("role_given_up", role=self._name, restarts=self._restarts, what_happens_now="The process ends.")
            return False
        self._restarts += 1
        self._instruments.inc("callgauge_role_restarts_total", (self._name,))
        reason = f"{type(error).__name__}: {error}"
        # Numbers of partitions and offsets differ from one try to the next, and the reason is the same.
        if (shown := _DIGITS.sub("", reason)) != self._shown:
            self._shown = shown
            log.error(
                "role_failed",
                role=self._name,
                error=reason,
                what_happens_now=f"It is started again after a pause of {self._pause_seconds():.0f} s, {MOST_RESTARTS} times "
                "at most, with longer and longer pauses; other roles of this process go on.",
                what_to_do="Repair what the error says. The line comes again only when the reason changes; /readyz and "
                "callgauge_role_restarts_total say how it goes on.",
                # Our own errors say all there is to know.
                exc_info=None if type(error).__module__.startswith(("consumers.", "streamer.")) else error,
            )
        return True

    def _pause_seconds(self) -> float:
        return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (self._restarts - 1))

    async def _pause(self, stop: asyncio.Event) -> None:
        seconds = self._pause_seconds()
        self._starts_at = time.monotonic() + seconds
        await finish_unless(stop, asyncio.sleep(seconds))
        self._starts_at = None
