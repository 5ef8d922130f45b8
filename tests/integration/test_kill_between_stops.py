"""An evaluator that is killed between two snapshots: the next one goes on from the older state and takes its steps again."""

import re
import secrets
import signal
from pathlib import Path

import pytest

from tests.chaos.verdict.verdict import Traces, judged, limits_of
from tests.integration.metrics_page import total
from tests.integration.processes import started, wait_for
from tests.integration.test_hand_over import (
    CALLS,
    EVALUATOR,
    WAIT_SECONDS,
    WRITTEN,
    Calls,
    read,
    ready_address,
    restored,
)

PARTITIONS = 4
INTERVAL_MS = 12_000

pytestmark = pytest.mark.service(
    partitions=PARTITIONS,
    limits__closing_grace_ms="300",
    snapshots__key=secrets.token_hex(32),
    snapshots__interval_ms=str(INTERVAL_MS),
)


async def test_a_killed_evaluator_is_gone_on_with_behind_its_snapshots(
    environment: dict[str, str], bootstrap: str, topic_prefix: str, tmp_path: Path
) -> None:
    calls = Calls(environment)
    with started(tmp_path / "first.log", *EVALUATOR, **environment) as first:
        one = ready_address(first)
        first.printed("evaluator_ready")
        sent = await calls.go_on(0.4)
        wait_for("the first part", lambda: read(one) == sent, WAIT_SECONDS)
        written = total(one, WRITTEN, outcome="between_stops")
        wait_for(
            "a snapshot of each partition",
            lambda: total(one, WRITTEN, outcome="between_stops") >= written + PARTITIONS,
            WAIT_SECONDS,
        )
        sent = await calls.go_on(0.7)
        wait_for("the second part", lambda: read(one) == sent, WAIT_SECONDS)
        wait_for("the scores of it", lambda: total(one, "callgauge_scores_unwritten") == 0, WAIT_SECONDS)
        assert first.signalled(signal.SIGKILL)[0] == -signal.SIGKILL
    with started(tmp_path / "second.log", *EVALUATOR, **environment) as second:
        two = ready_address(second)
        second.printed("evaluator_ready", WAIT_SECONDS)
        assert restored(two) == PARTITIONS, second.text
        steps = re.search(r"steps=(\d+)", second.text)
        assert steps is not None
        assert int(steps[1]) > CALLS, second.text
        sent_all = await calls.go_on(1)
        assert await calls.are_closed()
        assert sent_all - sent <= read(two) < sent_all - 0.35 * sent, "calls were replayed from their first record"
        second.signalled(signal.SIGTERM)
    findings = judged(Traces(bootstrap, topic_prefix, PARTITIONS, limits_of(environment), tmp_path / "deleted"))
    assert (findings.missing, findings.duplicate, findings.wrong) == (0, 0, 0), findings.examples
    assert findings.calls == CALLS
