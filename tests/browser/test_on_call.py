"""What an engineer on call does with `callgauge serve` in a real browser: an agent falls silent,
and its calls are looked at.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import DESKTOP, HEIGHT, complaints_of
from tests.browser.test_console_page import is_usable
from tests.integration.processes import started
from tests.integration.test_serve import SOON, Served, address_of
from tests.support.patience import patient

SEEN_SECONDS = 5
"""After the third time that callers speak without an answer, the agent has to be the first row."""


class Caller:
    """A call whose events are sent while it goes on."""

    def __init__(self, served: Served, name: str, **labels: str) -> None:
        self._served, self._name = served, name
        self.told_at_s: float | None = None
        self.send(self._event("call_started", 0, **labels))

    def send(self, *events: dict[str, Any]) -> None:
        answer = self._served.post(list(events))
        assert answer.status_code == 202, answer.text

    def says(self, text: str, ago_ms: int = 0) -> None:
        """The caller has spoken for a second, until so long ago."""
        self.send(
            self._speech("user_speech_started", -ago_ms - 1_000),
            self._speech("user_speech_stopped", -ago_ms),
            self._event("user_message", -ago_ms, data={"content": text}),
        )

    def hears(self, text: str, ago_ms: int = 0) -> None:
        """The agent has spoken for half a second, until so long ago."""
        self.send(
            self._speech("bot_speech_started", -ago_ms - 500),
            self._event("assistant_message", -ago_ms, data={"content": text}),
            self._speech("bot_speech_stopped", -ago_ms),
        )

    def ends(self, reason: str) -> None:
        self.send(self._event("call_ended", reason=reason))

    def _event(self, kind: str, at_ms: int = 0, **more: Any) -> dict[str, Any]:
        return {
            "conversation_id": self._name,
            "type": kind,
            "timestamp": round(self._now_s() * 1_000) + at_ms,
            **more,
        }

    def _now_s(self) -> float:
        return time.time() if self.told_at_s is None else self.told_at_s

    def _speech(self, kind: str, at_ms: int) -> dict[str, Any]:
        return self._event(
            "speech_event", at_ms, data={"kind": kind, "timestamp": self._now_s() + at_ms / 1_000}
        )


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "calls"
    with started(
        tmp_path / "serve.log", "serve", "--folder", str(folder), "--port", "0", **SOON
    ) as process:
        yield Served(process, folder, address_of(process))


@pytest.fixture
def page(served: Served, browser: Browser) -> Iterator[Page]:
    """The page of running calls."""
    context = browser.new_context(
        viewport={"width": DESKTOP, "height": HEIGHT}, reduced_motion="reduce"
    )
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    complaints = complaints_of(page, 10)
    page.goto(served.address)
    expect(page.locator("#link")).to_have_text("live")
    yield page
    assert complaints == []
    context.close()


def talked(served: Served, name: str, agent: str = "desk", turns: int = 2) -> Caller:
    """A call in which every turn was answered after half a second."""
    caller = Caller(served, name, agent=agent, version="1", tenant="acme")
    caller.told_at_s = time.time()  # the waits are these, however long it takes to tell them
    for turn in range(turns):
        ago_ms = 3_000 * (turns - turn)
        caller.says(f"question {turn}", ago_ms=ago_ms - 1_500)
        caller.hears(f"answer {turn}", ago_ms=ago_ms - 2_500)
    caller.told_at_s = None
    return caller


def speaks_in_vain(callers: list[Caller]) -> None:
    for caller in callers:
        caller.says("Is anybody there?")


def test_a_mute_agent_is_the_first_row_and_its_calls_stay_when_the_callers_have_given_up(
    served: Served, page: Page, browser: Browser, tmp_path: Path
) -> None:
    well = [talked(served, f"well-{number}") for number in range(3)]
    expect(page.locator("#agents > tr")).to_have_count(1)
    expect(page.locator("#counts")).to_contain_text("No call is in trouble.")
    mute = [Caller(served, f"mute-{number}", agent="night", version="2") for number in range(2)]
    mute[0].hears("Good evening.")
    page.wait_for_timeout(1_500)  # it is over before the callers speak
    for _ in range(2):
        speaks_in_vain(mute)
        page.wait_for_timeout(3_500)  # the callers wait: a silence begins after three seconds
    speaks_in_vain(mute)
    began, first = time.monotonic(), page.locator("#agents > tr").first
    expect(first).to_contain_text("night", timeout=patient(SEEN_SECONDS) * 1_000)
    expect(first).to_contain_text("bad since")
    print(
        f"the first row {time.monotonic() - began:.1f} s after callers spoke in vain for the third "
        "time"
    )
    expect(page.locator("#counts .verdict")).to_contain_text("night 2 is bad since")
    expect(page.locator("#counts .do summary")).to_contain_text("First: Call the agent yourself")
    expect(page.locator("#line-trouble strong")).to_have_text("2")
    page.get_by_role("button", name="Copy summary").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    verdict, first_step, team, counts, kept, worst, link = copied
    assert team.startswith("Whom to ask: the team voice")
    assert re.match(r"night 2 is bad since \d\d:\d\d:\d\d.* UTC\)?: 2 of 2 callers so far", verdict)
    assert counts.startswith("5 calls running, 2 in trouble")
    assert re.fullmatch(r"Now: http\S+/\?agent=night&version=2", link)
    assert first_step.startswith("First: Call the agent yourself")
    assert re.fullmatch(r"This bad time, to keep: http\S+/bad-times#t-\d+-night-2", kept)
    assert re.fullmatch(r"Worst call: http\S+/calls/mute-\d", worst)
    open_turn_is_shown(page, f"{served.address}/calls/mute-0")
    for caller in mute:
        caller.ends("hangup")
    well[0].ends("goodbye")
    expect(page.get_by_title("well-0")).to_have_count(1)
    expect(page.locator("#counts")).to_contain_text("2 ended badly in the last 15 minutes")
    expect(page.locator("#calls")).to_contain_text("never answered")
    assert "night" in first.inner_text()
    expect(page.locator("#counts .verdict")).to_contain_text("Its last bad call ended.")
    page.get_by_role("button", name="Copy summary").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert re.search(r"Its calls: http\S+/past\?agent=night&version=2&since=\S+", copied)
    assert re.search(r"Callers to call back: http\S+/past\?agent=night\S+&said=last", copied)
    assert "Every agent is well" not in page.locator("#counts").inner_text()
    assert page.locator("#line-unanswered strong").inner_text() != "0 %"
    expect(page.locator("#line-trouble")).to_contain_text("and 2 ended badly")
    expect(page.get_by_title("well-0")).to_have_count(0)  # a good end is shown for twenty seconds
    expect(page.get_by_title("mute-0")).to_have_count(1)
    first.get_by_role("link").click()
    expect(page).to_have_url(re.compile("agent=night&version=2"))
    expect(page.locator("#line-calls strong")).to_have_text("0")
    expect(page.locator("#line-unanswered strong")).to_have_text("100 %")
    expect(page.locator("#calls > tr:not(.group)")).to_have_count(2)
    is_usable(browser, f"{served.address}/", tmp_path / "now", "#calls a")
    is_usable(browser, f"{served.address}/calls/mute-0", tmp_path / "call", ".verdict")


def open_turn_is_shown(page: Page, address: str) -> None:
    """The turn in which a caller waits is chosen: what he said, and a clock."""
    call = page.context.new_page()
    call.goto(address)
    turn = call.locator(".turn.first")
    expect(turn).to_contain_text("Is anybody there?")
    expect(turn.locator(".tag.warning")).to_have_text(re.compile(r"no answer yet, \d+:\d\d"))
    expect(turn.locator(".depth")).to_contain_text("No answer yet: the caller has waited for")
    before = turn.locator("time[data-since]").first.inner_text()
    expect(turn.locator("time[data-since]").first).not_to_have_text(before)
    call.close()


def test_rows_keep_still_under_the_mouse(served: Served, page: Page) -> None:
    rows = page.locator("#calls > tr:not(.group)")
    callers = {}
    for name, agent in (("first", "a"), ("second", "b"), ("third", "c")):
        callers[name] = talked(served, name, agent)
        expect(page.locator("#agents > tr", has_text=agent)).to_have_count(1)
    expect(rows).to_have_count(3)
    before = rows.all_inner_texts()
    rows.first.hover()
    Caller(served, "third", agent="c").says("Hello?")
    until = time.monotonic() + patient(30)
    while "bad since" not in page.locator("tbody#agents").inner_text() and time.monotonic() < until:
        # somebody else is heard, so its events are not missing
        callers["second"].hears("One moment.")
        page.mouse.move(300 + time.monotonic() % 7, rows.first.bounding_box()["y"] + 9)  # type: ignore[index]
        page.wait_for_timeout(200)
    assert "silent for" in rows.nth(2).inner_text(), "it changes in its place"
    assert [text.split()[0] for text in rows.all_inner_texts()] == [
        text.split()[0] for text in before
    ]
    page.mouse.move(5, 5)
    expect(rows.first).to_contain_text("third")


def test_a_call_is_read_turn_by_turn_shared_and_left_for_the_next_one(
    served: Served, page: Page
) -> None:
    talked(served, "one", turns=6)
    talked(served, "two", turns=2)
    expect(page.get_by_title("two")).to_be_visible()  # the list that is left has both
    page.get_by_title("one").click()
    expect(page.get_by_role("heading", name="Call one")).to_be_visible()
    expect(page.locator(".verdict")).to_contain_text(
        "So far nothing went wrong: no wait over 1.50 s"
    )
    expect(page.locator("#call-t6")).to_be_attached()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(".turn.chosen")).to_have_count(1)
    chosen = page.locator(".turn.chosen").get_attribute("id")
    assert page.locator(".timeline a.chosen").get_attribute("href") == f"#{chosen}"
    page.locator('.timeline a[href="#call-t5"] rect').first.click()
    expect(page).to_have_url(re.compile(r"turn=5$"))
    expect(page.locator("#call-t5")).to_be_in_viewport()
    expect(page.locator("#call-t5 .depth")).to_be_visible()
    page.reload()
    expect(page.locator("#call-t5")).to_have_class(re.compile("chosen"))
    page.get_by_role("button", name="Copy summary").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("desk 1, acme: So far nothing went wrong:")
    assert copied.endswith(f"\n{page.url}")
    assert "Turn 5 from 0:" in copied
    assert ". Caller: question 4 / Agent: answer 4\n" in copied
    page.get_by_label("What was known at").focus()
    page.keyboard.press("Home")
    expect(page).to_have_url(re.compile(r"at_ms=\d+"))
    page.reload()
    expect(page.get_by_text(re.compile("As it was known"))).to_be_visible()
    expect(page.locator("#link")).to_have_text("looking back")
    page.get_by_role("button", name="Back to now").click()
    expect(page).not_to_have_url(re.compile("at_ms"))
    forth, back = ("]", "[") if page.locator("#around [rel=next][href]").count() else ("[", "]")
    page.keyboard.press(forth)
    expect(page.get_by_role("heading", name="Call two")).to_be_visible()
    page.keyboard.press(back)
    expect(page.get_by_role("heading", name="Call one")).to_be_visible()
