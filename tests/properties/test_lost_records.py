"""Records that are deleted unread cost scores, and never give one twice: revisions grow, and no value counts a second time."""

from collections.abc import Sequence

from hypothesis import event, given
from hypothesis import strategies as st

from schemas.closed_sets import InputSource
from schemas.scores.live_view import Subject
from schemas.scores.records import AnyScoreRecord, ClosedFact, TurnValues
from tests.properties.owners import Acts, Owner, Settings, Topics, acts
from tests.properties.partitions import partitions, settings


def _delete(topics: Topics, shares: Sequence[int]) -> None:
    """Deletes so many tenths of each input, from its first record on."""
    for (source, arrivals), share in zip(topics.inputs.items(), shares, strict=True):
        if deleted := arrivals[: len(arrivals) * share // 10]:
            topics.firsts[source] = deleted[-1].offset + 1
            del arrivals[: len(deleted)]


def _assert_no_value_twice(scores: Sequence[AnyScoreRecord]) -> None:
    ids, firsts, known = set[str](), set[tuple[str, Subject]](), set[tuple[str, int | None, str]]()
    newest: dict[tuple[str, Subject], int] = {}
    for record in scores:
        call = record.conversation_id
        place = (call, (record.name, record.turn, record.index))
        assert record.record_id not in ids, f"{place} again"
        ids.add(record.record_id)
        assert record.revision > newest.get(place, 0), f"{place}: {record.revision} comes after {newest[place]}"
        newest[place] = record.revision
        if record.is_first:
            assert place not in firsts, f"{place} counts twice"
            firsts.add(place)
        if isinstance(record, TurnValues):
            again = known & {(call, record.turn, name) for name in record.first_known}
            assert not again, f"{again} count twice"
            known |= {(call, record.turn, name) for name in record.first_known}


@given(
    partitions(),
    settings,
    st.lists(acts(), max_size=3),
    st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=3, max_size=3),
    st.data(),
)
def test_whatever_is_deleted_between_owners_no_record_and_no_count_comes_twice(
    topics: Topics, settings: Settings, lives: Sequence[Acts], shares: Sequence[Sequence[int]], data: st.DataObject
) -> None:
    lost, committed = 0, dict.fromkeys(InputSource, 0)
    for some, share in zip(lives, shares, strict=False):
        owner = Owner(topics, settings, version=data.draw(st.sampled_from("12")), committed=committed)
        lost += owner.lost
        owner.live([("fold", data.draw(st.integers(0, 3)), data.draw(st.integers(0, 40))), *some, ("write", 1, 9)])
        if data.draw(st.booleans()):
            committed = owner.committed()
        _delete(topics, share)
    owner = Owner(topics, settings, version="1", committed=committed)
    lost += owner.lost
    owner.to_the_end()
    lives_of: dict[str, int] = {}
    for record in topics.scores:
        lives_of[record.conversation_id] = lives_of.get(record.conversation_id, 0) + isinstance(record, ClosedFact)
    once = [
        record for record in topics.scores if lives_of[record.conversation_id] == 1
    ]  # an id may be that of two calls
    event(f"{min(lost, 1)} lost or more, {min(len(once), 1)} records or more")
    _assert_no_value_twice(once)
