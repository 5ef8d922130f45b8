"""Limits the requests and tokens of a minute. Pure; time is an argument."""

from typing import Final

from schemas.units import MINUTE_MS

BURST_MS: Final = 10_000
"""Part of a minute's limit that may be used at once after a pause. Endpoints apply their limits to less than a minute, too."""


class Bucket:
    """A token bucket: it fills with time and empties with use. It may be overdrawn, and then all requests wait."""

    def __init__(self, per_minute: float) -> None:
        """Starts full."""
        self._per_ms = per_minute / MINUTE_MS
        self._most = self._per_ms * BURST_MS
        self._level = self._most
        self._at_ms: float | None = None

    def wait_ms(self, now_ms: float, amount: float) -> float:
        """Returns the time until `amount` is available, or the whole bucket if that is less."""
        self._fill(now_ms)
        return max(0.0, (min(amount, self._most) - self._level) / self._per_ms)

    def take(self, amount: float) -> None:
        """Takes an amount, even if it is not available yet. A negative amount is given back."""
        self._level = min(self._most, self._level - amount)

    def _fill(self, now_ms: float) -> None:
        if self._at_ms is not None:
            self._level = min(self._most, self._level + max(0.0, now_ms - self._at_ms) * self._per_ms)
        self._at_ms = now_ms if self._at_ms is None else max(self._at_ms, now_ms)


class RateLimit:
    """Limits requests and tokens a minute together. Reservations are served in their order."""

    def __init__(self, requests_per_minute: int, tokens_per_minute: int) -> None:
        """Starts with a full burst of both."""
        self._requests = Bucket(requests_per_minute)
        self._tokens = Bucket(tokens_per_minute)

    def reserve(self, now_ms: float, tokens: int, count: int, patience_ms: float) -> list[float] | None:
        """Places for requests that belong together.

        Args:
            now_ms: The time.
            tokens: How many each has at most.
            count: How many requests.
            patience_ms: How long they can wait.

        Returns:
            How long each has to wait; None when that is too long for one of them, and then none has a place.
        """
        waits_ms: list[float] = []
        for _ in range(count):
            waits_ms.append(max(self._requests.wait_ms(now_ms, 1), self._tokens.wait_ms(now_ms, tokens)))
            self._take(1, tokens)
        if waits_ms[-1] > patience_ms:  # the last one waits longest
            self._take(-count, -count * tokens)
            return None
        return waits_ms

    def correct(self, reserved: int, used: int, repeats: int) -> None:
        """A request is over: it had `used` tokens, where `reserved` were taken, and was repeated so often."""
        self._take(repeats, used - reserved)

    def give_back(self, tokens: int) -> None:
        """A request with a place was not sent."""
        self._take(-1, -tokens)

    def _take(self, requests: int, tokens: int) -> None:
        self._requests.take(requests)
        self._tokens.take(tokens)
