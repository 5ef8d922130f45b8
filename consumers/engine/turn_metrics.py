"""What a transcript says of one turn beside its words: how long the stages took, and the tokens that were used."""

from collections.abc import Mapping
from typing import NamedTuple


class TokenUsage(NamedTuple):
    """Tokens of one model in one turn. `input_tokens` are those that came from no cache and went into none."""

    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0

    def plus(self, other: "TokenUsage") -> "TokenUsage":
        """Both together."""
        return TokenUsage(*(mine + its for mine, its in zip(self, other, strict=True)))


class TurnMetrics(NamedTuple):
    """Seconds by ElevenLabs' name of the stage (`convai_*`), of the user's entry and the agent's; tokens by model.

    A stage that nobody measured is not there. A model whose name nobody says is the empty text.
    """

    seconds: Mapping[str, float]
    usage: Mapping[str, TokenUsage]
