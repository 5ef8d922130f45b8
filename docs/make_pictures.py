"""Makes the pictures of README: the demo after some seconds, and the report of the sample call. Run it when they have changed.

    python docs/make_pictures.py

It needs the test tools and Chromium, as the tests of the report do.
"""

import asyncio
import io
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from consumers.runtime.logs import configure_logging  # noqa: E402 - found by the line above
from streamer.roles.demo import Demo  # noqa: E402
from streamer.settings.all_settings import Settings  # noqa: E402
from tests.browser.conftest import chromium  # noqa: E402
from tests.integration.processes import ran_here  # noqa: E402

PICTURES: Final = ROOT / "docs" / "pictures"
MAX_PICTURE_BYTES: Final = 150_000
"""Largest picture: README loads them all."""
DEMO_SECONDS: Final = 40
"""Until the demo has an interruption, reached goals and the agent in trouble on its screen."""
COLUMNS, LINES = 112, 30
REPORT_WIDTH, REPORT_HEIGHT = 1_200, 1_020
_FRAME: Final = re.compile(r"\r?(?:\x1b\[\?25[lh])?\r?(?:\x1b\[2K)(?:\x1b\[1A\x1b\[2K)+")
"""The codes with which the live table goes back to its first line."""


def main() -> None:
    """Makes both pictures, and fails if one is too large."""
    PICTURES.mkdir(exist_ok=True)
    frame = demo_frame()
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = chromium(playwright)
        page = Path(folder, "report.html")
        if ran_here("report", "sample", "-o", str(page)).code:
            raise SystemExit("The report of the sample call could not be written.")
        photograph(browser, page, PICTURES / "report.png", REPORT_WIDTH, REPORT_HEIGHT)
        drawing = Path(folder, "demo.html")
        drawing.write_text(f"<body style='margin:0;width:1000px'>{svg_of(frame)}</body>", encoding="utf-8")
        photograph(browser, drawing, PICTURES / "demo.png", 1_000, None)
        browser.close()
    for picture in sorted(PICTURES.glob("*.png")):
        size = picture.stat().st_size
        sys.stdout.write(f"{picture.relative_to(ROOT)}: {size:,} bytes\n")
        if size > MAX_PICTURE_BYTES:
            raise SystemExit(f"{picture.name} is larger than {MAX_PICTURE_BYTES:,} bytes.")


def demo_frame() -> str:
    """The last frame of the demo, with its colours."""
    output = io.StringIO()
    console = Console(
        file=output, force_terminal=True, color_system="truecolor", width=COLUMNS, height=LINES, highlight=False
    )
    configure_logging("console", "error")
    demo = Demo(Settings(), console, concurrent_calls=6, seed=47)
    asyncio.run(demo.run(DEMO_SECONDS))
    frames = [part for part in _FRAME.split(output.getvalue()) if "calls running" in part]
    return frames[-2]


def svg_of(frame: str) -> str:
    """A frame of a terminal as a drawing."""
    recorded = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    recorded.print(Text.from_ansi("callgauge demo\n\n" + frame.strip("\n")))
    return recorded.export_svg(title="make demo", theme=DIMMED_MONOKAI)


def photograph(browser: Browser, file: Path, picture: Path, width: int, height: int | None) -> None:
    """Writes a picture of a page: its first `height` pixels, or all of it."""
    page = browser.new_page(viewport={"width": width, "height": height or 400}, reduced_motion="reduce")
    page.goto(file.as_uri())
    page.screenshot(path=picture, full_page=height is None)
    page.close()


if __name__ == "__main__":
    main()
