"""Settings of the judge role: the endpoint, the rates and the budgets."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator

from consumers.judge.limits import Allowance, Prices
from consumers.runtime.settings import MAX_HEADER_SECRET_CHARS, HeaderSecret

_Money = Annotated[float, Field(ge=0, allow_inf_nan=False)]

KEY_PLACE: Final = "{api_key}"
"""The place of the key in a header, so that the key itself can stay in its file."""


def _fits_a_header_line(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not (text.isascii() and text.isprintable() and 0 < len(text) <= MAX_HEADER_SECRET_CHARS):
        raise ValueError(
            f"expected 1 to {MAX_HEADER_SECRET_CHARS} printable ASCII characters: it is one header "
            "line"
        )
    return value


_HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]
_HeaderText = Annotated[SecretStr, AfterValidator(_fits_a_header_line)]
_QueryText = Annotated[str, Field(min_length=1, max_length=200)]

AnswerForm = Literal["structured", "grade"]
"""The forms in which a model is asked to answer."""


class JudgeSettings(BaseModel):
    """Settings of answering questions. Money is in the currency of the prices, whose defaults are
    those of the default model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    enabled: bool = Field(
        default=True, description="whether the model is asked at all; without a key it never is"
    )
    base_url: str = Field(
        "https://api.openai.com/v1",
        pattern=r"^https?://[^\s@]+$",
        max_length=500,
        description="where the OpenAI-compatible endpoint is, up to /v1 or its like",
    )
    api_key: HeaderSecret | None = Field(
        None,
        examples=["file:/run/secrets/openai-key"],
        description="the endpoint's key; without one no model is asked",
    )
    headers: Annotated[dict[_HeaderName, _HeaderText], Field(max_length=20)] = Field(
        {},
        description="headers of each request besides the client's own, for "
        "example of a gateway; in a "
        "value, {api_key} stands for "
        "the key",
    )
    query: Annotated[dict[_QueryText, _QueryText], Field(max_length=20)] = Field(
        {}, description="parameters behind the address of each request, as Azure's api-version"
    )
    model: str = Field("gpt-4.1", min_length=1, max_length=256, description="name of the model")
    temperature: float | None = Field(
        0.0,
        ge=0,
        le=2,
        description="sampling temperature; default leaves it to the model, as some models demand",
    )
    answer_form: AnswerForm = Field(
        "structured",
        description="structured: answers by JSON schema; grade: for endpoints that know no schemas",
    )
    max_answer_tokens: int = Field(1_000, gt=0, le=100_000, description="most tokens of one answer")
    answer_limit_name: Literal["max_completion_tokens", "max_tokens"] = Field(
        "max_completion_tokens",
        description="what the endpoint calls that bound; older ones say max_tokens",
    )
    request_timeout_ms: int = Field(
        20_000,
        gt=0,
        le=600_000,
        description="silence in ms after which one try of a request counts as failed",
    )
    max_retries: int = Field(
        2,
        ge=0,
        le=10,
        description="repeats of a request that failed or was put off, within its deadline",
    )
    max_concurrent_requests: int = Field(
        16, gt=0, le=1_000, description="requests on their way at the same time"
    )
    max_requests_per_minute: int = Field(500, gt=0, description="requests sent in a minute")
    max_tokens_per_minute: int = Field(
        200_000, gt=0, description="tokens sent and asked for in a minute"
    )
    price_prompt: _Money = Field(2.0, description="price of a million prompt tokens")
    price_cached: _Money = Field(
        0.5, description="price of a million prompt tokens that the endpoint had cached"
    )
    price_answer: _Money = Field(8.0, description="price of a million answer tokens")
    budget_per_call: _Money = Field(1.0, description="most money for one call")
    budget_per_agent_hour: _Money = Field(
        20.0, description="most money for the calls of one agent in an hour of the clock"
    )
    budget_per_hour: _Money = Field(
        50.0, description="most money in an hour of the clock, of this process"
    )
    sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description=(
            "share of the calls that are judged, 0 to 1; a call is judged throughout or never"
        ),
    )
    keeps_raw_answers: bool = Field(
        default=False, description="whether verdicts have the whole answer of each trial, redacted"
    )

    @field_validator("temperature", mode="before")
    @classmethod
    def _default_is_none(cls, value: object) -> object:
        return None if value == "default" else value

    @property
    def is_on(self) -> bool:
        """Whether the model is asked at all."""
        return self.enabled and self.api_key is not None

    @property
    def prices(self) -> Prices:
        """Prices of tokens."""
        return Prices(self.price_prompt, self.price_cached, self.price_answer)

    @property
    def allowance(self) -> Allowance:
        """Limits of spending."""
        return Allowance(self.budget_per_call, self.budget_per_agent_hour, self.budget_per_hour)
