"""Makes the pictures of README and docs/console.md: two pages of the demo, and some seconds of its
table, moving. Run it when they change.

    python docs/make_pictures.py

It needs the test tools and Chromium, as the tests of the report do.
"""

import asyncio
import contextlib
import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from PIL import Image
from playwright.sync_api import Browser, Error, sync_playwright
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from consumers.runtime.logs import configure_logging  # noqa: E402 - found by the line above
from streamer.cli.demo import DEMO_SEED  # noqa: E402
from streamer.live_calls import REFRESH_SECONDS  # noqa: E402
from streamer.roles.demo import Demo  # noqa: E402
from streamer.settings.all_settings import Settings  # noqa: E402
from streamer.terminal import Screen  # noqa: E402
from tests.browser.conftest import chromium  # noqa: E402

PICTURES: Final = ROOT / "docs" / "pictures"
MAX_PICTURE_BYTES: Final = {".png": 150_000, ".gif": 400_000}
"""Largest picture of each kind: README loads them all."""
DEMO_SECONDS: Final = 70
"""Until the demo has an interruption, reached goals and the bad version in trouble on its screen, and
the calls of the last 24 hours.
"""
SHOWN_SECONDS: Final = 14
"""The end of them, which the moving picture shows, a frame a second."""
COLOURS: Final = 32
"""Of the moving picture: text on one background needs few."""
COLUMNS, LINES = 120, 30
CONSOLE_WIDTH, CONSOLE_HEIGHT = 1_200, 760
START_SECONDS: Final = 30
_FRAME: Final = re.compile(r"\r?(?:\x1b\[\?25[lh])?\r?(?:\x1b\[2K)(?:\x1b\[1A\x1b\[2K)+")
"""The codes with which the live table goes back to its first line."""


def main() -> None:
    """Makes the pictures, and fails if one is too large."""
    PICTURES.mkdir(exist_ok=True)
    frames = demo_frames()
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = chromium(playwright)
        photograph_console(browser)
        stills = []
        for number, frame in enumerate(frames):
            drawing, still = Path(folder, "demo.html"), Path(folder, f"demo-{number}.png")
            drawing.write_text(
                f"<body style='margin:0;width:1000px'>{svg_of(frame)}</body>", encoding="utf-8"
            )
            photograph(browser, drawing, still, 1_000, None)
            stills.append(still)
        browser.close()
        move(stills, PICTURES / "demo.gif")
    for picture in sorted(PICTURES.iterdir()):
        size, most = picture.stat().st_size, MAX_PICTURE_BYTES[picture.suffix]
        sys.stdout.write(f"{picture.relative_to(ROOT)}: {size:,} bytes\n")
        if size > most:
            raise SystemExit(f"{picture.name} is larger than {most:,} bytes.")


def demo_frames() -> list[str]:
    """The last frames of the demo, one of each second, with their colours."""
    output = io.StringIO()
    console = Screen(
        file=output, force_terminal=True, color_system="truecolor", width=COLUMNS, height=LINES
    )
    configure_logging("console", "error")
    demo = Demo(Settings(), console, concurrent_calls=12, seed=DEMO_SEED)
    asyncio.run(demo.run(DEMO_SECONDS))
    frames = [part for part in _FRAME.split(output.getvalue()) if "calls running" in part][:-1]
    a_second = round(1 / REFRESH_SECONDS)
    return frames[-SHOWN_SECONDS * a_second :: a_second]


def photograph_console(browser: Browser) -> None:
    """Writes pictures of the console while the demo runs: the running calls, and the first of them."""
    address = "http://127.0.0.1:38070"
    variables = {**os.environ, "CALLGAUGE_HTTP_PORT": "38070"}
    command = [sys.executable, str(ROOT / "callgauge.py"), "demo", "--no-browser"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL) as demo:  # noqa: S603 - our own command
        try:
            page = browser.new_page(
                viewport={"width": CONSOLE_WIDTH, "height": CONSOLE_HEIGHT}, reduced_motion="reduce"
            )
            for _ in range(START_SECONDS):
                with contextlib.suppress(Error):
                    page.goto(address)
                    break
                time.sleep(1)
            time.sleep(DEMO_SECONDS)
            page.screenshot(path=PICTURES / "console.png")
            page.locator("#calls a").first.click()
            page.locator(".timeline svg").first.wait_for()
            page.screenshot(path=PICTURES / "call.png")
        finally:
            demo.terminate()


def svg_of(frame: str) -> str:
    """A frame of a terminal as a drawing."""
    recorded = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False
    )
    text = "callgauge demo\n\n" + frame.strip("\n")
    # all frames of one height
    recorded.print(Text.from_ansi(text + "\n" * (LINES - text.count("\n"))))
    return recorded.export_svg(title="make demo", theme=DIMMED_MONOKAI)


def move(stills: Sequence[Path], picture: Path) -> None:
    """Writes a picture that shows the stills one after the other, a second each, again and again;
    the last one stays longer.
    """
    pictures = [Image.open(still).convert("RGB") for still in stills]
    # One palette for all, so that only what changes is kept, and of all: a colour of one picture
    # alone is in it too.
    every = Image.new("RGB", (pictures[0].width, sum(each.height for each in pictures)))
    for number, each in enumerate(pictures):
        every.paste(each, (0, number * pictures[0].height))
    palette = every.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    first, *others = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in pictures]
    durations = [1_000] * len(others) + [4_000]
    first.save(
        picture, save_all=True, append_images=others, duration=durations, loop=0, optimize=True
    )


def photograph(browser: Browser, file: Path, picture: Path, width: int, height: int | None) -> None:
    """Writes a picture of a page: its first `height` pixels, or all of it."""
    page = browser.new_page(
        viewport={"width": width, "height": height or 400}, reduced_motion="reduce"
    )
    page.goto(file.as_uri())
    page.screenshot(path=picture, full_page=height is None)
    page.close()


if __name__ == "__main__":
    main()
