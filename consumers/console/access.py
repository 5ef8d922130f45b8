"""Who may open a page: a token, by header or by a cookie after a form, or the user that a trusted proxy names."""

import hmac
import ipaddress
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from consumers.console.settings import ConsoleSettings
from consumers.runtime.http import given_token, is_token
from consumers.runtime.process import OperatorError

COOKIE: Final = "callgauge"
SESSION_SECONDS: Final = 12 * 3_600
"""How long a person stays let in: a working day."""
MAX_FORM_BYTES: Final = 4_096
"""Most bytes of the form with the token."""
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


class ConsoleOpenError(OperatorError):
    """Everybody in the network could read calls. A person has to decide."""

    exit_code = 2


class Access:
    """Decides who may read, and names them for the log."""

    def __init__(self, settings: ConsoleSettings, now_s: Callable[[], float] = time.time) -> None:
        """Stores the settings.

        Raises:
            ConsoleOpenError: The address is beyond this machine, and nothing keeps anybody out.
        """
        self._token = settings.token
        self._user_header = settings.user_header
        self._host = settings.host
        self._now_s = now_s
        self.is_open = settings.token is None and settings.user_header is None
        self._is_local = is_loopback(settings.host)
        if self.is_open and not self._is_local and not settings.is_public:
            raise ConsoleOpenError(
                f"Console: everybody who reaches {settings.host} could read calls, so it does not start. Set console.token_file, or "
                "console.user_header behind a proxy that logs people in, or console.is_public if that is what you want."
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
        return "anybody" if self.is_open and self._is_ours(request) else None

    def author_of(self, request: Request, given: str = "") -> str | None:
        """Returns the author of a label or note: the user that the proxy names, otherwise the name in the form. None if strangers can
        read this console, because then nobody may write.
        """
        if self._user_header is not None and request.headers.get(self._user_header):
            return self.user_of(request)
        return None if self.is_open and not self._is_local else given.strip()

    def let_in(self, given: str, to: str, *, is_https: bool) -> Response | None:
        """The answer to the right token, with a cookie, which a browser that came by https never sends without; None for a wrong one."""
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
        return hmac.compare_digest(signature, self._signed(until)) and int(until[:20]) > self._now_s()

    def _signed(self, until: str) -> str:
        key = b"" if self._token is None else self._token.get_secret_value().encode()
        return hmac.new(key, f"console session until {until}".encode(), sha256).hexdigest()

    def _is_ours(self, request: Request) -> bool:
        """Whether a request to this machine alone was meant for it: a strange page could have a name of its own lead here."""
        if not self._is_local:
            return True
        host = request.headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        return name in _LOOPBACK_NAMES or name == self._host.lower() or is_loopback(name)


def is_from_our_page(request: Request) -> bool:
    """Whether a form was on a page of ours: a browser names the origin of each form, and no page can change what it names."""
    headers = request.headers
    origin = urlsplit(headers.get("origin", "")).netloc
    ours = {headers.get("host", ""), headers.get("x-forwarded-host", "")}
    return headers.get("sec-fetch-site") == "same-origin" or (origin != "" and origin in ours)


def came_by_https(request: Request) -> bool:
    """Whether the browser asked by https, itself or of a proxy in front. Who claims it falsely gets a cookie that is sent less often."""
    return "https" in (
        request.url.scheme,
        request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower(),
    )


def is_loopback(host: str) -> bool:
    """Whether the address is this machine's alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("console.example.com")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
