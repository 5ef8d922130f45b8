"""The page of questions: every reason for an unknown value is on it, and its remedies are the right ones."""

import re
from pathlib import Path

import pytest

from schemas.closed_sets import LATENCY_REASONS, UnscoredReason
from schemas.metrics.catalogue import METRICS
from streamer.settings.all_settings import setting_names
from tests.support.fakes.engine_feed import Feed

PAGE = (Path(__file__).parents[2] / "docs" / "questions.md").read_text(encoding="utf-8")
CALL = (
    ("user_speech_started", 3_000), ("user_speech_stopped", 5_000), ("bot_speech_started", 5_900), ("bot_speech_stopped", 8_000),
)  # fmt: skip


def rows_of(title: str) -> dict[str, str]:
    """The rows of the table of reasons under a heading, by their reason."""
    part = PAGE[PAGE.index(f"\n## {title}\n") + 1 :].split("\n## ")[0]
    return {match[1]: match[2] for match in re.finditer(r"^\| `(\w+)` \| (.*) \|$", part, re.M)}


OF_LATENCIES = rows_of("Why is my latency unscored?")


def test_every_reason_has_a_row() -> None:
    others = rows_of("Why is another value unscored?")
    assert OF_LATENCIES.keys() == {reason.value for reason in LATENCY_REASONS}
    assert OF_LATENCIES.keys() | others.keys() == {reason.value for reason in UnscoredReason}
    assert not OF_LATENCIES.keys() & others.keys()


@pytest.mark.parametrize("missing", ["user_speech_stopped", "bot_speech_started", "bot_speech_st"])
def test_the_remedy_names_the_missing_event(missing: str) -> None:
    feed = Feed()
    for turn in range(2):
        for kind, at_ms in CALL:
            if not kind.startswith(missing):
                feed.speech(kind, 10_000 * turn + at_ms)
        feed.heard("Hello", 10_000 * turn + 5_100)
        feed.send("audit", {"message_type": "assistant", "value": "Welcome."}, 10_000 * turn + 8_000)
    feed.send("audit", {"type": "call_ended"}, 19_000)
    feed.advance(3_600_000)
    reasons = set(feed.latencies().values())
    assert reasons
    for reason in reasons:
        assert f"`{missing}" in OF_LATENCIES[str(reason)]


def test_the_page_names_metrics_and_settings_that_there_are() -> None:
    metrics = {name.partition("{")[0] for name in re.findall(r"`(callgauge_\w+)", PAGE)}
    assert metrics <= {metric.name for metric in METRICS}
    blocks = {names[0] for names in setting_names() if len(names) > 1}
    named = {name for name in re.findall(r"`([a-z]+\.[a-z_]+)`", PAGE) if name.partition(".")[0] in blocks}
    assert named <= {".".join(names) for names in setting_names()}
    assert len(named) > 5
