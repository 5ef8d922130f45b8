"""Records about a bot itself: the events that its observer had to drop, and the errors of its processors."""

import pytest

from schemas.closed_sets import InputSource
from schemas.events.codec import RefusedRecordError, decode
from tests.support.fakes.engine_feed import Feed

DROPPED = "callgauge_source_events_dropped_total"


def test_dropped_events_are_counted_by_their_subject() -> None:
    feed = Feed()
    feed.send("pipecat", {"type": "events_dropped", "data": {"metrics": 7, "speech": 1, "tools": 0}}, 0)
    feed.send("pipecat", {"type": "events_dropped", "data": {"metrics": 3, "smells": 2}}, 10)
    assert feed.counts(DROPPED) == {("metrics",): 10, ("speech",): 1}
    assert feed.counts("callgauge_events_total") == {("pipecat", "folded"): 2}


def test_errors_of_processors_are_counted_and_nothing_of_them_is_kept() -> None:
    feed = Feed()
    feed.send("pipecat", {"type": "error", "data": {"message": "the model is down", "processor": "OneLLMService#0"}}, 0)
    feed.send("pipecat", {"type": "error", "data": {"frame": "ErrorFrame#0(error: the model is down)"}}, 10)
    assert feed.counts("callgauge_agent_errors_total") == {("pipecat",): 2}
    assert feed.counts("callgauge_events_total") == {("pipecat", "folded"): 2}


@pytest.mark.parametrize("data", [{"metrics": -1}, {"metrics": 10**10}, {"metrics": "many"}, [], None])
def test_a_count_that_is_none_is_refused(data: object) -> None:
    import json

    with pytest.raises(RefusedRecordError):
        decode(InputSource.PIPECAT, json.dumps({"type": "events_dropped", "timestamp": 1, "data": data}).encode())
