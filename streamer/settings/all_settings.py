"""Settings of every command: defaults, then a TOML file, then the environment, then the command line; the later wins.

All mistakes are found before anything is started and reported together, each with its name and a valid example.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as UnreadableSettingError

from consumers.engine.limits import GoalRules, Limits
from consumers.exporter.settings import OtlpSettings
from consumers.judge.settings import JudgeSettings
from consumers.runtime.kafka.security import MISTAKES_ERROR, SecuritySettings
from consumers.runtime.process import OperatorError
from consumers.runtime.settings import (
    MAX_SERIES,
    HeaderSecret,
    HeaderSecretFile,
    HttpSettings,
    LogFormat,
    LogLevel,
    or_of_its_file,
)
from streamer.settings.goals import GoalSettings
from streamer.settings.ingest import IngestSettings
from streamer.settings.monitor import MonitorSettings
from streamer.settings.redaction import RedactionSettings
from streamer.settings.transcripts import TranscriptSettings
from streamer.settings.variables import CONFIG_VARIABLE, ENV_PREFIX, NESTING, Given, Names, variable_of

if TYPE_CHECKING:
    from consumers.runtime.kafka.connection import KafkaSettings

_MAX_PORT: Final = 65_535
_MAX_SHOWN_CHARS: Final = 60


class SettingsError(OperatorError):
    """Settings cannot be used: change them and start again; nothing was started.

    Attributes:
        mistakes: One text per mistake, all of them.
    """

    exit_code = 2

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        count = "One setting is" if len(self.mistakes) == 1 else f"{len(self.mistakes)} settings are"
        super().__init__("\n".join([f"{count} wrong; nothing was started.", *(f"  {each}" for each in self.mistakes)]))


def _bootstrap(value: str) -> str:
    addresses = [address.strip() for address in value.split(",")]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) <= _MAX_PORT):
            raise ValueError("expected host:port, several separated by commas")
    return ",".join(addresses)


_Group = Annotated[str, Field(min_length=1, max_length=200)]


class LimitSettings(Limits):
    """The engine's limits as settings: a misspelt one is a mistake instead of a default."""

    model_config = ConfigDict(extra="forbid")


class Settings(BaseSettings):
    """The settings of an operator; `callgauge run --help` says how to set them."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=NESTING,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,  # secrets are among it
    )

    bootstrap: Annotated[str, AfterValidator(_bootstrap)] = Field(
        "127.0.0.1:9092", description="Kafka brokers as host:port, several separated by commas"
    )
    topic_prefix: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]*$",
        max_length=100,
        examples=["staging."],
        description="text put before every topic name as it is: letters, digits, dot, dash and underscore",
    )
    evaluator_group: _Group = Field(
        "callgauge-evaluator", description="consumer group of the evaluators that share the work"
    )
    evaluator_instance: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        examples=["evaluator-0"],
        description="name of this evaluator that outlives its restart, so that one causes no rebalance; each has its own",
    )
    poll_interval_ms: int = Field(
        25, gt=0, le=1_000, description="how long events may gather at the broker, in ms; a backlog is taken at once"
    )
    exporter_group: _Group = Field(
        "callgauge-exporter", description="consumer group of the exporters that share the work"
    )
    judge_group: _Group = Field("callgauge-judge", description="consumer group of the judges that share the questions")
    http_host: str = Field(
        "127.0.0.1", min_length=1, description="address to serve /metrics on; 0.0.0.0 is every network of the machine"
    )
    http_port: int = Field(8080, ge=0, le=_MAX_PORT, description="port of /metrics, 0 to 65535; 0 takes a free one")
    http_token_file: HeaderSecretFile | None = Field(
        None,
        examples=["/run/secrets/http-token"],
        description="file with the token that a reader of /metrics has to send",
    )
    http_token: HeaderSecret | None = Field(
        None, examples=["..."], description="token that a reader of /metrics has to send; none means everybody may read"
    )
    console_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s@]+$",
        max_length=500,
        examples=["https://example.com/callgauge"],
        description="address of the console; the page of a call is at /calls/{id} below it. Without it, links are left out",
    )
    max_series: int = Field(
        MAX_SERIES,
        ge=5_000,
        description="most series on /metrics; beyond it, further names of agents and tools are `other`",
    )
    log_format: LogFormat = Field(
        "auto",
        description="log lines for people (console) or for machines (json); auto takes console on a terminal, otherwise json",
    )
    log_level: LogLevel = Field("info", description="least level of our own log lines; libraries' start at warning")
    limits: LimitSettings = Field(LimitSettings(), description="bounds of the engine, each with its unit in its name")
    goals: GoalSettings = Field(GoalSettings(), description="what calls are for, and how that is judged")
    judge: JudgeSettings = Field(
        JudgeSettings(), description="the model that judges calls: where, how fast, for how much"
    )
    ingest: IngestSettings = Field(
        IngestSettings(), description="receiving events over HTTP: who may send what, and where to"
    )
    monitor: MonitorSettings = Field(
        MonitorSettings(), description="following live calls of ElevenLabs agents: the key, and which agents"
    )
    redaction: RedactionSettings = Field(
        RedactionSettings(), description="what is taken out of every text that is written or shown"
    )
    transcripts: TranscriptSettings = Field(
        TranscriptSettings(), description="whether calls that close get a transcript, and where it goes"
    )
    otlp: OtlpSettings = Field(OtlpSettings(), description="final scores as OpenTelemetry log events")
    security: SecuritySettings = Field(
        SecuritySettings(),
        description="how to get in at Kafka: TLS, and a login; secrets from the environment or files",
    )

    @field_validator("http_token")
    @classmethod
    def _token_of_the_file(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        return or_of_its_file(value, info)

    def goal_rules(self, roles: Collection[str]) -> GoalRules:
        """How an evaluator judges calls against goals when these roles run in its process."""
        return self.goals.rules(self.judge, has_judge="judge" in roles)

    @property
    def kafka(self) -> "KafkaSettings":
        """The Kafka cluster."""
        from consumers.runtime.kafka.connection import KafkaSettings

        return KafkaSettings(bootstrap_servers=self.bootstrap, topic_prefix=self.topic_prefix, security=self.security)

    @property
    def http(self) -> HttpSettings:
        """Address and token of /metrics."""
        return HttpSettings(host=self.http_host, port=self.http_port, token=self.http_token)


def load_settings(
    config_file: Path | None, options: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> Settings:
    """Gathers the settings.

    Args:
        config_file: A TOML file; None takes the one that CALLGAUGE_CONFIG names, if any.
        options: Values of the command line by field name; None means not given.
        environment: Replaces the environment of the process, in tests.

    Raises:
        SettingsError: At least one setting cannot be used; the error names all of them.
    """
    return settings_of(given_values(config_file, options, environment))


def given_values(
    config_file: Path | None, options: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> Given:
    """Collects the values that were given for settings. The arguments are those of `load_settings`.

    Raises:
        SettingsError: The settings file cannot be read.
    """
    env = os.environ if environment is None else environment
    named = env.get(CONFIG_VARIABLE)
    path = config_file or (Path(named) if named else None)
    in_file = {} if path is None else _read_toml(path)
    return Given({name: value for name, value in options.items() if value is not None}, env, in_file, path)


def settings_of(given: Given) -> Settings:
    """Makes the settings of the given values and the defaults.

    Raises:
        SettingsError: At least one setting cannot be used; the error names all of them.
    """

    class Gathered(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            variables = EnvSettingsSource(settings_cls)
            variables.env_vars = {name.lower(): value for name, value in given.environment.items()}
            sources = init_settings, variables, InitSettingsSource(settings_cls, dict(given.in_file))
            return (*sources, InitSettingsSource(settings_cls, {"judge": given.of_openai()}))

    try:
        return Gathered(**given.options)
    except UnreadableSettingError as error:
        example = next((text for block, text in _EXAMPLE_OF_BLOCK.items() if f'"{block}"' in str(error)), "")
        raise SettingsError([f"{error}: expected JSON. Set its parts one by one, for example {example}"]) from None
    except ValidationError as error:
        mistakes = _mistakes(error.errors(include_url=False), given)
        raise SettingsError(mistakes) from None  # its text holds the values, secrets included


def setting_names() -> tuple[Names, ...]:
    """Every setting: first those without a block, then block by block."""
    alone = tuple((name,) for name in Settings.model_fields if name not in BLOCKS)
    return alone + tuple((block, name) for block, model in BLOCKS.items() for name in model.model_fields)


_EXAMPLE_OF_BLOCK: Final = {
    "limits": "CALLGAUGE_LIMITS__IDLE_MS=300000",
    "goals": "CALLGAUGE_GOALS__FOLDER=goals",
    "judge": "CALLGAUGE_JUDGE__MODEL=gpt-4.1",
    "monitor": "CALLGAUGE_MONITOR__API_KEY_FILE=/run/secrets/elevenlabs-api-key",
    "ingest": "CALLGAUGE_INGEST__ELEVENLABS_SECRET_FILE=/run/secrets/elevenlabs-webhook",
    "redaction": "CALLGAUGE_REDACTION__PHONE_REGIONS=US,GB",
    "transcripts": "CALLGAUGE_TRANSCRIPTS__FOLDER=transcripts",
    "otlp": "CALLGAUGE_OTLP__ENDPOINT=http://collector:4318/v1/logs",
    "security": "CALLGAUGE_SECURITY__PROTOCOL=SSL",
}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SettingsError(
            [f"{path}: the settings file cannot be read ({reason}). Check --config and {CONFIG_VARIABLE}."]
        ) from error
    except ValueError as error:  # TOML's own error and bad UTF-8 are both of this kind
        raise SettingsError(
            [f"{path}: the settings file is not TOML: {error}. A line looks like: http_port = 8080"]
        ) from error


def _mistakes(details: Iterable[Mapping[str, Any]], given: Given) -> Iterator[str]:
    for detail in details:
        names = tuple(str(part) for part in detail["loc"] if part != "[key]")
        if detail["type"] == MISTAKES_ERROR:  # several values that do not fit together, found by their owner
            values = detail["input"] if isinstance(detail["input"], Mapping) else {}
            for each in detail["ctx"]["mistakes"]:
                value = values.get(each.field)
                yield _mistake((*names, each.field), value, each.text, given, shows_example=value is None)
        elif detail["type"] == "extra_forbidden":
            known = (f"{'.'.join((*names[:-1], name))}" for name in _fields_beside(names))
            close = difflib.get_close_matches(".".join(names), list(known), n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(_fields_beside(names))}."
            yield f"{given.place(names)}: there is no such setting; {hint}"
        else:
            yield _mistake(names, detail["input"], _expected(detail), given)


def _mistake(names: tuple[str, ...], value: object, text: str, given: Given, *, shows_example: bool = True) -> str:
    where = given.place(names)
    field = _fields_beside(names).get(names[-1])
    if field is None:
        return f"{where}: {text}"
    if (example := _EXAMPLE_OF_BLOCK.get(names[-1])) is None:
        where += f" is {_seen(value, field)}"
        default = field.get_default(call_default_factory=True)
        example = f"{variable_of(names)}={field.examples[0] if field.examples else default}"
    meaning = (field.description or "").rstrip(".")
    told = f"{where}: {text} ({meaning})."
    return f"{told} For example {example}" if shows_example and not is_secret(field.annotation) else told


def _expected(detail: Mapping[str, Any]) -> str:
    message = str(detail["msg"]).removeprefix("Value error, ")
    match detail["type"]:
        case "int_parsing" | "int_type" | "int_from_float":
            return "expected a whole number"
        case "string_pattern_mismatch":
            return "it has characters that are not allowed"
        case "string_too_short" | "too_short":
            return "it must not be empty"
        case "model_type":
            return "expected a group of settings, each set by its own name"
    return re.sub(r"^Input should be", "expected", message)


def _seen(value: object, field: FieldInfo) -> str:
    if value is None:
        return "not set"
    if is_secret(field.annotation):
        return "set"
    shown = repr(value)
    return shown if len(shown) <= _MAX_SHOWN_CHARS else shown[: _MAX_SHOWN_CHARS - 3] + "..."


def is_secret(annotation: Any) -> bool:
    """Whether values of this type are secrets, which are never shown."""
    return annotation is SecretStr or any(is_secret(part) for part in get_args(annotation))


def _fields_beside(names: tuple[str, ...]) -> Mapping[str, FieldInfo]:
    """The settings on the same level as the last of the names."""
    return Settings.model_fields if len(names) == 1 else BLOCKS[names[0]].model_fields


BLOCKS: Final[Mapping[str, type[BaseModel]]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
