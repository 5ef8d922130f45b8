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
from msgspec import structs

from consumers.console.page import sections as report_timeline
from consumers.console.page import sections as report_transcript
from consumers.console.page.rendering import MOST_KEPT_CHARS, kept
from consumers.console.page.sections import section
from consumers.console.page.whole import index
from consumers.view.calls import ReportedCall
from consumers.view.contents import subgoals_of
from schemas.closed_sets import Anchor, InterruptionCause, Speaker, ToolOutcome, UnscoredReason
from schemas.goals.goal_set import GoalSet
from schemas.rows import (
    NO_TURN_JUDGED,
    CallRow,
    Eva,
    FinalWaits,
    Goals,
    GoalsRow,
    Labels,
    Note,
    Progress,
    Rating,
    ServiceUse,
    Silence,
    StageLatency,
    SubgoalResult,
    ToolUse,
    ToolWords,
    TurnRow,
    Unscored,
    Value,
    Waiting,
    WordsRow,
)
from schemas.scores.latency_stages import ServiceKind, Stage, StageSource
from schemas.units import HOUR_MS
from streamer.report import page
from tests.support.calls.console_calls import AT_MS, call_row, reported_rows, sounds, turn_row
from tests.support.calls.report_calls import T0_MS, goal_set, recorded, reported

HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "&lt;i&gt; &amp; </style></title>",
    "<!-- --> ]]> <![CDATA[",
    "javascript:alert(1)",
    "\u202e\ufdd0\x07\r\nline",
]


class Shape(HTMLParser):
    """A document without its texts: tags, names of attributes, and the values of attributes with an
    effect.
    """

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
    return " ".join(
        unescape(re.sub("<[^>]+>", " ", text.split("</head>")[-1].replace("<wbr>", ""))).split()
    )


def part_of(page: str, place: str) -> str:
    """The markup of a section."""
    return page[page.index(f'id="{place}"') :].partition("</section>")[0].partition(">")[2]


class Says:
    """A redactor that replaces every text of the call with this one."""

    def __init__(self, text: str) -> None:
        self._text = text

    def redact(self, _text: str) -> str:
        return self._text


@functools.cache
def _call() -> ReportedCall:
    return reported(recorded(turns=3), goal_set())


def _shape(text: str) -> list[str]:
    """The elements of a page of two calls, where this text is every text that people choose."""
    call = _call()
    row = structs.replace(call.row, labels=Labels(text, text, text, text), conversation_id=text)
    goals = GoalsRow(
        conversation_id=text, revision=1, digest="d", goal_set=goal_set().model_dump(mode="json")
    )
    tools = (ToolWords(0, text, text, text),)
    words = [
        WordsRow(
            conversation_id=text,
            turn=each.turn,
            user=f"a {text}",
            assistant=f"a {text}",
            written=text,
            tools=tools,
        )
        for each in call.turns
    ]
    said = [
        ReportedCall(row, call.turns, goals, words, anchor_id, Says(text))
        for anchor_id in ("c1", "c2")
    ]
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
    assert "a " + " ".join(text.split()).split("\u202e")[0] in words(
        whole(reported(recorded(f"a {text}")))
    )


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
    assert [
        link for link in shape.links if link.startswith("#") and link[1:] not in shape.ids
    ] == []
    assert {"#c1", "#c2", "#c3", "#calls"} <= shape.links


def test_what_stands_out_is_told() -> None:
    text = words(whole(reported(recorded("word"))))
    assert (
        "Waits over 1.50 s, the objective turn 2 4.00 s Caller spoke over the agent turn 1" in text
    )
    failed = text.index("Failed tools turn 1 word failed; the agent said: \u201c")
    assert failed < text.index("Waits over 1.50 s, the objective")


def test_a_call_without_faults_says_so() -> None:
    calm = recorded("word", turns=1)
    without_tools = [
        event for event in calm.audit or () if not event["message_type"].startswith("tool")
    ]
    text = words(whole(reported(replace(calm, audit=tuple(without_tools)))))
    assert (
        "Nothing went wrong: no wait over 1.50 s, no interruption by the agent, no dead air, no tool that failed. Agent"
        in text
    )
    assert "What stands out" in text, "it is hidden"


def test_dead_air_is_told_alike_everywhere() -> None:
    """The tile, index, timeline and legend agree."""
    silences = tuple(
        Silence(number, AT_MS + since_ms, 0, 3_000, AT_MS + since_ms + 3_500)
        for number, since_ms in ((1, 2_000), (2, 9_000))
    )
    turns = [
        turn_row(
            number,
            user_sounds=sounds((silence.since_ms - AT_MS - 1_000, silence.since_ms - AT_MS)),
            dead_air=(silence,),
        )
        for number, silence in enumerate(silences, 1)
    ]
    told = reported_rows(
        call_row(dead_airs=2, began_ms=AT_MS, ended_ms=AT_MS + 20_000, state="closed"), *turns
    )
    text = section(told, has_index=False)
    assert "Dead air 2 times ✗ silent for over 3.00 s 7.00 s Why Dead air" in words(text)
    assert re.findall("Dead air from [^<]*: nobody spoke for ([^<]*)<", text) == [
        "3.50 s",
        "3.50 s",
    ]
    assert text.count('class="dead-air"') == 3  # one in the legend
    assert "Dead air, over 3.00 s (2 times)" in words(text)
    assert re.findall('data-head="Dead air">([^<]*)<', index([told])) == ["2"]


def test_tools_are_drawn_where_a_source_says_when() -> None:
    uses = (
        ToolUse(0, "find", ToolOutcome.SUCCESS, 500, AT_MS + 1_000),
        ToolUse(1, "book", ToolOutcome.ERROR, None, AT_MS + 2_000),
        ToolUse(2, "say", ToolOutcome.SUCCESS),
    )
    turn = turn_row(user_sounds=sounds((0, 1_000)), tools=uses)
    text = section(reported_rows(call_row(began_ms=AT_MS), turn), has_index=False)
    assert re.findall("<title>(Tool [^<]*)</title>", text) == [
        "Tool find at 0:01: success, 0.50 s",
        "Tool book at 0:02: error",
    ]


def test_dead_air_that_nobody_could_hear_is_not_known() -> None:
    call = reported_rows(call_row(state="closed"))
    text = words(section(call, has_index=False))
    assert "Dead air not known Interruptions" in text
    assert (
        "Nothing went wrong: no interruption by the agent, no tool that failed. Not known: wait over 1.50 s, dead air."
        in text
    )
    assert re.findall('data-head="Dead air">([^<]*)<', index([call])) == ["not known"]


def test_the_day_of_a_recording_without_times_is_not_known() -> None:
    call = reported(recorded(turns=1))
    assert "Began 2026-" in words(section(call, has_index=False))
    without = reported_rows(call_row(first_known_ms=0, known_ms=0))
    assert "Began not known Ended" in words(section(without, has_index=False))
    came_ms = call.row.first_known_ms = round(call.start_ms) - HOUR_MS
    assert came_ms > 0
    assert "by a clock that is 1:00:00 ahead" in words(section(call, has_index=False))


def test_how_a_wait_is_known_is_said_in_words() -> None:
    call = reported(recorded(turns=3))
    assert "the end of the caller's speech is known: heard on the line." in words(
        section(call, has_index=False)
    )
    assert [wait.turn for wait in call.waits] == [1, 2]
    turns = [
        turn_row(1, wait_ms=900.0, anchor=Anchor.RECORD, status="settled"),
        turn_row(2, wait_ms=900.0, anchor=Anchor.ESTIMATED),
    ]
    text = words(section(reported_rows(None, *turns), has_index=False))
    assert "0.90 s from the conversation record settled" in text
    assert "0.90 s estimated from arrival times provisional" in text


def test_what_is_taken_out_is_nowhere_on_the_page() -> None:
    """Ids and labels of the call do not count as its texts, and words are redacted before they are
    rows.
    """
    number = "4111 1111 1111 1111"
    said = recorded(f"my card is {number}")
    labels = {"agent": "a", "tenant": "t", "environment": "e"}
    call = replace(
        said,
        control=({**said.control[0], **labels}, {**said.control[1], "reason": number}),
        audit=(),
    )
    text = whole(reported(call, goal_set(f"ask for {number}"), taken_out=number))
    assert text.count("[redacted]") >= 2, "the goals; rows of words have none"
    assert number not in text


def test_unknown_is_shown_as_such() -> None:
    unknown = Unscored(UnscoredReason.JUDGE_DISABLED)
    progress = Progress(
        unknown, unknown, unknown, unknown, unknown, reached=1, missing=1, subgoals=2
    )
    found = Goals(
        "hello",
        "d",
        (SubgoalResult(1.0, 1), SubgoalResult(unknown)),
        judged_turn=1,
        progress=progress,
    )
    goals = GoalsRow(
        conversation_id="c", revision=1, digest="d", goal_set=goal_set().model_dump(mode="json")
    )
    page = section(
        reported_rows(
            call_row(goals=found, state="closed"), turn_row(1, progress=progress), goals=goals
        ),
        has_index=False,
    )
    text = words(page)
    assert "Subgoals unscored" in text
    assert "Subgoals reached at the end progress Unscored: judge disabled" in text
    assert "turn 1 unscored, judge disabled; 1 of 2 subgoals for certain" in page
    assert "Hollow and dashed: at least so much" in text
    assert "0 %" not in text.split("Subgoals unscored")[1].split("Wait for")[0]


def test_what_a_judge_could_not_judge_stands_beside_its_rating() -> None:
    left_out = {"violating_policies": "the agent's instructions are not known"}
    rating = Rating(1.0, 1, rating=3, not_applicable=left_out)
    text = words(section(reported_rows(call_row(faithfulness=rating)), has_index=False))
    assert (
        "Faithfulness faithfulness 1; not judged: violating policies (the agent's instructions are "
        "not known) Details" in text
    )
    assert text.count("instructions are not known") == 1  # and no second time among the details


def test_what_the_models_used_and_the_framework_notes_is_told() -> None:
    uses = (
        ServiceUse(ServiceKind.LLM, "OpenAI", "gpt-4o", input_tokens=200_000, cost=0.5),
        ServiceUse(ServiceKind.STT, audio_seconds=12.5),
    )
    notes = (
        Note("interruption", T0_MS, turn=1, cause=InterruptionCause.PROGRAM),
        Note("false_interruption", T0_MS, turn=1, is_resumed=True),
        Note("handoff", T0_MS, from_agent="desk"),
    )
    row = call_row(uses=uses, notes=notes, cost_dollars=Unscored(UnscoredReason.NO_PRICE))
    text = words(section(reported_rows(row), has_index=False))
    assert (
        "Models and notes Service Provider Model Used Cost LLM OpenAI gpt-4o 200,000 input tokens "
        "0.5 US dollars "
        "STT not known not known 12.5 audio seconds not known: no price Cost of the call not "
        "known: no price "
        "Turn 1: the answer was cut off: the agent's own code did it "
        "Turn 1: what looked like an interruption was none: the agent went on desk handed the call "
        "to another one"
    ) in text
    assert "Models and notes" not in words(section(reported_rows(), has_index=False))


def test_progress_and_subgoals() -> None:
    text = words(section(reported(recorded(turns=3), goal_set()), has_index=False))
    assert "Reached 1 of 2" in text
    assert "Reached in turn 1 spoke hello by code: " in text
    assert "Not reached used hello by code: " in text


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
    assert text[: text.index(" Figures ")] == (
        "Expected tool calls Made in turn 1 hello made as expected "
        "Missed in turn 2 hello not called in that turn, but in turn 1 "
        "Missed in turn 1 other not called in that turn "
        'Missed in turn 1 hello hello is "hello", expected 7 '
        "Not known other not known (expected_turn_not_reached)"
    )
    assert page.count('<a href="#c1-t40">') == 0


def test_a_metric_whose_name_says_more_than_it_measures_has_its_rule_beside_it() -> None:
    row = call_row(eva={"eva_conversation_correctly_finished": Eva(1.0), "eva_x_mean": Eva(1.0)})
    text = words(section(reported_rows(row), has_index=False))
    assert text.count("EVA's own rule: 0 only if the call ended because nobody") == 1


def test_details_of_a_score_have_names_of_their_own_and_zero_rates_share_a_row() -> None:
    rates = {f"{name}_rate": 0.0 for name in ("late", "early", "lost", "odd")}
    validity = Eva(0.9, sub_metrics={**rates, "wrong_rate": 0.1})
    row = call_row(eva={"eva_validity": validity}, waits={Anchor.AUDIO: FinalWaits(7, 11_060.0, 0)})
    text = words(section(reported_rows(row), has_index=False))
    assert "Waits, audio, measured 7 Waits, audio, measured, together 11.1 s" in text
    assert "Wrong rate 0.1 4 further rates 0" in text
    assert "Late rate" not in text
    few = Eva(1.0, sub_metrics={f"{name}_rate": 0.0 for name in ("late", "early", "odd")})
    text = words(section(reported_rows(call_row(eva={"eva_validity": few})), has_index=False))
    assert "Late rate 0 Early rate 0 Odd rate 0" in text
    assert "further rates" not in text


def test_every_score_of_the_call_and_of_its_turns_is_shown() -> None:
    call = reported(recorded(turns=3), goal_set())
    text = words(section(call, has_index=False))
    of_turns, _, of_call = text.partition("Scores of a turn stand beside its words.")
    for name in (
        "stt_wer",
        "transcript_disagreement",
        "success_final_turn",
        "progress",
        *call.row.eva,
    ):
        assert f" {name} " in of_call
    assert "Spoke for" in of_turns
    for heading in ("Turn taking", "Talk"):
        assert heading in of_turns.partition("Transcript")[2].partition("Goals")[0]


def test_a_call_in_which_nobody_was_heard() -> None:
    silent = recorded(turns=1)
    call = replace(silent, elevenlabs=None, pipecat=None, audit=())
    text = words(whole(reported(call)))
    assert "Nothing in this call says who spoke when" in text
    assert "There are no words to show." in text


# Bounds.


def test_a_call_of_many_turns_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_timeline, "MOST_TURN_LINKS", 4)
    monkeypatch.setattr(report_transcript, "MOST_TURNS", 4)
    turns = [
        turn_row(turn, user_sounds=sounds((turn * 1_000, turn * 1_000 + 500))) for turn in range(9)
    ]
    spoken = [WordsRow(conversation_id="c", turn=each.turn, user="yes") for each in turns]
    text = section(reported_rows(None, *turns, words=spoken), has_index=False)
    assert "Only the first 4 of 9 turns lead to their words." in words(text)
    assert "The first 4 of 9 turns are shown." in words(text)
    assert text.count('class="turn"') == 4


# What was said.

STATES = (
    " An open turn goes on; of a provisional one late events can still change what is shown; a "
    "settled one every source has passed."
)


def test_the_words_of_a_turn_stand_in_their_order_with_what_is_known_of_it() -> None:
    turn = turn_row(
        1,
        wait_ms=900.0,
        interruptions=(Speaker.USER, Speaker.ASSISTANT),
        outcome="interrupted",
        tools=(ToolUse(0, "find", ToolOutcome.SUCCESS, 500), ToolUse(1, "book")),
    )
    spoken = WordsRow(
        conversation_id="c",
        turn=1,
        user="[user interrupts] No",
        assistant="One moment [likely cut off by user]",
        written="One moment, please",
        tools=(ToolWords(0, "find", '{"day":"friday"}', '{"free":true'),),
        left_out=("tools",),
    )
    page = section(reported_rows(None, turn, words=[spoken]), has_index=False)
    text = words(part_of(page, "call-transcript"))
    assert text.endswith(STATES)
    assert text.removesuffix(STATES).endswith(
        "Transcript Turn 1 answered after 0.90 s provisional began by interrupting the agent "
        "interrupted by the agent "
        "its answer was interrupted by the caller "
        'Caller No Tool find success, 0.50 s Arguments { "day": "friday" } Answer {"free":true '
        "Tool book unanswered Arguments (not known) "
        "Agent One moment The agent wrote One moment, please Left out, because it was too large: "
        "tools."
    )


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("unanswered", "no answer: the call went on"),
        ("abandoned", "no answer: the call ended"),
        ("failed", "no answer: the agent reported an error"),
        ("answered", ""),
        (None, ""),
    ],
)
def test_a_turn_says_how_it_ended(outcome: Any, told: str) -> None:
    spoken = WordsRow(conversation_id="c", turn=1, user="hello")
    page = section(
        reported_rows(call_row(state="closed"), turn_row(1, outcome=outcome), words=[spoken]),
        has_index=False,
    )
    panel = f" Turn 1 {told.capitalize()}." if told else ""
    assert (
        words(part_of(page, "call-transcript")).split("Turn 1 ", 1)[1]
        == f"{told} Caller hello{panel}".strip()
    )


def test_an_open_turn_without_an_answer_has_its_words_and_the_time_of_the_wait() -> None:
    spoken = WordsRow(conversation_id="c", turn=2, user="hello?")
    waits = call_row(known_ms=AT_MS + 9_000, turn=2, waiting=Waiting(2, AT_MS + 4_000, 1))
    turns = turn_row(1, wait_ms=9_000.0), turn_row(2, status="open")
    page = section(reported_rows(waits, *turns, words=[spoken]), has_index=False)
    text = words(part_of(page, "call-transcript")).removesuffix(STATES)
    assert text.split("Turn 2 ", 1)[1] == (
        "open no answer yet, 0:05 Caller hello? Turn 2 No answer yet: the caller has waited for "
        "0:05 ."
    )
    assert page.count(f'<time data-since="{AT_MS + 4_000}">') == 3
    assert '<li id="call-t2" class="turn first"' in page


def test_a_transcript_tells_of_the_silences_after_which_the_caller_spoke_again() -> None:
    silences = (
        Silence(1, AT_MS + 2_000, AT_MS + 5_000, 3_000),
        Silence(2, AT_MS + 7_000, AT_MS + 10_000, 3_000),
        Silence(3, AT_MS + 13_500, AT_MS + 16_500, 3_000),  # nothing follows
    )
    heard = sounds((0, 2_000), (6_000, 7_000), (12_500, 13_500))
    turn = turn_row(1, user_sounds=heard, dead_air=silences)
    spoken = WordsRow(conversation_id="c", turn=1, user="hello? Anybody? Well")
    page = section(
        reported_rows(call_row(state="closed", began_ms=AT_MS), turn, words=[spoken]),
        has_index=False,
    )
    said = words(part_of(page, "call-transcript"))
    assert "Well The caller spoke again after 4.00 s, 5.50 s of silence." in said


@pytest.mark.parametrize(
    ("state", "by_code", "by_judge"),
    [
        ("running", "Not reached up to turn 1", "Unscored: judge disabled"),
        ("closed", "Not reached", "Unscored: judge disabled"),
    ],
)
def test_a_goal_has_one_reason_why_it_is_not_reached(
    state: str, by_code: str, by_judge: str
) -> None:
    """The row of a running call keeps the reason from before the first turn."""
    disabled = Unscored(UnscoredReason.JUDGE_DISABLED)
    progress = Progress(disabled, disabled, disabled, disabled, disabled, missing=1, subgoals=2)
    results: tuple[Value, ...] = (0.0, disabled)
    if state == "running":
        results = (NO_TURN_JUDGED,) * 2
    found = Goals("g", "d", tuple(map(SubgoalResult, results)), judged_turn=1, progress=progress)
    checked = {"kind": "says", "speaker": "assistant", "pattern": "hello"}
    goals = GoalSet.model_validate(
        {
            "id": "g",
            "subgoals": [
                {"id": "code", "details": "It greets.", "check": checked},
                {"id": "judge", "details": "It is polite.", "check": {"kind": "judge"}},
            ],
        }
    )
    row = GoalsRow(
        conversation_id="c", revision=1, digest="d", goal_set=goals.model_dump(mode="json")
    )
    call = reported_rows(
        call_row(goals=found, state=state), turn_row(1, progress=progress), goals=row
    )
    assert [state for _, state, _, _ in subgoals_of(call)] == [by_code, by_judge]


def test_a_rating_is_pending_once_a_judge_is_asked() -> None:
    """That is when the call has left the turn."""
    rated = turn_row(1, conciseness=Rating(1.0, 1))

    def pending(second: TurnRow, row: CallRow | None = None) -> int:
        return words(section(reported_rows(row, rated, second), has_index=False)).count(
            "Pending a judge is asked"
        )

    waited = turn_row(2, wait_ms=900.0)
    assert pending(waited) == 1
    assert pending(structs.replace(waited, status="open")) == 0
    assert pending(waited, call_row(state="closed")) == 0


def test_a_verdict_that_is_pending_is_shown_as_pending() -> None:
    judged = {"id": "any", "details": "d", "check": {"kind": "judge"}}
    goals = GoalsRow(
        conversation_id="c", revision=1, digest="d", goal_set={"id": "g", "subgoals": [judged]}
    )
    found = Goals("g", "d", (SubgoalResult(Unscored(UnscoredReason.NO_TURN_JUDGED)),), by_judge=1)
    call = reported_rows(
        call_row(goals=found, turn=2), turn_row(1), turn_row(2, status="open"), goals=goals
    )
    assert call.unjudged_turns == [1]
    text = words(section(call, has_index=False))
    assert (
        "Subgoals not judged a verdict is pending Why Subgoals is so Pending a judge is asked about turn "
        "1" in text
    )
    assert "Pending any d a judge is asked" in text
    over = reported_rows(call_row(goals=found, turn=2, state="closed"), turn_row(1), goals=goals)
    assert over.unjudged_turns == []
    assert "pending" not in words(section(over, has_index=False))


def test_a_turn_that_did_not_change_is_not_drawn_again() -> None:
    def drawn(*said: str) -> tuple[str, int]:
        turns = [turn_row(turn, wait_ms=900.0) for turn, _ in enumerate(said, 1)]
        spoken = [
            WordsRow(conversation_id="c", turn=turn, user=text) for turn, text in enumerate(said, 1)
        ]
        before = kept.cache_info().misses
        page = section(reported_rows(None, *turns, words=spoken), has_index=False)
        return str(page), kept.cache_info().misses - before

    kept.cache_clear()  # other tests draw turns like these
    long = "x" * (MOST_KEPT_CHARS + 1)
    first, parts = drawn("One", "Two", long)
    assert parts == 3 + 2, (
        "a wait of each turn, and two turns of the transcript: the third is too long to be kept"
    )
    assert drawn("One", "Two", long) == (first, 0)
    page, parts = drawn("One", "Three", long)
    assert parts == 1
    assert page == first.replace(">Two<", ">Three<")


def test_a_turn_has_its_stages_and_scores_beside_its_words_also_where_words_are_hidden() -> None:
    stages = (
        StageLatency(
            Stage.TOOL_REQUEST,
            5_400.0,
            StageSource.ELEVENLABS,
            Anchor.VAD,
            is_disputed=True,
            others_ms={StageSource.PIPECAT: 350.0},
        ),
        StageLatency(Stage.VOICE_TO_VOICE, 5_900.0, StageSource.ELEVENLABS),
    )
    turn = turn_row(1, wait_ms=5_900.0, stages=stages, conciseness=Rating(1.0, 1))
    text = words(part_of(section(reported_rows(None, turn), has_index=False), "call-transcript"))
    assert "There are no words to show so far." in text
    assert (
        "Turn 1 Language model 5.40 s of 5.90 s Not measured 0.50 s As it was measured "
        "model, until its tool call 5.40 s disputed: elevenlabs, by voice detector; pipecat says "
        "0.35 s "
        "whole wait, as reported 5.90 s elevenlabs Conciseness 1"
    ) in text
