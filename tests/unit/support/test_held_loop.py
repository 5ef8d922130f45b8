"""A time is asked of the least of a few tries, and of a slower machine less."""

import pytest

from tests.support import held_loop


@pytest.mark.parametrize(("slower", "least"), [(1.0, 0.9), (2.0, 1.9)])
def test_one_short_try_is_enough_and_none_is_not(
    monkeypatch: pytest.MonkeyPatch, slower: float, least: float
) -> None:
    monkeypatch.setattr(held_loop, "times_slower", lambda: slower)
    tries = iter([9.0, least])
    assert held_loop.in_short_time(lambda: ("done", next(tries)), 1.0) == "done"
    with pytest.raises(AssertionError, match=r"2\.100 s .* at most 1\.0 s"):
        held_loop.in_short_time(lambda: ("done", 2.1), 1.0)


def test_a_slower_machine_is_known_by_its_time_for_known_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for times, expected in ((0.5, 1.0), (3.0, 3.0)):
        taken = held_loop.KNOWN_WORK_SECONDS * times
        monkeypatch.setattr(held_loop, "seconds_of", lambda _, taken=taken: (None, taken))
        assert held_loop.times_slower() == pytest.approx(expected)
