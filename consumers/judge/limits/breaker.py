"""Leaves an endpoint alone that fails all the time. Pure; time is an argument.

A few lines instead of a library: those on offer keep a clock and locks of their own, and this has to be tested by the time
that is passed in.
"""


class Breaker:
    """Opens after so many failures in a row; after a pause one question may try again, and its answer decides."""

    def __init__(self, failures: int, pause_ms: int) -> None:
        """Starts closed.

        Args:
            failures: So many in a row open it.
            pause_ms: How long nobody is asked then.
        """
        self._most_failures = failures
        self._pause_ms = pause_ms
        self._failures = 0
        self._retry_at_ms: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the endpoint counts as broken."""
        return self._retry_at_ms is not None

    def wait_ms(self, now_ms: int) -> int:
        """How long until somebody may be asked; 0 for now."""
        return 0 if self._retry_at_ms is None else max(0, self._retry_at_ms - now_ms)

    def begin(self, now_ms: int) -> None:
        """A question is put. While open this is the one try; who comes after it waits for its end, or another pause."""
        if self._retry_at_ms is not None:
            self._retry_at_ms = now_ms + self._pause_ms

    def succeeded(self) -> None:
        """The endpoint answered."""
        self._failures = 0
        self._retry_at_ms = None

    def failed(self, now_ms: int) -> None:
        """The endpoint did not answer."""
        self._failures += 1
        if self._failures >= self._most_failures:
            self._retry_at_ms = now_ms + self._pause_ms
