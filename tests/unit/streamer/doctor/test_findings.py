"""The doctor makes each finding from facts alone."""

import json
from collections.abc import AsyncGenerator

import pytest
import typer
from aiokafka import TopicPartition

from consumers.engine.limits import LimitSettings
from consumers.log.file import LogFileState
from schemas.topics import MAX_TRANSACTION_MS, TOPICS
from streamer.cli import doctor as cli_doctor
from streamer.cluster.facts import ClusterFacts, GroupFacts, LogBounds
from streamer.doctor import examination as doctor_command
from streamer.doctor.examination import group_findings
from streamer.doctor.findings import (
    Finding,
    Verdict,
    broker_finding,
    settings_findings,
    topic_findings,
    topic_setting_findings,
)
from streamer.doctor.folder import newest_finding
from streamer.settings.all_settings import Settings

SETTINGS = Settings(topic_prefix="x.")
KAFKA = SETTINGS.kafka
RIGHT = {
    topic.name: {
        "cleanup.policy": topic.cleanup_policy,
        "retention.ms": str(topic.retention_ms),
        "message.timestamp.type": "LogAppendTime",
    }
    for topic in TOPICS
}
ALL = [topic.name for topic in TOPICS]


def cluster(**partitions: int) -> ClusterFacts:
    """A cluster with every topic, each with four partitions unless another number is given; 0
    leaves the topic out.
    """
    counts = {topic.name: partitions.get(topic.name.replace(".", "_"), 4) for topic in TOPICS}
    return ClusterFacts(3, None, {f"x.{name}": count for name, count in counts.items() if count})


def verdicts(findings: list[Finding]) -> list[Verdict]:
    return [finding.verdict for finding in findings]


def test_default_settings_are_fine() -> None:
    assert verdicts(list(settings_findings(SETTINGS))) == [Verdict.OK]


def test_calls_longer_than_the_exporter_remembers_are_a_warning() -> None:
    longer = Settings(limits=LimitSettings(max_call_duration_ms=6 * 3_600_000))
    assert verdicts(list(settings_findings(longer))) == [Verdict.OK, Verdict.WARNING]


def test_a_broker_that_does_not_say_its_version_is_a_broker() -> None:
    assert (
        broker_finding(ClusterFacts(1, None, {})).seen
        == "1 broker in the cluster, version not known"
    )
    assert "version 3.9-IV0" in broker_finding(ClusterFacts(3, "3.9-IV0", {})).seen


def test_transactions_must_be_allowed_to_take_as_long_as_ours() -> None:
    assert broker_finding(ClusterFacts(1, None, {}, MAX_TRANSACTION_MS)).verdict is Verdict.OK
    found = broker_finding(ClusterFacts(1, None, {}, 10_000))
    assert found.verdict is Verdict.WRONG
    assert "transaction.max.timeout.ms is 10000, expected at least 60000" in found.seen
    assert "Set transaction.max.timeout.ms=60000" in found.what_to_do


def test_all_topics_in_one_line_when_they_fit() -> None:
    (finding,) = topic_findings(cluster(), KAFKA)
    assert (
        finding.verdict,
        f"all {len(TOPICS)} are there; events and scores have 4 partitions" in finding.seen,
    ) == (
        Verdict.OK,
        True,
    )


def test_missing_topics_and_other_counts_are_wrong() -> None:
    missing, unequal = topic_findings(
        cluster(scores=8, audit_events=0, goals=0, pipecat_events=9, sequencer=1), KAFKA
    )
    assert missing.seen == "not there: x.audit.events, x.goals"
    assert (unequal.check, unequal.verdict) == ("x.scores", Verdict.WRONG)
    assert "8 partitions, not 4 as x.events" in unequal.seen


def test_right_topic_settings_are_one_line_with_what_they_are() -> None:
    (finding,) = topic_setting_findings(RIGHT, ALL, SETTINGS)
    assert finding.verdict is Verdict.OK
    assert (
        "inputs are kept for 7 days, events for 7 days, scores for 14 days; a call needs 4 h 5 min"
        in finding.seen
    )


def test_faults_of_topics_say_whether_the_evaluator_starts() -> None:
    short = RIGHT | {"scores": RIGHT["scores"] | {"retention.ms": "60000", "retention.bytes": "5"}}
    refused, warning = topic_setting_findings(short, ALL, SETTINGS)
    assert (refused.check, refused.verdict, warning.verdict) == (
        "x.scores",
        Verdict.WRONG,
        Verdict.WARNING,
    )
    assert "does not start" in refused.what_to_do
    assert "does not start" not in warning.what_to_do


def test_a_longer_call_needs_longer_retention() -> None:
    days = Settings(
        topic_prefix="x.", limits=LimitSettings(max_call_duration_ms=8 * 24 * 3_600_000)
    )
    found = [
        finding.check
        for finding in topic_setting_findings(RIGHT, ALL, days)
        if finding.verdict is Verdict.WRONG
    ]
    assert found == ["x.events"]


def test_settings_that_may_not_be_seen_are_unknown() -> None:
    known = {name: RIGHT[name] for name in ALL if name != "scores"}
    (finding,) = topic_setting_findings(known, ALL, SETTINGS)
    assert (finding.verdict, "x.scores" in finding.seen) == (Verdict.UNKNOWN, True)


PARTITIONS = [TopicPartition("x.pipecat.events", number) for number in range(2)]
BOUNDS = {PARTITIONS[0]: LogBounds(10, 100), PARTITIONS[1]: LogBounds(0, 0)}


def group(
    state: str = "Stable",
    members: int = 1,
    assigned: tuple[TopicPartition, ...] = tuple(PARTITIONS),
    committed: dict[TopicPartition, int] | None = None,
) -> GroupFacts:
    return GroupFacts(
        state, members, assigned, {PARTITIONS[0]: 100} if committed is None else committed
    )


def look(facts: GroupFacts, *, starts_at_end: bool = False) -> list[Finding]:
    return list(
        group_findings("evaluator group", "evaluator", facts, BOUNDS, starts_at_end=starts_at_end)
    )


def test_a_group_that_reads_everything_is_fine_and_says_how_far_it_is() -> None:
    (finding,) = look(group(committed={PARTITIONS[0]: 93}))
    assert finding.verdict is Verdict.OK
    assert (
        "1 member, 2 of 2 partitions assigned; 7 records to read: x.pipecat.events[0] 7"
        in finding.seen
    )
    assert finding.lag == {"x.pipecat.events[0]": 7}
    (finding,) = look(group())
    assert finding.seen.endswith("nothing left to read")


@pytest.mark.parametrize(
    ("facts", "verdict", "said"),
    [
        (group("Dead", 0, (), {}), Verdict.WARNING, "never read"),
        (group("Empty", 0, ()), Verdict.WARNING, "no process reads"),
        (
            group("PreparingRebalance", 2, ()),
            Verdict.WARNING,
            "2 members reassign the partitions",
        ),
        (group(assigned=(PARTITIONS[0],)), Verdict.WRONG, "no process reads x.pipecat.events[1]"),
        (
            group(assigned=(*PARTITIONS, TopicPartition("y.other", 0))),
            Verdict.WRONG,
            "also reads y.other",
        ),
    ],
)
def test_a_group_that_does_not(facts: GroupFacts, verdict: Verdict, said: str) -> None:
    (finding,) = look(facts)
    assert (finding.verdict, said in finding.seen) == (verdict, True)
    assert finding.what_to_do


def test_what_was_deleted_unread_is_lost() -> None:
    lost, rest = look(group(committed={PARTITIONS[0]: 4}))
    assert lost.verdict is Verdict.WRONG
    assert "6 records, x.pipecat.events[0] 6" in lost.seen
    assert rest.lag == {"x.pipecat.events[0]": 90}


def test_where_nothing_is_committed_a_role_begins_where_it_begins() -> None:
    assert [sum(finding.lag.values()) for finding in look(group(committed={}))] == [90]
    assert [
        sum(finding.lag.values()) for finding in look(group(committed={}), starts_at_end=True)
    ] == [0]


def test_a_line_names_a_few_partitions_and_counts_the_rest() -> None:
    many = {
        TopicPartition("x.pipecat.events", number): LogBounds(0, number + 1) for number in range(8)
    }
    facts = GroupFacts("Stable", 1, tuple(many), {})
    (finding,) = group_findings("evaluator group", "evaluator", facts, many, starts_at_end=False)
    assert "x.pipecat.events[7] 8, " in finding.seen
    assert finding.seen.endswith(" and 3 more")
    assert len(finding.lag) == 8


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    ("verdict", "code"), [(Verdict.WRONG, 1), (Verdict.WARNING, 0), (Verdict.UNKNOWN, 0)]
)
def test_only_what_is_wrong_ends_with_1(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    as_json: bool,
    verdict: Verdict,
    code: int,
) -> None:
    async def found(_: Settings, _roles_at: object) -> AsyncGenerator[Finding, None]:
        yield Finding("one", Verdict.OK, "fine")
        yield Finding("other", verdict, "strange", "Mend it.")

    monkeypatch.setattr(doctor_command, "examine", found)
    ended = 0
    try:
        cli_doctor.doctor(as_json=as_json)
    except typer.Exit as end:
        ended = end.exit_code
    assert ended == code
    out = capsys.readouterr().out
    if as_json:
        told = [json.loads(line) for line in out.splitlines()]
        assert [line["verdict"] for line in told] == ["ok", verdict.value]
    else:
        assert f"1 ok, 1 {verdict.value}." in out
        assert "strange. Mend it." in out


def test_wrong_settings_are_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALLGAUGE_LIMITS__IDLE_MS", "soon")
    monkeypatch.setenv("CALLGAUGE_HTTP_PORT", "no")
    with pytest.raises(typer.Exit) as ended:
        cli_doctor.doctor(as_json=True)
    assert ended.value.exit_code == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["check"], line["verdict"]) for line in told] == [("settings", "wrong")] * 2


@pytest.mark.parametrize(
    ("open_calls", "ago_ms", "verdict", "said"),
    [
        (0, 59_000, Verdict.OK, "the last event came 59 s ago"),
        (6, 19_000, Verdict.OK, "the last event came 19 s ago"),
        (6, 21_000, Verdict.WARNING, "6 calls open, and the last event came 21 s ago"),
        (0, 61_000, Verdict.WARNING, "the last event came 1 min 1 s ago"),
    ],
)
def test_calls_that_are_open_while_no_event_comes_are_not_well(
    open_calls: int, ago_ms: int, verdict: Verdict, said: str
) -> None:
    now_ms = 1_790_000_000_000
    found = newest_finding(LogFileState(1_000, open_calls, now_ms - ago_ms), now_ms)
    assert (found.check, found.verdict) == ("producers", verdict)
    assert said in found.seen
