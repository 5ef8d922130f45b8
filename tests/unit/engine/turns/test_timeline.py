"""The timeline keeps any order of any keys, however far apart their times are."""

import pytest

from consumers.engine.turns.timeline import AUDIT_RANK, TIME_SHIFT, Replays, Timeline, order_key

DAY_MS = 86_400_000
NOW_MS = 1_790_000_000_000


class Heard:
    """Remembers the times and payloads of its elements."""

    def __init__(self) -> None:
        self.seen: tuple[tuple[int, object], ...] = ()

    def apply(self, kind: int, payload: object, time_ms: int) -> None:
        del kind
        self.seen += ((time_ms, payload),)

    def freeze(self) -> object:
        return self.seen

    def thaw(self, frozen: object) -> None:
        assert isinstance(frozen, tuple)
        self.seen = frozen


@pytest.mark.parametrize("apart_ms", [1, DAY_MS, 30 * DAY_MS, 3_000 * DAY_MS])
def test_elements_are_in_the_order_of_their_keys(apart_ms: int) -> None:
    machine = Heard()
    timeline = Timeline(machine, TIME_SHIFT, Replays())
    places = [3, 5, 1, 4, 0, 2]
    times_ms = [NOW_MS + place * apart_ms for place in places]
    keys = [order_key(time_ms, AUDIT_RANK, 7) for time_ms in times_ms]
    for key, place in zip(keys, places, strict=True):
        timeline.insert(key, 0, place)
    assert machine.seen == tuple((NOW_MS + place * apart_ms, place) for place in range(6))
    assert [key for key, _, _ in timeline] == sorted(keys)
    assert timeline.last_key == max(keys)
    assert [timeline.payload(key) for key in keys] == places
    assert timeline.payload(keys[0] + 1) is None
    timeline.replace(keys[2], "new")
    timeline.remove(keys[1])
    assert [payload for _, _, payload in timeline] == [0, "new", 2, 3, 4]
