"""The pages of settings and metrics, and the example of a settings file, are those of today's code."""

import re
from pathlib import Path

import pytest

from docs.generate_pages import pages
from schemas.metrics.catalogue import METRICS
from streamer.settings.all_settings import setting_names

PAGES = pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path], "run `python docs/generate_pages.py`"


def test_every_setting_and_every_metric_has_its_row() -> None:
    text = {path.name: text for path, text in PAGES.items()}
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \|", text["settings.md"], re.M)
    assert rows == [".".join(names) for names in setting_names()]
    assert {metric.name for metric in METRICS} <= set(re.findall(r"^\| `(\w+)` \|", text["metrics.md"], re.M))


def test_no_page_depends_on_the_environment_of_its_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLGAUGE_HTTP_PORT", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert pages() == PAGES
