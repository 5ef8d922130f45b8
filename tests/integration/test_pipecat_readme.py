"""Each way of attaching the observer that its README shows brings a call of a real pipecat worker
onto a real broker.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from pipecat.frames.frames import EndFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.workers.runner import WorkerRunner

from tests.integration.score_log import records_on
from tests.support.observers import PIPECAT, PYTHONPATH
from tests.support.pipecat_bots.fleet import Passing, turn

pytestmark = pytest.mark.kafka

README: Final = (PIPECAT / "README.md").read_text()
_FIRST_CALL: Final = README[README.index("## The first call") : README.index("## Options")]


def blocks(language: str) -> list[str]:
    """The code of the README's part about attaching."""
    return re.findall(rf"^```{language}\n(.*?)^```$", _FIRST_CALL, re.DOTALL | re.MULTILINE)


CONSTRUCTOR, ADDED, ATTACHED, OWN_FILE = blocks("python")
(BY_FILE,) = blocks("sh")


def worker_of(**options: Any) -> PipelineWorker:
    return PipelineWorker(
        Pipeline([Passing()]), cancel_on_idle_timeout=False, enable_rtvi=False, **options
    )


async def play(worker: PipelineWorker) -> None:
    """One turn, and the end."""
    runner = WorkerRunner(handle_sigint=False)
    started = asyncio.Event()
    worker.add_event_handler("on_pipeline_started", lambda *_: started.set())
    await runner.add_workers(worker)

    async def go() -> None:
        await started.wait()
        await worker.queue_frames([*turn(), EndFrame()])

    await asyncio.gather(runner.run(), go())


@pytest.fixture(autouse=True)
def _brokers_of_the_tests(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CALLGAUGE_BOOTSTRAP", "CALLGAUGE_TOPIC_PREFIX"):
        monkeypatch.setenv(name, environment[name])


async def is_whole(environment: dict[str, str], agent: str) -> list[dict[str, Any]]:
    """Checks that there is one whole call of this agent; gives its events."""
    events = [
        json.loads(record.value) for record in await records_on(environment, "pipecat.events")
    ]
    assert [event.get("agent") for event in events if event["type"] == "call_started"] == [agent]
    moments = [event["data"]["kind"] for event in events if event["type"] == "speech_event"]
    assert moments.count("bot_speech_started") == 1
    assert [events[0]["type"], events[-1]["type"]] == ["call_started", "call_ended"]
    return events


def set_by(shell: str) -> tuple[str, str]:
    """The setup files and the agent that the lines for a shell set."""
    lines = (
        f'PATH="{Path(sys.executable).parent}:$PATH"\n{shell}\necho '
        '"$PIPECAT_SETUP_FILES|$CALLGAUGE_AGENT"'
    )
    ended = subprocess.run(
        ["sh", "-ec", lines],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )
    files, _, agent = ended.stdout.strip().rpartition("|")
    return files, agent


async def test_in_the_constructor(environment: dict[str, str]) -> None:
    names: dict[str, Any] = {
        "pipeline": Pipeline([Passing()]),
        "PipelineWorker": PipelineWorker,
        "PipelineParams": PipelineParams,
    }
    exec(CONSTRUCTOR, names)  # noqa: S102 - the README's own code
    await play(names["worker"])
    await is_whole(environment, "desk")


@pytest.mark.parametrize(("block", "agent"), [(ADDED, "desk-added"), (ATTACHED, "desk-attached")])
async def test_on_a_worker_that_exists(environment: dict[str, str], block: str, agent: str) -> None:
    worker = worker_of()
    exec(block, {"worker": worker})  # noqa: S102 - as above
    await play(worker)
    await is_whole(environment, agent)


async def test_by_the_setup_file_of_the_package(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, agent = set_by(BY_FILE)
    monkeypatch.setenv("PIPECAT_SETUP_FILES", files)
    monkeypatch.setenv("CALLGAUGE_AGENT", agent)
    await play(worker_of())
    await is_whole(environment, "desk-by-file")


async def test_by_a_setup_file_of_ones_own(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "setup_of_mine.py").write_text(OWN_FILE)
    monkeypatch.setenv("PIPECAT_SETUP_FILES", str(tmp_path / "setup_of_mine.py"))
    await play(worker_of())
    events = await is_whole(environment, "desk-own-file")
    assert events[0]["goals"] == "find-a-badge"
