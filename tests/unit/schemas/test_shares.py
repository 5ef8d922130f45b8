"""Room is shared by owner: who has most makes room with what it used first, and finding it takes
the same time however many there are.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.scores.shares import Shares

_KEYS = st.sampled_from("abcdefgh")
_OWNERS = st.sampled_from(["acme", "globex", "initech"])


@given(st.lists(st.one_of(st.tuples(_KEYS, _OWNERS), _KEYS, st.none()), max_size=60))
def test_the_owner_with_the_most_loses_the_key_that_it_used_last(
    steps: list[tuple[str, str] | str | None],
) -> None:
    """Against a list in the order of use: a pair is a use, a key alone is removed, nothing makes
    room.
    """
    shares, used = Shares(), list[tuple[str, str]]()
    for step in steps:
        match step:
            case (key, owner):
                shares.use(key, owner)
                used = [each for each in used if each[0] != key] + [(key, owner)]
            case str(key):
                shares.discard(key)
                used = [each for each in used if each[0] != key]
            case None if used:
                gone = shares.make_room()
                sizes = Counter(owner for _, owner in used)
                most = [owner for owner, size in sizes.items() if size == max(sizes.values())]
                quietest = [next(key for key, owner in used if owner == each) for each in most]
                assert gone in quietest
                used = [each for each in used if each[0] != gone]
            case _:
                with pytest.raises(KeyError):
                    shares.make_room()
        assert len(shares) == len(used)
        assert all((key in shares) is (key in {name for name, _ in used}) for key in "abcdefgh")


def test_a_flood_of_one_owner_pushes_out_its_own_keys() -> None:
    shares = Shares()
    for number in range(10):
        shares.use(f"few-{number}", "acme")
    for number in range(1_000):
        shares.use(f"many-{number}", "globex")
        if len(shares) > 50:
            shares.make_room()
    assert all(f"few-{number}" in shares for number in range(10))
