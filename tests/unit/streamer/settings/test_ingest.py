"""Permission to send events: tokens and secrets from the environment and from files, and the file of tenants."""

from pathlib import Path

import pytest

from streamer.settings.all_settings import Settings, SettingsError, load_settings


def loaded(**ingest: str) -> Settings:
    """Settings that come from the environment."""
    return load_settings(None, {}, {f"CALLGAUGE_INGEST__{name.upper()}": value for name, value in ingest.items()})


def mistake(**ingest: str) -> str:
    with pytest.raises(SettingsError) as caught:
        loaded(**ingest)
    (text,) = caught.value.mistakes
    return text


def stored(folder: Path, text: str) -> str:
    path = folder / "secret"
    path.write_text(text)
    return str(path)


def test_without_a_token_or_a_secret_it_is_off() -> None:
    assert not Settings().ingest.is_on
    assert loaded(token="abc").ingest.is_on  # noqa: S106 - a secret of tests
    assert loaded(elevenlabs_secret="wsec_x").ingest.is_on  # noqa: S106 - a secret of tests


def test_secrets_come_from_files_too(tmp_path: Path) -> None:
    path = stored(tmp_path, "from-a-file\n")
    settings = loaded(token_file=path, elevenlabs_secret_file=path).ingest
    assert settings.token is not None
    assert settings.elevenlabs_secret is not None
    assert {settings.token.get_secret_value(), settings.elevenlabs_secret.get_secret_value()} == {"from-a-file"}
    assert "from-a-file" not in repr(settings)
    assert "token_file is set too" in mistake(token_file=path, token="abc")  # noqa: S106 - a secret of tests
    assert "without spaces" in mistake(token_file=stored(tmp_path, "two words"))
    assert "cannot be read" in mistake(elevenlabs_secret_file=str(tmp_path / "missing"))


def test_tenants_have_tokens_secrets_and_limits_of_their_own(tmp_path: Path) -> None:
    text = '[acme]\ntoken = "a"\nevents_per_second = 5\n[globex]\nelevenlabs_secret = "g"\n'
    settings = loaded(tenants_file=stored(tmp_path, text)).ingest
    assert settings.is_on
    senders = settings.senders()
    assert list(senders) == ["acme", "globex"]
    assert senders["acme"].events_per_second == 5
    both = loaded(tenants_file=stored(tmp_path, text), token="all").ingest  # noqa: S106 - a secret of tests
    assert list(both.senders()) == ["", "acme", "globex"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected 1 to 100 tenants"),
        ("[acme", "the file is not TOML"),
        ("[acme]\n", "acme: expected a token"),
        ('[acme]\ntokn = "a"\n', "acme.tokn: "),
        ('acme = "a"\n', "acme: "),
        ('[acme]\ntoken = "two words"\n', "acme.token: expected visible ASCII"),
        ('[acme]\ntoken = "a"\n[globex]\ntoken = "a"\n', "two tenants have the same token"),
    ],
)
def test_a_mistake_in_the_file_of_tenants_is_told_without_a_secret(tmp_path: Path, text: str, told: str) -> None:
    found = mistake(tenants_file=stored(tmp_path, text))
    assert told in found
    assert '"a"' not in found
    assert "two words" not in found
