"""The merge of the sequencer: whatever the times of records are, those of one input partition keep
their order.
"""

from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from consumers.sequencer.merge import InputPartition, merged
from schemas.log import SOURCES, Next
from tests.support.fakes.broker_records import BrokerRecord

TIMES_MS = st.integers(0, 50)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.lists(TIMES_MS, min_size=1, max_size=4), st.none() | TIMES_MS
        )
    )
)
def test_records_of_an_input_are_appended_in_its_order(
    polls: list[tuple[int, list[int], int | None]],
) -> None:
    inputs = [
        InputPartition(source, TopicPartition(source.value, 0), 0, Next(0, 0))
        for source in SOURCES[:3]
    ]
    read = dict.fromkeys(range(3), 0)
    appended: list[tuple[str, int]] = []
    for number, times_ms, until_ms in [*polls, (0, [0], None)]:
        records = [
            BrokerRecord("input", read[number] + place, at_ms, b"key", b"", 0, ())
            for place, at_ms in enumerate(times_ms)
        ]
        read[number] += len(records)
        inputs[number].put(records, 0)
        for each, record in merged(inputs, until_ms):
            appended.append((each.tp.topic, record.offset))
            assert until_ms is None or record.timestamp <= until_ms
    for number, each in enumerate(inputs):
        offsets = [offset for topic, offset in appended if topic == each.tp.topic]
        assert offsets == list(range(read[number]))
        assert each.next == Next(0, read[number])
