"""The key of snapshots: from a file or the environment, long enough, and shown nowhere."""

from pathlib import Path

import pytest

from schemas.topic_rules import MAX_SNAPSHOTS_KEPT_MS, Severity
from schemas.topics import SNAPSHOTS_TOPIC
from streamer.settings.all_settings import Settings, SettingsError, load_settings
from tests.unit.schemas.test_topic_rules import faults

KEY = "0123456789abcdef" * 2


def key_of(environment: dict[str, str]) -> str | None:
    key = load_settings(None, {}, environment).snapshots.key
    return None if key is None else key.get_secret_value()


def test_it_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    assert key_of({"CALLGAUGE_SNAPSHOTS__KEY_FILE": str(file)}) == KEY
    assert key_of({"CALLGAUGE_SNAPSHOTS__KEY": KEY}) == KEY
    assert key_of({}) is None


@pytest.mark.parametrize("text", ["", "short", KEY[:-1]])
def test_a_key_that_can_be_guessed_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    for environment in ({"CALLGAUGE_SNAPSHOTS__KEY_FILE": str(file)}, {"CALLGAUGE_SNAPSHOTS__KEY": text}):
        with pytest.raises(SettingsError) as caught:
            load_settings(None, {}, environment)
        (mistake,) = caught.value.mistakes
        assert mistake.startswith(next(iter(environment)))
        assert not text or text not in mistake.replace(str(file), "")


def test_two_keys_are_one_too_many(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    with pytest.raises(SettingsError, match="key_file is set too"):
        load_settings(None, {}, {"CALLGAUGE_SNAPSHOTS__KEY_FILE": str(file), "CALLGAUGE_SNAPSHOTS__KEY": KEY[::-1]})


def test_it_is_shown_nowhere() -> None:
    settings = Settings(snapshots={"key": KEY})
    assert KEY not in repr(settings) + str(settings) + settings.model_dump_json()


@pytest.mark.parametrize("kept_ms", [-1, MAX_SNAPSHOTS_KEPT_MS + 1])
def test_snapshots_that_lie_around_are_told(kept_ms: int) -> None:
    (fault,) = faults(SNAPSHOTS_TOPIC, retention_ms=str(kept_ms))
    assert (fault.severity, fault.setting) == (Severity.WARNING, "retention.ms=3600000")
    assert "words of calls" in fault.seen
    assert faults(SNAPSHOTS_TOPIC, retention_ms=str(MAX_SNAPSHOTS_KEPT_MS)) == []
