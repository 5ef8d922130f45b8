"""Fixtures of the tests of commands."""

import pytest

from tests.unit.streamer.command_line import Command, command


@pytest.fixture
def callgauge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys)


@pytest.fixture
def score(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys, "score")
