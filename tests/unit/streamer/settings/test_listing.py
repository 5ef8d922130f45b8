"""Every setting is listed with its value and origin, no secret is shown, and the written file says
the same.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest

from streamer.settings.all_settings import (
    Settings,
    given_values,
    load_settings,
    setting_names,
    settings_of,
)
from streamer.settings.listing import (
    BY_DEFAULT,
    HIDDEN,
    ListedSetting,
    listed_settings,
    settings_file,
    shown_value,
)

EXAMPLE = Path(__file__).parents[4] / "deploy" / "callgauge.example.toml"
SECRET = "hunter2-hunter2-hunter2-hunter2-hunter2"  # noqa: S105 - not a real secret


def listed(
    environment: dict[str, str] | None = None, config: Path | None = None, **options: object
) -> dict[str, ListedSetting]:
    given = given_values(config, options, environment or {})
    return {each.full_name: each for each in listed_settings(settings_of(given), given)}


def file_of(environment: dict[str, str] | None = None, config: Path | None = None) -> str:
    return settings_file(tuple(listed(environment, config).values()))


def test_every_setting_is_there_with_its_default_and_a_meaning() -> None:
    found = listed()
    assert list(found) == [".".join(names) for names in setting_names()]
    assert {each.origin for each in found.values()} == {BY_DEFAULT}
    assert [each.full_name for each in found.values() if each.value != each.default] == []
    assert [each.full_name for each in found.values() if not each.description] == []
    assert (found["http_port"].value, found["goals.trials"].value) == (8080, 5)
    assert found["limits.idle_ms"].variable == "CALLGAUGE_LIMITS__IDLE_MS"


def test_each_value_says_where_it_is_from(tmp_path: Path) -> None:
    config = tmp_path / "callgauge.toml"
    config.write_text('topic_prefix = "x."\n[goals]\ntrials = 3\n[limits]\nidle_ms = 7\n')
    environment = {
        "CALLGAUGE_LIMITS__IDLE_MS": "9",
        "callgauge_limits__dead_air_ms": "8",
        "CALLGAUGE_JUDGE": '{"max_retries": 1}',
        "OPENAI_BASE_URL": "http://here/v1",
        "CALLGAUGE_REDACTION__PATTERNS": '{"ORDER": "A[0-9]{1,5}"}',
    }
    found = listed(environment, config, http_port=0)
    assert {name: (each.value, each.origin) for name, each in found.items() if each.is_set} == {
        "topic_prefix": ("x.", str(config)),
        "goals.trials": (3, str(config)),
        "http_port": (0, "--http-port"),
        "limits.idle_ms": (9, "CALLGAUGE_LIMITS__IDLE_MS"),
        "limits.dead_air_ms": (8, "CALLGAUGE_LIMITS__DEAD_AIR_MS"),
        "judge.max_retries": (1, "CALLGAUGE_JUDGE"),
        "judge.base_url": ("http://here/v1", "OPENAI_BASE_URL"),
        "redaction.patterns": ({"ORDER": "A[0-9]{1,5}"}, "CALLGAUGE_REDACTION__PATTERNS"),
    }


@pytest.fixture
def with_secrets(tmp_path: Path) -> dict[str, str]:
    token = tmp_path / "token"
    token.write_text(SECRET)
    return {
        "OPENAI_API_KEY": SECRET,
        "CALLGAUGE_HTTP_TOKEN": f"file:{token}",
        "CALLGAUGE_SECURITY__PROTOCOL": "SASL_SSL",
        "CALLGAUGE_SECURITY__MECHANISM": "PLAIN",
        "CALLGAUGE_SECURITY__USERNAME": "ada",
        "CALLGAUGE_SECURITY__PASSWORD": SECRET,
        "CALLGAUGE_INGEST__TOKEN": SECRET,
        "CALLGAUGE_INGEST__ELEVENLABS_SECRET": SECRET,
        "CALLGAUGE_MONITOR__API_KEY": SECRET,
        "CALLGAUGE_JUDGE__HEADERS": f'{{"x-team": "{SECRET}"}}',
    }


def test_no_secret_is_shown(with_secrets: dict[str, str]) -> None:
    found = listed(with_secrets)
    hidden = {name: each.origin for name, each in found.items() if each.value == HIDDEN}
    assert hidden == {
        "judge.api_key": "OPENAI_API_KEY",
        "http_token": "CALLGAUGE_HTTP_TOKEN",
        "security.password": "CALLGAUGE_SECURITY__PASSWORD",
        "ingest.token": "CALLGAUGE_INGEST__TOKEN",
        "ingest.elevenlabs_secret": "CALLGAUGE_INGEST__ELEVENLABS_SECRET",
        "monitor.api_key": "CALLGAUGE_MONITOR__API_KEY",
        "judge.headers": "CALLGAUGE_JUDGE__HEADERS",
    }
    assert SECRET not in repr(found)
    assert SECRET not in file_of(with_secrets)
    tomllib.loads(file_of(with_secrets))


def test_the_written_file_makes_the_same_settings(tmp_path: Path) -> None:
    environment = {
        "CALLGAUGE_JUDGE__TEMPERATURE": "default",
        "CALLGAUGE_REDACTION__PATTERNS": '{"BOOKING_CODE": "\\"\\u007f[0-9]\\\\d"}',
        "CALLGAUGE_GOALS__TEXT_JUDGES": "speakability,conciseness",
        "CALLGAUGE_REDACTION__DETECTORS": "",
        "CALLGAUGE_TRANSCRIPTS__FOLDER": "übung",
        "CALLGAUGE_MONITOR__AGENTS": "a,b",
        "CALLGAUGE_TOPIC_PREFIX": "",
        "CALLGAUGE_BOOTSTRAP": "a:1,b:2",
        "CALLGAUGE_GOALS__READS_TOPIC": "true",
        "CALLGAUGE_JUDGE__SAMPLE_RATIO": "0.5",
    }
    written = tmp_path / "callgauge.toml"
    written.write_text(file_of(environment))
    again = load_settings(written, {}, {})
    assert again.model_dump() == load_settings(None, {}, environment).model_dump()
    assert again.judge.temperature is None


def test_the_example_file_sets_nothing() -> None:
    assert load_settings(EXAMPLE, {}, {}).model_dump() == Settings.model_construct().model_dump()


def test_every_line_of_the_example_file_can_be_used(tmp_path: Path) -> None:
    """A line without its `#` is an accepted setting, except for missing files and for secrets."""
    text = re.sub(r"^#(?=\w+ = )", "", EXAMPLE.read_text(), flags=re.M)
    tree = tomllib.loads(text)
    named = {(name,) for name, value in tree.items() if not isinstance(value, dict)} | {
        (block, name)
        for block, inside in tree.items()
        if isinstance(inside, dict)
        for name in inside
    }
    assert named == set(setting_names())
    used = "\n".join(
        line for line in text.splitlines() if not re.match(r'\w+ = "(file:|/run/secrets/)', line)
    )
    used = used.replace('protocol = "PLAINTEXT"', 'protocol = "SASL_SSL"').replace(
        "SCRAM-SHA-512", "PLAIN"
    )
    filled = tmp_path / "callgauge.toml"
    filled.write_text(used)
    load_settings(filled, {}, {"CALLGAUGE_SECURITY__PASSWORD": SECRET})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        (True, "true"),
        (0, "0"),
        (["a", "b"], "a,b"),
        ({"a": "b"}, json.dumps({"a": "b"})),
    ],
)
def test_values_are_shown_as_people_read_them(value: object, shown: str) -> None:
    assert shown_value(value) == shown
