"""Every setting, by section."""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
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
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as UnreadableSettingError

from consumers.console.settings import ConsoleSettings
from consumers.engine.limits import GoalOptions, GoalRules, Limits, LimitSettings
from consumers.exporter.settings import OtlpSettings
from consumers.history.settings import HistorySettings
from consumers.judge.settings import JudgeSettings
from consumers.measures.files import MeasureSettings
from consumers.runtime.kafka.security import MISTAKES_ERROR, SecuritySettings
from consumers.runtime.process import SetupError
from consumers.runtime.settings import (
    MAX_SECRET_BYTES,
    MAX_SERIES,
    FromFile,
    HeaderSecret,
    HttpSettings,
    LogFormat,
    LogLevel,
    names_in,
    names_of,
)
from schemas.closed_sets import TEXT_JUDGES, Detector, JudgeKind
from schemas.judging import check_template
from schemas.redaction import MAX_PHONE_REGIONS, RedactionRules, Region

if TYPE_CHECKING:
    from consumers.runtime.kafka.connection import KafkaSettings


# Settings of goals: the sources of goal sets, and the rules of judging.


class GoalSettings(GoalOptions):
    """The engine's options as settings, and the sources of goal sets. Without a source calls have
    no goals.
    """

    model_config = ConfigDict(extra="forbid")

    folder: Path | None = Field(
        None,
        examples=["goals"],
        description=(
            "folder of goal files (.yaml, .yml, .json, .jsonl), read again when one changes"
        ),
    )
    template_subgoal: Annotated[str, FromFile, AfterValidator(check_template)] | None = Field(
        None,
        examples=["file:/etc/callgauge/judge-prompt.txt"],
        description=(
            "prompt of your own for subgoals, with the places {call} and {subgoal}; goal sets with "
            "one of their own have that"
        ),
    )
    reads_topic: bool = Field(default=False, description="whether the topic `goals` is read too")
    asks_judge: bool = Field(
        default=False,
        description="whether the evaluator puts questions to the judge "
        "role; one that runs in the same "
        "process with a key "
        "is asked in any case",
    )
    text_judges: Annotated[tuple[JudgeKind, ...], NoDecode, names_of(TEXT_JUDGES)] = Field(
        (),
        examples=["conciseness,speakability"],
        description=(
            f"EVA's metrics to be judged too, separated by commas: {', '.join(TEXT_JUDGES)}"
        ),
    )

    def rules(self, judge: JudgeSettings, *, has_judge: bool) -> GoalRules:
        """The rules of an evaluator.

        Args:
            judge: Of the judge role.
            has_judge: Whether that role runs in the same process.
        """
        given = {name: getattr(self, name) for name in GoalOptions.model_fields}
        return GoalRules(**{**given, "asks_judge": self.asks_judge or (has_judge and judge.is_on)})


# Settings of the role `ingest`: the address for senders, their tokens, and ElevenLabs' webhook
# secret.

MAX_TENANTS: Final = 100
"""Each tenant is a value of a label."""


def _not_empty(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value():
        raise ValueError("it must not be empty")
    return secret


WebhookSecret = Annotated[SecretStr, FromFile, AfterValidator(_not_empty)]


class SenderSettings(BaseModel):
    """The rights and limits of one sender of events: a tenant, or everybody if there are no
    tenants.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    token: HeaderSecret | None = Field(
        None,
        examples=["file:/run/secrets/ingest-token"],
        description="token for POST /events; without one, it is switched off",
    )
    elevenlabs_secret: WebhookSecret | None = Field(
        None,
        examples=["file:/run/secrets/elevenlabs-webhook"],
        description="secret of ElevenLabs' post-call webhook; without one, it is switched off",
    )
    events_per_second: int = Field(
        2_000,
        gt=0,
        le=1_000_000,
        description="events that a sender may post, over ten seconds on average",
    )

    @property
    def has_access(self) -> bool:
        """Whether there is a token or a secret, so that something can be received."""
        return self.token is not None or self.elevenlabs_secret is not None


class IngestSettings(SenderSettings):
    """The receiver of events over HTTP."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address to listen on for events; 0.0.0.0 is every network of the machine",
    )
    port: int = Field(
        8090, ge=0, le=65_535, description="port to listen on for events; 0 takes a free one"
    )
    tenants_file: Path | None = Field(
        None,
        examples=["/run/secrets/tenants.toml"],
        description="TOML file with a table for each tenant, which has the tenant's own token, "
        "elevenlabs_secret and "
        "events_per_second",
    )

    @field_validator("tenants_file")
    @classmethod
    def _tenants_fit(cls, value: Path | None) -> Path | None:
        if value is not None:
            tenants_in(value)
        return value

    @property
    def is_on(self) -> bool:
        """Whether anybody may send something."""
        return self.has_access or self.tenants_file is not None

    def senders(self) -> Mapping[str, SenderSettings]:
        """All senders by tenant; the one without a tenant is under the empty name.

        Raises:
            ValueError: The file of tenants has changed since the start, and cannot be used any
                more.
        """
        tenants = {} if self.tenants_file is None else tenants_in(self.tenants_file)
        return {"": self, **tenants} if self.has_access else tenants


def tenants_in(path: Path) -> Mapping[str, SenderSettings]:
    """Reads a file of tenants.

    Raises:
        ValueError: It is none. The text has the first mistake, and no secret.
    """
    try:
        if path.stat().st_size > MAX_SECRET_BYTES:
            raise ValueError(f"the file has more than {MAX_SECRET_BYTES} bytes")
        tables: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the file cannot be read ({error.strerror})") from error
    except tomllib.TOMLDecodeError:  # its text may repeat a secret
        raise ValueError("the file is not TOML") from None
    if not 0 < len(tables) <= MAX_TENANTS:
        raise ValueError(
            f"expected 1 to {MAX_TENANTS} tenants, each a table [name]; the file has {len(tables)}"
        )
    tenants = {}
    for name, table in tables.items():
        try:
            tenants[name] = SenderSettings.model_validate(table)
        except ValidationError as error:
            detail = error.errors(include_url=False, include_input=False)[0]
            where = ".".join([name, *map(str, detail["loc"])])
            raise ValueError(f"{where}: {detail['msg'].removeprefix('Value error, ')}") from None
        if not tenants[name].has_access:
            raise ValueError(
                f"{name}: expected a token or an elevenlabs_secret, otherwise it can send nothing"
            )
    tokens = [
        sender.token.get_secret_value() for sender in tenants.values() if sender.token is not None
    ]
    if len(set(tokens)) < len(tokens):
        raise ValueError("two tenants have the same token")
    return tenants


# Settings of the role `monitor`: the key of ElevenLabs' API, and the agents whose calls are
# followed.


class MonitorSettings(BaseModel):
    """The bridge from ElevenLabs' conversation monitor to Kafka."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    api_key: HeaderSecret | None = Field(
        None,
        examples=["file:/run/secrets/elevenlabs-api-key"],
        description=(
            "key of ElevenLabs' API that may write agents; without one, no live call is followed"
        ),
    )
    agents: Annotated[tuple[str, ...], NoDecode, BeforeValidator(names_in)] = Field(
        (),
        examples=["agent_1,agent_2"],
        description="ids of the agents to follow, separated by commas; none means all",
    )
    base_url: str = Field(
        "https://api.elevenlabs.io",
        pattern=r"^https?://[^/\s?#]+$",
        description=(
            "address of ElevenLabs' API, without a path; another one where data must stay in a "
            "region"
        ),
    )

    @property
    def is_on(self) -> bool:
        """Whether live calls can be followed."""
        return self.api_key is not None


# Settings of redaction: the personal data that is removed from texts before they are written or
# shown.

_NAMES: Final = ", ".join(Detector)


class RedactionSettings(RedactionRules):
    """The engine's rules as settings. They are on unless somebody switches them off."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool = Field(
        default=True,
        description=(
            "whether personal data is taken out of transcripts, questions to the judge, "
            "explanations, logs and pages"
        ),
    )
    detectors: Annotated[tuple[Detector, ...], NoDecode, names_of(Detector)] = Field(
        tuple(Detector),
        examples=["card,iban,email"],
        description=f"what is looked for, separated by commas: {_NAMES}",
    )
    phone_regions: Annotated[tuple[Region, ...], NoDecode] = Field(
        ("US",),
        max_length=MAX_PHONE_REGIONS,
        examples=["US,GB,DE"],
        description="countries whose telephone numbers are known without "
        "their country code, two letters "
        "each, separated by "
        "commas",
    )

    @field_validator("phone_regions", mode="before")
    @classmethod
    def _are_regions(cls, value: object) -> object:
        names = names_in(value)
        if not isinstance(names, list) or not names:
            return names
        # brings tables of the world, which are not needed without a country
        from phonenumbers import SUPPORTED_REGIONS

        if unknown := [name for name in names if name not in SUPPORTED_REGIONS]:
            raise ValueError(
                f"{unknown[0]!r} is no country with a telephone plan, written like US or DE"
            )
        return names


# Settings of transcripts: whether calls get a transcript, and whether transcripts become files too.


class TranscriptSettings(BaseModel):
    """The destinations of the transcript of a closed call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(
        default=True, description="whether a call that closes is written to the topic `transcripts`"
    )
    folder: Path | None = Field(
        None,
        examples=["transcripts"],
        description=(
            "folder that gets a file of each transcript too, named after its conversation; nothing "
            "is deleted there"
        ),
    )

    @field_validator("folder")
    @classmethod
    def _needs_transcripts(cls, folder: Path | None, info: ValidationInfo) -> Path | None:
        if folder is not None and info.data.get("enabled") is False:
            raise ValueError(
                "there is nothing to put there while transcripts.enabled is false; leave one of "
                "them out"
            )
        return folder


# The values that a person gave for settings, the place of each, and environment variables that
# nearly name a setting.

ENV_PREFIX: Final = "CALLGAUGE_"
CONFIG_VARIABLE: Final = "CALLGAUGE_CONFIG"
NESTING: Final = "__"
_NEARLY: Final = 0.85
"""Share of equal letters from which a name is a slip of another one: `GOAL_FOLDER`, but not
`TEST_BOOTSTRAP`.
"""
_MOST_MEANT: Final = 5
"""Settings that are offered for one wrong name; more would be a list and no answer."""
_OF_KUBERNETES: Final = re.compile(
    r".*_SERVICE_(HOST|PORT|PORT_\w+)|(.*_)?PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
_ADDRESS_OF_KUBERNETES: Final = re.compile(r"(tcp|udp|sctp)://")

Names = tuple[str, ...]
"""A setting: its name, with the name of its block before it if it is in one."""


def variable_of(names: Names) -> str:
    """The environment variable of a setting: `CALLGAUGE_GOALS__FOLDER`."""
    return ENV_PREFIX + NESTING.join(names).upper()


@dataclass(frozen=True)
class Given:
    """The values of the command line, the environment and the settings file, before anybody has
    checked them.

    Attributes:
        options: Of the command line, by setting.
        environment: All variables of the process.
        in_file: Content of the settings file.
        path: The settings file, if there is one.
    """

    options: Mapping[str, Any]
    environment: Mapping[str, str]
    in_file: Mapping[str, Any]
    path: Path | None

    def place(self, names: Names) -> str:
        """The place to change a setting: `--http-port`, `CALLGAUGE_HTTP_PORT` or `http_port in
        callgauge.toml`.
        """
        if names[0] in self.options:
            return "--" + names[0].replace("_", "-")
        variable = variable_of(names)
        if variable in self._variables or variable_of(names[:1]) in self._variables:
            return variable
        if names[0] in self.in_file:
            return f"{'.'.join(names)} in {self.path} ({variable})"
        return variable

    def origin(self, names: Names) -> str | None:
        """The option, variable or file that a setting has its value from; None is the default."""
        variables, variable = self._variables, variable_of(names)
        if names[0] in self.options:
            return "--" + names[0].replace("_", "-")
        if variable in variables or any(name.startswith(variable + NESTING) for name in variables):
            return variable
        block = variable_of(names[:1])
        if len(names) > 1 and block in variables and names[1] in json.loads(variables[block]):
            return block
        inside = self.in_file.get(names[0]) if len(names) > 1 else self.in_file
        if isinstance(inside, Mapping) and names[-1] in inside:
            return str(self.path)
        if names[0] == "judge" and names[-1] in self.of_openai():
            return f"OPENAI_{names[-1].upper()}"
        return None

    def of_openai(self) -> dict[str, str]:
        """Key and endpoint from the variables of OpenAI's own client, for people who have set them
        already. Ours win.
        """
        names = {"api_key": "OPENAI_API_KEY", "base_url": "OPENAI_BASE_URL"}
        found = {name: self.environment.get(variable, "") for name, variable in names.items()}
        return {name: value for name, value in found.items() if value}

    @property
    def _variables(self) -> dict[str, str]:
        return {name.upper(): value for name, value in self.environment.items()}


OF_SENDERS: Final = ("CALLGAUGE_URL", "CALLGAUGE_TOKEN")
"""Variables of bots, which a shell may have that also starts callgauge."""


def near_misses(environment: Mapping[str, str], settings: Collection[Names]) -> tuple[str, ...]:
    """Variables that look like a misspelt setting, each as a sentence.

    Others that begin with CALLGAUGE_ are left alone: Kubernetes sets some for every service of that
    name. Wrong names in a block that exists are left to the reading of settings, which refuses
    them.

    Args:
        environment: All variables of the process.
        settings: Every setting there is.
    """
    known = {variable_of(names) for names in settings} | {CONFIG_VARIABLE, *OF_SENDERS}
    blocks = tuple(variable_of(names[:1]) + NESTING for names in settings if len(names) > 1)
    whole = {variable_of(names[:1]) for names in settings}
    found = []
    for name in sorted(environment):
        upper = name.upper()
        if not name.startswith(ENV_PREFIX) or upper in known | whole or upper.startswith(blocks):
            continue
        if not _is_of_kubernetes(name, environment[name]) and (meant := _meant(upper, known)):
            told = f"{name} is set but is no setting and changes nothing"
            found.append(f"{told}; did you mean {' or '.join(meant)}?")
    return tuple(found)


def _is_of_kubernetes(name: str, value: str) -> bool:
    """Whether Kubernetes sets such a variable for a service whose name begins with `callgauge`."""
    rest = name.removeprefix(ENV_PREFIX)
    is_address = rest == "PORT" or rest.endswith("_PORT")
    return bool(_OF_KUBERNETES.fullmatch(rest)) or (
        is_address and bool(_ADDRESS_OF_KUBERNETES.match(value))
    )


def _meant(variable: str, known: Iterable[str]) -> list[str]:
    """The settings that a name may mean: without regard to underscores, by its last part, or by
    most of its letters.
    """
    rest = _plain(variable)
    by_plain_name = {_plain(name): name for name in known}
    if rest in by_plain_name:
        return [by_plain_name[rest]]
    ends = sorted(name for plain, name in by_plain_name.items() if plain.endswith(f"_{rest}"))
    if 0 < len(ends) <= _MOST_MEANT:
        return ends
    return [
        by_plain_name[name]
        for name in difflib.get_close_matches(rest, by_plain_name, n=1, cutoff=_NEARLY)
    ]


def _plain(variable: str) -> str:
    return re.sub("_+", "_", variable.removeprefix(ENV_PREFIX))


# pydantic-settings reads the environment. Its own TOML source says neither where a value is from
# nor which name was meant.
#
# Settings of every command: defaults, then a TOML file, then the environment, then the command
# line; the later wins.
#
# All mistakes are found before anything is started and reported together, each with its name and a
# valid example.

_MAX_PORT: Final = 65_535
_MAX_SHOWN_CHARS: Final = 60


class SettingsError(SetupError):
    """Settings cannot be used: change them and start again; nothing was started.

    Attributes:
        mistakes: One text per mistake, all of them.
    """

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        count = (
            "One setting is" if len(self.mistakes) == 1 else f"{len(self.mistakes)} settings are"
        )
        super().__init__(
            "\n".join(
                [f"{count} wrong; nothing was started.", *(f"  {each}" for each in self.mistakes)]
            )
        )


def _bootstrap(value: str) -> str:
    addresses = [address.strip() for address in value.split(",")]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (
            host and colon and port.isascii() and port.isdigit() and 0 < int(port) <= _MAX_PORT
        ):
            raise ValueError("expected host:port, several separated by commas")
    return ",".join(addresses)


_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")


def _are_host_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [name for name in names if not _HOST_NAME.fullmatch(name)]:
        raise ValueError(f"{wrong[0][:100]!r} is no name of a machine; a port is no part of it")
    return names


_HostNames = Annotated[
    tuple[str, ...], NoDecode, BeforeValidator(names_in), AfterValidator(_are_host_names)
]


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
        description=(
            "text put before the name of every topic and group as it is: letters, digits, dot, "
            "dash and underscore"
        ),
    )
    evaluator_instance: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        examples=["evaluator-0"],
        description=(
            "name of this evaluator that outlives its restart, so that one causes no rebalance; "
            "each has its own"
        ),
    )
    http_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address to serve /metrics on; 0.0.0.0 is every network of the machine",
    )
    http_port: int = Field(
        8080, ge=0, le=_MAX_PORT, description="port of /metrics, 0 to 65535; 0 takes a free one"
    )
    http_token: HeaderSecret | None = Field(
        None,
        examples=["file:/run/secrets/http-token"],
        description="token that a reader of /metrics has to send; none means everybody may read",
    )
    http_names: _HostNames = Field(
        (),
        max_length=100,
        examples=["calls.example.com"],
        description="names by which a proxy or a tunnel on this machine "
        "asks, separated by commas; a "
        "request for another one is refused "
        "at every address of this machine alone",
    )
    console_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s@]+$",
        max_length=500,
        examples=["https://example.com/callgauge"],
        description=(
            "address of the console; the page of a call is at /calls/{id} below it. Without it, "
            "links are left out"
        ),
    )
    max_series: int = Field(
        MAX_SERIES,
        ge=5_000,
        description=(
            "most series on /metrics; beyond it, further names of agents and tools are `other`"
        ),
    )
    log_format: LogFormat = Field(
        "auto",
        description=(
            "log lines for people (console) or for machines (json); auto takes console on a "
            "terminal, otherwise json"
        ),
    )
    log_level: LogLevel = Field(
        "info", description="least level of our own log lines; libraries' start at warning"
    )
    limits: LimitSettings = Field(
        LimitSettings(), description="bounds of the engine, each with its unit in its name"
    )
    goals: GoalSettings = Field(
        GoalSettings(), description="what calls are for, and how that is judged"
    )
    judge: JudgeSettings = Field(
        JudgeSettings(), description="the model that judges calls: where, how fast, for how much"
    )
    ingest: IngestSettings = Field(
        IngestSettings(), description="receiving events over HTTP: who may send what, and where to"
    )
    monitor: MonitorSettings = Field(
        MonitorSettings(),
        description="following live calls of ElevenLabs agents: the key, and which agents",
    )
    redaction: RedactionSettings = Field(
        RedactionSettings(), description="what is taken out of every text that is written or shown"
    )
    transcripts: TranscriptSettings = Field(
        TranscriptSettings(),
        description="whether calls that close get a transcript, and where it goes",
    )
    history: HistorySettings = Field(
        HistorySettings(), description="past calls: where they are kept, and for how long"
    )
    measures: MeasureSettings = Field(MeasureSettings(), description="measures of one's own")
    console: ConsoleSettings = Field(
        ConsoleSettings(), description="the page of calls: where it is served, and to whom"
    )
    otlp: OtlpSettings = Field(
        OtlpSettings(), description="final scores as OpenTelemetry log events"
    )
    security: SecuritySettings = Field(
        SecuritySettings(),
        description=(
            "how to get in at Kafka: TLS, and a login; secrets from the environment or files"
        ),
    )

    def group(self, role: str) -> str:
        """The consumer group of all processes with this role."""
        return f"{self.topic_prefix}callgauge-{role}"

    @property
    def all_limits(self) -> Limits:
        """The limits, with those that are not settings."""
        return Limits(**dict(self.limits))

    def goal_rules(self, roles: Collection[str]) -> GoalRules:
        """How an evaluator judges calls against goals when these roles run in its process."""
        return self.goals.rules(self.judge, has_judge="judge" in roles)

    def left_out_by_serve(self) -> list[str]:
        """What is set and has no effect in `serve`, each a sentence without a full stop."""
        given = {
            "history.clickhouse_url": (
                self.history.clickhouse_url,
                "past calls are kept in files here, ClickHouse reads topics",
            ),
            "goals.reads_topic": (
                self.goals.reads_topic,
                "goals are those of goals.folder, there is no topic",
            ),
            "monitor.api_key": (
                self.monitor.is_on,
                "the role that follows calls of ElevenLabs agents writes to Kafka",
            ),
        }
        return [
            f"{name} is set and does not count in `serve`: {why}"
            for name, (value, why) in given.items()
            if value
        ]

    @property
    def kafka(self) -> "KafkaSettings":
        """The Kafka cluster."""
        from consumers.runtime.kafka.connection import KafkaSettings

        return KafkaSettings(
            bootstrap_servers=self.bootstrap, topic_prefix=self.topic_prefix, security=self.security
        )

    @property
    def http(self) -> HttpSettings:
        """Address and token of /metrics."""
        return HttpSettings(
            host=self.http_host, port=self.http_port, token=self.http_token, names=self.http_names
        )


def load_settings(
    config_file: Path | None,
    options: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
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
    config_file: Path | None,
    options: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
) -> Given:
    """Collects the values that were given for settings. The arguments are those of `load_settings`.

    Raises:
        SettingsError: The settings file cannot be read.
    """
    env = os.environ if environment is None else environment
    named = env.get(CONFIG_VARIABLE)
    path = config_file or (Path(named) if named else None)
    in_file = {} if path is None else _read_toml(path)
    return Given(
        {name: value for name, value in options.items() if value is not None}, env, in_file, path
    )


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
            sources = (
                init_settings,
                variables,
                InitSettingsSource(settings_cls, dict(given.in_file)),
            )
            return (*sources, InitSettingsSource(settings_cls, {"judge": given.of_openai()}))

    try:
        return Gathered(**given.options)
    except UnreadableSettingError as error:
        example = next(
            (_example_of((block,)) for block in BLOCKS if f'"{block}"' in str(error)), ""
        )
        raise SettingsError(
            [f"{error}: expected JSON. Set its parts one by one, for example {example}"]
        ) from None
    except ValidationError as error:
        mistakes = _mistakes(error.errors(include_url=False), given)
        raise SettingsError(mistakes) from None  # its text holds the values, secrets included


def setting_names() -> tuple[Names, ...]:
    """Every setting: first those without a block, then block by block."""
    alone = tuple((name,) for name in Settings.model_fields if name not in BLOCKS)
    return alone + tuple(
        (block, name) for block, model in BLOCKS.items() for name in model.model_fields
    )


def _example_of(names: Names) -> str:
    """A variable with a value that works; of a block, that of its first setting that has a short
    example.
    """
    if names[0] in BLOCKS and len(names) == 1:
        fields = BLOCKS[names[0]].model_fields
        short = (
            name
            for name, field in fields.items()
            if field.examples and " " not in str(field.examples[0])
        )
        names = names[0], next(short, next(iter(fields)))
    field = _fields_beside(names)[names[-1]]
    value = field.examples[0] if field.examples else field.get_default(call_default_factory=True)
    return f"{variable_of(names)}={value}"


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SettingsError(
            [
                f"{path}: the settings file cannot be read ({reason}). Check --config and "
                f"{CONFIG_VARIABLE}."
            ]
        ) from error
    except ValueError as error:  # TOML's own error and bad UTF-8 are both of this kind
        raise SettingsError(
            [f"{path}: the settings file is not TOML: {error}. A line looks like: http_port = 8080"]
        ) from error


def _mistakes(details: Iterable[Mapping[str, Any]], given: Given) -> Iterator[str]:
    for detail in details:
        names = tuple(str(part) for part in detail["loc"] if part != "[key]")
        # several values that do not fit together, found by their owner
        if detail["type"] == MISTAKES_ERROR:
            values = detail["input"] if isinstance(detail["input"], Mapping) else {}
            for each in detail["ctx"]["mistakes"]:
                value = values.get(each.field)
                yield _mistake(
                    (*names, each.field), value, each.text, given, shows_example=value is None
                )
        elif detail["type"] == "extra_forbidden":
            known = (f"{'.'.join((*names[:-1], name))}" for name in _fields_beside(names))
            close = difflib.get_close_matches(".".join(names), list(known), n=1)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else f"known are {', '.join(_fields_beside(names))}."
            )
            yield f"{given.place(names)}: there is no such setting; {hint}"
        else:
            yield _mistake(names, detail["input"], _expected(detail), given)


def _mistake(
    names: tuple[str, ...], value: object, text: str, given: Given, *, shows_example: bool = True
) -> str:
    where = given.place(names)
    field = _fields_beside(names).get(names[-1])
    if field is None:
        return f"{where}: {text}"
    if len(names) > 1 or names[0] not in BLOCKS:
        where += f" is {_seen(value, field)}"
    meaning = (field.description or "").rstrip(".")
    told = f"{where}: {text} ({meaning})."
    return (
        f"{told} For example {_example_of(names)}"
        if shows_example and not is_secret(field.annotation)
        else told
    )


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
