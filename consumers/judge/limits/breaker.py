"""A circuit breaker: stops requests to an endpoint that keeps failing. Pure; time is an argument.

It is a few lines instead of a library, because libraries have clocks and locks of their own, and tests pass the time in.
"""


class Breaker:
    """Opens after a number of failures in a row. After a pause one question may try again, and its result decides."""

    def __init__(self, failures: int, pause_ms: int) -> None:
        """Starts closed.

        Args:
            failures: Failures in a row that open it.
            pause_ms: How long no question is put while it is open.
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
        """Returns the time until a question may be put, in ms; 0 for now."""
        return 0 if self._retry_at_ms is None else max(0, self._retry_at_ms - now_ms)

    def begin(self, now_ms: int) -> None:
        """Notes that a question is put. While open, it is the only try; others wait for its end or another pause."""
        if self._retry_at_ms is not None:
            self._retry_at_ms = now_ms + self._pause_ms

    def succeeded(self) -> None:
        """Notes an answer of the endpoint."""
        self._failures = 0
        self._retry_at_ms = None

    def failed(self, now_ms: int) -> None:
        """Notes a failure of the endpoint."""
        self._failures += 1
        if self._failures >= self._most_failures:
            self._retry_at_ms = now_ms + self._pause_ms
