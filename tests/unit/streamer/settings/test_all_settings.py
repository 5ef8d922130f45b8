"""Settings come from defaults, file, environment and command line. All mistakes are shown together
with remedies.
"""

import re
import traceback
from pathlib import Path

import pytest

from streamer.settings.all_settings import (
    BLOCKS,
    Settings,
    SettingsError,
    load_settings,
    near_misses,
    setting_names,
)


def loaded(
    environment: dict[str, str] | None = None, config: Path | None = None, **options: object
) -> Settings:
    return load_settings(config, options, environment or {})


def mistakes(
    environment: dict[str, str] | None = None, config: Path | None = None, **options: object
) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        loaded(environment, config, **options)
    return list(caught.value.mistakes)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "callgauge.toml"
    path.write_text('bootstrap = "file:1"\nhttp_port = 1\n[limits]\nidle_ms = 1\ndead_air_ms = 1\n')
    return path


def test_without_anything_the_defaults_hold() -> None:
    settings = loaded()
    assert (settings.bootstrap, settings.topic_prefix, settings.http_host) == (
        "127.0.0.1:9092",
        "",
        "127.0.0.1",
    )
    assert (settings.http_port, settings.limits.idle_ms) == (8080, 300_000)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(config: Path) -> None:
    environment = {
        "CALLGAUGE_HTTP_PORT": "2",
        "CALLGAUGE_LIMITS__IDLE_MS": "2",
        "CALLGAUGE_TOPIC_PREFIX": "env.",
    }
    settings = loaded(environment, config, topic_prefix="option.", http_host=None)
    assert (settings.bootstrap, settings.http_port, settings.topic_prefix) == (
        "file:1",
        2,
        "option.",
    )
    assert (
        settings.limits.idle_ms,
        settings.limits.dead_air_ms,
        settings.limits.closing_grace_ms,
    ) == (2, 1, 10_000)
    assert loaded({"CALLGAUGE_CONFIG": str(config)}).http_port == 1, (
        "the environment may name the file"
    )


def test_clients_get_what_was_set() -> None:
    settings = loaded(
        {"CALLGAUGE_BOOTSTRAP": "a:1, b:2", "CALLGAUGE_TOPIC_PREFIX": "x."}, http_port=0
    )
    assert settings.kafka.bootstrap_servers == "a:1,b:2"
    assert settings.kafka.topic("scores") == "x.scores"
    assert (settings.http.host, settings.http.port) == ("127.0.0.1", 0)


def test_all_mistakes_are_told_together_each_where_it_was_made(config: Path) -> None:
    config.write_text(
        'http_port = "abc"\nhtp_host = "x"\n[limits]\nidle_ms = -4\nmax_open_call = 3\n'
    )
    environment = {
        "CALLGAUGE_BOOTSTRAP": "nowhere",
        "CALLGAUGE_LIMITS__DEAD_AIR_MS": "3.5",
        "CALLGAUGE_LIMITS__ZAP": "1",
    }
    told = mistakes(environment, config, topic_prefix="a b")
    beginnings = [
        "CALLGAUGE_BOOTSTRAP is 'nowhere': expected host:port",
        "--topic-prefix is 'a b'",
        f"http_port in {config} (CALLGAUGE_HTTP_PORT) is 'abc': expected a whole number",
        f"limits.idle_ms in {config} (CALLGAUGE_LIMITS__IDLE_MS) is -4: expected greater than 0",
        "CALLGAUGE_LIMITS__DEAD_AIR_MS is '3.5': expected a whole number",
        f"limits.max_open_call in {config} (CALLGAUGE_LIMITS__MAX_OPEN_CALL): there is no such "
        "setting; "
        "did you mean limits.max_open_calls?",
        "CALLGAUGE_LIMITS__ZAP: there is no such setting",
        f"htp_host in {config} (CALLGAUGE_HTP_HOST): there is no such setting; did you mean "
        "http_host?",
    ]
    assert len(told) == len(beginnings)
    for beginning in beginnings:
        assert [text for text in told if text.startswith(beginning)], (beginning, told)


def test_every_mistake_shows_a_value_that_works() -> None:
    """The example in each message is accepted exactly as it is written there."""
    wrong = {
        "CALLGAUGE_BOOTSTRAP": ":1",
        "CALLGAUGE_TOPIC_PREFIX": "/",
        "CALLGAUGE_EVALUATOR_INSTANCE": "",
        "CALLGAUGE_HTTP_HOST": "",
        "CALLGAUGE_HTTP_PORT": "65536",
        "CALLGAUGE_LOG_FORMAT": "xml",
        "CALLGAUGE_LOG_LEVEL": "all",
        "CALLGAUGE_LIMITS__IDLE_MS": "0",
        "CALLGAUGE_SECURITY__PROTOCOL": "TLS",
        "CALLGAUGE_JUDGE__SAMPLE_RATIO": "2",
        "CALLGAUGE_MAX_SERIES": "10",
        "CALLGAUGE_GOALS__TRIALS": "4",
        "CALLGAUGE_TRANSCRIPTS__ENABLED": "perhaps",
        "CALLGAUGE_REDACTION__DETECTORS": "mail",
        "CALLGAUGE_INGEST__PORT": "-1",
        "CALLGAUGE_MONITOR__BASE_URL": "elevenlabs",
        "CALLGAUGE_OTLP__ENDPOINT": "collector",
        "CALLGAUGE_CONSOLE_URL": "console",
        "CALLGAUGE_HISTORY__RETENTION_DAYS": "0",
        "CALLGAUGE_CONSOLE__PORT": "-1",
        "CALLGAUGE_HTTP_NAMES": "a:1",
        "CALLGAUGE_MEASURES__SECONDS": "0",
    }
    not_shown = {"http_token"}  # no secret is shown
    shown = set(Settings.model_fields) - not_shown
    assert {name.removeprefix("CALLGAUGE_").split("__")[0].lower() for name in wrong} == shown
    examples = [re.search(r"For example (\w+)=(\S+)$", text) for text in mistakes(wrong)]
    assert len(examples) == len(wrong)
    given = {match[1]: match[2] for match in examples if match}
    assert set(given) == set(wrong)
    loaded(given)


def test_origins_of_recordings_are_compared_as_browsers_do() -> None:
    name = "CALLGAUGE_CONSOLE__RECORDING_ORIGINS"
    given = "https://Rec.example:443, http://127.0.0.1:9000,http://[::1]:80"
    origins = ("https://rec.example", "http://127.0.0.1:9000", "http://[::1]")
    assert loaded({name: given}).console.recording_origins == origins
    for wrong in (
        *("rec.example", "https://rec.example/", "https://*.example", "ftp://rec.example"),
        *("https://ada@rec.example", "https://rec.example;script-src *", "'self'", "https://"),
    ):
        (told,) = mistakes({name: f"https://rec.example,{wrong}"})
        assert "no origin: a scheme, a name and perhaps a port" in told


@pytest.mark.parametrize(
    "bootstrap", ["host", "host:", "host:0", "host:65536", "a:1,,b:2", "a:x", ""]
)
def test_an_address_without_host_or_port_is_refused(bootstrap: str) -> None:
    assert "expected host:port" in mistakes(bootstrap=bootstrap)[0]


def test_what_was_given_is_shown_shortened_and_limits_as_one_text_are_explained() -> None:
    (told,) = mistakes({"CALLGAUGE_HTTP_PORT": "9" * 5_000})
    assert len(told) < 300
    (told,) = mistakes({"CALLGAUGE_LIMITS": "idle_ms=3"})
    assert "CALLGAUGE_LIMITS__MAX_RECORD_BYTES=1048576" in told


def test_a_file_that_is_missing_or_no_toml_is_told(tmp_path: Path) -> None:
    missing, broken = tmp_path / "missing.toml", tmp_path / "broken.toml"
    broken.write_bytes(b"http_port: 80\n")
    assert "cannot be read (No such file or directory)" in mistakes(config=missing)[0]
    assert "is not TOML" in mistakes(config=broken)[0]
    broken.write_bytes(b"\xff")
    assert "is not TOML" in mistakes(config=broken)[0]


def security(**settings: object) -> dict[str, str]:
    return {f"CALLGAUGE_SECURITY__{name.upper()}": str(value) for name, value in settings.items()}


SECRET = "hunter2"  # noqa: S105 - not a real secret
LOGIN = security(protocol="SASL_SSL", mechanism="SCRAM-SHA-512", username="ada", password=SECRET)


def test_kafka_clients_get_the_security_that_was_set(tmp_path: Path) -> None:
    config, password = tmp_path / "callgauge.toml", tmp_path / "password"
    password.write_text(SECRET + "\n")
    config.write_text(
        '[security]\nprotocol = "SASL_PLAINTEXT"\nmechanism = "PLAIN"\npassword = '
        f'"file:{password}"\n'
    )
    settings = loaded(security(username="ada"), config)
    options = settings.kafka.client_options()
    assert (options["security_protocol"], options["sasl_mechanism"]) == ("SASL_PLAINTEXT", "PLAIN")
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("ada", SECRET)
    password.unlink()
    assert settings.kafka.client_options() == options, "files are read once"


def test_a_password_is_taken_as_it_is() -> None:
    for password in ('{"json": 1}', " 12", "[", "null", "a=b,c"):
        options = loaded({**LOGIN, **security(password=password)}).kafka.client_options()
        assert options["sasl_plain_password"] == password


def test_security_that_does_not_fit_together_is_told_value_by_value(tmp_path: Path) -> None:
    missing = tmp_path / "ca.pem"
    told = mistakes(
        security(protocol="SASL_SSL", mechanism="PLAIN", password=SECRET, ca_file=missing)
    )
    expected = [
        "CALLGAUGE_SECURITY__USERNAME is not set: security.mechanism PLAIN needs it (who logs in "
        "with PLAIN or SCRAM). "
        "For example CALLGAUGE_SECURITY__USERNAME=callgauge",
        f"CALLGAUGE_SECURITY__CA_FILE is {str(missing)!r:.57}",
    ]
    assert [text[: len(start)] for text, start in zip(told, expected, strict=True)] == expected
    assert "the file cannot be read (No such file or directory)" in told[1]


def test_a_mistake_of_security_in_the_file_is_told_where_it_was_made(config: Path) -> None:
    config.write_text('[security]\nprotocol = "SSL"\nmechanism = "PLAIN"\npasword = "hunter2"\n')
    (told,) = mistakes(config=config)
    assert told.startswith(
        f"security.pasword in {config} (CALLGAUGE_SECURITY__PASWORD): there is no such setting; did"
    )
    config.write_text('[security]\nprotocol = "SSL"\nmechanism = "PLAIN"\n')
    (told,) = mistakes(config=config)
    assert told.startswith(
        f"security.mechanism in {config} (CALLGAUGE_SECURITY__MECHANISM) is 'PLAIN': "
        "security.protocol"
    )


@pytest.mark.parametrize(
    "environment",
    [
        security(password=SECRET),
        {**LOGIN, **security(password="", key_password=SECRET)},
        {**LOGIN, **security(mechanism="OAUTHBEARER")},
        {**LOGIN, **security(password=SECRET * 1_000)},
        {**LOGIN, **security(pasword=SECRET)},
        {**LOGIN, "CALLGAUGE_HTTP_PORT": "x"},
        {"CALLGAUGE_SECURITY": SECRET},
        {"CALLGAUGE_SECURITY": f'{{"password": "{SECRET}", "protocol": "X"}}'},
        {"CALLGAUGE_SECURITY": f'{{"password": ["{SECRET}"]}}'},
        {"CALLGAUGE_SECURITY": f'"{SECRET}"'},
    ],
)
def test_no_message_holds_a_secret(environment: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(environment)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_settings_that_are_printed_hold_no_secret() -> None:
    settings = loaded(LOGIN)
    for shown in (repr(settings), str(settings.kafka), settings.model_dump_json()):
        assert SECRET not in shown


def test_goals_are_set_as_a_block(tmp_path: Path) -> None:
    path = tmp_path / "callgauge.toml"
    path.write_text('[goals]\nfolder = "goals"\ntrials = 3\ntext_judges = ["speakability"]\n')
    environment = {"CALLGAUGE_GOALS__READS_TOPIC": "true", "CALLGAUGE_GOALS__STALL_TURNS": "2"}
    goals = loaded(environment, path).goals
    assert (goals.folder, goals.reads_topic, goals.trials, goals.stall_turns) == (
        Path("goals"),
        True,
        3,
        2,
    )
    assert goals.text_judges == ("speakability",)


def test_mistakes_in_the_goals_are_told() -> None:
    told = mistakes(
        {
            "CALLGAUGE_GOALS__TRIALS": "4",
            "CALLGAUGE_GOALS__TEXT_JUDGES": "politeness",
            "CALLGAUGE_GOALS__FOLDR": "x",
        }
    )
    assert [text.partition(" is ")[0].partition(":")[0] for text in told] == [
        "CALLGAUGE_GOALS__TRIALS",
        "CALLGAUGE_GOALS__TEXT_JUDGES",
        "CALLGAUGE_GOALS__FOLDR",
    ]
    assert "expected an odd number" in told[0]
    assert "'politeness' is none of conciseness, speakability" in told[1]
    assert "did you mean goals.folder?" in told[2]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_that_is_no_group_shows_a_variable_that_works(block: str) -> None:
    told = mistakes({f"CALLGAUGE_{block.upper()}": "1"})[0]
    # there is one
    variable, value = re.search(r"[Ff]or example (\w+)=(\S+)$", told).groups()  # type: ignore[union-attr]
    assert variable.startswith(f"CALLGAUGE_{block.upper()}__")
    if not value.startswith("file:"):  # it is not here
        loaded({variable: value})


def test_the_evaluator_has_the_rules_of_the_settings() -> None:
    environment = {
        "CALLGAUGE_GOALS__TEXT_JUDGES": "faithfulness, conciseness",
        "CALLGAUGE_GOALS__TRIALS": "7",
    }
    rules = loaded(environment).goal_rules(["evaluator"])
    assert (rules.text_judges, rules.trials) == (("faithfulness", "conciseness"), 7)


@pytest.mark.parametrize(
    ("environment", "roles", "asks"),
    [
        ({}, ["evaluator", "judge"], False),
        ({"OPENAI_API_KEY": "key"}, ["evaluator", "judge"], True),
        ({"OPENAI_API_KEY": "key"}, ["evaluator"], False),
        (
            {"OPENAI_API_KEY": "key", "CALLGAUGE_JUDGE__ENABLED": "false"},
            ["evaluator", "judge"],
            False,
        ),
        ({"CALLGAUGE_GOALS__ASKS_JUDGE": "true"}, ["evaluator"], True),
    ],
)
def test_a_judge_with_a_key_in_the_same_process_is_asked(
    environment: dict[str, str], roles: list[str], asks: bool
) -> None:
    assert loaded(environment).goal_rules(roles).asks_judge is asks


def test_a_folder_needs_transcripts_to_put_there(config: Path) -> None:
    assert loaded().transcripts.enabled
    config.write_text('[transcripts]\nfolder = "files"\n')
    assert loaded(config=config).transcripts.folder == Path("files")
    (told,) = mistakes({"CALLGAUGE_TRANSCRIPTS__ENABLED": "false"}, config)
    assert told.startswith(
        f"transcripts.folder in {config} (CALLGAUGE_TRANSCRIPTS__FOLDER) is 'files': there is "
        "nothing"
    )
    (told,) = mistakes({"CALLGAUGE_TRANSCRIPTS__FOLDR": "x"})
    assert told.endswith("did you mean transcripts.folder?")


def ingest_loaded(**ingest: str) -> Settings:
    """Settings that come from the environment."""
    return load_settings(
        None, {}, {f"CALLGAUGE_INGEST__{name.upper()}": value for name, value in ingest.items()}
    )


def mistake(**ingest: str) -> str:
    with pytest.raises(SettingsError) as caught:
        ingest_loaded(**ingest)
    (text,) = caught.value.mistakes
    return text


def stored(folder: Path, text: str) -> str:
    path = folder / "secret"
    path.write_text(text)
    return str(path)


def test_without_a_token_or_a_secret_it_is_off() -> None:
    assert not Settings().ingest.is_on
    assert ingest_loaded(token="abc").ingest.is_on  # noqa: S106 - a secret of tests
    assert ingest_loaded(elevenlabs_secret="wsec_x").ingest.is_on  # noqa: S106 - a secret of tests


def test_secrets_come_from_files_too(tmp_path: Path) -> None:
    path = "file:" + stored(tmp_path, "from-a-file\n")
    settings = ingest_loaded(token=path, elevenlabs_secret=path).ingest
    assert settings.token is not None
    assert settings.elevenlabs_secret is not None
    assert {settings.token.get_secret_value(), settings.elevenlabs_secret.get_secret_value()} == {
        "from-a-file"
    }
    assert "from-a-file" not in repr(settings)
    assert "without spaces" in mistake(token="file:" + stored(tmp_path, "two words"))
    missing = tmp_path / "missing"
    assert f"{missing}: the file cannot be read" in mistake(elevenlabs_secret=f"file:{missing}")


def test_tenants_have_tokens_secrets_and_limits_of_their_own(tmp_path: Path) -> None:
    text = '[acme]\ntoken = "a"\nevents_per_second = 5\n[globex]\nelevenlabs_secret = "g"\n'
    settings = ingest_loaded(tenants_file=stored(tmp_path, text)).ingest
    assert settings.is_on
    senders = settings.senders()
    assert list(senders) == ["acme", "globex"]
    assert senders["acme"].events_per_second == 5
    both = ingest_loaded(tenants_file=stored(tmp_path, text), token="all").ingest  # noqa: S106 - a secret of tests
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
def test_a_mistake_in_the_file_of_tenants_is_told_without_a_secret(
    tmp_path: Path, text: str, told: str
) -> None:
    found = mistake(tenants_file=stored(tmp_path, text))
    assert told in found
    assert '"a"' not in found
    assert "two words" not in found


def told_of(**environment: str) -> list[str]:
    return list(near_misses(environment, setting_names()))


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("CALLGAUGE_BOOTSTRP", "CALLGAUGE_BOOTSTRAP"),
        ("CALLGAUGE_GOALS_FOLDER", "CALLGAUGE_GOALS__FOLDER"),
        ("CALLGAUGE_GOAL__FOLDER", "CALLGAUGE_GOALS__FOLDER"),
        ("CALLGAUGE_GOAL_FOLDER", "CALLGAUGE_GOALS__FOLDER"),
        ("CALLGAUGE_LIMITS_IDLE_MS", "CALLGAUGE_LIMITS__IDLE_MS"),
        ("CALLGAUGE_LIMIT__IDLE_MS", "CALLGAUGE_LIMITS__IDLE_MS"),
        ("CALLGAUGE_IDLE_MS", "CALLGAUGE_LIMITS__IDLE_MS"),
        (
            "CALLGAUGE_FOLDER",
            "CALLGAUGE_CONSOLE__FOLDER or CALLGAUGE_GOALS__FOLDER or CALLGAUGE_HISTORY__FOLDER or "
            "CALLGAUGE_MEASURES__FOLDER or "
            "CALLGAUGE_TRANSCRIPTS__FOLDER",
        ),
        ("CALLGAUGE_HTTP__PORT", "CALLGAUGE_HTTP_PORT"),
        ("CALLGAUGE_INGEST_PORT", "CALLGAUGE_INGEST__PORT"),
        ("CALLGAUGE_CONFG", "CALLGAUGE_CONFIG"),
    ],
)
def test_a_slip_is_noticed_with_the_right_name(variable: str, meant: str) -> None:
    (told,) = told_of(**{variable: "1"})
    assert told == f"{variable} is set but is no setting and changes nothing; did you mean {meant}?"


def test_the_variables_of_kubernetes_are_left_alone() -> None:
    """Kubernetes sets these in every container for services that are called `callgauge` or
    `callgauge-ingest`.
    """
    theirs: dict[str, str] = {}
    for service in ("CALLGAUGE", "CALLGAUGE_INGEST", "CALLGAUGE_HTTP_2"):
        theirs |= {
            f"{service}_SERVICE_HOST": "10.0.0.1",
            f"{service}_SERVICE_PORT": "8080",
            f"{service}_SERVICE_PORT_METRICS": "8080",
            f"{service}_PORT": "tcp://10.0.0.1:8080",
            f"{service}_PORT_8080_TCP": "tcp://10.0.0.1:8080",
            f"{service}_PORT_8080_TCP_PROTO": "tcp",
            f"{service}_PORT_8080_TCP_PORT": "8080",
            f"{service}_PORT_8080_TCP_ADDR": "10.0.0.1",
        }
    assert told_of(**theirs) == []
    load_settings(None, {}, theirs)


def test_right_names_and_names_of_others_are_left_alone() -> None:
    right = {f"CALLGAUGE_{'__'.join(names).upper()}": "1" for names in setting_names()}
    assert (
        told_of(**right, CALLGAUGE_CONFIG="x", CALLGAUGE_JUDGE="{}", callgauge_http_port="1") == []
    )
    assert (
        told_of(
            CALLGAUGE_TEST_BOOTSTRAP="", CALLGAUGE_LIMITS__ZAP="1", PATH="", CALLGAUGE_TAG="local"
        )
        == []
    )
