"""Owners that end before their partition gets on: how they are counted, and which steps count as progress."""

import pytest

from consumers.evaluator.partition.partition import InputStart
from consumers.evaluator.partition.progress import MAX_TAKEOVERS_WITHOUT_PROGRESS, PROGRESS_LASTS_MS, Progress
from tests.support.fakes.evaluator_fakes import AUDIT, NOW_MS, PIPECAT

STARTS = {PIPECAT: InputStart(10, 500), AUDIT: InputStart(7, 0)}
AT_START = {PIPECAT: 10, AUDIT: 7}


def noted(
    watermarks: dict[str, int],
    positions: dict[str, int],
    *,
    has_caught_up: bool = False,
    later_ms: int = PROGRESS_LASTS_MS,
) -> int:
    """The count after three looks: it gets on, time has passed, and it still lives."""
    progress = Progress(STARTS, 2)
    for now_ms, broker_ms in ((900, NOW_MS), (1_000, NOW_MS + 1), (1_000 + later_ms, NOW_MS + 1)):
        progress.note(now_ms, broker_ms, AT_START | watermarks, AT_START | positions, has_caught_up=has_caught_up)
    return progress.takeovers


@pytest.mark.parametrize(
    ("watermarks", "positions", "has_caught_up", "takeovers"),
    [
        pytest.param({}, {}, False, 2, id="nothing is read"),
        pytest.param({}, {PIPECAT: 500}, False, 2, id="read as far as the owner before"),
        pytest.param({}, {PIPECAT: 501}, False, 0, id="read further"),
        pytest.param({}, {AUDIT: 8}, False, 0, id="read further where nobody has read"),
        pytest.param({PIPECAT: 11}, {PIPECAT: 300}, False, 0, id="the oldest call is done with"),
        pytest.param({}, {PIPECAT: 500}, True, 0, id="waits for more, and lives"),
    ],
)
def test_what_counts_as_getting_on(
    watermarks: dict[str, int], positions: dict[str, int], has_caught_up: bool, takeovers: int
) -> None:
    assert noted(watermarks, positions, has_caught_up=has_caught_up) == takeovers


def test_it_must_last() -> None:
    """The step that ends an owner comes right behind the place where the last one was."""
    assert noted({}, {PIPECAT: 501}, later_ms=PROGRESS_LASTS_MS - 1) == 2


def test_it_counts_from_when_time_has_passed_and_is_not_taken_back() -> None:
    progress = Progress(STARTS, 2)
    looks = [
        (0, NOW_MS, AT_START, 2),
        (PROGRESS_LASTS_MS, NOW_MS + 1, AT_START | {PIPECAT: 501}, 2),  # it has got on, and time has not passed since
        (3 * PROGRESS_LASTS_MS, NOW_MS + 1, AT_START | {PIPECAT: 900}, 2),
        (4 * PROGRESS_LASTS_MS, NOW_MS + 2, AT_START, 2),
        (5 * PROGRESS_LASTS_MS, NOW_MS + 2, AT_START, 0),
    ]
    for now_ms, broker_ms, positions, takeovers in looks:
        progress.note(now_ms, broker_ms, AT_START, positions, has_caught_up=False)
        assert progress.takeovers == takeovers


def test_only_after_too_many_owners_there_is_a_place_to_stop() -> None:
    stops = [Progress(STARTS, takeovers).stops for takeovers in range(MAX_TAKEOVERS_WITHOUT_PROGRESS + 2)]
    assert stops == [None] * (MAX_TAKEOVERS_WITHOUT_PROGRESS + 1) + [{PIPECAT: 500, AUDIT: 7}]
