"""What a transcript says of one turn beside its words: how long the stages took, and the tokens that were used."""

from collections.abc import Mapping
from typing import Final, NamedTuple

PRICE_DIGITS: Final = 12
"""Decimals of a price: a token costs some millionths, and sums of such numbers have noise far behind."""


class TokenUsage(NamedTuple):
    """Tokens of one model in one turn. `input_tokens` are those that came from no cache and went into none.

    Prices are in USD, as far as somebody says them.
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
        """Both together."""
        both = [mine + its for mine, its in zip(self, other, strict=True)]
        tokens, prices = both[:4], both[4:]
        return TokenUsage(*map(int, tokens), *(round(price, PRICE_DIGITS) for price in prices))


class TurnMetrics(NamedTuple):
    """Seconds by ElevenLabs' name of the stage (`convai_*`), of the user's entry and the agent's; tokens by model.

    A stage that nobody measured is not there. A model whose name nobody says is the empty text.
    """

    seconds: Mapping[str, float]
    usage: Mapping[str, TokenUsage]
