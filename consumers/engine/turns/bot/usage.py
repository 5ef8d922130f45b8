"""The numbers of one turn for a transcript: stage latencies, and tokens."""

from collections.abc import Mapping
from typing import Final, NamedTuple

PRICE_DIGITS: Final = 12
"""Decimals of a price: a token costs some millionths, and sums of such numbers have noise far behind."""


class TokenUsage(NamedTuple):
    """Tokens of one model in one turn. `input_tokens` neither came from a cache nor went into one.

    Prices are in USD; 0 where no source has one.
    """

    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    input_price: float = 0.0
    cache_read_price: float = 0.0
    cache_write_price: float = 0.0
    output_price: float = 0.0

    def plus(self, other: "TokenUsage") -> "TokenUsage":
        """The sum of both."""
        both = [mine + its for mine, its in zip(self, other, strict=True)]
        tokens, prices = both[:4], both[4:]
        return TokenUsage(*map(int, tokens), *(round(price, PRICE_DIGITS) for price in prices))


class TurnMetrics(NamedTuple):
    """Seconds by ElevenLabs' name of the stage (`convai_*`), for the user's and the agent's entry; tokens by model.

    A stage without a measurement is absent. A model without a name is the empty text.
    """

    seconds: Mapping[str, float]
    usage: Mapping[str, TokenUsage]
