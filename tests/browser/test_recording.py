"""The recording of a call in a real browser: `callgauge serve`, and a server of recordings beside
it, which notes what it is asked for.
"""

import io
import re
import threading
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import DESKTOP, HEIGHT, PHONE, complaints_of
from tests.browser.test_console_page import is_usable
from tests.integration.processes import started, wait_for
from tests.integration.test_serve import SOON, Served, address_of

SECONDS = 30
RATE = 8_000
LATE_MS = 500
"""So much after the start of the call the recording begins."""
TURN_MS = 6_000
"""From one turn to the next; the first begins 2 s after the call."""
CLOCK = "document.querySelector('#recording audio').currentTime"


def silence() -> bytes:
    """A recording in which nobody speaks."""
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(1)
        written.setframerate(RATE)
        written.writeframes(b"\x80" * RATE * SECONDS)
    return file.getvalue()


class Recordings(NamedTuple):
    """A server of recordings.

    Attributes:
        origin: Its own.
        asked: The paths and the referrers of what was asked for.
    """

    origin: str
    asked: list[tuple[str, str | None]]

    @property
    def url(self) -> str:
        """The address of a recording, as it is signed."""
        return f"{self.origin}/c.wav?sig=%2B1&to=x"


@pytest.fixture
def recordings() -> Iterator[Recordings]:
    asked: list[tuple[str, str | None]] = []
    sound = silence()

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append((self.path, self.headers["referer"]))
            if "expired" in self.path:
                self.send_error(403)
                return
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["range"] or "bytes=0-")
            assert wanted is not None
            first, last = int(wanted[1]), int(wanted[2] or len(sound) - 1)
            self.send_response(206)
            self.send_header("content-type", "audio/wav")
            self.send_header("accept-ranges", "bytes")
            self.send_header("content-range", f"bytes {first}-{last}/{len(sound)}")
            self.send_header("content-length", str(last + 1 - first))
            self.end_headers()
            self.wfile.write(sound[first : last + 1])

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Recordings(f"http://127.0.0.1:{server.server_port}", asked)
    server.shutdown()
    server.server_close()


def call(name: str, began_ms: int) -> list[dict[str, Any]]:
    """A call of three turns."""

    def event(kind: str, at_ms: int, **more: Any) -> dict[str, Any]:
        return {"conversation_id": name, "type": kind, "timestamp": began_ms + at_ms, **more}

    def spoke(side: str, what: str, at_ms: int) -> dict[str, Any]:
        data = {"kind": f"{side}_speech_{what}", "timestamp": (began_ms + at_ms) / 1_000}
        return event("speech_event", at_ms, data=data)

    events = [event("call_started", 0, agent="desk")]
    for turn in range(3):
        at_ms = 2_000 + turn * TURN_MS
        events += [
            spoke("user", "started", at_ms),
            spoke("user", "stopped", at_ms + 1_000),
            event("user_message", at_ms + 1_000, data={"content": f"question {turn}"}),
            spoke("bot", "started", at_ms + 2_000),
            event("assistant_message", at_ms + 2_000, data={"content": f"answer {turn}"}),
            spoke("bot", "stopped", at_ms + 4_000),
        ]
    return events


@contextmanager
def serving(folder: Path, **settings: str) -> Iterator[Served]:
    arguments = ["serve", "--folder", str(folder / "calls"), "--port", "0"]
    with started(folder / "serve.log", *arguments, **SOON, **settings) as process:
        yield Served(process, folder / "calls", address_of(process))


def opened(browser: Browser, width: int) -> tuple[Page, list[str]]:
    """A page, and what the browser complains of."""
    page = browser.new_page(viewport={"width": width, "height": HEIGHT}, reduced_motion="reduce")
    complaints = complaints_of(page)
    return page, complaints


def ended_with(served: Served, name: str, url: str, began_ms: int) -> None:
    end = {
        "conversation_id": name,
        "type": "call_ended",
        "timestamp": began_ms + 20_000,
        "recording_url": url,
        "recording_starts_ms": began_ms + LATE_MS,
    }
    assert served.post([end]).status_code == 202


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_turn_is_heard_from_its_beginning_and_what_is_heard_is_marked(
    browser: Browser, recordings: Recordings, tmp_path: Path, width: int
) -> None:
    """The address comes with the end of the call, while its page is open."""
    began_ms = time.time_ns() // 1_000_000 - 25_000
    origins = {"CALLGAUGE_CONSOLE__RECORDING_ORIGINS": recordings.origin}
    with serving(tmp_path, **origins) as served:
        assert served.post(call("heard", began_ms)).status_code == 202
        page, complaints = opened(browser, width)
        wait_for("the call", lambda: served.get("/calls/heard").status_code == 200, 20)
        page.goto(f"{served.address}/calls/heard")
        expect(page.locator("#call-t3")).to_be_attached()
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator("#recording")).to_have_count(0)
        ended_with(served, "heard", recordings.url, began_ms)
        expect(page.locator("#recording audio")).to_be_visible()
        page.locator("#call-t2 .said").first.click()
        assert page.evaluate(CLOCK) == (2_000 + TURN_MS - LATE_MS) / 1_000
        page.locator('.timeline a[href="#call-t3"]').focus()
        page.keyboard.press("k")
        assert page.evaluate(CLOCK) == (2_000 - LATE_MS) / 1_000
        page.keyboard.press("j")
        assert recordings.asked == [], "nothing is loaded before somebody plays"
        page.keyboard.press("l")
        expect(page.locator(".turn[aria-current]")).to_have_attribute("id", "call-t2")
        expect(page.locator(".timeline .playhead")).to_have_count(1)
        page.screenshot(path=str(tmp_path / f"heard-{width}.png"))
        page.locator("#call-t3 .said").first.click()
        expect(page.locator(".turn[aria-current]")).to_have_attribute("id", "call-t3")
        share = page.locator(".timeline .playhead").get_attribute("x1") or ""
        assert float(share.rstrip("%")) >= 100 * (2_000 + 2 * TURN_MS) / 20_000
        page.keyboard.press("l")
        assert page.evaluate("document.querySelector('#recording audio').paused")
        page.get_by_label("What was known at").focus()
        page.keyboard.press("Home")
        expect(page.get_by_text(re.compile(r"As it was known"))).to_be_visible()
        assert page.evaluate(CLOCK) > (2_000 + 2 * TURN_MS - LATE_MS) / 1_000 - 0.1
        assert {f"{recordings.origin}{path}" for path, _ in recordings.asked} == {recordings.url}
        assert {referrer for _, referrer in recordings.asked} == {None}
        assert complaints == []
        page.close()


def test_of_an_address_that_gives_nothing_the_page_says_so(
    browser: Browser, recordings: Recordings, tmp_path: Path
) -> None:
    began_ms = time.time_ns() // 1_000_000 - 25_000
    origins = {"CALLGAUGE_CONSOLE__RECORDING_ORIGINS": recordings.origin}
    with serving(tmp_path, **origins) as served:
        assert served.post(call("late", began_ms)).status_code == 202
        ended_with(served, "late", f"{recordings.origin}/c.wav?expired", began_ms)
        wait_for("the recording", lambda: 'id="recording"' in served.get("/calls/late").text, 20)
        page, _ = opened(browser, DESKTOP)
        page.goto(f"{served.address}/calls/late")
        expect(page.locator("#heard")).to_have_text("Choose a turn to hear it from there.")
        page.keyboard.press("l")
        expect(page.locator("#heard")).to_contain_text("cannot be loaded")
        page.close()


def test_the_player_fits_and_axe_has_no_complaint(
    browser: Browser, recordings: Recordings, tmp_path: Path
) -> None:
    began_ms = time.time_ns() // 1_000_000 - 25_000
    for name, origin in (("allowed", recordings.origin), ("text", "")):
        folder = tmp_path / name
        folder.mkdir()
        with serving(folder, CALLGAUGE_CONSOLE__RECORDING_ORIGINS=origin) as served:
            assert served.post(call("fits", began_ms)).status_code == 202
            ended_with(served, "fits", recordings.url, began_ms)
            page = f"{served.address}/calls/fits"
            wait_for(
                "the recording", lambda: 'id="recording"' in served.get("/calls/fits").text, 20
            )
            is_usable(browser, page, tmp_path / name, "#recording")


def test_of_an_origin_that_is_not_allowed_nothing_is_asked(
    browser: Browser, recordings: Recordings, tmp_path: Path
) -> None:
    """Neither by the page, nor if some foreign text became a part of it."""
    began_ms = time.time_ns() // 1_000_000 - 25_000
    with serving(tmp_path, CALLGAUGE_CONSOLE__RECORDING_ORIGINS="https://rec.example") as served:
        assert served.post(call("quiet", began_ms)).status_code == 202
        ended_with(served, "quiet", recordings.url, began_ms)
        wait_for("the recording", lambda: 'id="recording"' in served.get("/calls/quiet").text, 20)
        page, complaints = opened(browser, DESKTOP)
        page.goto(f"{served.address}/calls/quiet")
        expect(page.locator("#recording pre")).to_have_text(recordings.url)
        page.locator("#call-t2 .said").first.click()
        page.keyboard.press("l")
        expect(page.locator("#link")).to_have_text("live")
        assert page.locator("audio").count() == 0
        assert complaints == []
        refused = page.evaluate(
            """url => new Promise(done => {
              document.addEventListener("securitypolicyviolation", event => done(event.effectiveDirective));
              const audio = document.body.appendChild(document.createElement("audio"));
              audio.src = url;
              audio.load();
            })""",
            recordings.url,
        )
        assert refused == "media-src"
        assert recordings.asked == []
        page.close()
