"""Samples say whose processor time it is."""

import time

import pytest

from tests.support.pipecat_bots.shares import Part, Samples, part_of


@pytest.mark.parametrize(
    ("files", "part"),
    [
        (["/x/pipecat/pipeline/worker_observer.py", "/x/asyncio/queues.py"], Part.HAND_OVER),
        (
            ["/x/pipecat/pipeline/worker_observer.py", "/x/pipecat_callgauge/observer.py"],
            Part.HOOKS,
        ),
        (["/x/callgauge_send/sender.py", "/x/callgauge_send/outbox.py"], Part.SENDING),
        (["/x/asyncio/events.py", "/x/aiokafka/producer/sender.py"], Part.SENDING),
        (["/x/pipecat/processors/frame_processor.py"], Part.PIPELINE),
    ],
)
def test_a_sample_belongs_to_the_most_special_part(files: list[str], part: Part) -> None:
    assert part_of(files) is part


def test_all_processor_time_is_in_some_part() -> None:
    samples = Samples()
    begin = time.process_time()
    with samples.sampled():
        while time.process_time() - begin < 0.1:
            pass
    in_pipeline = samples.seconds.pop(Part.PIPELINE)
    assert 0.05 < in_pipeline <= time.process_time() - begin
    assert set(samples.seconds.values()) == {0.0}
