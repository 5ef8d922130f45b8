"""Records that are deleted unread cost scores, and never give one twice: revisions never fall, and
no value counts a second time.
"""

from collections.abc import Sequence

from hypothesis import event, given
from hypothesis import strategies as st

from schemas.rows import CallRow, GoalsRow, Row
from tests.properties.evaluation import Subject, subject_of
from tests.properties.owners import Acts, Log, Owner, Settings, acts
from tests.properties.partitions import logs, settings


def _delete(log: Log, share: int) -> None:
    """Deletes so many tenths of what there is of the log, from its first record on."""
    log.first += (len(log.records) - log.first) * share // 10


def _assert_no_value_twice(rows: Sequence[Row]) -> None:
    counted = set[tuple[str, Subject, str]]()
    newest: dict[tuple[str, Subject], int] = {}
    for row in rows:
        place = row.conversation_id, subject_of(row)
        assert row.revision >= newest.get(place, 0), (
            f"{place}: {row.revision} comes after {newest[place]}"
        )
        newest[place] = row.revision
        if not isinstance(row, GoalsRow):
            news = {(*place, name) for name in row.news if name != "wait_revised"}
            assert not news & counted, f"{news & counted} count twice"
            counted |= news


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
    for row in log.rows:
        is_closed = isinstance(row, CallRow) and row.state == "closed"
        lives_of[row.conversation_id] = lives_of.get(row.conversation_id, 0) + is_closed
    # An id may be that of two calls.
    once = [row for row in log.rows if lives_of[row.conversation_id] == 1]
    event(f"{min(cut, 1)} lost or more, {min(len(once), 1)} rows or more")
    _assert_no_value_twice(once)
