"""A whole day of healthy traffic wakes nobody; after it a slow model pages at once by its symptom,
and by the budget it burns.
"""

from pathlib import Path

import pytest

from streamer.offline.side_by_side import usable_cores
from streamer.sources.simulator.profile import AGENTS, Incident
from tests.drills.conftest import Record, note
from tests.drills.virtual_time import World, alerts_of, minute, scraped

DAY = 24 * 60
AFTER = 60
EVERY = 2
LINES = (2, 1, 2, 1)
"""Calls at a time of each agent, some 45 an hour each. Agents with one are below the floors of the
short windows.
"""


@pytest.mark.long
def test_a_healthy_day_wakes_nobody_and_a_slow_model_does(
    tmp_path: Path, record_property: Record
) -> None:
    minutes = DAY + AFTER
    troubles = [Incident("llm_slow", AGENTS[0], minute(DAY))]
    worlds = [
        World("live", lines, minutes, troubles, agents=(agent,), seed=seed)
        for seed, (agent, lines) in enumerate(zip(AGENTS, LINES, strict=True))
    ]
    seen = alerts_of(scraped(worlds, minutes, processes=usable_cores()), minutes, EVERY, tmp_path)
    assert [each for each in seen if each.at <= DAY * 60] == []
    slow = {
        alert: min((each.at / 60 - DAY for each in seen if each.alert == alert), default=None)
        for alert in PAGES
    }
    for alert, within in PAGES.items():
        after = slow[alert]
        assert after is not None, f"{alert} never fires"
        note(record_property, "llm_slow after a day", alert, within, after)
    pages = {
        (each.alert, dict(each.labels).get("agent"))
        for each in seen
        if ("severity", "critical") in each.labels
    }
    assert pages == {(alert, AGENTS[0]) for alert in PAGES}


PAGES = {"CallgaugeAnswersSlow": 8 + EVERY, "CallgaugeSLOBurnRateHigh": 50 + EVERY}
"""Minutes in which each page fires; one is noticed at most `EVERY` minutes later."""
