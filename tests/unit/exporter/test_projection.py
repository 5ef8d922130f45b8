"""What is new in a row of a turn or of a call adds to the metrics, name by name;
nothing else does.
"""

import itertools
from typing import Any, get_args

import msgspec
import pytest

from consumers.exporter.projection import (
    MAX_EXEMPLAR_CHARS,
    Counted,
    Observed,
    Sample,
    UncountableRowError,
    exemplar_of,
    project,
)
from schemas.closed_sets import (
    CALL_JUDGES,
    GOAL_REASONS,
    LATENCY_REASONS,
    TURN_JUDGES,
    Anchor,
    CloseReason,
    InterruptionCause,
    PipelineType,
    Speaker,
    ToolOutcome,
    UnjudgedReason,
    UnscoredReason,
)
from schemas.metrics.catalogue import METRICS, metric_named
from schemas.rows import (
    Agreement,
    CallRow,
    Disagreement,
    EstimateError,
    Eva,
    FinalWaits,
    Goals,
    GoalsRow,
    Labels,
    NotApplicable,
    Note,
    Progress,
    Rating,
    Row,
    ServiceUse,
    SideSpeech,
    Speech,
    StageLatency,
    Stall,
    SubgoalResult,
    ToolUse,
    TurnRow,
    TurnTaking,
    Unscored,
    Value,
    WaitSource,
    WordErrors,
    kind_of,
)
from schemas.scores.latency_stages import ServiceKind, Stage, StageSource

KNOWN_MS = 1_790_000_000_000
NOW_MS = KNOWN_MS + 250
WHO = ("ava", "acme", "live")
ALWAYS = 2  # samples of every row with news: that it was read, and how old its cause is
LABELS = Labels("ava", None, "acme", "live", PipelineType.S2S)
NOT_KNOWN = Unscored(UnscoredReason.DEADLINE)
LATENCY_NAME, NO_SPEECH = "voice_to_voice_latency_ms", UnscoredReason.NO_USER_SPEECH
ANY: dict[str, Any] = {
    "conversation_id": "c-1",
    "revision": 2,
    "known_ms": KNOWN_MS,
    "labels": LABELS,
}


def turn(*news: str, **parts: Any) -> TurnRow:
    return TurnRow(**ANY | {"turn": 2, "news": news} | parts)


def call(*news: str, **parts: Any) -> CallRow:
    return CallRow(**ANY | {"news": news} | parts)


def waited(wait_ms: Value, *news: str, **parts: Any) -> TurnRow:
    return turn(
        *(news or ("wait",)),
        **{"wait_ms": wait_ms, "anchor": Anchor.VAD, "wait_source": "pipecat"} | parts,
    )


def closed(**parts: Any) -> CallRow:
    return call(
        "closed", **{"state": "closed", "close_reason": CloseReason.ENDED, "turns": 3} | parts
    )


def goals(progress: Value | None = None, **parts: Any) -> Goals:
    """A set of two subgoals that code checks and one that takes a judge."""
    subgoals = (
        SubgoalResult(1.0, 2),
        SubgoalResult(1.0, 2, votes_complete=2, votes_incomplete=1),
        SubgoalResult(NOT_KNOWN),
    )
    after = None
    if progress is not None:
        after = Progress(
            progress, auc=0.9, auc_if_ended_now=0.1, ppt=0.4, success=0.0, reached=2, subgoals=3
        )
    return Goals("booking", "d", subgoals, 1, None if after is None else 2, after, **parts)


def rating(result: Value) -> Rating:
    return Rating(result, 3)


def side(result: Value, **parts: Any) -> SideSpeech:
    """One side with the same result in every field."""
    names = ("speech_ms", "longest_monologue_ms", "words_per_minute", "repeated_questions")
    return SideSpeech(**dict.fromkeys(names, result) | parts)


def speech(**parts: Any) -> Speech:
    """The caller spoke for 20 s; nothing is known of the assistant."""
    unheard = Unscored(UnscoredReason.NO_ASSISTANT_SPEECH)
    user = side(20_000.0, words_per_minute=120.5, repeated_questions=2.0)
    whole = dict.fromkeys(("result", "overlap_ms", "dead_air_ms", "first_word_ms"), unheard)
    given: dict[str, Any] = {"source": "pipecat", "user": user, "assistant": side(unheard)} | whole
    return Speech(**given | parts)


STAGES = (
    StageLatency(Stage.LLM_FIRST_TOKEN, 400, StageSource.PIPECAT, model="m"),
    StageLatency(
        Stage.VOICE_TO_VOICE, 1500, StageSource.PIPECAT, others_ms={StageSource.SPEECH: 2500.0}
    ),
)
USES = (
    ServiceUse(ServiceKind.LLM, model="m", input_tokens=80, output_tokens=9, cost=0.5),
    ServiceUse(ServiceKind.TTS, characters=40),
)
NOTES = (
    Note("handoff", 1),
    Note("false_interruption", 2),
    Note("interruption", 3, cause=InterruptionCause.PROGRAM),
    Note("interruption", 4),
)
TOOLS = (ToolUse(0, "book", ToolOutcome.ERROR, 40), ToolUse(1, "pay"))
AGENT_WAIT = (*WHO, "pipecat", "vad")
END: list[Sample] = [
    Counted("callgauge_calls_ended_total", (*WHO, "ended")),
    Observed("callgauge_call_turns", WHO, 3),
]

CASES: list[tuple[str, Row, list[Sample]]] = [
    (
        "a first wait is observed in seconds",
        waited(1500.0),
        [Observed("callgauge_turn_response_latency_seconds", AGENT_WAIT, 1.5)],
    ),
    (
        "no silence at all is a wait of zero",
        waited(0.0),
        [Observed("callgauge_turn_response_latency_seconds", AGENT_WAIT, 0.0)],
    ),
    (
        "a negative one counts as overlapped",
        waited(-30.0),
        [Counted("callgauge_turns_overlapped_total", AGENT_WAIT)],
    ),
    (
        "a wait that is gone again within its transaction",
        waited(NOT_KNOWN, "wait", "wait_revised"),
        [Counted("callgauge_turn_revisions_total", (*WHO, "turn_response_latency"))],
    ),
    (
        "a later value only counts as a revision",
        waited(1400.0, "wait_revised"),
        [Counted("callgauge_turn_revisions_total", (*WHO, "turn_response_latency"))],
    ),
    ("a caller waits", turn("user_turn.1"), [Counted("callgauge_user_turns_total", WHO)]),
    (
        "a caller waits again in the same turn",
        turn("user_turn.2", "dead_air.2"),
        [Counted("callgauge_user_turns_total", WHO), Counted("callgauge_dead_air_total", WHO)],
    ),
    ("a turn counts once it is left", turn("turn"), [Counted("callgauge_turns_total", WHO)]),
    (
        "both spoke over each other",
        turn("interruption.user", "interruption.assistant"),
        [
            Counted("callgauge_interruptions_total", (*WHO, "user")),
            Counted("callgauge_interruptions_total", (*WHO, "assistant")),
        ],
    ),
    (
        "a tool answers",
        turn("tool.0", tools=TOOLS),
        [Counted("callgauge_tool_calls_total", (*WHO, "book", "error"))],
    ),
    ("a tool that is withdrawn within its transaction", turn("tool.0"), []),
    ("a tool that runs again after its answer", turn("tool.1", tools=TOOLS), []),
    (
        "stages of an answer",
        turn("stages.llm_first_token", "stages.voice_to_voice", stages=STAGES),
        [
            Observed("callgauge_stage_latency_seconds", (*WHO, "pipecat", "llm_first_token"), 0.4),
            Observed("callgauge_stage_latency_seconds", (*WHO, "pipecat", "voice_to_voice"), 1.5),
        ],
    ),
    (
        "a stage that is known later",
        turn("stages.voice_to_voice", stages=STAGES),
        [
            Observed("callgauge_stage_latency_seconds", (*WHO, "pipecat", "voice_to_voice"), 1.5),
        ],
    ),
    ("a stage that is gone again", turn("stages.llm_first_token", stages=STAGES[1:]), []),
    (
        "a turn's timing",
        turn("turn_taking", turn_taking=TurnTaking(0.7, anchor=Anchor.VAD)),
        [Observed("callgauge_turn_taking_ratio", (*WHO, "vad"), 0.7)],
    ),
    (
        "a turn's timing that is gone again",
        turn("turn_taking", turn_taking=TurnTaking(NOT_KNOWN)),
        [],
    ),
    (
        "an estimate that was too short",
        turn("estimate_error", estimate_error=EstimateError(-850.0, 1150.0, 2000.0)),
        [Observed("callgauge_estimate_error_seconds", WHO, 0.85)],
    ),
    (
        "ratings of a turn",
        turn(
            "conciseness",
            "speakability",
            "transcription_accuracy_key_entities",
            conciseness=rating(0.0),
            speakability=rating(1.0),
            transcription_accuracy_key_entities=rating(0.5),
        ),
        [
            Observed("callgauge_text_rating_ratio", (*WHO, "conciseness"), 0),
            Observed("callgauge_text_rating_ratio", (*WHO, "speakability"), 1),
            Observed(
                "callgauge_text_rating_ratio", (*WHO, "transcription_accuracy_key_entities"), 0.5
            ),
        ],
    ),
    ("a rating that is gone again", turn("conciseness", conciseness=rating(NOT_KNOWN)), []),
    ("a call starts", call("started"), [Counted("callgauge_calls_started_total", WHO)]),
    (
        "an error of the agent",
        call("errors"),
        [Counted("callgauge_calls_with_agent_errors_total", WHO)],
    ),
    (
        "a call has goals",
        call("goals", goals=goals()),
        [
            Counted("callgauge_calls_with_goals_total", WHO),
            Counted("callgauge_goal_set_calls_total", (*WHO, "booking", "success"), 0),
            Counted("callgauge_goal_set_calls_total", (*WHO, "booking", "failure"), 0),
            Counted("callgauge_subgoals_total", (*WHO, "code"), 2),
            Counted("callgauge_subgoals_total", (*WHO, "judge"), 1),
        ],
    ),
    (
        "subgoals are reached",
        call("subgoal.0", "subgoal.1", goals=goals()),
        [
            Counted("callgauge_subgoals_reached_total", (*WHO, "code")),
            Counted("callgauge_subgoals_reached_total", (*WHO, "judge")),
        ],
    ),
    (
        "a call is stuck for the second time",
        call("stall.2", goals=goals(stalls=(Stall(1, "turns"), Stall(2, "seconds")))),
        [Counted("callgauge_progress_stalls_total", (*WHO, "seconds"))],
    ),
    (
        "the set of its goals is a row that nothing counts",
        GoalsRow(conversation_id="c-1", revision=1, digest="d", goal_set={}),
        [],
    ),
    ("a call closes", closed(), END),
    (
        "turns with a wait are counted at the end, by their last value",
        closed(
            waits={Anchor.VAD: FinalWaits(2, 2_500.0, 1)},
            unscored_turns={LATENCY_NAME: {NO_SPEECH: 2}},
        ),
        [
            *END,
            Counted("callgauge_turns_final_total", (*WHO, "vad", "measured"), 2),
            Counted("callgauge_turns_final_total", (*WHO, "vad", "overlapped"), 1),
            Counted("callgauge_turns_final_latency_seconds_total", (*WHO, "vad"), 2.5),
            Counted("callgauge_turns_unmeasured_total", (*WHO, "no_user_speech"), 2),
        ],
    ),
    (
        "how far it got and how soon",
        closed(goals=goals(0.75)),
        [
            *END,
            Observed("callgauge_call_auc_ratio", WHO, 0.9),
            Observed("callgauge_call_ppt_ratio", WHO, 0.4),
            Observed("callgauge_call_progress_ratio", WHO, 0.75),
            Observed("callgauge_goal_set_progress_ratio", (*WHO, "booking"), 0.75),
        ],
    ),
    (
        "how soon it got somewhere, where how far is not known",
        closed(goals=goals(NOT_KNOWN)),
        [
            *END,
            Observed("callgauge_call_auc_ratio", WHO, 0.9),
            Observed("callgauge_call_ppt_ratio", WHO, 0.4),
        ],
    ),
    (
        "all goals were reached",
        closed(goals=goals(success_final_turn=1.0)),
        [
            *END,
            Counted("callgauge_calls_scored_total", (*WHO, "success")),
            Counted("callgauge_goal_set_calls_total", (*WHO, "booking", "success")),
        ],
    ),
    (
        "not all were",
        closed(goals=goals(success_final_turn=0.0)),
        [
            *END,
            Counted("callgauge_calls_scored_total", (*WHO, "failure")),
            Counted("callgauge_goal_set_calls_total", (*WHO, "booking", "failure")),
        ],
    ),
    (
        "nobody knows whether all were",
        closed(
            goals=goals(
                success_final_turn=NOT_KNOWN, unscored_subgoals={UnscoredReason.DEADLINE: 2}
            )
        ),
        [
            *END,
            Counted("callgauge_subgoals_unscored_total", (*WHO, "deadline"), 2),
            Counted("callgauge_calls_unscored_total", (*WHO, "deadline")),
            Counted("callgauge_goal_set_calls_total", (*WHO, "booking", "unscored")),
        ],
    ),
    ("nobody can ask for it", closed(goals=goals(success_final_turn=NotApplicable("none"))), END),
    (
        "tool correctness",
        closed(goals=goals(tool_correctness=0.25)),
        [*END, Observed("callgauge_tool_correctness_ratio", WHO, 0.25)],
    ),
    (
        "tools of a turn that never came",
        closed(goals=goals(tool_correctness=NOT_KNOWN)),
        [*END, Counted("callgauge_scores_unscored_total", (*WHO, "tool_correctness"))],
    ),
    (
        "ratings of the call",
        closed(faithfulness=rating(0.5), conversation_progression=rating(NOT_KNOWN)),
        [
            *END,
            Observed("callgauge_text_rating_ratio", (*WHO, "faithfulness"), 0.5),
            Counted("callgauge_scores_unscored_total", (*WHO, "conversation_progression")),
        ],
    ),
    (
        "turns that nobody rated or timed",
        closed(
            unscored_turns={
                "conciseness": {UnscoredReason.DEADLINE: 2, UnscoredReason.REFUSED: 1},
                "turn_taking": {NO_SPEECH: 1},
            }
        ),
        [
            *END,
            Counted("callgauge_scores_unscored_total", (*WHO, "conciseness"), 3),
            Counted("callgauge_scores_unscored_total", (*WHO, "turn_taking"), 1),
        ],
    ),
    (
        "EVA's metrics: a share, one that is none, and those that nobody knows or that it cannot "
        "have",
        closed(
            eva={
                "eva_tool_call_validity": Eva(0.5, 0.5),
                "eva_response_speed": Eva(5.6),
                "eva_x_mean": Eva(NOT_KNOWN),
                "eva_conversation_valid_end": Eva(NotApplicable("real")),
            }
        ),
        [
            *END,
            Observed("callgauge_eva_score_ratio", (*WHO, "eva_tool_call_validity"), 0.5),
            Counted("callgauge_scores_unscored_total", (*WHO, "eva_x_mean")),
        ],
    ),
    (
        "how one side of a call sounded",
        closed(speech=speech()),
        [
            *END,
            Counted("callgauge_talk_seconds_total", (*WHO, "user"), 20.0),
            Observed("callgauge_longest_monologue_seconds", (*WHO, "user"), 20.0),
            Observed("callgauge_words_per_minute", (*WHO, "user"), 120.5),
            Counted("callgauge_repeated_questions_total", (*WHO, "user"), 2.0),
        ],
    ),
    (
        "what takes both sides of a call",
        closed(
            speech=speech(
                user=side(NotApplicable("none")),
                overlap_ms=1_500.0,
                dead_air_ms=0.0,
                first_word_ms=800.0,
            )
        ),
        [
            *END,
            Counted("callgauge_overlap_seconds_total", WHO, 1.5),
            Counted("callgauge_dead_air_seconds_total", WHO, 0.0),
            Observed("callgauge_first_word_seconds", WHO, 0.8),
        ],
    ),
    (
        "word errors of a call",
        closed(stt_wer=WordErrors(0.25, 3, 2, 0, 20, 2)),
        [
            *END,
            Counted("callgauge_stt_reference_words_total", WHO, 20),
            Counted("callgauge_stt_word_errors_total", (*WHO, "substitution"), 3),
            Counted("callgauge_stt_word_errors_total", (*WHO, "deletion"), 2),
            Counted("callgauge_stt_word_errors_total", (*WHO, "insertion"), 0),
        ],
    ),
    ("a call without words to get wrong", closed(stt_wer=WordErrors(NotApplicable("real"))), END),
    (
        "transcripts that disagree; the assistant's speech has only one",
        closed(
            user_disagreement=Disagreement(0.1, 1, 10, 2),
            assistant_disagreement=Disagreement(NotApplicable("one")),
        ),
        [
            *END,
            Counted("callgauge_transcript_words_total", (*WHO, "user"), 10),
            Counted("callgauge_transcript_differences_total", (*WHO, "user"), 1),
        ],
    ),
    (
        "what sources disagree on",
        closed(
            stages={
                Stage.VOICE_TO_VOICE: Agreement(4, 3),
                Stage.TOOL_RUN: Agreement(1, 0),
                Stage.PIPELINE: Agreement(0, 0),
            }
        ),
        [
            *END,
            Counted("callgauge_stage_disagreements_total", (*WHO, "voice_to_voice"), 3),
            Counted("callgauge_stage_disagreements_total", (*WHO, "tool_run"), 0),
        ],
    ),
    (
        "what an agent used and told",
        closed(uses=USES, notes=NOTES, cost_dollars=Unscored(UnscoredReason.NO_PRICE)),
        [
            *END,
            Counted("callgauge_agent_usage_total", (*WHO, "input_tokens"), 80),
            Counted("callgauge_agent_usage_total", (*WHO, "output_tokens"), 9),
            Counted("callgauge_agent_usage_total", (*WHO, "characters"), 40),
            Counted("callgauge_calls_without_cost_total", WHO),
            Counted("callgauge_handoffs_total", WHO),
            Counted("callgauge_false_interruptions_total", WHO),
            Counted("callgauge_interruption_causes_total", (*WHO, "program")),
        ],
    ),
    (
        "what an agent cost",
        closed(cost_dollars=0.5),
        [*END, Observed("callgauge_call_cost_dollars", WHO, 0.5)],
    ),
]


@pytest.mark.parametrize(
    ("row", "samples"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_is_new_in_a_row_is_counted(row: Row, samples: list[Sample]) -> None:
    assert list(project(row, NOW_MS))[ALWAYS:] == samples


def test_every_row_is_counted_as_read_and_one_with_news_is_timed() -> None:
    for row in (waited(1500.0), closed()):
        assert list(itertools.islice(project(row, NOW_MS), ALWAYS)) == [
            Counted("callgauge_scores_read_total", (kind_of(row),)),
            Observed("callgauge_event_to_score_seconds", ("s2s",), 0.25),
        ]


@pytest.mark.parametrize("row", [case[1] for case in CASES if not isinstance(case[1], GoalsRow)])
def test_a_row_without_news_counts_as_read_and_nothing_more(row: Any) -> None:
    """Whatever is in it: it comes again each minute, when another version says it, and when
    something changes that counted.
    """
    said_again = msgspec.structs.replace(row, news=())
    assert list(project(said_again, NOW_MS)) == [
        Counted("callgauge_scores_read_total", (kind_of(row),))
    ]


def test_what_waits_for_verdicts_is_not_timed() -> None:
    metrics = [sample.metric for sample in project(closed(), NOW_MS, is_over=True)]
    assert "callgauge_calls_ended_total" in metrics
    assert "callgauge_event_to_score_seconds" not in metrics


def test_a_cause_in_the_future_is_a_delay_of_zero() -> None:
    delay = list(project(closed(), KNOWN_MS - 1))[1]
    assert delay == Observed("callgauge_event_to_score_seconds", ("s2s",), 0.0)


@pytest.mark.parametrize("missing", ["anchor", "wait_source"])
def test_a_wait_without_what_it_was_measured_between_cannot_be_counted(missing: str) -> None:
    with pytest.raises(UncountableRowError, match="names no source or no anchor"):
        list(project(waited(1500.0, **{missing: None}), NOW_MS))


def test_a_turns_timing_without_its_anchor_cannot_be_counted() -> None:
    with pytest.raises(UncountableRowError, match="names no anchor"):
        list(project(turn("turn_taking", turn_taking=TurnTaking(0.5)), NOW_MS))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (turn("started"), "no metric has: 'started'"),
        (turn("of a later version"), "no metric has"),
        (call("wait"), "no metric has"),
        (call("subgoal.3", goals=goals()), "'3' of 3"),
        (call("subgoal.x", goals=goals()), "'x' of 3"),
        (call("stall.1"), "'1' of 0"),
        (call("stall.0", goals=goals(stalls=(Stall(1, "turns"),))), "'0' of 1"),
        (closed(close_reason=None), "names no reason"),
        (closed(unscored_turns={"estimate_error_ms": {NO_SPEECH: 1}}), "no metric counts"),
        (closed(unscored_turns={LATENCY_NAME: {UnscoredReason.DEADLINE: 1}}), "because of"),
        (
            closed(goals=goals(unscored_subgoals={UnscoredReason.USER_STILL_SPEAKING: 1})),
            "because of",
        ),
        (
            closed(goals=goals(success_final_turn=Unscored(UnscoredReason.ONE_TURN_HAS_NO_AREA))),
            "because of",
        ),
    ],
)
def test_news_that_do_not_fit_the_row_cannot_be_counted(row: Row, why: str) -> None:
    with pytest.raises(UncountableRowError, match=why):
        list(project(row, NOW_MS))


def test_scores_of_a_call_are_those_of_its_agent_s_version() -> None:
    parts: dict[str, Any] = {
        "goals": goals(0.5, success_final_turn=1.0, tool_correctness=NOT_KNOWN),
        "eva": {"eva_x_mean": Eva(0.25, 0.25)},
        "faithfulness": rating(0.5),
    }
    metric = "callgauge_version_score_ratio"
    versioned = msgspec.structs.replace(LABELS, version="v7")
    found = [
        each for each in project(closed(**parts, labels=versioned), NOW_MS) if each.metric == metric
    ]
    assert found == [
        Observed(metric, (*WHO, "v7", name), value)
        for name, value in (
            ("success", 1),
            ("progress", 0.5),
            ("eva_x_mean", 0.25),
            ("faithfulness", 0.5),
        )
    ]
    assert [each for each in project(closed(**parts), NOW_MS) if each.metric == metric] == []


def test_samples_name_metrics_of_the_exporter_with_their_labels() -> None:
    for _, row, _ in CASES:
        for sample in project(row, NOW_MS):
            metric = metric_named(sample.metric)
            assert metric.role == "exporter"
            assert len(sample.labels) == len(metric.label_set)
            assert metric.type == ("counter" if isinstance(sample, Counted) else "histogram")


@pytest.mark.parametrize(
    ("metric", "label", "words"),
    [
        ("callgauge_calls_ended_total", "outcome", CloseReason),
        ("callgauge_turns_unmeasured_total", "reason", LATENCY_REASONS),
        ("callgauge_subgoals_unscored_total", "reason", GOAL_REASONS),
        ("callgauge_calls_unscored_total", "reason", GOAL_REASONS),
        ("callgauge_interruptions_total", "by", Speaker),
        ("callgauge_talk_seconds_total", "speaker", Speaker),
        ("callgauge_tool_calls_total", "outcome", ToolOutcome),
        ("callgauge_event_to_score_seconds", "pipeline", PipelineType),
        ("callgauge_turns_overlapped_total", "anchor", Anchor),
        ("callgauge_stage_latency_seconds", "stage", Stage),
        ("callgauge_stage_latency_seconds", "source", StageSource),
        ("callgauge_stage_disagreements_total", "stage", Stage),
    ],
)
def test_closed_labels_are_the_words_of_the_contract(metric: str, label: str, words: Any) -> None:
    (row,) = [row for row in metric_named(metric).label_set if row.name == label]
    assert set(row.values) == {word.value for word in words}


def test_what_rows_say_is_what_labels_say() -> None:
    assert set(metric_named("callgauge_progress_stalls_total").label_set[3].values) == {
        "turns",
        "seconds",
    }
    assert set(metric_named("callgauge_turns_overlapped_total").label_set[3].values) == set(
        get_args(WaitSource)
    )
    assert {kind_of(row) for _, row, _ in CASES} <= set(
        metric_named("callgauge_scores_read_total").label_set[0].values
    )
    ratings = {
        field.name
        for row in (TurnRow, CallRow)
        for field in msgspec.structs.fields(row)
        if field.type == Rating | None
    }
    assert ratings == {*map(str, TURN_JUDGES), *map(str, CALL_JUDGES)}
    assert set(metric_named("callgauge_text_rating_ratio").label_set[3].values) == ratings
    unscored = set(metric_named("callgauge_scores_unscored_total").label_set[3].values)
    of_eva = set(metric_named("callgauge_eva_score_ratio").label_set[3].values) | {
        "eva_response_speed"
    }
    assert unscored == {"tool_correctness", "turn_taking", *of_eva, *ratings}


def test_every_reason_is_one_of_something_that_is_counted() -> None:
    """The omitted reasons belong to values that no metric splits by reason: areas, tool
    correctness, costs, and EVA's metrics.
    """
    assert set(UnscoredReason) - LATENCY_REASONS - GOAL_REASONS == {
        UnscoredReason.ONE_TURN_HAS_NO_AREA,
        UnscoredReason.NO_TOOL_CALL_DUE,
        UnscoredReason.EXPECTED_TURN_NOT_REACHED,
        UnscoredReason.ASSISTANT_STILL_SPEAKING,
        UnscoredReason.END_REASON_UNKNOWN,
        UnscoredReason.FINAL_STATE_UNKNOWN,
        UnscoredReason.NO_PRICE,
    }
    assert {UnscoredReason(reason.value) for reason in UnjudgedReason} <= GOAL_REASONS


def test_an_exemplar_fits_however_long_the_id_is() -> None:
    long_id = "ü" * 256
    exemplar = exemplar_of(closed(conversation_id=long_id))
    assert exemplar == {"conversation_id": long_id[:MAX_EXEMPLAR_CHARS]}
    assert sum(len(name) + len(value) for name, value in exemplar.items()) == 128
    assert exemplar_of(closed(conversation_id="a\x00b")) == {"conversation_id": "a\ufffdb"}


def test_no_metric_of_the_exporter_is_out_of_reach() -> None:
    """Every counter and histogram has a row that moves it, but for those that count the exporter's
    own doings.
    """
    versioned = closed(labels=msgspec.structs.replace(LABELS, version="v7"), goals=goals(0.5))
    moved = {
        sample.metric
        for row in (*(row for _, row, _ in CASES), versioned)
        for sample in project(row, NOW_MS)
    }
    own = {
        "callgauge_calls_forgotten_total",
        "callgauge_otlp_events_total",
        "callgauge_scores_refused_total",
    }
    rows = {
        metric.name for metric in METRICS if metric.role == "exporter" and metric.type != "gauge"
    }
    assert rows - moved == own
