"""Where Kafka does not answer, the folder of `serve` is named."""

from pathlib import Path

import pytest

from consumers.log.file import FILE_NAME
from streamer import served_folder
from streamer.served_folder import hint_of_served


def test_the_hint_names_the_folder_of_this_user_once_calls_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_folder, "data_folder", lambda: tmp_path)
    assert hint_of_served().endswith("need no Kafka: add --folder PATH.")
    (tmp_path / FILE_NAME).touch()
    assert hint_of_served().endswith(f"add --folder {tmp_path}.")
