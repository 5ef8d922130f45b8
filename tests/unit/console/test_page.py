"""The report of a call has the right content, and no text of a call becomes anything but text."""

import base64
import functools
import hashlib
import re
from collections import Counter
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.console.page import sections as report_timeline
from consumers.console.page import sections as report_transcript
from consumers.console.page.calls import ReportedCall
from consumers.console.page.sections import section
from consumers.console.page.whole import index
from schemas.closed_sets import Anchor, InterruptionCause, UnscoredReason
from schemas.goals.goal_set import GoalSet
from schemas.scores.latency_stages import ServiceKind
from schemas.scores.records import (
    AnyScoreRecord,
    CallLabels,
    CallValues,
    DeadAirFact,
    EvaMetricScore,
    FinalLatencies,
    FrameworkNote,
    ProgressScore,
    Scored,
    ServiceUse,
    TextRating,
    TurnValues,
    Unscored,
)
from streamer.report import page
from tests.support.calls.report_calls import T0_MS, Marks, goal_set, recorded, reported

PLAIN = Marks("\x00")
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "&lt;i&gt; &amp; </style></title>",
    "<!-- --> ]]> <![CDATA[",
    "javascript:alert(1)",
    "\u202e\ufdd0\x07\r\nline",
]


class Shape(HTMLParser):
    """A document without its texts: tags, names of attributes, and the values of attributes with an effect."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.shape: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shape.append(" ".join([tag, *(name for name, _ in attrs)]))
        for name, value in attrs:
            if name == "id":
                self.ids[str(value)] += 1
            elif name in ("href", "src"):
                self.links.add(str(value))

    def handle_endtag(self, tag: str) -> None:
        self.shape.append(f"/{tag}")

    def handle_comment(self, data: str) -> None:
        self.shape.append("comment")

    def unknown_decl(self, data: str) -> None:
        self.shape.append("declaration")


def whole(*calls: ReportedCall) -> str:
    return page(calls, ["a note"], "1.0")


def words(text: str) -> str:
    """Roughly the words that a person reads on the page."""
    return " ".join(unescape(re.sub("<[^>]+>", " ", text.split("</head>")[-1].replace("<wbr>", ""))).split())


class Says:
    """A redactor that replaces every text of the call with this one."""

    def __init__(self, text: str) -> None:
        self._text = text

    def redact(self, _text: str) -> str:
        return self._text

    def redact_value(self, _value: Any) -> Any:
        return {self._text: [self._text, 1]}


@functools.cache
def _call() -> ReportedCall:
    return reported(recorded(turns=3), goal_set())


def _shape(text: str) -> list[str]:
    """The elements of a page of two calls, where this text replaces every text that people choose."""
    call = _call()
    labels = CallLabels(agent=text, tenant=text, environment=text)
    records = [record.model_copy(update={"labels": labels}) for record in call.records]
    said = [ReportedCall(text, call.heard, records, anchor_id, Says(text)) for anchor_id in ("c1", "c2")]
    return Shape(whole(*said)).shape


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_change_no_element(text: str) -> None:
    assert _shape(text) == _shape("word")


@given(st.text(min_size=1, max_size=30))
def test_no_text_changes_any_element(text: str) -> None:
    assert _shape(text) == _shape("word")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_call_is_shown_as_it_is(text: str) -> None:
    shape = Shape(whole(reported(recorded(f"a {text}"), goal_set(f"a {text}")))).shape
    plain = Shape(whole(_call())).shape
    assert {entry.split(" ")[0] for entry in shape} == {entry.split(" ")[0] for entry in plain}
    assert "a " + " ".join(text.split()).split("\u202e")[0] in words(whole(reported(recorded(f"a {text}"))))


def test_the_page_can_run_and_load_nothing() -> None:
    text = whole(reported(recorded(HOSTILE[0])))
    shape = Shape(text)
    assert {link.split(":")[0][:4] for link in shape.links} == {"#c1-", "data"}
    tags = {entry.split(" ")[0] for entry in shape.shape}
    assert tags & {"script", "img", "iframe", "object", "embed", "form", "input", "base"} == set()
    names = {name for entry in shape.shape for name in entry.split(" ")[1:]}
    assert [name for name in names if name.startswith("on") or name == "style"] == []
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert style is not None
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert unescape(policy[1]).startswith(f"default-src 'none'; style-src 'sha256-{digest}';")


def test_links_lead_somewhere_and_ids_are_there_once() -> None:
    calls = [reported(recorded(turns=turns), goal_set(), f"c{turns}") for turns in (1, 2, 3)]
    shape = Shape(whole(*calls))
    assert {name: count for name, count in shape.ids.items() if count > 1} == {}
    assert [link for link in shape.links if link.startswith("#") and link[1:] not in shape.ids] == []
    assert {"#c1", "#c2", "#c3", "#calls"} <= shape.links


def test_what_stands_out_is_told() -> None:
    text = words(whole(reported(recorded("word"))))
    assert "Waits over 1.50 s, the objective turn 2 4.00 s User interrupted turn 1 0.50 s together" in text
    assert "Tools without success turn 1 word failed turn 1 word2 did not answer" in text


def test_a_call_without_faults_says_so() -> None:
    calm = recorded("word", turns=1)
    without_tools = [event for event in calm.audit or () if not event["message_type"].startswith("tool")]
    text = words(whole(reported(replace(calm, audit=tuple(without_tools)))))
    assert "Nothing: no wait over 1.50 s, no interruption, no dead air, no tool that failed. Timeline" in text


@pytest.mark.parametrize(
    ("tools", "lengths"),
    [
        ([], ["8.00 s"]),
        ([(3_500, 0)], ["3.50 s", "4.50 s"]),
        ([(3_500, 0), (6_000, 0)], ["3.50 s"]),
        ([(3_200, 1_300)], ["3.20 s", "3.50 s"]),
        ([(3_200, None)], ["3.20 s"]),
        ([(1_000, None)], []),
        ([(2_000, 0), (4_000, 0), (6_000, 0)], []),
    ],
)
def test_dead_air_is_told_alike_everywhere(tools: list[tuple[int, int | None]], lengths: list[str]) -> None:
    """The tile, index, table, timeline and legend agree. The user waits for 8 s, and tools run in that time."""
    call = recorded("word", turns=3, pace=2)
    events = []
    for after_ms, took_ms in tools:
        at_ms = T0_MS + 32_000 + after_ms
        used = {"tool": f"tool {after_ms}", "parameters": {}}
        events.append({"timestamp": at_ms, "message_type": "tool_call", "value": used})
        if took_ms is not None:
            answer = {"tool": f"tool {after_ms}", "response": {"status": "success"}}
            events.append({"timestamp": at_ms + took_ms, "message_type": "tool_response", "value": answer})
    audit = sorted((*(call.audit or ()), *events), key=lambda event: event["timestamp"])
    told = reported(replace(call, audit=tuple(audit)))
    text = section(told, has_index=False)
    times, total = len(lengths), f"{sum(float(length.split()[0]) for length in lengths):.2f} s"
    more = f"✗ silent for over 3.00 s {total} Why Dead air" if times else "✓ never over 3.00 s Why Dead air"
    assert f"Dead air {times} time{'s' * (times != 1)} {more}" in words(text)
    assert f"Dead air, each from 3.00 s {total}" in words(text)
    assert re.findall("Dead air from [^<]*: nobody spoke for ([^<]*)<", text) == lengths
    assert text.count('class="dead-air"') == times + bool(times)  # one in the legend
    assert (f"Dead air, over 3.00 s ({times} time{'s' * (times != 1)})" in words(text)) is bool(times)
    assert re.findall('data-head="Dead air">([^<]*)<', index([told])) == [str(times)]


def with_changed(call: ReportedCall, kind: type[Any], turn: int | None = None, **fields: Any) -> list[AnyScoreRecord]:
    """The records of the call, with these fields changed in records of one kind and turn."""
    return [
        record.model_copy(update=fields) if isinstance(record, kind) and record.turn == turn else record
        for record in call.records
    ]


def test_the_tile_and_the_table_have_one_length_of_dead_air() -> None:
    """The drawing may end a little later than the measurement: with the last event, not with the last sound."""
    call = reported(recorded("word", turns=3, pace=2))
    assert call.whole is not None
    assert call.whole.speech is not None
    speech = call.whole.speech.model_copy(update={"dead_air_ms": Scored(value=7_900)})
    records = with_changed(call, CallValues, speech=speech)
    text = words(section(ReportedCall("c", call.heard, records, "c1", PLAIN), has_index=False))
    assert "Dead air 1 time ✗ silent for over 3.00 s 7.90 s Why Dead air" in text
    assert "Dead air, each from 3.00 s 7.90 s" in text


def test_dead_air_of_another_length_is_summed_by_itself() -> None:
    """The measured value counts silences from 3 s on, even if the settings define dead air differently."""
    call = reported(recorded(turns=3, pace=2))
    (fact,) = call.of(DeadAirFact)
    others = [record for record in call.records if record is not fact]
    shorter = fact.model_copy(update={"silent_since_ms": T0_MS + 20_000, "threshold_ms": 1_500, "index": 2})
    changed = ReportedCall(
        "c", call.heard, [*others, fact.model_copy(update={"threshold_ms": 1_500}), shorter], "c", PLAIN
    )
    assert (changed.dead_air_times, changed.dead_air_ms) == (2, 10_000)
    assert "Dead air, each from 3.00 s 8.00 s" in words(section(changed, has_index=False))


def test_dead_air_that_nobody_could_hear_is_not_known() -> None:
    silent = recorded("word", turns=1)
    call = reported(replace(silent, elevenlabs=None, pipecat=None, audit=()))
    text = words(section(call, has_index=False))
    assert "Dead air not known Interruptions" in text
    assert "Nothing: no interruption, no tool that failed. Not known: wait over 1.50 s, dead air." in text
    assert re.findall('data-head="Dead air">([^<]*)<', index([call])) == ["not known"]


def test_the_day_of_a_recording_without_times_is_not_known() -> None:
    call = reported(recorded(turns=1))
    assert "Began 2026-" in words(section(call, has_index=False))
    without = ReportedCall("c", call.heard._replace(start_ms=0.0), call.records, "c1", PLAIN)
    assert "Began not known Ended" in words(section(without, has_index=False))


def test_how_a_wait_is_known_is_said_in_words() -> None:
    call = reported(recorded(turns=3))
    assert "the end of the user's speech is known: heard on the line." in words(section(call, has_index=False))
    assert [wait.turn for wait in call.latencies] == [1, 2]
    recorded_one = ReportedCall("c", call.heard, with_changed(call, TurnValues, 1, anchor=Anchor.RECORD), "c1", PLAIN)
    told = with_changed(recorded_one, TurnValues, 2, anchor=Anchor.ESTIMATED)
    text = words(section(ReportedCall("c", call.heard, told, "c1", PLAIN), has_index=False))
    assert re.findall(r"\d s (from the conversation record|estimated from arrival times) ", text) == [
        "from the conversation record",
        "estimated from arrival times",
    ]


def test_what_is_taken_out_is_nowhere_on_the_page() -> None:
    """Ids and labels of the call do not count as its texts."""
    number = "4111 1111 1111 1111"
    said = recorded(f"my card is {number}")
    labels = {"agent": "a", "tenant": "t", "environment": "e"}
    call = replace(said, control=({**said.control[0], **labels}, said.control[1]))
    text = whole(reported(call, goal_set(f"ask for {number}"), taken_out=number))
    assert text.count("[redacted]") > 20
    assert number not in text


def test_unknown_is_shown_as_such() -> None:
    call = reported(recorded(turns=2), goal_set())
    unknown = Unscored(reason=UnscoredReason.JUDGE_DISABLED)
    records = [
        record.model_copy(update={"result": unknown}) if isinstance(record, ProgressScore) else record
        for record in call.records
    ]
    text = words(section(ReportedCall("c", call.heard, records, "c1", PLAIN), has_index=False))
    assert "Progress unscored" in text
    assert "Progress at the end progress Unscored: judge disabled" in text
    assert "turn 1 unscored, judge disabled; 1 of 2 subgoals for certain" in section(
        ReportedCall("c", call.heard, records, "c1", PLAIN), has_index=False
    )
    assert "Hollow and dashed: at least so much" in text
    assert "0 %" not in text.split("Progress unscored")[1].split("Timeline")[0]


def test_what_a_judge_could_not_judge_stands_beside_its_rating() -> None:
    call = reported(recorded(turns=1))
    left_out = {"violating_policies": "the agent's instructions are not known"}
    rating = TextRating(result=Scored(value=1), through_turn=1, rating=3, not_applicable=left_out)
    records = with_changed(call, CallValues, faithfulness=rating)
    text = words(section(ReportedCall("c", call.heard, records, "c1", PLAIN), has_index=False))
    assert (
        "Faithfulness faithfulness 1; not judged: violating policies (the agent's instructions are not known) Details"
        in text
    )
    assert text.count("instructions are not known") == 1  # and no second time among the details


def test_what_the_models_used_and_the_framework_notes_is_told() -> None:
    call = reported(recorded(turns=1))
    uses = (
        ServiceUse(kind=ServiceKind.LLM, provider="OpenAI", model="gpt-4o", input_tokens=200_000, cost=0.5),
        ServiceUse(kind=ServiceKind.STT, audio_seconds=12.5),
    )
    notes = (
        FrameworkNote(what="interruption", at_ms=T0_MS, turn=1, cause=InterruptionCause.PROGRAM),
        FrameworkNote(what="false_interruption", at_ms=T0_MS, turn=1, is_resumed=True),
        FrameworkNote(what="handoff", at_ms=T0_MS, from_agent="desk"),
    )
    cost = Unscored(reason=UnscoredReason.NO_PRICE)
    records = with_changed(call, CallValues, uses=uses, notes=notes, cost=cost)
    text = words(section(ReportedCall("c", call.heard, records, "c1", PLAIN), has_index=False))
    assert (
        "Models and notes Service Provider Model Used Cost LLM OpenAI gpt-4o 200,000 input tokens 0.5 US dollars "
        "STT not known not known 12.5 audio seconds not known: no price Cost of the call not known: no price "
        "Turn 1 : the answer was cut off: the agent's own code did it "
        "Turn 1 : what looked like an interruption was none: the agent went on desk handed the call to another one"
    ) in text
    assert "Models and notes" not in words(section(call, has_index=False))


def test_progress_and_subgoals() -> None:
    text = words(section(reported(recorded(turns=3), goal_set()), has_index=False))
    assert "Reached 1 of 2" in text
    assert "Reached in turn 1 spoke hello by code" in text
    assert "Not reached used hello by code" in text


def test_expected_tool_calls_say_why_they_were_missed() -> None:
    expected = (
        {"tool": "hello", "turn": 0},
        {"tool": "hello", "turn": 1, "expected_parameters": [{"name": "code", "value": 7}]},
        {"tool": "other", "turn": 0},
        {"tool": "hello", "turn": 0, "expected_parameters": [{"name": "hello", "value": 7}]},
        {"tool": "other", "turn": 40},
    )
    goals = GoalSet.model_validate({**goal_set().model_dump(), "expected_tool_calls": expected})
    page = section(reported(recorded(turns=3), goals), has_index=False)
    text = words(page)
    text = text[text.index("Expected tool calls") :]
    assert text[: text.index(" Speech")] == (
        "Expected tool calls Made in turn 1 hello made as expected "
        "Missed in turn 2 hello not called in that turn, but in turn 1 "
        "Missed in turn 1 other not called in that turn "
        'Missed in turn 1 hello hello is "hello", expected 7 '
        "Not known other not known (expected_turn_not_reached)"
    )
    assert page.count('<a href="#c1-t40">') == 0


class LaterTurnValues(TurnValues):
    """The row of a turn in a later version, with one more value."""

    patience: TextRating | None = None


class LaterCallValues(CallValues):
    """The record of a call in a later version, with two more values."""

    patience: TextRating | None = None
    repeated_answers: Scored | None = None


def test_a_value_nobody_knew_of_appears_by_itself() -> None:
    call = reported(recorded(turns=1))
    assert call.whole is not None
    rating = TextRating(result=Scored(value=0.5), through_turn=1, rating=2, dimensions={"calm": 3})
    fields = {"patience": rating, "repeated_answers": Scored(value=3)}
    records = [
        *(record for record in call.records if not isinstance(record, TurnValues | CallValues)),
        LaterTurnValues(**dict(call.rows[-1]) | {"patience": rating}),
        LaterCallValues(**dict(call.whole) | fields),
    ]
    text = words(section(ReportedCall("c", call.heard, records, "c1", PLAIN), has_index=False))
    assert "Patience patience 0.5 Details" in text
    assert "Dimensions, calm 3" in text
    assert "Repeated answers repeated_answers 3" in text
    of_turns = text.partition("Of each turn")[2]
    assert "Patience" in of_turns.partition("Transcript")[0]


def test_details_of_a_score_have_names_of_their_own_and_zero_rates_share_a_row() -> None:
    call = reported(recorded(turns=1))
    validity = EvaMetricScore(
        result=Scored(value=0.9),
        sub_metrics={f"{name}_rate": 0.0 for name in ("late", "early", "lost", "odd")} | {"wrong_rate": 0.1},
    )
    latencies = {Anchor.AUDIO: FinalLatencies(measured=7, measured_ms=11_060, overlapped=0)}
    records = with_changed(call, CallValues, eva={"eva_validity": validity}, latencies=latencies)
    text = words(section(ReportedCall("c", call.heard, records, "c1", PLAIN), has_index=False))
    assert "Latencies, audio, measured 7 Latencies, audio, measured, together 11.1 s" in text
    assert "Wrong rate 0.1 4 further rates 0" in text
    assert "Late rate" not in text
    few = EvaMetricScore(result=Scored(value=1), sub_metrics={f"{name}_rate": 0.0 for name in ("late", "early", "odd")})
    records = with_changed(call, CallValues, eva={"eva_validity": few})
    text = words(section(ReportedCall("c", call.heard, records, "c1", PLAIN), has_index=False))
    assert "Late rate 0 Early rate 0 Odd rate 0" in text
    assert "further rates" not in text


def test_every_score_of_the_call_and_of_its_turns_is_shown() -> None:
    call = reported(recorded(turns=3), goal_set())
    assert call.whole is not None
    text = words(section(call, has_index=False))
    of_call, _, of_turns = text.partition("Of each turn")
    for name in ("stt_wer", "transcript_disagreement", "success_final_turn", "progress", *call.whole.eva):
        assert f" {name} " in of_call.partition(" Of the call ")[2]
    assert "Spoke for" in of_call
    for heading in ("Voice to voice latency", "Turn taking", "Talk"):
        assert heading in of_turns.partition("Transcript")[0]
    timing = call.whole.eva["eva_turn_taking"]
    assert isinstance(timing, EvaMetricScore)
    assert isinstance(timing.result, Scored)
    assert "Turn taking " in of_call.partition("What stands out")[0]


def test_a_call_in_which_nobody_was_heard() -> None:
    silent = recorded(turns=1)
    call = replace(silent, elevenlabs=None, pipecat=None, audit=())
    text = words(whole(reported(call)))
    assert "Nothing in this recording says who spoke when" in text
    assert "This recording has no words." in text


# Bounds.


def test_a_call_of_many_turns_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_timeline, "MOST_TURN_LINKS", 4)
    monkeypatch.setattr(report_transcript, "MOST_TURNS", 4)
    text = section(reported(recorded(turns=9)), has_index=False)
    assert "Only the first 4 of 9 turns lead to their words." in words(text)
    assert "The first 4 of 9 turns are shown." in words(text)
    assert text.count('class="turn"') == 4


def test_a_long_text_is_cut() -> None:
    text = whole(reported(recorded("x" * 10_000, name="n", turns=1)))
    assert "(6,000 more characters)" in text
    assert len(text) < 200_000
