"""Settings of the judge as an operator gives them, and the key in particular."""

import json
from pathlib import Path

import pytest

from streamer.settings.all_settings import Settings, SettingsError, load_settings

KEY = "CALLGAUGE_JUDGE__API_KEY"


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_text("from-file\n")
    return f"file:{path}"


def loaded(**environment: str) -> Settings:
    return load_settings(None, {}, environment)


def mistake(**environment: str) -> str:
    with pytest.raises(SettingsError) as caught:
        loaded(**environment)
    (told,) = caught.value.mistakes
    return told


def key_of(settings: Settings) -> str | None:
    return None if settings.judge.api_key is None else settings.judge.api_key.get_secret_value()


def test_without_a_key_nobody_is_asked() -> None:
    settings = loaded()
    assert (settings.judge.is_on, settings.judge.base_url) == (False, "https://api.openai.com/v1")


def test_the_variables_of_openai_s_client_switch_it_on() -> None:
    settings = loaded(OPENAI_API_KEY="ambient", OPENAI_BASE_URL="http://127.0.0.1:1/v1")
    assert (settings.judge.is_on, key_of(settings), settings.judge.base_url) == (
        True,
        "ambient",
        "http://127.0.0.1:1/v1",
    )
    assert not loaded(OPENAI_API_KEY="").judge.is_on
    assert not loaded(OPENAI_API_KEY="ambient", CALLGAUGE_JUDGE__ENABLED="false").judge.is_on


def test_our_own_settings_win(key_file: str, tmp_path: Path) -> None:
    ambient = {"OPENAI_API_KEY": "ambient", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    assert key_of(loaded(**ambient, **{KEY: "ours"})) == "ours"
    assert key_of(loaded(**ambient, **{KEY: key_file})) == "from-file"
    assert loaded(
        **ambient, CALLGAUGE_JUDGE__BASE_URL="https://judge.example.com"
    ).judge.base_url.startswith("https")
    config = tmp_path / "callgauge.toml"
    config.write_text(f'[judge]\napi_key = "{key_file}"\nmodel = "m"\n')
    settings = load_settings(config, {}, ambient)
    assert (key_of(settings), settings.judge.model) == ("from-file", "m")


def test_a_key_fits_a_header() -> None:
    assert "visible ASCII" in mistake(**{KEY: "a key"})
    assert "must not be empty" in mistake(**{KEY: ""})
    assert "/nowhere: the file cannot be read" in mistake(**{KEY: "file:/nowhere"})


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("HEADERS", '{"x-team": "hush\\r\\nx-evil: 1"}'),
        ("HEADERS", '{"x team": "hush"}'),
        ("HEADERS", '{"x-team": ""}'),
        ("HEADERS", json.dumps({f"x-{number}": "hush" for number in range(21)})),
        ("QUERY", '{"api-version": ""}'),
    ],
)
def test_a_header_is_one_line_and_no_mistake_shows_it(name: str, given: str) -> None:
    told = mistake(**{f"CALLGAUGE_JUDGE__{name}": given})
    assert told.startswith(f"CALLGAUGE_JUDGE__{name}")
    assert "hush" not in told
    assert "hush" not in repr(loaded(CALLGAUGE_JUDGE__HEADERS='{"x-team": "hush"}'))


@pytest.mark.parametrize(
    "variables", [{KEY: "hush hush"}, {KEY: "hush-hush", "CALLGAUGE_JUDGE__MODEL": ""}]
)
def test_no_mistake_shows_the_key(variables: dict[str, str]) -> None:
    assert variables[KEY] not in mistake(**variables)
    assert "hush-hush" not in repr(loaded(**{KEY: "hush-hush"}))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("BASE_URL", "api.example.com", "CALLGAUGE_JUDGE__BASE_URL is 'api.example.com'"),
        ("BASE_URL", "https://user:pw@host/v1", "CALLGAUGE_JUDGE__BASE_URL"),
        ("SAMPLE_RATIO", "1.5", "less than or equal to 1"),
        ("TEMPERATURE", "warm", "CALLGAUGE_JUDGE__TEMPERATURE is 'warm'"),
        ("BUDGET_PER_HOUR", "nan", "CALLGAUGE_JUDGE__BUDGET_PER_HOUR"),
        ("BUGDET_PER_HOUR", "1", "did you mean judge.budget_per_hour?"),
    ],
)
def test_a_mistake_is_told_where_it_was_made(name: str, value: str, told: str) -> None:
    assert told in mistake(**{f"CALLGAUGE_JUDGE__{name}": value})


def test_the_temperature_may_be_left_to_the_model() -> None:
    assert loaded(CALLGAUGE_JUDGE__TEMPERATURE="default").judge.temperature is None
