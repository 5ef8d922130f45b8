"""The console in a real browser, on a real broker: a call appears and grows, can be reached by
keyboard, and every view can be used.

The calls are replayed while the pages are open. What they say is hostile in one of them.
"""

import re
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import httpx2 as httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import DESKTOP, HEIGHT, PHONE, complaints_of, violations
from tests.browser.test_report_page import LETTERINGS_ON_LETTERINGS, STICKING_OUT
from tests.integration import conftest as integration
from tests.integration.processes import Process, ran, started, wait_for
from tests.support.calls.report_calls import recorded, wire_line

bootstrap = integration.bootstrap

HOSTILE = "<img src=x onerror=alert(1)>"
SPEED = "5"
TURNS = 20
"""With this speed such a call takes 25 s: time to open its page, and not much more."""
_ADDRESS = re.compile(r"console_listens.*?address=(\S+)")


class Console(NamedTuple):
    """A running console.

    Attributes:
        address: Of its first page.
        folder: Where calls to replay are kept.
        environment: Of the processes that share its topics.
    """

    address: str
    folder: Path
    environment: dict[str, str]

    def replays(
        self, name: str, *, text: str = "hello", turns: int = 3, speed: str = "max"
    ) -> AbstractContextManager[Process]:
        """Replays a call in a process of its own."""
        file = self.folder / f"{name}.jsonl"
        file.write_text(wire_line(recorded(text, conversation_id=name, turns=turns)))
        log = self.folder / f"{name}.log"
        return started(log, "replay", str(file), "--keep-ids", "--speed", speed, **self.environment)


@pytest.fixture(scope="module")
def console(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """Every role, and two calls that are over: one of them hostile."""
    folder = tmp_path_factory.mktemp("console")
    environment = integration.variables(
        bootstrap,
        f"t{uuid.uuid4().hex[:8]}.",
        console__port="0",
        history__folder=str(folder / "history"),
    )
    ran("topics", "create", **environment)
    with started(folder / "run.log", "run", **environment) as process:
        found = wait_for(
            lambda: f"the console in:\n{process.text}", lambda: _ADDRESS.search(process.text), 30
        )
        made = Console(f"{found[1].rstrip('/')}/", folder, environment)
        for name, text in (("hostile", HOSTILE), ("calm", "hello")):
            with made.replays(name, text=text) as replayed:
                wait_for("the replay of a call", lambda: not replayed.is_running, 30)
        past = f"{made.address}past?text="
        wait_for("past calls", lambda: httpx.get(past).text.count('name="id"') == 2, 60)
        yield made


class Opened(NamedTuple):
    """A page, its width, and what the browser complained of."""

    page: Page
    width: int
    complaints: list[str]


@pytest.fixture(params=[PHONE, DESKTOP])
def seen(request: pytest.FixtureRequest, console: Console, browser: Browser) -> Iterator[Opened]:
    """The page of running calls."""
    page = browser.new_page(
        viewport={"width": request.param, "height": HEIGHT}, reduced_motion="reduce"
    )
    complaints = complaints_of(page)
    page.goto(console.address)
    yield Opened(page, request.param, complaints)
    page.close()


def test_a_call_appears_grows_and_ends(seen: Opened, console: Console) -> None:
    """It is listed by itself; its page has more and more turns, and keeps open what was opened; at
    the end it says so.
    """
    page, name = seen.page, f"grows-{seen.width}"
    with console.replays(name, turns=TURNS, speed=SPEED):
        page.get_by_title(name).click()
        expect(page.get_by_role("heading", name=f"Call {name}")).to_be_visible()
        expect(page.get_by_text("The call is running.")).to_be_visible()
        expect(page.locator(".figures > div").first).to_contain_text("so far")
        expect(page.locator("#call-t2")).to_be_attached()
        turns = page.locator("#call-transcript .turn").count()
        assert turns < TURNS
        page.get_by_role("heading", name="Figures").click()
        why = page.locator(".figures details").nth(1)
        why.locator("summary").click()
        expect(page.locator("#call-transcript .turn").nth(turns)).to_be_attached()
        assert why.get_attribute("open") is not None
        expect(page.get_by_text("The call is over and its scores are final.")).to_be_visible()
    assert why.get_attribute("open") is not None
    expect(page.locator("#call-t5")).to_be_attached()
    expect(page.locator(".figures")).to_contain_text("over 3.50 s")
    assert seen.complaints == []


def test_it_is_used_by_keyboard_alone(seen: Opened, console: Console) -> None:
    page, name = seen.page, f"keys-{seen.width}"
    with console.replays(name, turns=TURNS, speed=SPEED):
        expect(page.get_by_title(name)).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("nothing like this")
        expect(page.get_by_text("No call like this runs now.")).to_be_visible()
        expect(page).to_have_url(re.compile(r"text=nothing\+like\+this"))
        page.keyboard.press("Control+a")
        page.keyboard.type(name)
        expect(page.locator("#calls > tr:not(.group)")).to_have_count(1)
        page.keyboard.press("Escape")
        page.keyboard.press("p")
        expect(page.locator("#link")).to_have_text("paused")
        page.keyboard.press("p")
        expect(page.locator("#link")).to_have_text("live")
        page.keyboard.press("j")
        expect(page.locator("#calls > tr.chosen")).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name=f"Call {name}")).to_be_visible()
    assert seen.complaints == []


def test_a_call_is_labelled_by_keyboard(seen: Opened, console: Console) -> None:
    page, note = seen.page, f"heard {HOSTILE} at {seen.width}"
    page.goto(f"{console.address}calls/hostile")
    page.get_by_text("Label this call").focus()
    for key in ("Enter", "Tab", "f", "p", "Tab"):
        page.keyboard.press(key)
    page.keyboard.type(note)
    page.keyboard.press("Tab")
    page.keyboard.type("ada")
    page.keyboard.press("Enter")
    expect(page.locator("#call-labels")).to_contain_text(f"fp: {note}")
    expect(page.locator("#call-labels")).to_contain_text("ada, ")
    assert f"fp: {note}" in " ".join(ran("call", "hostile", **console.environment).split()), (
        "the topic has it"
    )
    page.get_by_text("Label this call").click()
    page.get_by_label("Label", exact=True).fill("fp")
    page.get_by_label("Your name").fill("ada")
    page.get_by_role("button", name="Remove").click()
    expect(page.locator("#call-labels")).to_have_count(0)
    assert seen.complaints == []


def test_the_forms_of_past_calls_and_of_versions_are_sent(seen: Opened, console: Console) -> None:
    """Enter in a field asks the question: it does not change the address alone."""
    page = seen.page
    page.goto(f"{console.address}past")
    expect(page.locator('tbody [name="id"]').first).to_be_visible()
    page.get_by_role("searchbox").fill("unheard-of")
    page.keyboard.press("Enter")
    expect(page.locator('tbody [name="id"]')).to_have_count(0)
    assert "text=unheard-of" in page.url
    page.goto(f"{console.address}versions")
    page.locator("details.lots").evaluate("each => { each.open = true; }")
    page.locator("#filter input").first.fill("unheard-of")
    page.keyboard.press("Enter")
    expect(page.get_by_text("unheard-of").first).to_be_visible()
    assert seen.complaints == []


def test_what_a_call_says_stays_text(seen: Opened, console: Console) -> None:
    page = seen.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{console.address}calls/hostile")
    expect(page.locator("#call-t1").get_by_text(HOSTILE).first).to_be_visible()
    assert page.locator("main :is(img, script, iframe)").count() == 0
    assert {url.startswith((console.address, "data:")) for url in asked} == {True}
    assert seen.complaints == []


def test_what_was_known_at_a_moment_is_shown(seen: Opened, console: Console) -> None:
    page = seen.page
    size = page.viewport_size
    name = f"earlier-{size and size['width']}"
    with console.replays(name, speed=SPEED) as replayed:
        wait_for("the replay of a call", lambda: not replayed.is_running, 30)
    page.goto(f"{console.address}calls/{name}")
    all_turns = page.locator("#call-transcript .turn").count()
    assert all_turns > 1
    page.get_by_label("What was known at").focus()
    page.keyboard.press("Home")
    expect(
        page.get_by_text(re.compile(r"As it was known \d+ s after its first event\."))
    ).to_be_visible()
    assert page.locator("#call-transcript .turn").count() < all_turns
    page.get_by_role("button", name="Back to now").click()
    expect(page.locator("#call-transcript .turn")).to_have_count(all_turns)
    assert seen.complaints == []


ROW = "#calls a"
VIEWS = {
    "now": ("", ROW),
    "wallboard": ("?wall=1", ROW),
    "filtered": ("?text=nobody&agent=a", "h1"),
    "call": ("calls/hostile", "h1"),
    "unknown": ("calls/nobody", "h1"),
    "past": ("past", "tbody a"),
    "found-words": ("past?since=1h&text=hello&agent=unknown", "h1"),
    "no-past-call": ("past?agent=nobody", "h1"),
    "versions": ("versions", "h1"),
    "bad-times": ("bad-times", "h1"),
    "two-lots": ("versions?a_until=0s&b_since=1h", ".verdict"),
    "not-understood": ("past?where=waits+%3E", "[role=alert]"),
    "compared": ("compare?id=hostile&id=calm", "tbody th"),
    "beside-the-median": ("compare?id=hostile", "tbody th"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_fits_and_axe_has_no_complaint(
    console: Console, browser: Browser, tmp_path: Path, view: str
) -> None:
    path, shown = VIEWS[view]
    with console.replays(f"view-{view}", turns=TURNS, speed=SPEED):
        is_usable(browser, f"{console.address}{path}", tmp_path / view, shown)


def test_the_form_for_a_token_fits_too(console: Console, browser: Browser, tmp_path: Path) -> None:
    locked = console.environment | {"CALLGAUGE_CONSOLE__TOKEN": "a-token-of-many-characters"}
    with started(tmp_path / "locked.log", "run", "--roles", "console", **locked) as process:
        found = wait_for(
            lambda: f"the console in:\n{process.text}", lambda: _ADDRESS.search(process.text), 30
        )
        is_usable(browser, found[1], tmp_path / "login", "input[name=token]")


def is_usable(browser: Browser, address: str, picture: Path, shown: str) -> None:
    """Fails if axe-core complains of a page, or something does not fit. Pictures are left in the
    folder of the test, to be looked at.

    The scripts of axe-core are no part of the page, so this browser takes them in spite of its
    policy.
    """
    for width in (PHONE, DESKTOP):
        page = browser.new_page(viewport={"width": width, "height": HEIGHT}, bypass_csp=True)
        page.goto(address)
        expect(page.locator(shown).first).to_be_visible()
        page.screenshot(path=f"{picture}-{width}.png")
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=f"{picture}-{width}-{scheme}-whole.png", full_page=True)
            assert violations(page) == []
        wide, room = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= room
        assert (page.evaluate(STICKING_OUT), page.evaluate(LETTERINGS_ON_LETTERINGS)) == ([], [])
        page.close()
