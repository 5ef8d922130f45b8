"""The command `settings` prints the settings that a command would have, and no secret."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamer.cli.settings import app
from streamer.settings.all_settings import load_settings, setting_names

SECRET = "hunter2"  # noqa: S105 - not a real secret


@pytest.fixture
def environment() -> dict[str, str | None]:
    return {
        "CALLGAUGE_LIMITS__IDLE_MS": "7",
        "OPENAI_API_KEY": SECRET,
        "CALLGAUGE_GOALS_FOLDER": "x",
    }


def test_a_table_has_every_setting_on_a_line(environment: dict[str, str | None]) -> None:
    ended = CliRunner().invoke(app, [], env=environment)
    assert ended.exit_code == 0
    lines = ended.stdout.splitlines()
    assert lines[0].split() == ["setting", "value", "from", "default"]
    assert [line.split()[0] for line in lines[1:]] == [".".join(names) for names in setting_names()]
    (changed,) = [line.split() for line in lines if line.startswith("limits.idle_ms")]
    assert changed == ["limits.idle_ms", "7", "CALLGAUGE_LIMITS__IDLE_MS", "300000"]
    assert "did you mean CALLGAUGE_GOALS__FOLDER?" in ended.stderr
    assert SECRET not in ended.output


def test_only_those_that_were_set_can_be_asked_for(environment: dict[str, str | None]) -> None:
    ended = CliRunner().invoke(app, ["--changed", "--json", "--http-port", "0"], env=environment)
    shown = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(each["setting"], each["value"], each["default"], each["from"]) for each in shown] == [
        ("http_port", 0, 8080, "--http-port"),
        ("limits.idle_ms", 7, 300_000, "CALLGAUGE_LIMITS__IDLE_MS"),
        ("judge.api_key", "(hidden)", None, "OPENAI_API_KEY"),
    ]


def test_the_file_that_it_prints_can_be_used(
    environment: dict[str, str | None], tmp_path: Path
) -> None:
    written = tmp_path / "callgauge.toml"
    written.write_text(CliRunner().invoke(app, ["--toml"], env=environment).stdout)
    assert SECRET not in written.read_text()
    assert load_settings(written, {}, {}).limits.idle_ms == 7
    again = CliRunner().invoke(app, ["--changed", "--json", "--config", str(written)])
    assert json.loads(again.stdout)["from"] == str(written)


def test_two_formats_at_once_are_refused() -> None:
    assert CliRunner().invoke(app, ["--toml", "--json"]).exit_code == 2
