"""Drills in real time: troubles of our own processes, on a real broker, Prometheus and Alertmanager
as shipped.
"""

import signal
import sys
import time
from pathlib import Path

import pytest

from schemas.closed_sets import InputSource
from schemas.topics import TOPIC_BY_SOURCE
from streamer.goals.files import SIMULATED_GOALS
from tests.drills.conftest import Record, note
from tests.drills.scene import scene
from tests.integration.metrics_page import total
from tests.integration.processes import wait_for
from tests.support.fakes.scripted_openai import grades, scripted_openai

pytestmark = [pytest.mark.kafka, pytest.mark.long]

Environment = dict[str, str]
JUDGED = {
    "CALLGAUGE_GOALS__FOLDER": str(SIMULATED_GOALS / "judged"),
    "CALLGAUGE_GOALS__ASKS_JUDGE": "true",
}
NO_ENDPOINT = {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}
KEPT_MINUTES = 7
"""An agent's alert that ended with the scores would have ended by then: its window and its
`keep_firing_for` are five minutes.
"""
MUTE = "airline-rebooking"
UNREADABLE = 40
BUDGET = 0.05
"""Money for some twenty questions."""
LEFT = "callgauge_judge_budget_left"


@pytest.mark.parametrize(
    ("role", "alert"),
    [("evaluator", "CallgaugeEvaluatorDown"), ("sequencer", "CallgaugeSequencerDown")],
)
def test_processes_that_are_killed_page_and_end_no_alert(
    environment: Environment, tmp_path: Path, record_property: Record, role: str, alert: str
) -> None:
    evaluators = 2 if role == "evaluator" else 1
    traffic = ("--incident", "agent_mute", "--agent", MUTE)
    with scene(environment, tmp_path, evaluators=evaluators, traffic=traffic) as running:
        begun = time.monotonic()
        running.fires("CallgaugeAgentMute", 8, begun, agent=MUTE)
        for is_last in (False, True):
            of_role = running.evaluators[int(is_last) :][: 1 + is_last]
            if role == "sequencer":
                of_role = [running.active_sequencer()]
            killed = running.strike(signal.SIGKILL, of_role)
            if not is_last:
                running.rests(120)
                # the other one has taken over
                assert running.notices.pages() == {"CallgaugeAgentMute"}
        notice = running.fires(alert, 3, killed)
        note(record_property, f"{role}_killed", alert, 3, (notice.at - killed) / 60)
        page = running.is_paged(alert, "platform", killed)
        told = [notice.annotations[name] for name in ("summary", "description")]
        assert role == "sequencer" or page.splitlines()[:2] == told
        assert f"\nWhat to do:\n{notice.annotations['runbook']}" in page
        running.rests(KEPT_MINUTES * 60 - (time.monotonic() - killed))
        assert running.notices.resolved(killed) == set()
        assert running.notices.pages(killed) <= {
            "CallgaugeAgentMute",
            alert,
            "CallgaugeScoresStopped",
        }


def test_evaluators_that_hang_page(
    environment: Environment, tmp_path: Path, record_property: Record
) -> None:
    with scene(environment, tmp_path) as running:
        running.rests(60)
        assert running.notices.pages() == set()
        frozen = running.strike(signal.SIGSTOP, running.evaluators)
        notice = running.fires("CallgaugeScoresStopped", 7, frozen)
        note(
            record_property,
            "evaluator_frozen",
            "CallgaugeScoresStopped",
            7,
            (notice.at - frozen) / 60,
        )
        assert "\nWhat to do:\n1. " in running.is_paged("Callgauge", "platform", frozen)
        # A process that hangs does not answer Prometheus either.
        assert running.notices.pages() <= {"CallgaugeEvaluatorDown", "CallgaugeScoresStopped"}


def test_a_burst_of_unreadable_records_is_told(
    environment: Environment, tmp_path: Path, record_property: Record
) -> None:
    with scene(environment, tmp_path, evaluators=1) as running:
        sent = time.monotonic()
        running.send(InputSource.PIPECAT, [b"{"] * UNREADABLE)
        notice = running.fires("CallgaugeQuarantineGrowing", 2, sent, source="pipecat")
        note(
            record_property,
            "poison_burst",
            "CallgaugeQuarantineGrowing",
            2,
            (notice.at - sent) / 60,
        )
        assert running.notices.pages() == set()


def test_input_that_is_deleted_unread_pages(
    environment: Environment, tmp_path: Path, record_property: Record
) -> None:
    with scene(environment, tmp_path, evaluators=1) as running:
        running.rests(30)
        running.strike(signal.SIGSTOP, running.sequencers)
        running.rests(5)  # calls go on, and no sequencer reads them
        assert running.delete_inputs() > 0
        lost = running.strike(signal.SIGCONT, running.sequencers)
        notice = running.fires("CallgaugeInputLost", 1, lost)
        note(record_property, "retention_loss", "CallgaugeInputLost", 1, (notice.at - lost) / 60)
        assert running.notices.pages() == {"CallgaugeInputLost"}


def test_an_input_that_a_broker_names_and_does_not_give_pages(
    environment: Environment, tmp_path: Path, record_property: Record
) -> None:
    withheld = [
        sys.executable,
        "-m",
        "tests.support.withheld_input",
        TOPIC_BY_SOURCE[InputSource.AUDIT],
    ]
    with scene(environment, tmp_path, evaluators=1, sequencer=withheld) as running:
        running.rests(30)
        assert running.notices.pages() == set()
        begun = running.strike(signal.SIGUSR1, running.sequencers)
        notice = running.fires("CallgaugeKnownTimeStands", 6, begun)
        note(
            record_property,
            "input_withheld",
            "CallgaugeKnownTimeStands",
            6,
            (notice.at - begun) / 60,
        )
        page = running.is_paged("CallgaugeKnownTimeStands", "platform", begun)
        assert f"\nWhat to do:\n{notice.annotations['runbook']}" in page
        # Time is what says that a call is over, so the ends of calls that hang up are late too.
        assert running.notices.pages() <= {"CallgaugeKnownTimeStands", "CallgaugeScoresStopped"}


def test_a_judge_that_reaches_no_endpoint_is_told(
    environment: Environment, tmp_path: Path, record_property: Record
) -> None:
    nowhere = {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    with scene(
        {**environment, **JUDGED, **NO_ENDPOINT}, tmp_path, evaluators=1, judge=nowhere
    ) as running:
        begun = time.monotonic()
        notice = running.fires("CallgaugeJudgeErrors", 15, begun)
        note(record_property, "judge_down", "CallgaugeJudgeErrors", 15, (notice.at - begun) / 60)
        assert running.notices.pages() == set()


def test_a_budget_that_is_spent_is_told(
    environment: Environment, tmp_path: Path, record_property: Record
) -> None:
    with scripted_openai(lambda _asked: grades("I")) as endpoint:
        judge = {
            "OPENAI_API_KEY": "key",
            "OPENAI_BASE_URL": endpoint.url,
            "CALLGAUGE_JUDGE__BUDGET_PER_HOUR": str(BUDGET),
            "CALLGAUGE_JUDGE__MAX_ANSWER_TOKENS": "50",
        }
        with scene(
            {**environment, **JUDGED, **NO_ENDPOINT}, tmp_path, evaluators=1, judge=judge
        ) as running:
            page = running.pages["judge"]
            wait_for(
                "the budget to be spent",
                lambda: total(page, LEFT, budget="hour") < 0.1 * BUDGET,
                300,
            )
            spent = time.monotonic()
            notice = running.fires("CallgaugeJudgeBudget", 2, spent, budget="hour")
            note(
                record_property, "judge_budget", "CallgaugeJudgeBudget", 2, (notice.at - spent) / 60
            )
            assert running.notices.pages() == set()
