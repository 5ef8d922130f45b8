"""The log that sequencers leave, whatever happens to them and to the inputs, and what is caught if one breaks a rule."""

from hypothesis import event, given
from hypothesis import strategies as st

from tests.properties.sequencing import Act, assert_laws, lived
from tests.support.laws import examples

ACTS: st.SearchStrategy[list[Act]] = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["send", "pass", "ask", "take", "take", "merge", "merge", "come", "come", "come", "tick", "tick"] * 2,
                *["start", "start", "end", "anew", "expire", "hide", "fail"],
            ]
        ),
        st.integers(0, 7),
        st.integers(0, 4),
    ),
    max_size=120,
)


@examples(times=10)
@given(ACTS)
def test_every_record_comes_once_in_its_order_and_time_is_never_ahead(acts: list[Act]) -> None:
    world = lived(acts)
    event(f"{min(3, sum(what == 'start' for what, *_ in acts))} successors or more")
    assert_laws(world)
