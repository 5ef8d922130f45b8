"""Records that are deleted unread cost scores, and never give one twice: revisions never fall, and no value counts a second time."""

from collections.abc import Sequence

from hypothesis import event, given
from hypothesis import strategies as st

from schemas.scores.live_view import Subject
from schemas.scores.records import AnyScoreRecord, ClosedFact, TurnValues
from tests.properties.owners import Acts, Log, Owner, Settings, acts
from tests.properties.partitions import logs, settings


def _delete(log: Log, share: int) -> None:
    """Deletes so many tenths of what there is of the log, from its first record on."""
    log.first += (len(log.records) - log.first) * share // 10


def _assert_no_value_twice(scores: Sequence[AnyScoreRecord]) -> None:
    ids, firsts, known = set[str](), set[tuple[str, Subject]](), set[tuple[str, int | None, str]]()
    newest: dict[tuple[str, Subject], int] = {}
    for record in scores:
        call = record.conversation_id
        place = (call, (record.name, record.turn, record.index))
        is_again = record.revision % 2 == 1  # by two owners who end in front of the same record it is published twice
        assert is_again or record.record_id not in ids, f"{place} again"
        ids.add(record.record_id)
        assert record.revision >= newest.get(place, 0), f"{place}: {record.revision} comes after {newest[place]}"
        newest[place] = record.revision
        if record.is_first:
            assert place not in firsts, f"{place} counts twice"
            firsts.add(place)
        if isinstance(record, TurnValues):
            again = known & {(call, record.turn, name) for name in record.first_known}
            assert not again, f"{again} count twice"
            known |= {(call, record.turn, name) for name in record.first_known}


@given(
    logs(),
    settings,
    st.lists(st.tuples(acts(), st.sampled_from("12"), st.integers(0, 9)), max_size=3),
)
def test_whatever_is_deleted_between_owners_no_record_and_no_count_comes_twice(
    log: Log, settings: Settings, lives: Sequence[tuple[Acts, str, int]]
) -> None:
    """And whatever version of the code each of them is."""
    cut = 0
    for some, version, share in lives:
        owner = Owner(log, settings, version=version)
        cut += owner.is_cut
        owner.live([("fold", 20), *some, ("write", 10**6)])
        _delete(log, share)
    owner = Owner(log, settings, version="1")
    cut += owner.is_cut
    owner.to_the_end()
    lives_of: dict[str, int] = {}
    for record in log.score_records:
        lives_of[record.conversation_id] = lives_of.get(record.conversation_id, 0) + isinstance(record, ClosedFact)
    # An id may be that of two calls.
    once = [record for record in log.score_records if lives_of[record.conversation_id] == 1]
    event(f"{min(cut, 1)} lost or more, {min(len(once), 1)} records or more")
    _assert_no_value_twice(once)
