"""TLS, logins and rights on a real broker that insists on them: clients with rights work, others
get the reason.
"""

import asyncio
import json
import signal
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

# the package names them without exporting them
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from schemas.rows import decode_words
from schemas.topics import INPUT_TOPICS, TOPICS
from streamer.recordings.files import RecordedCall
from streamer.roles import running as run_command
from streamer.sources.simulator.traffic import simulate_call
from tests.integration.conftest import make_topics
from tests.integration.metrics_page import answer_of, total
from tests.integration.processes import Ended, ended, ran, ran_here, started, wait_for
from tests.integration.score_log import closed_rows, closings_of, records_on, written_rows
from tests.integration.test_mcp import assistant
from tests.support.brokers.secured_broker import (
    KEY_PASSWORD,
    PASSWORD,
    USER,
    SecuredBroker,
    unsigned_token,
)
from tests.support.brokers.topic_changes import create_topics
from tests.support.patience import patient

pytestmark = pytest.mark.kafka

Right = tuple[str, str, str]
"""Kind of resource, its name without the prefix of the test, and the operation."""

SEQUENCER: Final[tuple[Right, ...]] = (
    *(("topic", topic, "READ") for topic in (*INPUT_TOPICS, "sequencer", "events")),
    ("topic", "events", "WRITE"),
    ("topic", "quarantine", "WRITE"),
    ("group", "callgauge-sequencer", "READ"),
)
EVALUATOR: Final[tuple[Right, ...]] = (
    ("topic", "events", "READ"),
    ("topic", "scores", "READ"),
    ("topic", "scores", "WRITE"),
    ("topic", "words", "WRITE"),
    ("topic", "quarantine", "WRITE"),
    ("topic", "transcripts", "WRITE"),
    ("group", "callgauge-evaluator", "READ"),
    ("transactional_id", "callgauge-evaluator-", "WRITE"),
)
CONSOLE: Final[tuple[Right, ...]] = (("topic", "scores", "READ"), ("topic", "words", "READ"))
EXPORTER: Final[tuple[Right, ...]] = (
    ("topic", "scores", "READ"),
    ("group", "callgauge-exporter", "READ"),
)
JUDGE: Final[tuple[Right, ...]] = (
    ("topic", "judge.requests", "READ"),
    ("topic", "judge.verdicts", "WRITE"),
    ("group", "callgauge-judge", "READ"),
    ("transactional_id", "callgauge-judge-judge-", "WRITE"),
)
WRITTEN: Final = ("quarantine", "words", "transcripts")
"""Topics that an evaluator only writes."""
USED: Final = ("events", *WRITTEN)
"""Topics that an evaluator uses beside `scores`."""
GOALS: Final[Mapping[str, tuple[Right, str]]] = {
    "reads_topic": (("topic", "goals", "READ"), "goals: Read"),
    "asks_judge": (("topic", "judge.requests", "WRITE"), "judge.requests: Write"),
}
"""By setting of goals, the further rights that an evaluator needs with it, and the message about
them.
"""
OF_ROLE: Final = {
    "sequencer": SEQUENCER,
    "evaluator": EVALUATOR,
    "exporter": EXPORTER,
    "judge": JUDGE,
}
REPLAY: Final[tuple[Right, ...]] = tuple(
    ("topic", f"{source}.events", "WRITE") for source in ("pipecat", "elevenlabs", "audit")
)
CREATE: Final[tuple[Right, ...]] = tuple(
    ("topic", topic.name, operation) for topic in TOPICS for operation in ("CREATE", "DESCRIBE")
)
SECONDS: Final = 40
STOPS: Final = ["service_stopping", "service_stopped"]


def variables(broker: SecuredBroker, door: str, **security: str) -> dict[str, str]:
    """The environment of a client that comes in at this door."""
    return {
        "CALLGAUGE_BOOTSTRAP": getattr(broker, door),
        "CALLGAUGE_HTTP_PORT": "0",
        "CALLGAUGE_LIMITS__CLOSING_GRACE_MS": "1500",
        **{f"CALLGAUGE_SECURITY__{name.upper()}": value for name, value in security.items()},
    }


class House:
    """A secured broker with topics of one's own on it, and the credentials of `USER`."""

    def __init__(self, broker: SecuredBroker, folder: Path, user: str = USER) -> None:
        self.broker = broker
        self.user = user
        self.prefix = f"t{uuid.uuid4().hex[:8]}."
        self._admin = AdminClient({"bootstrap.servers": broker.open, "log_level": 0})
        self._secrets = {
            "password": PASSWORD,
            "token": unsigned_token(USER),
            "key-password": KEY_PASSWORD,
        }
        self._folder = folder
        for name, secret in self._secrets.items():
            (folder / name).write_text(secret)

    def entrance(self, way: str) -> dict[str, str]:
        """Variables of a client that comes in by this mechanism over TLS, or by its certificate."""
        ca_file = self.broker.file("ca.pem")
        if way == "certificate":
            return self._at(
                "mutual",
                protocol="SSL",
                ca_file=ca_file,
                cert_file=self.broker.file("client.pem"),
                key_file=self.broker.file("client-encrypted.key"),
                key_password=f"file:{self._folder / 'key-password'}",
            )
        if way == "OAUTHBEARER":
            how = {"token_file": str(self._folder / "token")}
        else:
            how = {"username": self.user, "password": f"file:{self._folder / 'password'}"}
        return self._at("login", protocol="SASL_SSL", mechanism=way, ca_file=ca_file, **how)

    def open(self) -> dict[str, str]:
        """Variables of an administrator."""
        return self._at("open")

    def _at(self, door: str, **security: str) -> dict[str, str]:
        return {**variables(self.broker, door, **security), "CALLGAUGE_TOPIC_PREFIX": self.prefix}

    def give(self, rights: Collection[Right]) -> None:
        for made in self._admin.create_acls([self._acl(right) for right in set(rights)]).values():
            made.result(patient(SECONDS))

    def log_in_with(self, password: str) -> None:
        """Makes the user with this password, or changes it."""
        login = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
        change = UserScramCredentialUpsertion(self.user, login, password.encode())
        for changed in self._admin.alter_user_scram_credentials([change]).values():
            changed.result(patient(SECONDS))

    def take_away(self, rights: Collection[Right]) -> None:
        filters = [self._filter(self._acl(right)) for right in set(rights)]
        for deleted in self._admin.delete_acls(filters).values():
            deleted.result(patient(SECONDS))

    def _acl(self, right: Right) -> AclBinding:
        kind, name, operation = right
        pattern = (
            ResourcePatternType.PREFIXED
            if kind == "transactional_id"
            else ResourcePatternType.LITERAL
        )
        return AclBinding(
            ResourceType[kind.upper()],
            self.prefix + name,
            pattern,
            f"User:{self.user}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )

    @staticmethod
    def _filter(acl: AclBinding) -> AclBindingFilter:
        return AclBindingFilter(
            acl.restype,
            acl.name,
            acl.resource_pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )


@pytest.fixture(scope="module")
def house(secured: SecuredBroker, tmp_path_factory: pytest.TempPathFactory) -> House:
    """With the topics created by a user who may do only that."""
    made = House(secured, tmp_path_factory.mktemp("secrets"))
    made.give(CREATE)
    assert f"{made.prefix}scores: made" in ran("topics", "create", **made.entrance("SCRAM-SHA-512"))
    made.take_away(CREATE)
    return made


@contextmanager
def allowed(house: House, *rights: Right) -> Iterator[None]:
    house.give(rights)
    try:
        yield
    finally:
        house.take_away(rights)


def refused(*arguments: str, **environment: str) -> str:
    """The message of a command that must fail: no traceback, no secret, none of a library's lines,
    and nothing on stdout.
    """
    return _refusal(ended(*arguments, **environment))


def refused_here(*arguments: str, **environment: str) -> str:
    """The same as `refused`, of a command in this process, which must not end with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_command, "_end_overdue", lambda _: None)
        return _refusal(ran_here(*arguments, **environment))


def _refusal(done: Ended) -> str:
    assert (done.code, done.out) == (1, ""), done.err
    assert "Traceback" not in done.err
    assert "logger=" not in done.err
    for secret in (PASSWORD, KEY_PASSWORD):
        assert secret not in done.err
    return done.err


def simulated(seed: int) -> RecordedCall:
    """One simulated call."""
    return simulate_call(seed, start_ms=1_790_000_000_000, kind="cascade").call


def call_file(path: Path, seed: int = 7) -> Path:
    """A recording of one simulated call."""
    call = simulated(seed)
    line = {
        "id": call.conversation_id,
        "audit": call.audit,
        "pipecat": call.pipecat,
        "user_sim": call.elevenlabs,
    }
    path.write_text(json.dumps({**line, "control": call.control}) + "\n")
    return path


@pytest.mark.parametrize(
    "way", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER", "certificate"]
)
async def test_a_call_goes_from_its_events_to_metrics(
    house: House, way: str, tmp_path: Path
) -> None:
    environment = house.entrance(way)
    recording = call_file(tmp_path / "call.jsonl")
    before = len(closings_of(await written_rows(house.open())))
    with (
        allowed(house, *SEQUENCER, *EVALUATOR, *EXPORTER, *JUDGE, *CONSOLE, *REPLAY),
        started(tmp_path / "run.log", "run", **environment) as process,
    ):
        address = process.metrics(SECONDS)
        ran("replay", str(recording), "--speed", "max", **environment)
        wait_for(
            "the call to be closed",
            lambda: total(address, "callgauge_calls_ended_total") == 1,
            SECONDS,
        )
        assert total(address, "callgauge_turns_total") > 0
        assert process.signalled(signal.SIGTERM)[0] == 0, (
            "the next one goes on where this one stopped"
        )
        assert PASSWORD not in process.text
    assert len(closings_of(await written_rows(house.open()))) == before + 1


@pytest.mark.parametrize("role", ["sequencer", "exporter", "judge"])
def test_a_role_needs_nothing_but_its_own_rights(house: House, tmp_path: Path, role: str) -> None:
    environment = house.entrance("PLAIN")
    with (
        allowed(house, *OF_ROLE[role]),
        started(tmp_path / "run.log", "run", "--roles", role, **environment) as process,
    ):
        process.metrics(SECONDS)


async def test_who_may_read_scores_alone_gets_numbers_and_no_words(
    house: House, tmp_path: Path
) -> None:
    here, name = house.open(), simulated(8).conversation_id
    before = {row.conversation_id for row in closings_of(await written_rows(here))}
    with started(tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **here) as process:
        process.metrics(SECONDS)
        ran(
            "replay",
            str(call_file(tmp_path / "call.jsonl", seed=8)),
            "--speed",
            "max",
            "--keep-ids",
            **here,
        )
        assert name in await closed_rows(here, len(before) + 1, SECONDS)
        assert process.signalled(signal.SIGTERM)[0] == 0
    written = [decode_words(record.value or b"") for record in await records_on(here, "words")]
    said = [row.user for row in written if row.conversation_id == name and row.user]
    environment = house.entrance("PLAIN")
    with allowed(house, ("topic", "scores", "READ")):
        ran("top", "--json", "--since", "1h", **environment)
        shown = ended("call", name, **environment)
        assert shown.code == 0, shown.err
        assert f"This user may not read {house.prefix}words" in shown.out
        assert json.loads(ran("call", name, "--json", **environment))["words"] is None
        assert [text for text in said if text in shown.out] == []
        async with assistant(**environment) as it:
            answer = await it.ask("show_call", conversation_id=name)
            assert f"This user may not read {house.prefix}words" in answer
            assert [text for text in said if text in answer] == []
            assert "may not" in await it.ask("what_is_wrong_now")
        with allowed(house, ("topic", "words", "READ")):
            document = json.loads(ran("call", name, "--json", **environment))
            assert {row["user"] for row in document["words"] if row.get("user")} <= set(said)
            assert any(row.get("user") for row in document["words"])


def test_a_password_that_changes_while_running_shows_before_a_connection_is_lost(
    secured: SecuredBroker, tmp_path: Path
) -> None:
    house = House(secured, tmp_path, user=f"rotating-{uuid.uuid4().hex[:8]}")
    house.log_in_with(PASSWORD)
    asyncio.run(make_topics(house.open()))
    environment = house.entrance("SCRAM-SHA-512")
    with (
        allowed(house, *EXPORTER),
        started(tmp_path / "run.log", "run", "--roles", "exporter", **environment) as process,
    ):
        address = process.metrics(SECONDS).removesuffix("/metrics")
        assert answer_of(f"{address}/readyz").text == "ok\n"
        house.log_in_with("another")
        told = f"refuses the login of user '{house.user}' with SCRAM-SHA-512"
        wait_for("/readyz to tell it", lambda: told in answer_of(f"{address}/readyz").text, SECONDS)
        assert total(f"{address}/metrics", "callgauge_kafka_logins_refused_total") > 0
        assert "kafka_login_refused" in process.text
        assert answer_of(f"{address}/healthz").text == "ok\n", "its connections go on"
        assert process.signalled(signal.SIGTERM)[0] == 0
        assert PASSWORD not in process.text


@pytest.mark.parametrize(
    ("role", "right"),
    [(role, right) for role, rights in OF_ROLE.items() for right in rights],
    ids=str,
)
def test_every_right_that_is_missing_is_named_at_the_start(
    house: House, role: str, right: Right
) -> None:
    ask = refused if right == OF_ROLE[role][0] else refused_here
    with allowed(house, *(each for each in OF_ROLE[role] if each != right)):
        told = ask("run", "--roles", role, **house.entrance("PLAIN"))
    first, missing, remedy = told.splitlines()
    kind, name, operation = right
    shown = f"{house.prefix}{name}{'0' if kind == 'transactional_id' else ''}"
    assert f"user '{USER}' lacks rights on {house.broker.login}" in first
    assert missing.strip() == f"{kind.replace('_', ' ')} {shown}: {operation.capitalize()}"
    assert "deploy/security.md" in remedy


@pytest.mark.parametrize("setting", GOALS)
def test_what_goals_need_is_asked_for_when_they_need_it(
    house: House, tmp_path: Path, setting: str
) -> None:
    right, told = GOALS[setting]
    environment = {**house.entrance("PLAIN"), f"CALLGAUGE_GOALS__{setting.upper()}": "true"}
    with allowed(house, *EVALUATOR):
        (missing,) = refused("run", "--roles", "evaluator", **environment).splitlines()[1:-1]
        assert missing.strip() == f"topic {house.prefix}{told}"
        with (
            allowed(house, right),
            started(tmp_path / "run.log", "run", "--roles", "evaluator", **environment) as process,
        ):
            process.metrics(SECONDS)
            assert process.signalled(signal.SIGTERM)[0] == 0
            assert ("goals_topic_read" in process.text) is (setting == "reads_topic")


def test_files_of_transcripts_need_reading_them(house: House, tmp_path: Path) -> None:
    environment = {
        **house.entrance("PLAIN"),
        "CALLGAUGE_TRANSCRIPTS__FOLDER": str(tmp_path / "files"),
    }
    with allowed(house, *EVALUATOR):
        missing = refused("run", "--roles", "evaluator", **environment).splitlines()[1:-1]
        wanted = [
            f"group {house.prefix}callgauge-evaluator-files: Read",
            f"topic {house.prefix}transcripts: Read",
        ]
        assert sorted(line.strip() for line in missing) == wanted
        rights = (("topic", "transcripts", "READ"), ("group", "callgauge-evaluator-files", "READ"))
        with (
            allowed(house, *rights),
            started(tmp_path / "run.log", "run", "--roles", "evaluator", **environment) as process,
        ):
            process.metrics(SECONDS)
            assert process.signalled(signal.SIGTERM)[0] == 0


def test_commands_that_need_a_right_say_so(house: House, tmp_path: Path) -> None:
    environment = house.entrance("SCRAM-SHA-512")
    told = refused("replay", str(call_file(tmp_path / "call.jsonl")), **environment)
    assert f"  topic {house.prefix}audit.events: Write\n" in told
    assert f"{house.prefix}scores does not exist, or user '{USER}' may not see it" in refused_check(
        environment
    )
    with allowed(house, ("topic", "scores", "DESCRIBE")):
        assert f"{house.prefix}scores " not in refused_check(environment)
    assert "Authorization failed" in refused(
        "topics", "create", **{**environment, "CALLGAUGE_TOPIC_PREFIX": "new."}
    )


def refused_check(environment: dict[str, str]) -> str:
    """The messages of `topics check` on standard error; its table is on standard output."""
    done = ended("topics", "check", **environment)
    assert done.code == 1
    return done.err


TLS_LOGIN: Final = {
    "protocol": "SASL_SSL",
    "mechanism": "SCRAM-SHA-512",
    "username": USER,
    "password": PASSWORD,
}


@pytest.mark.parametrize(
    ("door", "security", "files", "told"),
    [
        (
            "login",
            {**TLS_LOGIN, "password": "wrong"},
            {"ca_file": "ca.pem"},
            f"refuses the login of user '{USER}' with SCRAM",
        ),
        (
            "login",
            {**TLS_LOGIN, "mechanism": "PLAIN", "username": "nobody"},
            {"ca_file": "ca.pem"},
            "login of user 'nobody'",
        ),
        ("login", TLS_LOGIN, {"ca_file": "other-ca.pem"}, "certificate that is not accepted"),
        ("login", TLS_LOGIN, {}, "Set security.ca_file to the CA that signed it"),
        ("login", {}, {}, "speaks TLS at this port, and security.protocol is PLAINTEXT"),
        (
            "login",
            {"protocol": "SSL"},
            {"ca_file": "ca.pem"},
            "without a word, and security.protocol is SSL",
        ),
        ("clear_login", {}, {}, "without a word, and security.protocol is PLAINTEXT"),
        ("clear_login", TLS_LOGIN, {"ca_file": "ca.pem"}, "does not answer in TLS"),
        ("open", {"protocol": "SSL"}, {"ca_file": "ca.pem"}, "does not answer in TLS"),
        ("open", {**TLS_LOGIN, "protocol": "SASL_PLAINTEXT"}, {}, "has no logins at this port"),
        ("mutual", {"protocol": "SSL"}, {"ca_file": "ca.pem"}, "wants a client certificate"),
        (
            "mutual",
            {"protocol": "SSL"},
            {"ca_file": "ca.pem", "cert_file": "other-client.pem", "key_file": "other-client.key"},
            "Check that the brokers trust the CA that signed",
        ),
    ],
)
def test_who_may_not_come_in_is_told_why(
    secured: SecuredBroker, door: str, security: dict[str, str], files: dict[str, str], told: str
) -> None:
    paths = {name: secured.file(file) for name, file in files.items()}
    text = refused("run", **variables(secured, door, **security, **paths))
    assert told in text
    assert getattr(secured, door) in text
    assert len(text.splitlines()) == 1


async def test_topics_that_are_missing_or_do_not_fit_together_are_told(
    secured: SecuredBroker,
) -> None:
    prefix = f"t{uuid.uuid4().hex[:8]}."
    environment = {**variables(secured, "open"), "CALLGAUGE_TOPIC_PREFIX": prefix}
    for topics, told in (
        ({}, f"Topics: {prefix}scores not found on {secured.open}."),
        ({"scores": 2}, f"Topics: {', '.join(prefix + name for name in USED)} not found"),
        (dict.fromkeys(USED, 4), "Topics: partition counts must be equal, but are"),
    ):
        await create_topics(secured.open, {prefix + name: count for name, count in topics.items()})
        text = refused("run", "--roles", "evaluator" if topics else "exporter", **environment)
        # the counts are compared when the role begins, which logs its end
        *logged, said = text.splitlines()
        assert said.startswith(told)
        assert [json.loads(line)["event"] for line in logged] == (STOPS if len(topics) > 1 else [])


def test_a_token_that_the_broker_refuses_is_told(secured: SecuredBroker, tmp_path: Path) -> None:
    """aiokafka takes the refusal for a success; without a look at the next answer the process would
    wait for ever.
    """
    token = tmp_path / "token"
    token.write_text("no-token-of-yours")
    security = {
        "mechanism": "OAUTHBEARER",
        "token_file": str(token),
        "ca_file": secured.file("ca.pem"),
    }
    text = refused("run", **variables(secured, "login", protocol="SASL_SSL", **security))
    assert f"the broker at {secured.login} refuses the token in {token}" in text
    assert len(text.splitlines()) == 1
