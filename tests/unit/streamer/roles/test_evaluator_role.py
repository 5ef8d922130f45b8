"""The evaluator begins when the goal sets are read, follows their changes, and both end
together.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from consumers.engine.limits import GoalRules
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError
from consumers.runtime.registry import Instruments
from schemas.goals.goal_set import ChoosesGoals
from streamer.goals.files import GoalFolderError
from streamer.roles import evaluator_role
from streamer.roles.evaluator_role import EvaluatorRole
from streamer.settings.all_settings import Settings
from tests.support.known import some
from tests.support.patience import patient

NOBODY = KafkaSettings(bootstrap_servers="127.0.0.1:1")
SOON_SECONDS = 60


class FakeEvaluator:
    """Reads calls until it is stopped, and finishes when the test lets it."""

    def __init__(
        self, _kafka: object, settings: EvaluatorSettings, _instruments: object, goals: ChoosesGoals
    ) -> None:
        self.ready = asyncio.Event()
        self.settings = settings
        self.goals = goals
        self.may_finish = asyncio.Event()
        self.failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_finished = False

    async def run(self, stop: asyncio.Event) -> None:
        self.ready.set()
        stopped = asyncio.ensure_future(stop.wait())
        awaited: list[asyncio.Future[Any]] = [stopped, self.failing]
        try:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if self.failing.done():
            self.failing.result()
        await self.may_finish.wait()
        self.has_finished = True

    def problems(self) -> Sequence[str]:
        return () if self.ready.is_set() else ("evaluator: waits",)

    def stalled(self) -> Sequence[str]:
        return ()


class Made:
    """A role with a fake evaluator and real goals."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        rules: GoalRules | None = None,
        transcripts: dict[str, object] | None = None,
        **goals: object,
    ) -> None:
        monkeypatch.setattr(evaluator_role, "Evaluator", FakeEvaluator)
        self.instruments = Instruments(CollectorRegistry(), ["evaluator"])
        settings = Settings(goals=goals, transcripts=transcripts or {})
        self.role = EvaluatorRole(NOBODY, settings, self.instruments, rules or GoalRules())
        evaluator: Any = self.role._evaluator
        self.evaluator: FakeEvaluator = evaluator
        self.stop = asyncio.Event()

    def value(self, metric: str) -> float | None:
        """The value that a reader of the metrics sees now."""
        self.instruments.refresh()
        return self.instruments.registry.get_sample_value(metric)

    def start(self) -> "asyncio.Task[None]":
        return asyncio.create_task(self.role.run(self.stop))

    async def started(self) -> "asyncio.Task[None]":
        running = self.start()
        await asyncio.wait_for(self.role.ready.wait(), patient(SOON_SECONDS))
        return running

    async def ended(self, running: "asyncio.Task[None]") -> None:
        self.stop.set()
        self.evaluator.may_finish.set()
        await asyncio.wait_for(running, patient(SOON_SECONDS))


def write(path: Path, goals_id: str) -> None:
    subgoal = {"id": "one", "details": "d", "check": {"kind": "judge"}}
    path.write_text(json.dumps({"id": goals_id, "agents": ["desk"], "subgoals": [subgoal]}))


async def test_it_reads_goals_before_calls_and_ends_when_the_evaluator_has_finished(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(tmp_path / "a.json", "a")
    made = Made(monkeypatch, GoalRules(trials=3), folder=tmp_path)
    assert made.role.problems() == ("evaluator: reading the goal sets",)
    running = await made.started()
    goals = some(made.evaluator.goals.choose(None, "desk"))
    assert (goals.id, made.evaluator.settings.goals.trials) == ("a", 3)
    assert made.role.problems() == ()
    made.stop.set()
    done, _ = await asyncio.wait([running], timeout=0.05)
    assert not done, "the evaluator has something to finish"
    await made.ended(running)
    assert made.evaluator.has_finished


async def test_without_sources_calls_have_no_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch)
    running = await made.started()
    assert made.evaluator.goals.choose(None, "desk") is None
    await made.ended(running)


async def test_a_folder_that_cannot_be_read_ends_it_before_a_call_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Made(monkeypatch, folder=tmp_path / "missing")
    with pytest.raises(GoalFolderError, match="missing"):
        await asyncio.wait_for(made.start(), patient(SOON_SECONDS))
    assert not made.evaluator.ready.is_set()


async def test_what_the_evaluator_fails_on_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Made(monkeypatch, folder=tmp_path)
    running = await made.started()
    made.evaluator.failing.set_exception(ZeroDivisionError("the failure"))
    with pytest.raises(ZeroDivisionError, match="the failure"):
        await asyncio.wait_for(running, patient(SOON_SECONDS))


async def test_cancelling_it_ends_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Made(monkeypatch, folder=tmp_path)
    running = await made.started()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, patient(SOON_SECONDS))
    assert not made.evaluator.has_finished
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_is_wrong_with_goals_is_on_the_metrics_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(tmp_path / "a.json", "a")
    (tmp_path / "b.json").write_text("{")
    made = Made(monkeypatch, folder=tmp_path, reads_topic=True)
    topic = some(made.role._topic)
    topic.tried.set()
    monkeypatch.setattr(topic, "follow", lambda stop: stop.wait())
    running = await made.started()
    assert made.value("callgauge_goal_files_broken") == 1
    for refused in (0, 2, 2, 3):
        topic.refused = refused
        assert made.value("callgauge_goal_records_refused_total") == refused
    await made.ended(running)
    assert Made(monkeypatch).value("callgauge_goal_files_broken") is None


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_calls_get_transcripts_unless_somebody_does_not_want_them(
    monkeypatch: pytest.MonkeyPatch, *, is_enabled: bool
) -> None:
    assert Made(monkeypatch).evaluator.settings.writes_transcripts
    made = Made(monkeypatch, transcripts={"enabled": is_enabled})
    assert made.evaluator.settings.writes_transcripts is is_enabled


async def test_files_of_transcripts_are_made_beside_the_evaluator_and_end_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Made(monkeypatch, transcripts={"folder": tmp_path / "files"})
    await made.ended(await made.started())
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_folder_for_transcripts_that_cannot_be_used_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("")
    made = Made(monkeypatch, transcripts={"folder": tmp_path / "taken"})
    made.evaluator.may_finish.set()
    with pytest.raises(OperatorError, match="taken"):
        await asyncio.wait_for(made.start(), patient(SOON_SECONDS))
