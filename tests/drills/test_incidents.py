"""Drills: each trouble of the calls fires its alert in time, and no other alert pages."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from streamer.sources.simulator.profile import AGENTS, Incident, IncidentName
from tests.deploy.firing import Firing
from tests.drills.conftest import Record, note
from tests.drills.virtual_time import Series, World, alerts_of, minute, scraped
from tests.support.known import some
from tests.support.promtool import newest_promtool

ONSET = 15
"""Minute at which trouble begins, after as many good ones."""
MINUTES = 46
EVERY = 1
AGENT, SLOW, OTHER = AGENTS[0], AGENTS[2], AGENTS[3]


@dataclass(frozen=True)
class Drill:
    """A trouble, its alert, and the minutes that it may take. Its name is the environment's, unless
    it says another.
    """

    name: str
    alert: str | None
    within: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    incident: IncidentName | None = None
    environment: str = ""
    lines: int = 2

    @property
    def place(self) -> str:
        return self.environment or self.name

    def world(self) -> World:
        troubles = [Incident(self.incident, AGENT, minute(ONSET))] if self.incident else []
        until = min(MINUTES - 2, ONSET + self.within + 4) if self.alert else 35
        return World(self.place, self.lines, until, troubles, agents=(AGENT,))


DRILLS = (
    Drill("healthy", None),
    Drill("llm_slow", "CallgaugeAnswersSlow", 8, (("agent", AGENT),), "llm_slow"),
    Drill("tts_slow", "CallgaugeStageSlow", 12, (("stage", "tts_first_byte"),), "tts_slow"),
    Drill("stt_slow", "CallgaugeStageSlow", 12, (("stage", "endpointing"),), "stt_slow", lines=3),
    Drill("dead_air", "CallgaugeDeadAir", 8, (("agent", AGENT),), "dead_air"),
    Drill("agent_mute", "CallgaugeAgentMute", 5, (("agent", AGENT),), "agent_mute"),
    Drill("talks_over", "CallgaugeInterruptionsHigh", 15, (("by", "assistant"),), "talks_over"),
    Drill(
        "tool_backend_fails",
        "CallgaugeToolErrors",
        12,
        (("agent", AGENT),),
        "tool_backend_fails",
        lines=4,
    ),
    Drill("callers_hang_up", "CallgaugeCallsCutShort", 20, (("agent", AGENT),), "callers_hang_up"),
    Drill(
        "stall_after_deploy",
        "CallgaugeProgressStalls",
        45,
        (("agent", AGENT),),
        "stall_after_deploy",
    ),
    Drill("staging_slow", None, incident="llm_slow", environment="staging"),
)
TENANTS = World(
    "one_tenant_slow",
    1,
    29,
    [Incident("llm_slow", begins_ms=minute(ONSET))],
    tenants=("a", "b", "c", "d", "e"),
    troubled_tenant="c",
)
MUTE_TENANT = World(
    "one_tenant_mute",
    2,
    29,
    [Incident("agent_mute", AGENT, minute(ONSET))],
    agents=(AGENT,),
    tenants=("a", "b", "c"),
    troubled_tenant="c",
)
ONE_SLOW = World("one_agent_slow", 6, 31, [Incident("llm_slow", SLOW)], seed=47)
"""Half an hour of four agents, one of which is slow from its first call on."""
QUIET = World("no_traffic", 3, 25, agents=(OTHER,))
SIMULATED = World("simulated", 3, 25, agents=(OTHER,))
"""`callgauge simulate` with its own environment, which somebody stops."""


@pytest.fixture(scope="module")
def series() -> Series:
    """Scrapes of an hour in which each environment has another trouble."""
    return scraped(
        [*(drill.world() for drill in DRILLS), TENANTS, MUTE_TENANT, SIMULATED, ONE_SLOW, QUIET],
        MINUTES,
    )


@pytest.fixture(
    scope="module", params=["installed", pytest.param("newest", marks=pytest.mark.long)]
)
def fired(
    request: pytest.FixtureRequest, series: Series, tmp_path_factory: pytest.TempPathFactory
) -> list[Firing]:
    """Alerts of this hour, by the installed promtool or by the newest: windows of Prometheus 3
    leave out their beginning.
    """
    program = newest_promtool() if request.param == "newest" else None
    return alerts_of(series, MINUTES, EVERY, tmp_path_factory.mktemp("drills"), program)


def of_place(fired: list[Firing], place: str, until: int = MINUTES) -> list[Firing]:
    return [
        each for each in fired if ("environment", place) in each.labels and each.at <= until * 60
    ]


def first(fired: list[Firing], alert: str, labels: tuple[tuple[str, str], ...]) -> float | None:
    """Minutes from the beginning of the trouble to the alert."""
    times = [each.at for each in fired if each.alert == alert and set(labels) <= each.labels]
    return None if not times else min(times) / 60 - ONSET


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.name)
def test_a_trouble_fires_its_alert_in_time_and_wakes_for_nothing_else(
    drill: Drill, fired: list[Firing], record_property: Record
) -> None:
    # Where the calls of a world end, no call begins any more: that is another trouble.
    seen = of_place(fired, drill.place, drill.world().minutes)
    pages = {each.alert for each in seen if ("severity", "critical") in each.labels}
    if drill.alert is None:
        assert {each.alert for each in seen} == set()
        return
    after = first(seen, drill.alert, drill.labels)
    assert after is not None, f"never; but {sorted({each.alert for each in seen})}"
    note(record_property, drill.name, drill.alert, drill.within, after)
    assert pages <= {drill.alert}


def test_one_slow_tenant_of_five_is_named(fired: list[Firing], record_property: Record) -> None:
    seen = of_place(fired, "one_tenant_slow", TENANTS.minutes)
    after = some(first(seen, "CallgaugeAnswersSlow", (("tenant", "c"), ("level", "tenant"))))
    note(record_property, "one_tenant_slow", "CallgaugeAnswersSlow", 10, after)
    pages = {
        (each.alert, dict(each.labels).get("tenant"))
        for each in seen
        if ("severity", "critical") in each.labels
    }
    assert pages == {("CallgaugeAnswersSlow", "c")}


def test_a_mute_tenant_beside_healthy_ones_is_named(
    fired: list[Firing], record_property: Record
) -> None:
    seen = of_place(fired, "one_tenant_mute", MUTE_TENANT.minutes)
    after = first(
        seen, "CallgaugeAgentMute", (("agent", AGENT), ("tenant", "c"), ("level", "tenant"))
    )
    assert after is not None, f"never; but {sorted({each.alert for each in seen})}"
    note(record_property, "one_tenant_mute", "CallgaugeAgentMute", 5, after)
    pages = {
        (each.alert, dict(each.labels).get("tenant"))
        for each in seen
        if ("severity", "critical") in each.labels
    }
    assert pages == {("CallgaugeAgentMute", "c")}


def test_an_alert_says_how_many_calls_run_there_and_whose(fired: list[Firing]) -> None:
    """Of two lines: two calls, or three while one that is over has not closed."""
    for place, level, ending in (
        (
            "agent_mute",
            "agent",
            r"Calls running there now, each with one caller: ([23]); tenants: t \1\.",
        ),
        ("one_tenant_mute", "tenant", r"Calls running there now, each with one caller: [23]\."),
    ):
        texts = {
            dict(each.annotations)["description"]
            for each in of_place(fired, place, ONSET + 6)
            if each.alert == "CallgaugeAgentMute" and ("level", level) in each.labels
        }
        assert texts
        assert all(re.fullmatch(ending, text.rpartition("80 %. ")[2]) for text in texts), texts


def test_somebody_who_stops_a_simulation_wakes_nobody(fired: list[Firing]) -> None:
    assert of_place(fired, "simulated") == []


def test_one_slow_agent_of_four_pages_alone(fired: list[Firing]) -> None:
    seen = of_place(fired, ONE_SLOW.environment, ONE_SLOW.minutes)
    pages = {
        (each.alert, dict(each.labels).get("agent"))
        for each in seen
        if ("severity", "critical") in each.labels
    }
    assert pages == {("CallgaugeAnswersSlow", SLOW)}


def test_no_calls_wake_somebody(fired: list[Firing], record_property: Record) -> None:
    seen = of_place(fired, "no_traffic")
    after = some(first(seen, "CallgaugeNoCalls", ()))
    note(record_property, "no_traffic", "CallgaugeNoCalls", 15, after - (QUIET.minutes - ONSET))
    assert {each.alert for each in seen} == {"CallgaugeNoCalls"}


def test_nobody_is_woken_for_the_pipeline(fired: list[Firing]) -> None:
    assert {each.alert for each in fired if ("component", "agent") not in each.labels} == set()


def test_a_silent_source_is_missed(tmp_path: Path, record_property: Record) -> None:
    world = World(
        "live", 3, 32, [Incident("source_silent", begins_ms=minute(ONSET))], bot_announces=True
    )
    seen = alerts_of(scraped([world], 32), 32, 1, tmp_path)
    after = some(first(seen, "CallgaugeSourceSilent", (("source", "audit"),)))
    note(record_property, "source_silent", "CallgaugeSourceSilent", 15, after)
    assert {each.alert for each in seen if ("severity", "critical") in each.labels} == set()


SUCCESS_FALLS_AFTER, SUCCESS_ALERT_WITHIN = 180, 75
"""Minutes of good calls, with which the bad ones are compared, and minutes until the alert."""


def test_calls_that_succeed_less_often_than_before_are_noticed(
    tmp_path: Path, record_property: Record
) -> None:
    """And three good hours before that are not."""
    ends = SUCCESS_FALLS_AFTER + SUCCESS_ALERT_WITHIN
    troubles = [Incident("stall_after_deploy", AGENT, minute(SUCCESS_FALLS_AFTER))]
    worlds = [
        World("live", 4, ends, troubles, agents=(AGENT,)),
        World("live", 2, ends, troubles, agents=(OTHER,)),
    ]
    seen = alerts_of(
        scraped(worlds, ends), ends, EVERY, tmp_path, only="CallgaugeGoalSuccessFalling"
    )
    assert {dict(each.labels)["goal_set"] for each in seen} == {AGENT}
    after = min(each.at for each in seen) / 60 - SUCCESS_FALLS_AFTER
    assert after > 0
    note(
        record_property, "success falls", "CallgaugeGoalSuccessFalling", SUCCESS_ALERT_WITHIN, after
    )


@pytest.mark.parametrize(
    "drill", [drill for drill in DRILLS if drill.alert], ids=lambda drill: drill.name
)
def test_the_table_of_the_page_has_the_drill(drill: Drill) -> None:
    page = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text(encoding="utf-8")
    row = some(
        re.search(
            rf"^\| `{drill.name}`[^|]*\| `{drill.alert}`[^|]*\| (\d+) \| {drill.within} \|$",
            page,
            re.MULTILINE,
        )
    )
    assert int(row[1]) <= drill.within
