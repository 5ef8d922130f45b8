"""Events that wait: how many, in which order, and which ones are dropped first."""

import json

from callgauge_send.events import Rank, Record
from callgauge_send.outbox import LOSS, MAX_WAITING, EventOutbox
from hypothesis import given
from hypothesis import strategies as st

from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from schemas.events.pipecat import EventsDropped


def put(box: EventOutbox, *ranks: Rank) -> None:
    for rank in ranks:
        box.put(rank, rank.name.lower(), b"{}")


def sent(box: EventOutbox, most: int = MAX_WAITING) -> list[Record]:
    """The records that go to a broker that takes everything."""
    records: list[Record] = []
    while not box.is_empty.is_set():
        records += box.next_records(most)
        box.settle([])
    return records


def losses(records: list[Record]) -> dict[str, int]:
    told = [json.loads(record.value) for record in records if record.type == LOSS]
    counts: dict[str, int] = {}
    for event in told:
        assert isinstance(decode(InputSource.PIPECAT, json.dumps(event).encode()), EventsDropped)
        for what, count in event["data"].items():
            counts[what] = counts.get(what, 0) + count
    return counts


def test_metrics_go_before_words_before_speech_before_tools_before_the_call() -> None:
    box = EventOutbox("c", "s", most=5)
    put(box, Rank.CALL, Rank.TOOLS, Rank.SPEECH, Rank.WORDS, Rank.METRICS)
    for left in (4, 3, 2, 1):
        put(box, Rank.CALL)
        assert len(box) == 5, left
    records = sent(box)
    assert [record.type for record in records] == [LOSS, *["call"] * 5]
    assert losses(records) == {"metrics": 1, "words": 1, "speech": 1, "tools": 1}


def test_the_oldest_of_a_rank_goes_and_a_lower_one_never_displaces_a_higher() -> None:
    box = EventOutbox("c", "s", most=2)
    put(box, Rank.SPEECH, Rank.SPEECH, Rank.METRICS)
    assert [record.sequence for record in sent(box) if record.type == "speech"] == [1, 2]
    put(box, Rank.METRICS, Rank.METRICS, Rank.METRICS)
    kept = [record.sequence for record in sent(box) if record.type == "metrics"]
    assert len(kept) == 2
    assert kept == sorted(kept)


def test_what_is_not_acknowledged_comes_first_again_and_a_loss_is_told_once() -> None:
    box = EventOutbox("c", "s", most=3)
    put(box, *[Rank.METRICS] * 4)
    taken = box.next_records(2)
    assert [record.type for record in taken] == [LOSS, "metrics", "metrics"]
    # these on their way count: each new one displaces the oldest that waits
    put(box, *[Rank.METRICS] * 2)
    box.settle(taken)
    assert box.next_records(9)[:3] == taken
    box.settle([])
    records = [*taken, *sent(box)]
    assert losses(records) == {"metrics": 3} == dict(box.lost)
    assert len({record.sequence for record in records}) == len(records)


def test_an_ended_call_can_shrink_to_the_count_of_its_events() -> None:
    box = EventOutbox("c", "s")
    put(box, Rank.CALL, Rank.SPEECH, Rank.SPEECH)
    box.drop_all()
    records = sent(box)
    assert [record.type for record in records] == [LOSS]
    assert losses(records) == {"call": 1, "speech": 2}


@given(
    st.lists(st.sampled_from(Rank), max_size=60),
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), max_size=20),
)
def test_every_event_is_sent_once_or_told_as_lost(
    ranks: list[Rank], most: int, rounds: list[tuple[int, int]]
) -> None:
    box = EventOutbox("c", "s", most=most)
    arrived: list[Record] = []
    steps = iter(rounds)
    for rank in ranks:
        put(box, rank)
        assert len(box) <= most
        step = next(steps, None)
        if step is not None:
            taken = box.next_records(step[0])
            arrived += taken[: step[1]]
            box.settle(taken[step[1] :])
    arrived += sent(box, 3)
    events = [record for record in arrived if record.type != LOSS]
    assert len({record.sequence for record in arrived}) == len(arrived)
    assert [record.sequence for record in events] == sorted(record.sequence for record in events)
    assert len(events) + sum(losses(arrived).values()) == len(ranks)
