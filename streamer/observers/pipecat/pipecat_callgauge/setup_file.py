"""Attaches the observer to workers that know nothing of it: a setup file of pipecat, and the
function for one of your own.

`PIPECAT_SETUP_FILES=$(python -m pipecat_callgauge)` observes a bot without a change of its source.
The settings are in the environment then: `CALLGAUGE_BOOTSTRAP`, `CALLGAUGE_AGENT` and the others
that `CallgaugeObserver` names.
"""

from typing import Any

from pipecat_callgauge.observer import CallgaugeObserver


def attach(worker: Any, **options: Any) -> CallgaugeObserver:
    """Attaches a new observer to a worker, or to a task of pipecat before 1.3.

    Args:
        worker: The worker. Its conversation id is the id of the call, if it has one and the options
            have none.
        options: Arguments of `CallgaugeObserver`.

    Returns:
        The observer, which knows the id of the call.
    """
    if options.get("conversation_id") is None:
        known = getattr(worker, "conversation_id", None) or getattr(
            worker, "_conversation_id", None
        )
        options["conversation_id"] = known
    observer = CallgaugeObserver(**options)
    worker.add_observer(observer)
    return observer


async def setup_pipeline_worker(worker: Any) -> None:
    """Attaches an observer; pipecat calls this from 1.3 on."""
    attach(worker)


async def setup_pipeline_task(task: Any) -> None:
    """Attaches an observer; pipecat calls this before 1.3."""
    attach(task)


async def setup_worker_runner(_runner: Any) -> None:
    """Does nothing: pipecat warns of a setup file without it."""
