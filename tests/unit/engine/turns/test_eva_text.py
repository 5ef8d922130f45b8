"""Turns of texts: groups of texts and their answers."""

import pytest

from consumers.engine.call import Call
from consumers.engine.evaluator import NO_LIMITS
from consumers.engine.limits import Limits
from consumers.engine.turns.eva_text import SpokenText, normalised, without_eva_labels
from schemas.closed_sets import UnscoredReason
from tests.reference.oracle import batch_context
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import Feed, Json


def _line(text: str) -> Json:
    """From "stamp frame", "stamp > reply" or "stamp |" for a marker."""
    stamp, _, rest = text.partition(" ")
    kind, frame = "tts_text", rest
    if rest.startswith("|"):
        kind, frame = ("turn_end" if rest == "||" else "turn_start"), "marker"
    elif rest.startswith("> "):
        kind, frame = "llm_response", rest[2:]
    return {"type": kind, "timestamp": int(stamp), "data": {"frame": frame}}


GROUPS = {
    "words grow one group": (["1 one", "2 two", "3 three"], ["one two three"]),
    "a marker is a border": (["1 one", "2 |", "3 two"], ["one", "two"]),
    "equal markers are one": (["1 one", "2 |", "3 |", "4 ||", "5 two"], ["one", "two"]),
    "replies are joined by nothing": (["1 > one", "2 > two"], ["onetwo"]),
    "P2: one word drops all replies": (["1 > no", "2 | ", "3 > no", "4 yes"], ["yes"]),
    "P2: a dropped reply no longer separates": (["1 one", "2 > no", "3 two"], ["one two"]),
    "P2: only an empty word": (["1 > no", "2 "], [""]),
    "P3: a phrase at a word's stamp": (["1 one two", "1 one", "2 two"], ["one two"]),
    "P3: the word came first": (["1 one", "1 one two", "2 two"], ["one two"]),
    "P3: two phrases delete each other": (["1 one two", "1 three four"], []),
    "P3: across a marker": (["1 one two", "2 |", "1 three"], ["three"]),
    "P3: an old stamp comes again": (["1 one two", "2 a", "3 b", "1 c"], ["a b c"]),
    "P3: a word with a trailing blank is a phrase": (["1 one ", "1 two"], ["two"]),
    "P4: a preview and its words": (["1 one two", "2 one", "3 two"], ["one two"]),
    "P4: words that are not it": (["1 one two", "2 one", "3 three"], ["one two one three"]),
    "P4: not yet all": (["1 one two", "2 one"], ["one two one"]),
    "P4: a marker in between": (["1 one two", "2 |", "3 one", "4 two"], ["one two", "one two"]),
    "P4: the group begins later then": (
        ["1 one two", "5 one", "6 two", "7 three"],
        ["one two three"],
    ),
    "P4: byte for byte": (["1 one  two", "2 one", "3 two"], ["one  two one two"]),
    "P4: a preview between a phrase and its words": (
        ["5 a b b", "6 a b", "1 a", "2 b", "2 b"],
        ["a b b a b b"],
    ),
    "P4 after P3: the phrase in between is dropped": (
        ["1 a b", "2 x y", "3 a", "4 b", "2 c"],
        ["a b c"],
    ),
    "a preview in the middle": (
        ["1 so", "2 one two", "3 one", "4 two", "5 end"],
        ["so one two end"],
    ),
}


@pytest.mark.parametrize("case", GROUPS)
def test_text_groups_after_every_line(case: str) -> None:
    lines, groups = GROUPS[case]
    call: Json = {
        "id": "call",
        "pipeline_type": "cascade",
        "audit": [],
        "user_sim": [],
        "pipecat": [],
    }
    call["pipecat"] = [_line(line) for line in lines]
    arrivals = arrivals_of(call, [("pipecat", index) for index in range(len(lines))])
    folded = Call(arrivals[0], NO_LIMITS, "test")
    for count, arrival in enumerate(arrivals, 1):
        folded.receive(arrival, 0, [])
        prefix = {**call, "pipecat": call["pipecat"][:count]}
        assert folded.eva_context().to_dict() == batch_context(prefix), f"after {lines[count - 1]}"
    assert [
        group.text
        for group in sorted(folded.history.text_stream.groups(), key=lambda group: group.key or 0)
    ] == groups


OFFER = "One moment please, I am looking that booking up."


@pytest.mark.parametrize(
    ("text", "segments", "expected"),
    [
        pytest.param(OFFER, [OFFER], OFFER, id="spoken as it is"),
        pytest.param(OFFER, [f"Well. {OFFER} Done."], OFFER, id="inside a segment"),
        pytest.param(
            OFFER,
            ["One moment please,", "I am looking that booking up."],
            OFFER,
            id="in all segments together",
        ),
        pytest.param(
            OFFER,
            ["one MOMENT please i am looking THAT booking up"],
            OFFER,
            id="letters and digits count only",
        ),
        pytest.param(
            OFFER,
            ["One moment please, I am looking th"],
            "One moment please, I am looking",
            id="cut after a word",
        ),
        pytest.param(
            OFFER,
            ["Never", "One moment please, I am looking"],
            "One moment please, I am looking",
            id="the longest of them",
        ),
        pytest.param(
            "Your seat is 12A in row 4 left",
            ["Your seat is 12A in row 4"],
            None,
            id="19 characters: chance",
        ),
        pytest.param(
            "Your seat is 12A in row 40 left",
            ["Your seat is 12A in row 40"],
            "Your seat is 12A in row 40",
            id="20 do",
        ),
        pytest.param(OFFER, ["Something else entirely"], None, id="not spoken"),
        pytest.param(OFFER, [], None, id="no segments"),
        pytest.param(OFFER, ["...", ""], None, id="segments without words"),
        pytest.param("...", [OFFER], None, id="a text without words"),
        pytest.param(
            f"[assistant interrupts] {OFFER}",
            ["One moment please, I am looking"],
            "[assistant interrupts] One moment please, I",
            id="a label counts as words in the cut",
        ),
    ],
)
def test_spoken_prefix(text: str, segments: list[str], expected: str | None) -> None:
    assert SpokenText(segments).prefix(text) == expected


def test_labels_are_no_words() -> None:
    assert without_eva_labels("[pause] One [likely cut off by user] two") == "One two"
    assert normalised("Row 4-B,  [pause] please!") == "row4bplease"


@pytest.mark.parametrize(
    ("text", "spoken", "kept"),
    [
        pytest.param(
            "Sure.[pause]One moment while I look that up",
            "Sure. One moment while I look",
            "Sure.[pause]One moment while I look",
            id="a label between two words without blanks",
        ),
        pytest.param(
            "ABCDEFGHIJ KLMNOPQRS TU\u03a3 NEXT",
            "ABCDEFGHIJ KLMNOPQRS TU\u03a3",
            "ABCDEFGHIJ KLMNOPQRS TU\u03a3",
            id="a sigma that is the last letter of one text only",
        ),
        pytest.param(
            "Sure.\n[likely cut\noff by user]\tOne moment while I look that up",
            "Sure. One moment while I look",
            "Sure. [likely cut off by user]",
            id="line breaks in a label",
        ),
        pytest.param(
            "Sure, one moment while I look that up",
            "Sure, one [likely\x85interruption] moment while I look",
            "Sure, one moment while I look",
            id="an odd blank in a label that is spoken",
        ),
        pytest.param(
            "Sure, [[pause]pause] one moment while I look that up",
            "Sure, pause] one moment while I look",
            "Sure, [[pause]pause] one moment while I look",
            id="what is left of a label in a label",
        ),
    ],
)
def test_texts_are_compared_letter_by_letter_as_eva_does(text: str, spoken: str, kept: str) -> None:
    assert SpokenText([spoken]).prefix(text) == kept


LIMITS = Limits(dead_air_ms=3_000, delivery_allowance_ms=500)
ENDED: Json = {"type": "call_ended", "reason": "goodbye"}
IN_TEXT = UnscoredReason.ANSWERED_IN_TEXT.value
NEVER = "the call ended before an answer"


def asks(feed: Feed, at_ms: int) -> None:
    """One second of the caller, and the ruling behind it."""
    (
        feed.speech("user_speech_started", at_ms)
        .speech("user_turn_started", at_ms + 100)
        .speech("user_speech_stopped", at_ms + 1_000)
        .speech("user_turn_stopped", at_ms + 1_200)
    )


def writes(feed: Feed, at_ms: int, source: str = "pipecat") -> None:
    """The answer as pipecat's aggregator, or the agent's log, has it."""
    if source == "pipecat":
        feed.send(
            "pipecat",
            {"type": "assistant_message", "data": {"content": "At nine.", "interrupted": False}},
            at_ms,
        )
    else:
        feed.send("audit", {"message_type": "assistant", "value": "At nine."}, at_ms)


@pytest.mark.parametrize("source", ["pipecat", "audit"])
def test_each_written_answer_has_its_turn_and_says_why_it_has_no_latency(source: str) -> None:
    feed = Feed(LIMITS)
    for at_ms in (1_000, 6_000):
        asks(feed, at_ms)
        writes(feed, at_ms + 2_500, source)
    feed.send("pipecat", ENDED, 9_000).advance(60_000)
    assert feed.latencies() == {1: IN_TEXT, 2: IN_TEXT}
    assert feed.call().unscored_turns["voice_to_voice_latency_ms"] == {IN_TEXT: 2}
    assert feed.call().unscored_turns["turn_taking"] == {IN_TEXT: 2}
    assert feed.silences() == []


def test_a_caller_who_waits_for_a_written_answer_waits() -> None:
    feed = Feed(LIMITS)
    asks(feed, 1_000)
    feed.advance(6_000)
    assert len(feed.silences()) == 1
    writes(feed, 6_500)
    feed.advance(30_000)
    assert len(feed.silences()) == 1


def test_a_question_without_any_answer_has_the_old_reason() -> None:
    feed = Feed(LIMITS)
    asks(feed, 1_000)
    feed.send("pipecat", ENDED, 3_000).advance(60_000)
    assert feed.latencies() == {1: NEVER}


@pytest.mark.parametrize("is_late", [False, True])
def test_words_are_no_answer_of_a_bot_that_speaks(*, is_late: bool) -> None:
    """Whether it speaks may be known after the words: then the turns are recreated."""
    feed = Feed(LIMITS)
    if not is_late:
        feed.spoke("bot", 100, 800)
    asks(feed, 1_000)
    writes(feed, 2_600)  # and both moments of its sound are lost
    asks(feed, 4_000)
    assert feed.turns() == ({1, 2} if is_late else {0, 1})
    feed.speech("bot_speech_started", 6_200)
    assert feed.turns() == ({1} if is_late else {0, 1})
    feed.speech("bot_speech_stopped", 7_000).send("pipecat", ENDED, 9_000).advance(60_000)
    assert feed.latencies()[1] == 1_200.0
