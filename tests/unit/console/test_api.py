"""The API's description has every route and every answer; alerts of others are read
within bounds.
"""

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pydantic import ValidationError
from starlette.routing import Mount, Route

from consumers.console import api
from consumers.console.fleet import Fleet
from consumers.console.service import ports_of
from consumers.console.serving import alerts_in, near_alerts_in
from consumers.console.settings import ConsoleSettings
from consumers.console.site import ConsoleSite
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.scores.running import EVERY_CALL
from tests.support.calls.console_calls import HeldCalls, call_row


def paths_of(site: ConsoleSite) -> set[str]:
    (mount,) = site.routes()
    assert isinstance(mount, Mount)
    router = mount.app._app  # type: ignore[attr-defined]  # what gives every answer its headers
    return {each.path.replace(":path", "") for each in router.routes if isinstance(each, Route)}


def test_the_description_has_every_route_of_the_api() -> None:
    instruments = Instruments(CollectorRegistry(), ["console"])
    site = ConsoleSite(
        ConsoleSettings(), Fleet(), HeldCalls(), None, None, Redactor(), instruments, "1"
    )
    served = {path for path in paths_of(site) if path.startswith(api.PREFIX)}
    assert served - {f"{api.PREFIX}/openapi.json"} == set(api.openapi("1")["paths"])


def test_every_reference_of_the_description_is_there() -> None:
    document = api.openapi("1")
    assert json.loads(json.dumps(document)) == document
    references = set()

    def look(value: Any) -> None:
        match value:
            case {"$ref": str(target)}:
                references.add(target)
            case dict():
                for each in value.values():
                    look(each)
            case list():
                for each in value:
                    look(each)

    look(document)
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert {"#/components/schemas/CallList", "#/components/schemas/Problem"} <= references <= known


def test_a_list_is_bounded_and_counts_the_rest() -> None:
    fleet = Fleet()
    for number in range(300):
        fleet.put_row(call_row(str(number)))
    now_ms = wall_clock_ms()
    answer = api.call_answer(fleet, fleet.now(now_ms), api.ListQuery(limit=7), now_ms)
    assert (len(answer.calls), answer.calls_running) == (7, 300)
    assert api.fleet_answer(fleet, fleet.now(now_ms), now_ms).calls_running == 300
    assert api.ListQuery().wanted() == EVERY_CALL


# Alerts, which another program gives.


def test_alerts_are_ordered_by_severity_and_age() -> None:
    given = [
        {
            "labels": {"alertname": "New", "severity": "critical"},
            "startsAt": "2026-11-24T10:00:00Z",
        },
        {
            "labels": {"alertname": "Info", "severity": "nonsense", "agent": "desk", "tenant": ""},
            "startsAt": "2026-11-24T08:00:00Z",
        },
        {
            "labels": {"alertname": "Old", "severity": "critical"},
            "startsAt": "2026-11-24T09:00:00Z",
            "annotations": {"summary": "s", "runbook": "Look.", "runbook_url": "https://x/Old.md"},
        },
    ]
    firing = alerts_in(json.dumps(given).encode())
    assert [(each.name, each.severity, each.whose, each.summary) for each in firing] == [
        ("Old", "critical", {}, "s"),
        ("New", "critical", {}, ""),
        ("Info", "info", {"agent": "desk"}, ""),
    ]
    assert [(each.what_to_do, each.runbook) for each in firing[:2]] == [
        ("Look.", "https://x/Old.md"),
        ("", ""),
    ]


def test_a_runbook_is_a_page_and_no_script() -> None:
    given = [{"annotations": {"runbook_url": "javascript:alert(1)"}}]
    (alert,) = alerts_in(json.dumps(given).encode())
    assert alert.runbook == ""


FAR = (
    "0001-01-01T00:00:00",
    "9999-12-31T23:59:59.999999",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
)


@pytest.mark.parametrize("at", ["", "soon", *FAR, "\u0661", "1" * 5_000])
def test_a_wrong_time_of_an_alert_is_no_error(at: str) -> None:
    (alert,) = alerts_in(json.dumps([{"startsAt": at}]).encode())
    assert isinstance(alert.since_ms, int)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b"[1]",
        b'[{"labels":[]}]',
        b'[{"labels":{"a":1}}]',
        b"\xff",
        b"[" * 100_000,
        b'[{"startsAt":null}]',
        b'[{"labels":{"alertname":"\\ud800"}}]',
        b"[" + b",".join([b"{}"] * 1_000_000) + b"]",
    ],
    ids=range(11),
)
def test_what_is_no_answer_about_alerts_is_refused(body: bytes) -> None:
    with pytest.raises(ValidationError):
        alerts_in(body)
    with pytest.raises(ValidationError):
        near_alerts_in(b'{"data":{"groups":[{"rules":[{"alerts":' + body + b"}]}]}}")


@pytest.mark.parametrize("duration", ["-1", "1e400", "NaN", '"x"', "1e99"])
def test_a_wrong_duration_of_a_rule_is_refused(duration: str) -> None:
    with pytest.raises(ValidationError):
        near_alerts_in(
            b'{"data":{"groups":[{"rules":[{"duration":%s,"alerts":[]}]}]}}' % duration.encode()
        )


def test_a_rule_that_holds_for_a_while_is_about_to_fire() -> None:
    def alert(name: str, state: str) -> dict[str, Any]:
        return {
            "labels": {"alertname": name},
            "state": state,
            "activeAt": "2026-11-24T10:00:00Z",
            "value": "0.6",
        }

    rule = {
        "name": "a",
        "duration": 120,
        "alerts": [alert("A", "firing"), alert("B", "pending"), alert("C", "inactive")],
    }
    (near,) = near_alerts_in(json.dumps({"data": {"groups": [{"rules": [rule, {}]}, {}]}}).encode())
    assert (near.name, near.fires_ms) == ("B", near.since_ms + 120_000)


def test_a_port_that_was_set_is_the_only_one_tried() -> None:
    assert ports_of(ConsoleSettings(port=9_000)) == (9_000,)
    assert ports_of(ConsoleSettings(port=0)) == (0,)
    assert len(ports_of(ConsoleSettings())) == 20
