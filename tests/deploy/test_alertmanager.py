"""Receivers of alerts, alerts that silence others, and texts of messages: asked of the real
Alertmanager.
"""

import json
import queue
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import httpx
import pytest
import yaml

from tests.integration.processes import wait_for
from tests.support.fakes.http_answers import Answer, Request, answering
from tests.support.monitoring import ALERTMANAGER_CONFIG, TEAMS, shipped_alertmanager
from tests.support.patience import patient
from tests.support.required_tools import require_tool

DEPLOY = Path(__file__).parents[2] / "deploy"
CONFIG: dict[str, Any] = yaml.safe_load(ALERTMANAGER_CONFIG.read_text(encoding="utf-8"))
RULES = yaml.safe_load(
    (DEPLOY / "prometheus/rules/callgauge.rules.yml").read_text(encoding="utf-8")
)
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
NAMES = sorted({alert["alert"] for alert in ALERTS})
CALLER = {"agent": "desk", "environment": "production"}

Labels = dict[str, str]


def _labels(name: str, **more: str) -> Labels:
    """The labels that Prometheus sends with an alert: those of its rule, of its narrowest level,
    and of its series.
    """
    rule = next(
        rule
        for rule in ALERTS
        if rule["alert"] == name and more.get("level") in {None, rule["labels"].get("level")}
    )
    return {"alertname": name, **rule["labels"], **more}


# -- routes
# ------------------------------------------------------------------------------------------------------------


def _amtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    path = require_tool("amtool", "apt-get install prometheus-alertmanager")
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=patient(60))


def test_amtool_accepts_the_configuration_and_its_templates() -> None:
    result = _amtool("check-config", ALERTMANAGER_CONFIG)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 templates" in result.stdout


def _arrives_at(receiver: str, labels: Labels) -> bool:
    pairs = [f"{name}={value}" for name, value in labels.items()]
    result = _amtool(
        "config",
        "routes",
        "test",
        f"--config.file={ALERTMANAGER_CONFIG}",
        f"--verify.receivers={receiver}",
        *pairs,
    )
    assert result.returncode in {0, 1}, result.stderr
    return result.returncode == 0


def _receiver_of(labels: Labels) -> str:
    if labels["severity"] == "none":
        return "dead-man"
    return f"{labels['team']}-{'page' if labels['severity'] == 'critical' else 'ticket'}"


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_arrives_at_its_team_as_its_severity_asks(name: str) -> None:
    for labels in {
        json.dumps(rule["labels"]): rule["labels"] for rule in ALERTS if rule["alert"] == name
    }.values():
        assert _arrives_at(_receiver_of(labels), {"alertname": name, **labels})


def test_an_alert_of_an_unknown_team_arrives_too() -> None:
    assert _arrives_at(
        "platform-page", {"alertname": "Other", "severity": "critical", "team": "nobody"}
    )
    assert _arrives_at("platform-ticket", {"alertname": "Other"})
    assert not _arrives_at("voice-page", {"alertname": "Other"})


def test_each_team_has_both_receivers_and_no_receiver_is_left_over() -> None:
    assert set(TEAMS) == {alert["labels"]["team"] for alert in ALERTS}
    wanted = {"dead-man"} | {f"{team}-{kind}" for team in TEAMS for kind in ("page", "ticket")}
    assert {receiver["name"] for receiver in CONFIG["receivers"]} == wanted


def test_the_watchdog_goes_out_each_minute_and_alone() -> None:
    watchdog = CONFIG["route"]["routes"][0]
    assert (watchdog["group_interval"], watchdog["repeat_interval"]) == ("1m", "50s")
    (receiver,) = [each for each in CONFIG["receivers"] if each["name"] == watchdog["receiver"]]
    assert (
        receiver["webhook_configs"][0]["send_resolved"] is False
    )  # a resolved alert is no sign of life


def test_the_alerts_that_keep_others_quiet_exist() -> None:
    for rule in CONFIG["inhibit_rules"]:
        for matcher in [*rule["source_matchers"], *rule["target_matchers"]]:
            label, operator, value = re.fullmatch(
                r'(\w+) (=|!=|=~|!~) "?([^"]*)"?', matcher
            ).groups()  # type: ignore[union-attr]
            if label == "alertname":
                assert [name for name in NAMES if re.fullmatch(value, name)], matcher
            else:
                assert value in {alert["labels"][label] for alert in ALERTS}, (label, operator)


# -- the real one
# ------------------------------------------------------------------------------------------------------

Message = tuple[str, dict[str, Any]]


@pytest.fixture
def messages() -> "queue.Queue[Message]":
    return queue.Queue()


@pytest.fixture
def address(tmp_path: Path, messages: "queue.Queue[Message]") -> Iterator[str]:
    """Alertmanager with the shipped configuration, which sends at once, and all of it to this
    machine.
    """

    def answer(request: Request) -> Answer:
        messages.put((request.path, json.loads(request.body)))
        return Answer(
            202 if "pagerduty" in request.path else 200, b"ok", {"Content-Type": "text/plain"}
        )

    with answering(answer) as receiver, shipped_alertmanager(receiver, tmp_path) as started:
        yield started


def _send(address: str, *alerts: Labels, annotations: dict[str, str] | None = None) -> None:
    now = datetime.now(UTC).isoformat()
    body = [
        {"labels": labels, "annotations": annotations or {}, "startsAt": now} for labels in alerts
    ]
    httpx.post(f"{address}/api/v2/alerts", json=body).raise_for_status()


def _named(labels: Labels) -> str:
    return f"{labels['alertname']} {labels.get('level', '')}".strip()


def _quiet(address: str, environment: str) -> dict[str, bool]:
    """Whether each alert of an environment is kept quiet by another, by name and level."""
    found = httpx.get(f"{address}/api/v2/alerts").raise_for_status().json()
    return {
        _named(each["labels"]): bool(each["status"]["inhibitedBy"])
        for each in found
        if each["labels"].get("environment") == environment
    }


AT_ONCE: list[tuple[str, list[Labels], set[str]]] = [
    (
        "mute before silence before slowness, of one agent",
        [
            _labels(f"Callgauge{name}", agent="desk")
            for name in ("AgentMute", "DeadAir", "AnswersSlow", "CallsCutShort")
        ],
        {"CallgaugeAgentMute agent"},
    ),
    (
        "silence before slowness",
        [
            _labels(f"Callgauge{name}", agent="desk")
            for name in ("DeadAir", "AnswersSlow", "ResponseLatencyHigh")
        ],
        {"CallgaugeDeadAir agent"},
    ),
    (
        "what is slow now before budgets",
        [
            _labels(f"Callgauge{name}", agent="desk")
            for name in (
                "AnswersSlow",
                "ResponseLatencyHigh",
                "SLOBurnRateHigh",
                "SLOBurnRateElevated",
            )
        ],
        {"CallgaugeAnswersSlow agent"},
    ),
    (
        "a budget that burns fast before one that burns slowly",
        [
            _labels(f"Callgauge{name}", agent="desk")
            for name in ("SLOBurnRateHigh", "SLOBurnRateElevated")
        ],
        {"CallgaugeSLOBurnRateHigh agent"},
    ),
    (
        "another agent, a tenant and the fleet are heard all the same",
        [
            _labels("CallgaugeAgentMute", agent="desk"),
            _labels("CallgaugeDeadAir", agent="line"),
            _labels("CallgaugeAnswersSlow", level="agent", agent="sales"),
            _labels("CallgaugeSLOBurnRateHigh", level="agent", agent="claims"),
            _labels("CallgaugeSLOBurnRateElevated", level="agent", agent="travel"),
            _labels("CallgaugeAnswersSlow", level="fleet"),
        ],
        {
            "CallgaugeAgentMute agent",
            "CallgaugeDeadAir agent",
            "CallgaugeAnswersSlow agent",
            "CallgaugeSLOBurnRateHigh agent",
            "CallgaugeSLOBurnRateElevated agent",
            "CallgaugeAnswersSlow fleet",
        },
    ),
    (
        "another tenant and another pipeline are heard all the same",
        [
            _labels("CallgaugeAnswersSlow", level="tenant", tenant="acme"),
            _labels("CallgaugeSLOBurnRateHigh", level="tenant", tenant="bank"),
            _labels("CallgaugeSLOBurnRateElevated", level="tenant", tenant="city"),
            _labels("CallgaugeFreshnessBurnRateHigh", pipeline="cascade"),
            _labels("CallgaugeFreshnessBurnRateElevated", pipeline="realtime"),
        ],
        {
            "CallgaugeAnswersSlow tenant",
            "CallgaugeSLOBurnRateHigh tenant",
            "CallgaugeSLOBurnRateElevated tenant",
            "CallgaugeFreshnessBurnRateHigh pipeline",
            "CallgaugeFreshnessBurnRateElevated pipeline",
        },
    ),
    (
        "a budget that burns slowly elsewhere",
        [_labels("CallgaugeSLOBurnRateElevated", agent="desk")],
        {"CallgaugeSLOBurnRateElevated agent"},
    ),
    (
        "an agent that fails in other ways is heard all the same",
        [
            _labels(f"Callgauge{name}", agent="desk")
            for name in ("AgentMute", "ToolErrors", "StageSlow")
        ],
        {"CallgaugeAgentMute agent", "CallgaugeToolErrors agent", "CallgaugeStageSlow agent"},
    ),
    (
        "an evaluator that is down causes the rest of its component",
        [
            _labels(f"Callgauge{name}")
            for name in (
                "EvaluatorDown",
                "ConsumerLag",
                "ScoresStopped",
                "SourceSilent",
                "NoCalls",
                "JudgeErrors",
                "DeadAir",
            )
        ],
        {"CallgaugeEvaluatorDown", "CallgaugeJudgeErrors", "CallgaugeDeadAir agent"},
    ),
    (
        "two roles that are down are two troubles",
        [
            _labels("CallgaugeExporterDown"),
            _labels("CallgaugeJudgeDown"),
            _labels("CallgaugeJudgeBacklog"),
        ],
        {"CallgaugeExporterDown", "CallgaugeJudgeDown"},
    ),
]


def test_an_alert_keeps_quiet_what_it_causes_and_nothing_else(address: str) -> None:
    for what, alerts, heard in AT_ONCE:  # side by side, each in an environment of its own
        _send(address, *[{**labels, "environment": what} for labels in alerts])
        expected = {name: name not in heard for labels in alerts if (name := _named(labels))}

        def is_so(what: str = what, expected: dict[str, bool] = expected) -> bool:
            return _quiet(address, what) == expected

        wait_for(
            lambda what=what, heard=heard: f"{heard} alone, found {_quiet(address, what)}",  # type: ignore[misc]
            is_so,
            5,
        )


@pytest.mark.parametrize(
    ("alerts", "heard"),
    [
        (
            (
                "SequencerDown",
                "KnownTimeStands",
                "ConsumerLag",
                "ScoresStopped",
                "SourceSilent",
                "NoCalls",
                "JudgeErrors",
            ),
            {"CallgaugeSequencerDown", "CallgaugeJudgeErrors"},
        ),
        (
            ("KnownTimeStands", "ConsumerLag", "ScoresStopped"),
            {"CallgaugeKnownTimeStands", "CallgaugeScoresStopped"},
        ),
    ],
    ids=["none is active", "it is behind"],
)
def test_of_a_sequencer_in_trouble_one_alert_is_heard(
    address: str, alerts: tuple[str, ...], heard: set[str]
) -> None:
    sent = [{**_labels(f"Callgauge{name}"), "environment": "live"} for name in alerts]
    _send(address, *sent)

    def heard_now() -> set[str]:
        return {
            name.removesuffix(" fleet")
            for name, is_quiet in _quiet(address, "live").items()
            if not is_quiet
        }

    wait_for(lambda: f"{heard} alone, found {heard_now()}", lambda: heard_now() == heard, 5)


def test_without_any_process_one_alert_is_heard_beside_the_watchdog(address: str) -> None:
    names = [name for name in NAMES if name != "CallgaugeDown"]
    _send(address, *[{**_labels(name), "environment": "all"} for name in NAMES])
    quiet = wait_for(
        "all alerts",
        lambda: found if len(found := _quiet(address, "all")) == len(NAMES) else None,
        5,
    )
    wait_for("them to be quiet", lambda: sum(_quiet(address, "all").values()) == len(names) - 1, 5)
    heard = {name for name, is_quiet in _quiet(address, "all").items() if not is_quiet}
    assert heard == {"CallgaugeDown", "CallgaugeWatchdog"}, quiet


ADDRESSES = {
    "runbook_url": "https://wiki.test/{name}.md",
    "calls_url": "https://calls.test/calls?agent={{ $labels.agent | urlquery }}",
}


def _annotations(name: str, **filled: str) -> dict[str, str]:
    """The annotations of a rule as Prometheus fills them in, with links as they are where addresses
    are set.
    """
    rule = next(rule for rule in ALERTS if rule["alert"] == name)
    texts: dict[str, str] = {
        **rule["annotations"],
        **{key: url.replace("{name}", name) for key, url in ADDRESSES.items()},
    }
    texts["description"] = re.sub(
        r"{{ with .*{{ end }}$", " Calls running there now: 3.", texts["description"]
    )
    for label, value in filled.items():
        for written, filled_in in (
            (f"{{{{ $labels.{label} }}}}", value),
            (f"{{{{ $labels.{label} | urlquery }}}}", quote_plus(value)),
        ):
            texts = {key: text.replace(written, filled_in) for key, text in texts.items()}
    return texts


def test_a_page_says_what_callers_feel_what_to_do_and_where_the_calls_are(
    address: str, messages: "queue.Queue[Message]"
) -> None:
    annotations = _annotations("CallgaugeDeadAir", **CALLER)
    _send(address, _labels("CallgaugeDeadAir", **CALLER), annotations=annotations)
    path, page = messages.get(timeout=patient(10))
    assert (path, page["routing_key"]) == ("/pagerduty", "key-voice")
    assert page["payload"]["severity"] == "critical"
    assert page["payload"]["summary"] == "CallgaugeDeadAir of desk in production"
    assert page["links"] == [{"href": annotations["runbook_url"], "text": "runbook"}]
    text = page["payload"]["custom_details"]["text"].splitlines()
    assert text[:2] == [annotations["summary"], annotations["description"]]
    assert text[2] == f"Runbook: {annotations['runbook_url']}"
    assert text[3] == f"Calls: {annotations['calls_url']}"
    assert annotations["calls_url"].endswith("/calls?agent=desk")
    assert re.fullmatch(r"Since \d{4}-\d\d-\d\d \d\d:\d\d UTC", text[4])
    assert text[5:] == ["What to do:", *annotations["runbook"].splitlines()]


def test_a_page_without_addresses_has_no_link_and_says_what_to_do(
    address: str, messages: "queue.Queue[Message]"
) -> None:
    annotations = {
        key: text
        for key, text in _annotations("CallgaugeDeadAir", **CALLER).items()
        if key not in ADDRESSES
    }
    _send(address, _labels("CallgaugeDeadAir", **CALLER), annotations=annotations)
    _, page = messages.get(timeout=patient(10))
    assert not page.get("links")
    text = page["payload"]["custom_details"]["text"]
    assert "Runbook:" not in text
    assert "Calls:" not in text
    assert text.rstrip().endswith("What to do:\n" + annotations["runbook"])


def test_a_ticket_of_a_hostile_name_calls_nobody(
    address: str, messages: "queue.Queue[Message]"
) -> None:
    """Slack turns text in angle brackets into a link or a call to everybody."""
    hostile = {"agent": "<!channel> <http://x.test|click>", "environment": "production"}
    annotations = _annotations("CallgaugeToolErrors", **hostile)
    _send(address, _labels("CallgaugeToolErrors", **hostile), annotations=annotations)
    path, ticket = messages.get(timeout=patient(10))
    assert path == "/slack-voice"
    (attachment,) = ticket["attachments"]
    assert (
        attachment["title"] == "CallgaugeToolErrors of !channel http://x.test|click in production"
    )
    assert "Tools of !channel" in attachment["text"]
    assert not {"<", ">"} & set(attachment["text"])
    assert annotations["calls_url"] in attachment["text"]
    assert attachment["color"] == "warning"


def test_the_watchdog_is_a_sign_of_life(address: str, messages: "queue.Queue[Message]") -> None:
    _send(address, _labels("CallgaugeWatchdog"))
    path, sign = messages.get(timeout=patient(10))
    assert path == "/dead-man"
    assert [alert["labels"]["alertname"] for alert in sign["alerts"]] == ["CallgaugeWatchdog"]
