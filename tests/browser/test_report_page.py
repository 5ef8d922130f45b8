"""The report page in a real browser: it fits, can be read and reached by keyboard, loads nothing,
and needs no script.

The calls are the recorded one of the conformance data, one of ours, and several with an index.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from playwright.sync_api import Browser, Page, expect

from streamer.cli import main as cli
from tests.browser.conftest import DESKTOP, PHONE, Opened, opened, violations
from tests.support.calls.report_calls import goal_set, recorded, wire_line
from tests.support.conformance_data import RECORD, conformance

RECORD_ONLY = pytest.mark.parametrize("file", ["record"], indirect=True)
GOALS = {
    "id": "rebooking",
    "subgoals": [
        {
            "id": tool,
            "details": f"{tool} works.",
            "check": {"kind": "tool_result", "tool": tool, "outcome": "success"},
        }
        for tool in (
            "get_reservation",
            "search_rebooking_options",
            "rebook_flight",
            "assign_seat",
            "refund",
        )
    ],
}
CALLS = ("record", "ours", "several")
LEAST_CONTRAST = 4.5
"""The contrast of text that the accessibility guidelines (WCAG 2.2, AA) ask for."""
LEAST_FONT_PIXELS = 11.5


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages, written by the command itself."""
    folder = tmp_path_factory.mktemp("report")
    goals = folder / "goals.json"
    long_word = "Donaudampfschifffahrtsgesellschaftskapitänsmütze" * 4
    texts = ["hello", long_word, "two words", "\u05e9\u05dc\u05d5\u05dd"]
    several = [
        recorded(text, name=text[:60], conversation_id=f"{text}-{n}")
        for n, text in enumerate(texts)
    ]
    # more turns than there is room for numbers
    hasty = recorded(turns=40, conversation_id="hasty", pace=0.15)
    made = {"ours": [recorded(turns=60, name="book_seat")], "several": [*several, hasty]}
    written = {}
    for name, calls in made.items():
        goals.write_text(goal_set().model_dump_json(exclude_defaults=True))
        source = folder / f"{name}.jsonl"
        source.write_text("".join(wire_line(call) for call in calls))
        written[name] = _report(source, goals, folder / f"{name}.html")
    if RECORD.exists():
        goals.write_text(json.dumps(GOALS))
        written["record"] = _report(RECORD, goals, folder / "record.html")
    return written


def _report(source: Path, goals: Path, html: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys,
            "argv",
            ["callgauge", "report", str(source), "--goals", str(goals), "--output", str(html)],
        )
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code
    return html


@pytest.fixture(params=CALLS)
def file(request: pytest.FixtureRequest, files: dict[str, Path]) -> Path:
    if request.param not in files:
        conformance(RECORD.name)
    return files[request.param]


@pytest.fixture(params=[PHONE, DESKTOP])
def width(request: pytest.FixtureRequest) -> int:
    return cast("int", request.param)


@pytest.fixture
def seen(browser: Browser, file: Path, width: int) -> Iterator[Opened]:
    found = opened(browser, file, width=width)
    yield found
    found.page.close()


def _everything_open(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")


def test_it_fits_loads_nothing_and_complains_of_nothing(seen: Opened, file: Path) -> None:
    """Nothing sticks out, even with all details open; wider parts scroll in boxes of their own."""
    page = seen.page
    assert page.evaluate(LETTERINGS_ON_LETTERINGS) == []
    for _ in range(2):
        wide, room = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert page.evaluate(STICKING_OUT) == []
        assert wide <= room
        _everything_open(page)
    assert seen.complaints == []
    assert [url for url in seen.requests if not url.startswith("data:")] == [file.as_uri()]


STICKING_OUT = """() => [...document.querySelectorAll('body *')]
  .filter(each => !each.parentElement.closest('.scroll, .patterns'))
  .filter(each => each.getClientRects().length && each.getBoundingClientRect().right > innerWidth + 0.5)
  .map(each => each.outerHTML.slice(0, 120))"""

LETTERINGS_ON_LETTERINGS = """() => {
  const found = [];
  for (const drawing of document.querySelectorAll('svg')) {
    const boxes = [...drawing.querySelectorAll('text')].map(each => [each.textContent, each.getBoundingClientRect()]);
    for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
      const [first, a] = boxes[i], [second, b] = boxes[j];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 0.5 && down > 3) found.push(`${first} and ${second}`);
    }
  }
  return found;
}"""


def test_all_text_can_be_read_in_light_and_dark(seen: Opened) -> None:
    _everything_open(seen.page)
    backgrounds = set()
    for scheme in ("light", "dark"):
        seen.page.emulate_media(color_scheme=scheme)
        texts = seen.page.evaluate(CONTRASTS)
        assert len(texts) > 100
        assert [each for each in texts if each["contrast"] < LEAST_CONTRAST] == []
        assert [each for each in texts if each["pixels"] < LEAST_FONT_PIXELS] == []
        backgrounds.add(seen.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2
    assert seen.complaints == []


CONTRASTS = """() => {
  const channels = text => {
    const parts = text.match(/[0-9.]+/g).map(Number);
    return {rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1};
  };
  const brightness = rgb => rgb
    .map(value => value / 255)
    .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.alpha === 1) return colour.rgb;
      if (colour.alpha > 0) return [128, 128, 128];
    }
    return [255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || element.tagName === 'title' || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const text = channels(element instanceof SVGElement ? style.fill : style.color).rgb;
    const [low, high] = [brightness(text), brightness(behind(element))].sort((a, b) => a - b);
    found.push({
      text: walk.currentNode.data.slice(0, 40), where: element.outerHTML.slice(0, 80),
      contrast: (high + 0.05) / (low + 0.05), pixels: parseFloat(style.fontSize),
    });
  }
  return found;
}"""


def test_axe_has_no_complaint(seen: Opened) -> None:
    """The rules of axe-core for people who see, hear or move otherwise, in both schemes, with
    everything open.
    """
    _everything_open(seen.page)
    for scheme in ("light", "dark"):
        seen.page.emulate_media(color_scheme=scheme)
        assert violations(seen.page) == []


def test_no_word_of_ours_breaks_in_its_middle(seen: Opened) -> None:
    """Headings, labels and names stand on whole lines; only a word of a call that is longer than a
    line may break.
    """
    _everything_open(seen.page)
    assert seen.page.evaluate(BROKEN_WORDS) == []


BROKEN_WORDS = """() => {
  const found = [], range = document.createRange();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (!node.parentElement.closest('dt, th, code, .judged, .more, .state, figcaption, summary')) continue;
    for (const word of node.data.matchAll(/[^\\s_.-]{2,}/g)) {
      if (word[0].length > 24) continue;
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
      if (lines.size > 1) found.push(word[0]);
    }
  }
  return found;
}"""


def test_a_phone_is_told_that_the_timeline_scrolls(seen: Opened, width: int) -> None:
    page = seen.page
    box = page.get_by_role("group", name="Timeline; it scrolls sideways").first
    hint = page.get_by_text("The timeline goes on to the right").first
    does_scroll = box.evaluate("each => each.scrollWidth > each.clientWidth")
    if width == PHONE and does_scroll:
        expect(hint).to_be_visible()
    elif width == DESKTOP:
        expect(hint).to_be_hidden()
    assert "gradient" in box.evaluate("each => getComputedStyle(each).backgroundImage")


@RECORD_ONLY
def test_everything_of_the_record_is_there(seen: Opened) -> None:
    page = seen.page
    expect(page.get_by_role("heading", name="Call 1.1.2")).to_be_visible()
    for summary in page.locator(".fold > details > summary").all():
        summary.click()
    longest = page.locator(".figures > div").filter(has_text="Longest wait")
    expect(longest).to_contain_text("Longest wait17.6 s✗ over 3.50 sturn 6")
    for name in (
        "What stands out",
        "Timeline",
        "Transcript",
        "Goals",
        "Figures",
        "Wait for the answer, by turn",
        "Scores",
    ):
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    expect(page.get_by_role("group", name="Who spoke when, from 0:00 to 5:43")).to_be_visible()
    timeline = page.get_by_role("group", name="Timeline; it scrolls sideways")
    links = timeline.get_by_role("link")
    assert links.all_text_contents() == [
        f"{links.nth(turn).locator('title').text_content()}{turn}" for turn in range(11)
    ]
    waits = page.get_by_role("table").filter(has_text="Median 3.74 s of 8 turns")
    assert waits.get_by_role("row").count() == 11
    expect(waits.get_by_role("row", name="Turn 6")).to_contain_text("17.6 s")
    expect(waits.get_by_role("row", name="Turn 3")).to_contain_text(
        "began before the caller had finished.\u221221.3 s"
    )
    expect(
        page.get_by_role("img", name="Goals reached after each turn: turn 1 0 %;")
    ).to_be_visible()
    expect(page.get_by_text("Reached in turn 8").first).to_be_visible()
    expect(page.get_by_role("heading", name="Turn 10 from")).to_be_attached()


@RECORD_ONLY
def test_turns_are_reached_by_keyboard(seen: Opened) -> None:
    """The tab key leads from the box of the timeline to the first turns, and enter leads to the
    words of a turn.
    """
    page = seen.page
    box = page.get_by_role("group", name="Timeline; it scrolls sideways").first
    box.focus()
    for turn in (0, 1):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.getAttribute('href')") == f"#c1-t{turn}"
        outline = page.evaluate(
            "getComputedStyle(document.activeElement.querySelector('rect')).strokeWidth"
        )
        assert outline == "2px"
    page.keyboard.press("Enter")
    expect(page.locator("#c1-t1")).to_be_in_viewport()
    assert page.evaluate("document.querySelector('#c1-t1').matches(':target')")


@pytest.mark.parametrize("file", ["several"], indirect=True)
def test_the_index_leads_to_a_call_and_back(seen: Opened) -> None:
    page = seen.page
    rows = page.get_by_role("navigation", name="Calls").get_by_role("link")
    assert rows.count() == 5
    rows.nth(2).click()
    expect(page.get_by_role("heading", name="Call two words-2")).to_be_in_viewport()
    page.get_by_role("link", name="All calls").nth(2).click()
    expect(page.get_by_role("heading", name="Calls", exact=True)).to_be_in_viewport()


@RECORD_ONLY
def test_it_needs_no_script(browser: Browser, file: Path, width: int) -> None:
    page = opened(browser, file, width=width, scripts=False).page
    expect(page.get_by_role("heading", name="Transcript")).to_be_attached()
    answer = page.locator("#c1-t3").get_by_text('"status": "success"')
    expect(answer).to_be_hidden()
    page.locator("#c1-t3").get_by_text("get_reservation", exact=True).click()
    expect(answer).to_be_visible()
    page.get_by_role("heading", name="Wait for the answer, by turn").click()
    page.get_by_role("table").filter(has_text="Median").get_by_role("link", name="Turn 6").click()
    expect(page.locator("#c1-t6")).to_be_in_viewport()
    page.close()
