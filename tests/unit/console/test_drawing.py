"""Numbers and geometry of the report: the place of each mark, and the way numbers are written."""

import doctest
import types
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.console.page import drawing, rendering
from consumers.console.page import sections as report_stages
from consumers.console.page.drawing import Scale, round_ticks, spaced, time_ticks
from consumers.view import contents, words
from consumers.view.calls import Interval, SpeechStretch, overlaps
from consumers.view.words import anchor_in_words, clock, outcome, seconds, shortened, title
from schemas.closed_sets import Anchor, Speaker, UnscoredReason
from schemas.rows import NotApplicable, StageLatency, Unscored, Value
from schemas.scores.latency_stages import Stage, StageSource

USER, ASSISTANT = Speaker.USER, Speaker.ASSISTANT


@pytest.mark.parametrize(
    "module",
    [drawing, rendering, report_stages, words, contents],
    ids=lambda module: module.__name__,
)
def test_the_examples_hold(module: types.ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


# Numbers.


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("turn_taking", 0.0, "0"),
        ("voice_to_voice_latency_ms", -21_287.848, "\u221221.3 s"),
        ("talk_seconds", 12.5, "12.5 s"),
        ("any", Unscored(UnscoredReason.NO_USER_SPEECH), "Unscored: no caller speech"),
        (
            "any",
            NotApplicable("no reference transcript"),
            "Not applicable: no reference transcript",
        ),
    ],
)
def test_a_value_is_never_a_number_when_there_is_none(name: str, value: Value, text: str) -> None:
    assert outcome(name, value) == text


@given(st.floats(-1e9, 1e9))
def test_a_length_has_one_sign_and_its_unit(length_ms: float) -> None:
    text = seconds(length_ms)
    assert text.endswith(" s")
    assert float(text[:-2].replace("\u2212", "-")) == pytest.approx(
        length_ms / 1000, abs=0.5 if abs(length_ms) >= 1e5 else 0.05
    )


@given(st.integers(0, 10**8))
def test_a_clock_says_when(offset_ms: int) -> None:
    total = 0
    for part in clock(offset_ms).split(":"):
        total = total * 60 + int(part)
    assert total == offset_ms // 1000


def test_a_heading_is_words() -> None:
    assert title("stt_wer") == "STT WER"
    assert title("success_final_turn") == "All goals reached in the final turn"


def test_every_anchor_has_words_of_its_own() -> None:
    told = {anchor_in_words(anchor) for anchor in Anchor}
    assert len(told) == len(Anchor)
    assert all(len(text.split()) > 1 for text in told)


def test_a_long_text_says_how_much_is_missing() -> None:
    assert shortened("x" * 10, 10) == "x" * 10
    assert shortened("x" * 2_010, 10) == "x" * 10 + " \u2026 (2,000 more characters)"


# Axes.


@given(st.floats(0, 1e12), st.integers(1, 400))
def test_marks_of_time_are_few_and_within_the_call(length_ms: float, most: int) -> None:
    ticks = time_ticks(length_ms, most)
    assert ticks[0] == 0
    assert ticks[-1] <= length_ms
    assert len(ticks) <= most + 1
    assert len({later - earlier for earlier, later in pairwise(ticks)}) <= 1


@given(st.floats(1e-3, 1e9), st.integers(1, 10))
def test_marks_of_values_reach_the_highest_and_not_much_more(highest: float, most: int) -> None:
    ticks = round_ticks(highest, most)
    assert ticks[-1] >= highest * (1 - 1e-6)
    assert len(ticks) == 1 or ticks[-2] < highest
    assert len(ticks) <= most + 1


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.floats(-1e7, 1e7))
def test_a_place_is_on_the_drawing(start: float, length: float, value: float) -> None:
    assert 0 <= Scale(start, start + length).place(value) <= 100


def test_a_short_thing_can_be_seen() -> None:
    scale = Scale(0, 1000)
    assert (scale.length(500, 500.001, 0.2), scale.length(500, 600, 0.2)) == ("0.2%", "10%")


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0.1, 50))).map(sorted), st.floats(0, 20))
def test_letterings_do_not_touch(letterings: list[tuple[float, float]], most_shift: float) -> None:
    shifts = spaced(letterings, most_shift)
    kept = [
        (at + shift, width)
        for (at, width), shift in zip(letterings, shifts, strict=True)
        if shift is not None
    ]
    assert kept[:1] == letterings[:1]
    assert all(
        place + width <= next_place * (1 + 1e-9)
        for (place, width), (next_place, _) in pairwise(kept)
    )
    assert all(0 <= shift <= most_shift for shift in shifts if shift is not None)


# Speech.


def test_both_speak() -> None:
    stretches = [
        SpeechStretch(USER, 1, 0, 1000),
        SpeechStretch(ASSISTANT, 1, 800, 2000),
        SpeechStretch(USER, 2, 1900, 3000),
        SpeechStretch(USER, 2, 2500, 3500),
        SpeechStretch(ASSISTANT, 2, 3500, 4000),
    ]
    assert overlaps(stretches, 1) == [Interval(800, 1000, 1), Interval(1900, 2000, 2)]
    assert overlaps(stretches, 150) == [Interval(800, 1000, 1)]


_stretches = st.lists(
    st.builds(
        lambda speaker, turn, start, length: SpeechStretch(speaker, turn, start, start + length),
        st.sampled_from(Speaker),
        st.integers(0, 5),
        st.integers(0, 300),
        st.integers(0, 60),
    ),
    max_size=12,
)


@given(_stretches)
def test_every_moment_is_told_once(stretches: list[SpeechStretch]) -> None:
    both = overlaps(stretches, 1)

    def speaks(speaker: Speaker, moment: float) -> bool:
        return any(
            each.speaker is speaker and each.start_ms < moment < each.end_ms for each in stretches
        )

    for tick in range(400):
        moment = tick + 0.5
        assert sum(each.start_ms < moment < each.end_ms for each in both) == (
            speaks(USER, moment) and speaks(ASSISTANT, moment)
        )


# Stages.


def _stages(**lengths_ms: float) -> list[StageLatency]:
    return [
        StageLatency(Stage(name), length_ms, StageSource.PIPECAT)
        for name, length_ms in lengths_ms.items()
    ]


@pytest.mark.parametrize(
    ("stages", "wait_ms", "parts"),
    [
        (_stages(voice_to_voice=900), 900, []),
        (
            _stages(
                stt_trailing=100,
                endpointing=300,
                llm_first_token=200,
                llm_first_sentence=250,
                tts_first_byte=100,
            ),
            900,
            [
                ("endpointing", 0, 300),
                ("model, first token", 300, 200),
                ("model, first sentence", 500, 50),
                ("voice, first sound", 550, 100),
                ("not measured", 650, 250),
            ],
        ),
        (
            _stages(llm_first_token=200, tool_request=350, tool_run=4_000),
            4_200,
            [("model, until its tool call", 0, 350), ("tool run", 350, 4_000)],
        ),
        # A breakdown fills the wait; the other numbers measure the same time again.
        (
            _stages(llm_first_token=500, endpointing_wait=200, llm_inference=500, pipeline=10),
            710,
            [("endpointing wait", 0, 200), ("model, inference", 200, 500), ("pipeline", 700, 10)],
        ),
        # If a whole answer fits, speech waited for it; otherwise speech began before the answer was
        # whole.
        (
            _stages(llm_last_sentence=700, tool_run=200, tts_first_byte=50),
            960,
            [
                ("tool run", 0, 200),
                ("model, last sentence", 200, 700),
                ("voice, first sound", 900, 50),
                ("not measured", 950, 10),
            ],
        ),
        (
            _stages(llm_last_sentence=700, tool_run=200),
            800,
            [("tool run", 0, 200), ("not measured", 200, 600)],
        ),
        (_stages(tool_run=0, tts_first_byte=100), None, [("voice, first sound", 0, 100)]),
    ],
)
def test_stages_are_put_one_after_the_other(
    stages: list[StageLatency], wait_ms: float | None, parts: list[tuple[str, float, float]]
) -> None:
    stacked = report_stages.stacked(stages, wait_ms)
    assert [(part.name, part.start_ms, part.length_ms) for part in stacked] == parts


@pytest.mark.parametrize("stage", Stage)
def test_a_stage_is_drawn_or_named_as_one_that_is_not(stage: Stage) -> None:
    alone = StageLatency(stage, 100, StageSource.AUDIT)
    drawn = [part for part in report_stages.stacked([alone], 100) if part.family != "rest"]
    contains_others_or_is_a_part = stage in (
        Stage.TURN_ANALYZER,
        Stage.VOICE_TO_VOICE,
        Stage.FIRST_SPEECH,
    )
    assert bool(drawn) is not contains_others_or_is_a_part


@given(st.dictionaries(st.sampled_from(Stage), st.floats(0, 1e5)), st.floats(0, 1e5))
def test_a_bar_has_no_gap_and_no_overlap(lengths_ms: dict[Stage, float], wait_ms: float) -> None:
    stages = [StageLatency(stage, ms, StageSource.AUDIT) for stage, ms in lengths_ms.items()]
    parts = report_stages.stacked(stages, wait_ms)
    assert all(part.family in report_stages.FAMILIES and part.length_ms > 0 for part in parts)
    assert [part.start_ms for part in parts[:1]] in ([], [0])
    assert all(
        later.start_ms == pytest.approx(earlier.end_ms) for earlier, later in pairwise(parts)
    )
