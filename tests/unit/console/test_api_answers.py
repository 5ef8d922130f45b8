"""Whatever is asked of the API, it answers as its description says, and never with an error of
ours.
"""

import asyncio
from collections.abc import Iterator
from threading import Thread
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.console import api
from tests.support.calls.console_calls import simulated
from tests.support.required_tools import MISSING
from tests.unit.console.test_site import Serving

schemathesis = pytest.importorskip("schemathesis", reason=f"{MISSING}schemathesis (make setup)")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

CURSORS = (
    "0",
    "x.1",
    "x." + "9" * 15,
    ".",
    "1.-1",
    "\u00b2.\u00b2",
    "a" * 10_000,
    "1.1\x00",
    "%00",
)
LONG = "x" * 10_000


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A console with one call, in a thread of its own."""
    made, loop = Serving(), asyncio.new_event_loop()
    made.calls.add(*simulated(name="known"))
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(made.listener.start(), loop).result(20)
    yield made.listener.address
    made.site.streams.close()
    asyncio.run_coroutine_threadsafe(made.listener.stop(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    loop.close()


PATHS = {
    path: methods["get"]
    for path, methods in api.openapi("1")["paths"].items()
    if not path.endswith("/stream")
}
"""A stream has no end."""
RIGHT, WRONG = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
ASKED = [
    (path, mode)
    for path, method in PATHS.items()
    for mode in (RIGHT, WRONG)
    if mode is RIGHT or method["parameters"]
]


@pytest.mark.parametrize(("path", "mode"), ASKED)
def test_each_answer_is_as_described(address: str, path: str, mode: Any) -> None:
    """To questions as the description allows them, of a call that is there and of others; and to
    questions that it does not allow.
    """
    operation = schemathesis.openapi.from_url(f"{address}{api.PREFIX}/openapi.json")[path]["GET"]

    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode), st.booleans())
    def ask(case: Any, is_known: bool) -> None:
        if is_known and mode is RIGHT and "id" in case.path_parameters:
            case.path_parameters["id"] = "known"
        answer = case.call()
        # It does not know that 414 refuses a question.
        case.validate_response(
            answer,
            excluded_checks=[checks.negative_data_rejection] if answer.status_code == 414 else [],
        )

    ask()


@pytest.mark.parametrize("path", ["calls", "calls/known", "fleet", "stream"])
def test_long_and_forged_questions_are_refused_with_a_reason(address: str, path: str) -> None:
    for query in (
        *(f"{name}={LONG}" for name in ("text", "agent", "sort", "limit", "at_ms", "none")),
        f"{LONG}=1",
        "at_ms=%00",
    ):
        answer = httpx.get(f"{address}{api.PREFIX}/{path}?{query}")
        assert answer.status_code == 422
        assert set(answer.json()) == {"type", "title", "status", "detail"}
        assert len(answer.content) < 1_000
    assert httpx.get(f"{address}{api.PREFIX}/calls/{quote(LONG)}").status_code == 414


@pytest.mark.parametrize("cursor", CURSORS)
@pytest.mark.parametrize("path", [f"{api.PREFIX}/stream", "/live/now", "/live/calls/known"])
def test_a_forged_cursor_begins_anew(address: str, path: str, cursor: str) -> None:
    headers = {b"last-event-id": cursor.encode().replace(b"\x00", b"")}
    with httpx.stream("GET", address + path, headers=headers) as answer:
        assert answer.status_code == 200
        wanted = "event: gap" if "stream" in path else "data: {"
        assert any(wanted in piece for piece in answer.iter_text())
