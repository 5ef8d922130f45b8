"""A record that opens a call says so, and which call closes for it; a later owner is told, and decides nothing of that itself."""

import pytest

from consumers.engine.admission import Arrival
from consumers.engine.effects import CloseCall, Effect, OpenCall
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from schemas.scores.records import TurnValues, next_generation
from tests.support.fakes.engine_feed import T0_MS, Feed, closings_of, opening_of, records_of

WORD = {"message_type": "user", "value": "Hello"}
ENDED = {"type": "call_ended", "reason": "goodbye"}


def word(key: str, offset: int) -> Arrival:
    value = b'{"message_type": "user", "value": "Hello", "timestamp": "%d"}' % (T0_MS + offset)
    event = decode(InputSource.AUDIT, value)
    return Arrival(InputSource.AUDIT, offset, T0_MS + offset, key, event, value, None)


def test_only_the_first_record_of_a_call_opens_it() -> None:
    feed = Feed()
    assert [opening_of(feed.send("audit", WORD, at_ms)) for at_ms in (0, 10)] == [OpenCall(None), None]
    assert opening_of(feed.send("audit", WORD, 20, key="other")) == OpenCall(None)


def test_a_record_of_a_call_that_is_over_or_closed_opens_none_and_is_counted() -> None:
    feed = Feed(Limits(max_events_per_call=1))
    feed.send("audit", WORD, 0)
    assert feed.evaluator.closing_calls == 1
    assert feed.send("audit", WORD, 10) == []
    feed.close_all()
    assert feed.evaluator.open_calls == ()
    assert feed.send("audit", WORD, 20) == ()
    assert feed.counts("callgauge_events_total") == {("audit", "folded"): 1, ("audit", "after_close"): 2}


@pytest.mark.parametrize("evicted", [None, "one", "gone"])
def test_a_later_owner_opens_and_closes_what_it_is_told(evicted: str | None) -> None:
    """Whether there is room is not asked again, nor whether the id is known: another call of this name has closed."""
    evaluator = PartitionEvaluator(Limits(max_open_calls=1), "test")
    evaluator.has_closed("two")
    evaluator.receive_again(word("one", 0), OpenCall(None))
    effects = evaluator.receive_again(word("two", 1), OpenCall(evicted))
    assert evaluator.open_calls == ("one", "two")
    assert evaluator.closing_calls == (evicted == "one")
    assert closings_of(effects) == []
    assert [closing.conversation_id for closing in closings_of(evaluator.close_some())] == (
        ["one"] if evicted == "one" else []
    )


def test_what_a_large_close_publishes_comes_with_its_last_step_whatever_comes_between() -> None:
    def talked() -> Feed:
        feed = Feed()
        feed.evaluator = PartitionEvaluator(Limits(), "test", writes_transcripts=True)
        for number in range(8):
            at_ms = 5_000 * number
            feed.user_audio(at_ms, at_ms + 1_000, text=f"{number} " + "1," * 8_000)
            feed.assistant_audio(at_ms + 1_500, at_ms + 2_500)
        feed.send("audit", ENDED, 60_000)
        feed.evaluator.pass_time(T0_MS + 70_000)
        return feed

    at_once, slowly = talked(), talked()
    expected = closings_of(at_once.close_all())
    steps: list[list[Effect]] = []
    while slowly.evaluator.closing_calls:
        slowly.send("audit", WORD, 70_000 + len(steps), key=f"between-{len(steps)}")
        slowly.send("audit", WORD, 70_000 + len(steps))
        slowly.evaluator.pass_time(T0_MS + 71_000 + len(steps))
        steps.append([*slowly.evaluator.close_some()])
    assert len(steps) > 2
    assert [effect for step in steps[:-1] for effect in step] == []
    assert [effect for effect in steps[-1] if isinstance(effect, CloseCall)] == expected


def test_the_revisions_of_a_call_go_on_from_another_generation() -> None:
    feed = Feed()
    feed.user_audio(0, 1_000)
    feed.assistant_audio(1_500, 2_500)
    feed.tool_call("find", 3_000)
    feed.tool_answer("find", 3_100)
    before = {(record.name, record.turn, record.index): record.revision for record in feed.records()}
    least = next_generation(max(before.values()))
    feed.evaluator.renumber("call", least)
    feed.effects.clear()
    feed.send("audit", {"type": "call_started", "agent": "desk"}, 3_200)  # a subject with another value
    feed.user_audio(10_000, 11_000)
    feed.assistant_audio(11_500, 12_500)
    feed.send("audit", ENDED, 20_000)
    feed.advance(60_000)
    after = records_of(feed.effects)
    again = [record for record in after if (record.name, record.turn, record.index) in before]
    assert again
    seen = dict.fromkeys(before, least)
    for record in after:
        subject = (record.name, record.turn, record.index)
        expected = seen[subject] + 1 if subject in seen else least
        assert record.revision == expected
        seen[subject] = record.revision


def test_a_call_of_which_every_record_is_lost_opens_again_in_the_generation_that_was_set() -> None:
    evaluator = PartitionEvaluator(Limits(), "test")
    evaluator.renumber("one", next_generation(1))
    records = records_of([*evaluator.receive(word("one", 0)), *evaluator.advance(T0_MS + 10**9)])
    assert {record.revision // next_generation(1) for record in records} == {1}
    assert not any(record.is_first for record in records), "an earlier owner may have counted all of them"
    assert [record.first_known for record in records if isinstance(record, TurnValues)] == [()]
    evaluator = PartitionEvaluator(Limits(max_closed_calls_remembered=1), "test")
    evaluator.renumber("one", next_generation(1))
    evaluator.renumber("two", next_generation(1))
    assert records_of(evaluator.receive(word("one", 0)))[0].revision == 1, "only so many are remembered"
