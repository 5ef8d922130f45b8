"""A real browser: Debian's Chromium, driven through Playwright. Its profile is fresh in every run
and gone after it.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

from tests.support.patience import patient
from tests.support.required_tools import require_tool

PHONE, DESKTOP = 360, 1280
HEIGHT = 900


# not longer: while Playwright's loop runs, no asynchronous test can start one
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = chromium(playwright)
        yield browser
        browser.close()


def chromium(playwright: Playwright) -> Browser:
    """A browser without a window, with a profile of its own."""
    path = require_tool("chromium", "Debian and Ubuntu: apt-get install chromium")
    # as root, Chromium refuses to start with a sandbox
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    return playwright.chromium.launch(executable_path=path, args=options)


def complaints_of(page: Page, wait_seconds: float = 30) -> list[str]:
    """What the browser complains of from now on; whatever is waited for on the page may take so
    long.
    """
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.set_default_timeout(patient(30) * 1_000)
    expect.set_options(timeout=patient(wait_seconds) * 1_000)
    return complaints


@dataclass
class Opened:
    """A page, with its console messages, its errors and its requests."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def opened(browser: Browser, file: Path, *, width: int, scripts: bool = True) -> Opened:
    """Opens the file in a browser window of its own."""
    page = browser.new_page(
        viewport={"width": width, "height": HEIGHT},
        java_script_enabled=scripts,
        reduced_motion="reduce",
    )
    seen = Opened(page)
    page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("request", lambda request: seen.requests.append(request.url))
    page.goto(file.as_uri())
    return seen


@cache
def _axe() -> str:
    """The script of axe-core, which a package of the tests brings."""
    package = find_spec("axe_playwright_python")
    assert package is not None, "the test tools are not installed: make setup"
    assert package.origin is not None
    return Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8")


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong with the page as it is now: rule, impact, and the first elements of
    each.
    """
    page.evaluate(_axe())
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['impact']}: {each['id']}: "
        f"{', '.join(node['html'][:120] for node in each['nodes'][:3])}"
        for each in found["violations"]
    ]
