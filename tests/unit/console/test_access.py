"""Who may read: by token, cookie, a proxy's header, or on this machine alone; everybody else is
refused.
"""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.requests import Request

from consumers.console.access import COOKIE, SESSION_SECONDS, Access
from consumers.console.settings import ConsoleSettings
from consumers.runtime.http import is_loopback
from consumers.runtime.process import SetupError
from tests.support.known import some

TOKEN = "correct-horse-battery"  # noqa: S105  # of a test
NOW_S = 1_790_000_000.0


def access(now_s: float = NOW_S, **settings: object) -> Access:
    return Access(ConsoleSettings.model_validate(settings), lambda: now_s)


def asked(headers: Mapping[str, str] | None = None) -> Request:
    raw = [
        (name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()
    ]
    return Request(
        {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": raw}
    )


def cookie_of(door: Access) -> str:
    answer = some(door.let_in(TOKEN, "./", is_https=False))
    return answer.headers["set-cookie"].partition(";")[0].partition("=")[2]


def with_cookie(value: str) -> Request:
    return asked({"cookie": f"{COOKIE}={value}"})


def test_the_token_opens_by_header() -> None:
    door = access(token=TOKEN)
    assert door.user_of(asked({"authorization": f"Bearer {TOKEN}"})) == "token"
    for wrong in ("Bearer no", "Bearer ", f"Basic {TOKEN}", TOKEN, "Bearer \xff\xfe"):
        assert door.user_of(asked({"authorization": wrong})) is None
    assert door.user_of(asked()) is None


def test_the_form_gives_a_cookie_that_scripts_and_other_sites_cannot_use() -> None:
    door = access(token=TOKEN)
    answer = some(door.let_in(TOKEN, "./calls/a", is_https=False))
    assert answer.status_code == 303
    assert answer.headers["location"] == "./calls/a"
    flags = answer.headers["set-cookie"].lower()
    assert "httponly" in flags
    assert "samesite=strict" in flags
    assert "secure" not in flags, "a browser would not send it back without https"
    assert TOKEN not in answer.headers["set-cookie"]
    assert door.user_of(with_cookie(cookie_of(door))) == "token"
    for wrong in (
        "",
        "no",
        TOKEN + " ",
        "\udcff".encode("utf-8", "surrogatepass").decode("latin-1"),
    ):
        assert door.let_in(wrong, "./", is_https=False) is None


def test_a_cookie_ends_after_a_working_day_and_with_its_token() -> None:
    given = cookie_of(access(token=TOKEN))
    assert access(NOW_S + SESSION_SECONDS - 1, token=TOKEN).user_of(with_cookie(given)) == "token"
    assert access(NOW_S + SESSION_SECONDS, token=TOKEN).user_of(with_cookie(given)) is None
    assert access(token=TOKEN[:-1]).user_of(with_cookie(given)) is None
    assert access(user_header="X-User").user_of(with_cookie(given)) is None


def test_a_forged_cookie_opens_nothing() -> None:
    door = access(token=TOKEN)
    until, _, signature = cookie_of(door).partition(".")
    later = str(int(until) + 1)
    forged = [
        f"{later}.{signature}",
        f"0{until}.{signature}",
        f"{until}.{signature[:-1]}",
        f"{until}.{signature}0",
        f"{until}.",
        until,
        f".{signature}",
        f"-{until}.{signature}",
        f"{until}.{signature.upper()}",
        "9" * 4_000 + f".{signature}",
        f"{until}.\xe9",
    ]
    assert signature.upper() != signature
    assert [each for each in forged if door.user_of(with_cookie(each)) is not None] == []


@given(st.text(st.characters(max_codepoint=255, exclude_characters=";,\r\n"), max_size=100))
def test_no_cookie_is_an_error(value: str) -> None:
    assert access(token=TOKEN).user_of(with_cookie(value)) is None


def test_a_token_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(ValidationError, match="fewer than 16 characters"):
        access(token=TOKEN[:15])
    assert access(token=TOKEN[:16]).has_form


def test_a_proxy_names_the_person() -> None:
    # nothing is listened on
    door = access(user_header="X-Forwarded-User", host="0.0.0.0")  # noqa: S104
    assert door.user_of(asked({"x-forwarded-user": "ada"})) == "ada"
    assert door.user_of(asked({"x-forwarded-user": "a" * 9_000})) == "a" * 200
    assert door.user_of(asked({"x-forwarded-user": ""})) is None
    assert door.user_of(asked()) is None
    assert not door.has_form
    assert door.let_in("", "./", is_https=False) is None


def test_without_a_proxy_a_users_header_says_nothing() -> None:
    assert access(token=TOKEN).user_of(asked({"x-forwarded-user": "ada"})) is None


def test_on_this_machine_everybody_reads() -> None:
    """Who asks by another name is refused before that, by the listener."""
    assert access().user_of(asked()) == "anybody"


# nothing is listened on
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "console.example.com"])  # noqa: S104
def test_an_open_address_is_refused_unless_somebody_wants_it(host: str) -> None:
    with pytest.raises(SetupError, match=r"console\.token"):
        access(host=host)
    assert access(host=host, is_public=True).user_of(asked({"host": "any.example"})) == "anybody"
    access(host=host, token=TOKEN)
    assert not is_loopback(host)
