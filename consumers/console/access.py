"""Who may open a page: a token, by header or by a cookie after a form, or the user that a trusted
proxy names.
"""

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Final

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from consumers.console.settings import ConsoleSettings
from consumers.runtime.http import given_token, is_loopback, is_token
from consumers.runtime.process import SetupError

COOKIE: Final = "callgauge"
SESSION_SECONDS: Final = 12 * 3_600
"""How long a person stays let in: a working day."""
MAX_FORM_BYTES: Final = 4_096
"""Most bytes of the form with the token."""
MAX_PAUSING: Final = 32
"""Wrong tokens whose answers wait at a time; further ones are answered at once, with 429."""
MAX_ADDRESSES: Final = 1_000
"""Addresses whose wrong tokens are counted; the one that has been counted longest makes room."""
LINE_SECONDS: Final = 60.0
"""Least time from one log line about an address to the next."""

log = structlog.get_logger()


class Access:
    """Decides who may read, and names them for the log."""

    def __init__(self, settings: ConsoleSettings, now_s: Callable[[], float] = time.time) -> None:
        """Stores the settings.

        Raises:
            SetupError: The address is beyond this machine, and nothing keeps anybody out.
        """
        self._token = settings.token
        self._user_header = settings.user_header
        self._now_s = now_s
        self.is_open = settings.token is None and settings.user_header is None
        self._is_local = is_loopback(settings.host)
        if self.is_open and not self._is_local and not settings.is_public:
            raise SetupError(
                f"Console: everybody who reaches {settings.host} could read calls, so it does not "
                "start. Set console.token, or console.user_header behind a proxy that logs people "
                "in, or console.is_public if that is what you want."
            )

    def user_of(self, request: Request) -> str | None:
        """Who asks, in a word; None for somebody who may not read."""
        if self._user_header is not None and (user := request.headers.get(self._user_header)):
            return user[:200]
        if self._token is not None:
            given = given_token(request.headers.get("authorization", "").encode("latin-1"))
            if given is not None and is_token(given, self._token):
                return "token"
            return "token" if self._is_session(request.cookies.get(COOKIE, "")) else None
        return "anybody" if self.is_open else None

    def is_wrong(self, request: Request) -> bool:
        """Whether the request has a token in its header that is not ours."""
        given = given_token(request.headers.get("authorization", "").encode("latin-1"))
        return self._token is not None and bool(given) and not is_token(given or b"", self._token)

    def author_of(self, request: Request, given: str = "") -> str | None:
        """Returns the author of a label or note: the user that the proxy names, otherwise the name
        in the form. None if strangers can read this console, because then nobody may write.
        """
        if self._user_header is not None and request.headers.get(self._user_header):
            return self.user_of(request)
        return None if self.is_open and not self._is_local else given.strip()

    def let_in(self, given: str, to: str, *, is_https: bool) -> Response | None:
        """The answer to the right token, with a cookie, which a browser that came by https never
        sends without; None for a wrong one.
        """
        if self._token is None or not is_token(given.encode(), self._token):
            return None
        until = str(int(self._now_s()) + SESSION_SECONDS)
        answer = RedirectResponse(to, status_code=303)
        answer.set_cookie(
            COOKIE,
            f"{until}.{self._signed(until)}",
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=is_https,
            path="/",
        )
        return answer

    @property
    def has_form(self) -> bool:
        """Whether a person can give a token."""
        return self._token is not None

    def _is_session(self, cookie: str) -> bool:
        until, _, signature = cookie.partition(".")
        if not until.isascii() or not until.isdigit() or not signature.isascii():
            return False
        return (
            hmac.compare_digest(signature, self._signed(until)) and int(until[:20]) > self._now_s()
        )

    def _signed(self, until: str) -> str:
        key = b"" if self._token is None else self._token.get_secret_value().encode()
        return hmac.new(key, f"console session until {until}".encode(), sha256).hexdigest()


class WrongTokens:
    """The answers to wrong tokens: each takes a while, so that guessing is slow, and an address has
    a log line a minute at most.
    """

    def __init__(
        self, pause_seconds: Callable[[], float], now: Callable[[], float] = time.monotonic
    ) -> None:
        """`pause_seconds` is how long an answer takes."""
        self._pause_seconds = pause_seconds
        self._now = now
        self._pausing = 0
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """By address when a line was written last, and how many came since."""

    async def pause(self, address: str) -> bool:
        """Counts a wrong token, and waits; false, at once, if too many wait already."""
        since, count = self._seen.get(address, (-LINE_SECONDS, 0))
        count += 1
        if self._now() - since >= LINE_SECONDS:
            log.warning("wrong_token", role="console", address=address, times=count)
            since, count = self._now(), 0
        self._seen[address] = since, count
        if len(self._seen) > MAX_ADDRESSES:
            self._seen.popitem(last=False)
        if self._pausing >= MAX_PAUSING:
            return False
        self._pausing += 1
        try:
            await asyncio.sleep(self._pause_seconds())
        finally:
            self._pausing -= 1
        return True


def is_of_another_site(request: Request) -> bool:
    """Whether a page of another site made a browser ask, by anything but a link: a picture, a
    script, a frame, a form or `fetch`.

    Such a page cannot read the answer, but it can have very many made. Programs and old browsers
    send none of these headers.
    """
    headers = request.headers
    if headers.get("sec-fetch-site") not in {"cross-site", "same-site"}:
        return False
    is_link = (
        headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )
    return request.method not in {"GET", "HEAD"} or not is_link


def came_by_https(request: Request) -> bool:
    """Whether the browser asked by https, itself or of a proxy in front. Who claims it falsely gets
    a cookie that is sent less often.
    """
    return "https" in (
        request.url.scheme,
        request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower(),
    )
