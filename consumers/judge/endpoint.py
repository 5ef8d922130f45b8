"""The OpenAI-compatible endpoint: one request, one reply, whatever happens to it.

The official client repeats what failed, by itself: after a pause that grows and varies, or after the one that `Retry-After`
names, and a reply says how often. So nothing else here repeats requests.
"""

import time
from typing import Any, Final

import openai
import structlog
from openai import AsyncOpenAI
from pydantic import BaseModel, Field, ValidationError

from consumers.judge.questions import Question
from consumers.judge.reply import Reply
from consumers.judge.settings import JudgeSettings
from schemas.judging import TokenUse, TrialOutcome

log = structlog.get_logger()

_STATUS_REQUEST_TIMEOUT: Final = 408
_STATUS_CONFLICT: Final = 409
_STATUS_SERVER_ERROR: Final = 500
_RETRY_COUNT_HEADER: Final = "x-stainless-retry-count"
"""With it the client says in each request how often it was sent before."""


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _CachedTokens(BaseModel):
    cached_tokens: int | None = Field(None, ge=0)


class _Usage(BaseModel):
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(0, ge=0)
    prompt_tokens_details: _CachedTokens | None = None


class _Completion(BaseModel):
    """As much of a chat completion as is read, checked: what the client returns is whatever the endpoint sent."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


class Endpoint:
    """The client of one endpoint."""

    def __init__(self, settings: JudgeSettings, api_key: str) -> None:
        """Keeps a client; nothing is connected before the first question."""
        self._settings = settings
        self._told: set[int] = set()
        self._client = AsyncOpenAI(api_key=api_key, base_url=settings.base_url, max_retries=settings.max_retries)
        self._create = self._client.chat.completions.with_raw_response.create  # loads a good part of the library

    async def ask(self, question: Question, timeout_seconds: float) -> Reply:
        """As in `Asks`. Repeats what fails, so that only the caller's deadline bounds how long it takes."""
        began = time.monotonic()
        text: str | None = None
        tokens: TokenUse | None = None
        try:
            raw = await self._create(**self._parameters(question), timeout=timeout_seconds)
            request = raw.http_request
            outcome, text, tokens = _read(raw.content)
        except openai.APITimeoutError as error:
            outcome, request = TrialOutcome.TIMED_OUT, error.request
        except openai.APIConnectionError as error:
            outcome, request = TrialOutcome.UNAVAILABLE, error.request
        except openai.APIStatusError as error:
            outcome, request = _of_status(error.status_code), error.request
            if outcome is TrialOutcome.REJECTED:
                self._tell_rejected(error)
        requests = 1 + int(request.headers[_RETRY_COUNT_HEADER])
        return Reply(outcome, text, tokens, requests, round((time.monotonic() - began) * 1_000))

    async def close(self) -> None:
        """As in `Asks`."""
        await self._client.close()

    def _tell_rejected(self, error: openai.APIStatusError) -> None:
        """Once for each status: it is a setting that must be changed. What the endpoint says may repeat the question."""
        if error.status_code in self._told:
            return
        self._told.add(error.status_code)
        log.error(
            "judge_request_rejected", status=error.status_code, code=error.code, model=self._settings.model,
            now="such questions stay unscored (rejected)", mend="look at the key, the model's name and judge.base_url",
        )  # fmt: skip

    def _parameters(self, question: Question) -> dict[str, Any]:
        settings = self._settings
        parameters: dict[str, Any] = {
            "model": settings.model,
            "messages": [
                {"role": "system", "content": question.system},
                {"role": "user", "content": question.user},
            ],
            settings.answer_limit_name: settings.max_answer_tokens,
        }
        if settings.temperature is not None:
            parameters["temperature"] = settings.temperature
        if question.schema is not None:
            described = {"name": "answer", "strict": True, "schema": question.schema}
            parameters["response_format"] = {"type": "json_schema", "json_schema": described}
        return parameters


def _read(body: bytes) -> tuple[TrialOutcome, str | None, TokenUse | None]:
    try:
        completion = _Completion.model_validate_json(body)
    except ValidationError:
        return TrialOutcome.UNREADABLE, None, None
    usage, tokens = completion.usage, None
    if usage is not None:
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
        tokens = TokenUse(prompt=usage.prompt_tokens, cached=cached or 0, answer=usage.completion_tokens)
    choice = completion.choices[0]
    if choice.message.refusal is not None or choice.finish_reason == "content_filter":
        return TrialOutcome.REFUSED, choice.message.refusal, tokens
    outcome = TrialOutcome.TRUNCATED if choice.finish_reason == "length" else TrialOutcome.ANSWERED
    return outcome, choice.message.content, tokens


def _of_status(status: int) -> TrialOutcome:
    if status == openai.RateLimitError.status_code:
        return TrialOutcome.RATE_LIMITED
    if status >= _STATUS_SERVER_ERROR or status in (_STATUS_REQUEST_TIMEOUT, _STATUS_CONFLICT):
        return TrialOutcome.UNAVAILABLE
    return TrialOutcome.REJECTED
