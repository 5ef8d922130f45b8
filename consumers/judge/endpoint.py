"""One OpenAI-compatible endpoint: requests, replies within bounds, and what its errors mean."""

import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import httpx2
import openai
import structlog
from openai import AsyncOpenAI
from pydantic import BaseModel, Field, ValidationError

from consumers.judge.prompts import JudgePrompt
from consumers.judge.reply import Reply, ReplyFault, RequestTries
from consumers.judge.settings import KEY_PLACE, JudgeSettings
from schemas.closed_sets import TrialOutcome
from schemas.judging import TokenUse
from schemas.units import MS_PER_SECOND

# The HTTP transport below the endpoint's client: it counts requests, and bounds replies before the
# client reads them.
#
# The client decompresses, follows redirects and keeps cookies as the endpoint asks. So it gets
# replies with only the status, the pause before a retry, and a body of bounded size: there is
# nothing to follow, keep or decompress.

MAX_REPLY_BYTES: Final = 1_000_000
"""Largest reply that is read. An answer with the most tokens that the settings allow has half of
it, and a usual one 2 kB. Each request in flight may take this much memory.
"""
_KEPT_HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry")
"""Headers that the client needs for its retries."""
_PLAIN_ENCODINGS: Final = ("", "identity")

CURRENT_DELIVERY: Final[ContextVar[RequestTries]] = ContextVar("current_delivery")
"""Delivery of the request of the running task. The client has no parameter to pass it through."""


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Returns bounded replies, and notes in `CURRENT_DELIVERY` how far each try of a
    request got.
    """

    def __init__(self, network: httpx2.AsyncBaseTransport) -> None:
        self._network = network

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends one try and returns its reply, with the body read to its end or dropped.

        Raises:
            httpx2.TransportError: The network failed, or the endpoint broke HTTP.
        """
        delivery = CURRENT_DELIVERY.get()
        delivery.tries += 1
        number = delivery.tries

        async def note(event: str, details: dict[str, Any]) -> None:
            # CONNECT is what a proxy is asked first; the question is not in it.
            if (
                event.endswith(".send_request_headers.started")
                and details["request"].method != b"CONNECT"
            ):
                delivery.departed.add(number)

        request.extensions["trace"] = note
        request.headers["accept-encoding"] = "identity"
        response = await self._network.handle_async_request(request)
        try:
            body = await _bounded_body(response, delivery)
        finally:
            await response.aclose()
        kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        return httpx2.Response(response.status_code, headers=kept, content=body)

    async def aclose(self) -> None:
        """Ends all connections."""
        await self._network.aclose()


def client_for(
    base_url: str, max_connections: int, network: httpx2.AsyncBaseTransport | None = None
) -> httpx2.AsyncClient:
    """Returns an HTTP client for one endpoint, through the proxy of the environment if there is
    one.

    Args:
        base_url: The endpoint.
        max_connections: Most connections at a time.
        network: Stands in for the connections, in tests.
    """
    if network is None:
        limits = httpx2.Limits(
            max_connections=max_connections, max_keepalive_connections=max_connections
        )
        network = httpx2.AsyncHTTPTransport(limits=limits, proxy=_proxy_for(httpx2.URL(base_url)))
    return httpx2.AsyncClient(transport=BoundedTransport(network), follow_redirects=False)


def _proxy_for(url: httpx2.URL) -> str | None:
    """Returns the proxy by `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, which the
    client ignores with a transport.
    """
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(url.host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


async def _bounded_body(response: httpx2.Response, delivery: RequestTries) -> bytes:
    """Reads the body as it was sent. If it is compressed or too large, notes that and returns
    nothing.
    """
    if response.headers.get("content-encoding", "").strip().lower() not in _PLAIN_ENCODINGS:
        delivery.faults.add("compressed")
        return b""
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) > MAX_REPLY_BYTES:
            delivery.faults.add("too_large")
            return b""
    return bytes(body)


# The OpenAI-compatible endpoint: one request gives one reply, also if it fails.
#
# The official client retries failed requests by itself, after growing random pauses or after the
# pause of `Retry- After`. So nothing else here retries. The reply has the number of tries.
#
# Of an endpoint's answers, only the status and the code of an error are logged, because other parts
# may repeat the question or the key.

log = structlog.get_logger()

_STATUS_REDIRECT: Final = 300
_STATUS_CLIENT_ERROR: Final = 400
_STATUS_REQUEST_TIMEOUT: Final = 408
_STATUS_CONFLICT: Final = 409
_STATUS_SERVER_ERROR: Final = 500
_MAX_CHOICES: Final = 128
"""Most choices in a reply by the interface; one is asked for."""
_ERROR_CODE: Final = re.compile(r"[A-Za-z_]{1,64}")
"""Form of an error's code that is logged, such as `model_not_found`. Other texts might contain the
key or words of a call.
"""

_NOT_READ: Final[Mapping[ReplyFault, tuple[str, str]]] = MappingProxyType(
    {
        "too_large": (
            f"a reply has more than {MAX_REPLY_BYTES} bytes; it was dropped",
            "Check that judge.base_url is an OpenAI-compatible endpoint, and see what it answers.",
        ),
        "compressed": (
            "a reply is compressed although it was asked for without; it was dropped",
            "Switch compression off at the endpoint of judge.base_url, or at the proxy before it.",
        ),
    }
)
"""Message of each fault: what happened, and what to do."""


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _CachedTokens(BaseModel):
    cached_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _CachedTokens | None = None


class _Completion(BaseModel):
    """The used part of a chat completion, validated, because the client returns the endpoint's
    reply unchecked.
    """

    choices: list[_Choice] = Field(min_length=1, max_length=_MAX_CHOICES)
    usage: Any = None


class Endpoint:
    """The client of one endpoint."""

    def __init__(
        self,
        settings: JudgeSettings,
        api_key: str,
        network: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._logged: set[object] = set()
        self._client = AsyncOpenAI(
            api_key=api_key,
            base_url=settings.base_url,
            default_headers={
                name: text.get_secret_value().replace(KEY_PLACE, api_key)
                for name, text in settings.headers.items()
            },
            default_query=settings.query,
            max_retries=settings.max_retries,
            http_client=client_for(settings.base_url, settings.max_concurrent_requests, network),
        )
        # loads a good part of the library
        self._create = self._client.chat.completions.with_raw_response.create

    async def ask(
        self, question: JudgePrompt, timeout_seconds: float, delivery: RequestTries
    ) -> Reply:
        """See `Asks.ask`. Retries failures, so only the caller's deadline bounds its duration."""
        began = time.monotonic()
        CURRENT_DELIVERY.set(delivery)
        text: str | None = None
        tokens: TokenUse | None = None
        try:
            raw = await self._create(**self._parameters(question), timeout=timeout_seconds)
            outcome, text, tokens = _read(raw.content, delivery)
        except openai.APITimeoutError:
            outcome = TrialOutcome.TIMED_OUT
        except openai.APIConnectionError:
            outcome = TrialOutcome.UNAVAILABLE
        except openai.APIStatusError as error:
            outcome = self._of_status(error, delivery)
        # the client fails on a reply: that must not end the role
        except Exception as error:  # noqa: BLE001
            outcome = TrialOutcome.UNAVAILABLE
            self._log_not_understood(error)
        self._log_not_read(delivery)
        return Reply(
            outcome,
            text,
            tokens,
            max(1, delivery.tries),
            round((time.monotonic() - began) * MS_PER_SECOND),
        )

    async def close(self) -> None:
        """Closes the client, as `Asks.close` says."""
        await self._client.close()

    def _of_status(self, error: openai.APIStatusError, delivery: RequestTries) -> TrialOutcome:
        status = error.status_code
        if status == openai.RateLimitError.status_code:
            return TrialOutcome.RATE_LIMITED
        if status >= _STATUS_SERVER_ERROR or status in (_STATUS_REQUEST_TIMEOUT, _STATUS_CONFLICT):
            return TrialOutcome.UNAVAILABLE
        what_to_do = "Look at the key, the model's name and judge.base_url."
        if _STATUS_REDIRECT <= status < _STATUS_CLIENT_ERROR:
            delivery.faults.add("redirected")
            what_to_do = (
                "Set judge.base_url to the address where the endpoint itself answers. Redirects "
                "are not followed: they would take what the people of a call say to another place."
            )
        if self._is_first(status):
            is_word = isinstance(error.code, str) and _ERROR_CODE.fullmatch(error.code)
            log.error(
                "judge_request_rejected",
                status=status,
                code=error.code if is_word else None,
                model=self._settings.model,
                what_happens_now="such questions stay unscored (rejected)",
                what_to_do=what_to_do,
            )
        return TrialOutcome.REJECTED

    def _log_not_understood(self, error: Exception) -> None:
        if self._is_first(type(error)):
            log.error(
                "judge_reply_not_understood",
                error=type(error).__name__,
                model=self._settings.model,
                what_happens_now=(
                    "such requests count as failed, so their questions may stay unscored "
                    "(unavailable)"
                ),
                what_to_do=(
                    "See what the endpoint of judge.base_url answers. If that is in order, report "
                    "a fault of callgauge."
                ),
            )

    def _log_not_read(self, delivery: RequestTries) -> None:
        for fault in sorted(delivery.faults & _NOT_READ.keys()):
            if self._is_first(fault):
                what_happened, what_to_do = _NOT_READ[fault]
                log.error(
                    "judge_reply_not_read",
                    what_happened=what_happened,
                    model=self._settings.model,
                    what_happens_now="such answers count as unreadable",
                    what_to_do=what_to_do,
                )

    def _is_first(self, trouble: object) -> bool:
        """Whether this fault is new. A person must fix it, so one log line about it is enough."""
        if trouble in self._logged:
            return False
        self._logged.add(trouble)
        return True

    def _parameters(self, question: JudgePrompt) -> dict[str, Any]:
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


def _read(body: bytes, delivery: RequestTries) -> tuple[TrialOutcome, str | None, TokenUse | None]:
    try:
        completion = _Completion.model_validate_json(body)
    except ValidationError:
        return TrialOutcome.UNREADABLE, None, None
    tokens = _tokens_in(completion.usage, delivery)
    choice = completion.choices[0]
    if choice.message.refusal is not None or choice.finish_reason == "content_filter":
        return TrialOutcome.REFUSED, choice.message.refusal, tokens
    outcome = TrialOutcome.TRUNCATED if choice.finish_reason == "length" else TrialOutcome.ANSWERED
    return outcome, choice.message.content, tokens


def _tokens_in(usage: Any, delivery: RequestTries) -> TokenUse | None:
    """Returns the endpoint's token count; None when there is none or it is not a count."""
    if usage is None:
        return None
    try:
        counted = _Usage.model_validate(usage)
    except ValidationError:
        delivery.faults.add("token_count")
        return None
    cached = counted.prompt_tokens_details.cached_tokens if counted.prompt_tokens_details else None
    return TokenUse(
        prompt=counted.prompt_tokens, cached=cached or 0, answer=counted.completion_tokens
    )
