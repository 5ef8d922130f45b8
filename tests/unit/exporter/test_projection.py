"""Each kind of score record adds to the metrics, record by record."""

import itertools
from itertools import accumulate, pairwise, permutations
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.exporter.projection import (
    MAX_EXEMPLAR_CHARS,
    CallSoFar,
    Counted,
    Interruptions,
    Observed,
    Sample,
    UncountableRecordError,
    UserTurns,
    exemplar_of,
    project,
)
from schemas.closed_sets import (
    GOAL_REASONS,
    LATENCY_REASONS,
    Anchor,
    CloseReason,
    InterruptionCause,
    PipelineType,
    Speaker,
    ToolOutcome,
    UnjudgedReason,
    UnscoredReason,
)
from schemas.goals.checks import Judge, ToolCalled
from schemas.goals.goal_set import GoalSet, Subgoal
from schemas.metrics.catalogue import METRICS, metric_named
from schemas.scores.latency_stages import ServiceKind, Stage, StageSource
from schemas.scores.records import (
    SCORE_RECORD,
    TURN_VALUE_NAMES,
    WITHDRAWN,
    AgentErrorsFact,
    AnyScoreRecord,
    CallStartedFact,
    CallValues,
    ClosedFact,
    DeadAirFact,
    EstimateError,
    EvaMetricScore,
    FinalLatencies,
    FrameworkNote,
    GoalsFact,
    InterruptionFact,
    NotApplicable,
    ProgressScore,
    Result,
    Scored,
    ServiceUse,
    SideDisagreement,
    SideSpeech,
    SpeechScore,
    StageAgreement,
    StageLatency,
    StallFact,
    SubgoalScore,
    TextRating,
    ToolUseFact,
    TranscriptDisagreement,
    TurnStatus,
    TurnTakingScore,
    TurnValues,
    Unscored,
    VoiceToVoiceLatency,
    WordErrorRate,
)

CAUSED_AT_MS = 1_790_000_000_000
NOW_MS = CAUSED_AT_MS + 250
WHO = ("ava", "acme", "live")
ALWAYS = 2  # samples of every record: that it was read, and how old its cause is

USES = (
    ServiceUse(kind=ServiceKind.LLM, model="m", input_tokens=80, output_tokens=9, cost=0.5),
    ServiceUse(kind=ServiceKind.TTS, characters=40),
)
NOTES = (
    FrameworkNote(what="handoff", at_ms=1),
    FrameworkNote(what="false_interruption", at_ms=2),
    FrameworkNote(what="interruption", at_ms=3, cause=InterruptionCause.PROGRAM),
)
AnyRecord: dict[str, Any] = {
    "conversation_id": "c-1",
    "revision": 1,
    "status": TurnStatus.OPEN,
    "input_hash": "0",
    "offsets": {},
    "event_time_ms": CAUSED_AT_MS,
    "caused_at_ms": CAUSED_AT_MS,
    "labels": {"agent": "ava", "tenant": "acme", "environment": "live", "pipeline_type": "s2s"},
    "code_version": "1",
}
FIRST: dict[str, Any] = AnyRecord | {"is_first": True}
LATENCY: dict[str, Any] = {"turn": 2, "anchor": Anchor.VAD, "source": "pipecat"}


def latency(value_ms: float | None, *, base: dict[str, Any] = FIRST, **fields: Any) -> VoiceToVoiceLatency:
    """A latency record; None is one whose value is unknown."""
    result = Scored(value=value_ms) if value_ms is not None else Unscored(reason=UnscoredReason.NO_USER_SPEECH)
    return VoiceToVoiceLatency(**base | LATENCY | {"result": result} | fields)


def closed(reason: CloseReason) -> ClosedFact:
    return ClosedFact(**AnyRecord, reason=reason, ended_reason=None, turns=3, events=9, through={})


def goals(*, base: dict[str, Any] = FIRST) -> GoalsFact:
    """A set of two subgoals that code checks and one that takes a judge."""
    book, asked = ToolCalled(kind="tool_called", tool="book"), Judge(kind="judge")
    checks = {"booked": book, "polite": asked, "again": book}
    subgoals = tuple(Subgoal(id=name, details=name, check=check) for name, check in checks.items())
    goal_set = GoalSet(id="booking", subgoals=subgoals)
    return GoalsFact(**base, goal_set=goal_set, digest=goal_set.digest)


def subgoal(result: Result, reached_turn: int | None = None, **fields: Any) -> SubgoalScore:
    given = AnyRecord | {"subgoal_id": "booked", "checked_by": "code"} | fields
    return SubgoalScore(**given, result=result, reached_turn=reached_turn)


def progress(result: Result, **fields: Any) -> ProgressScore:
    """After one of two subgoals."""
    curve = dict.fromkeys(["auc", "auc_if_ended_now", "ppt", "success"], result)
    counts = {"turn": 1, "reached": 1, "missing": 0, "subgoals": 2}
    return ProgressScore(**FIRST | counts | curve | fields, result=result)


def rating(result: Result) -> TextRating:
    return TextRating(result=result, through_turn=3)


def row(*first_known: str, base: dict[str, Any] = AnyRecord, **fields: Any) -> TurnValues:
    """A turn without a latency; `first_known` are the values that it has for the first time."""
    given = base | {"turn": 2, "voice_to_voice_ms": Unscored(reason=UnscoredReason.NO_USER_SPEECH)}
    return TurnValues(**given | {"first_known": first_known} | fields)


def timing(result: Result, anchor: Anchor | None = Anchor.VAD) -> TurnTakingScore:
    return TurnTakingScore(result=result, anchor=anchor)


def call(**fields: Any) -> CallValues:
    """At the end, unless the fields say otherwise."""
    return CallValues(**AnyRecord | FINAL | {"through_turn": 3} | fields)


def eva(name: str, result: Result, normalized: float | None = None, **fields: Any) -> CallValues:
    return call(eva={name: EvaMetricScore(result=result, normalized=normalized)}, **fields)


def stages(*known: str, **fields: Any) -> TurnValues:
    """The model took 400 ms; two sources disagree on voice to voice."""
    model = StageLatency(stage=Stage.LLM_FIRST_TOKEN, latency_ms=400, source=StageSource.PIPECAT, model="m")
    others = {StageSource.SPEECH: 2500.0}
    whole = StageLatency(
        stage=Stage.VOICE_TO_VOICE, latency_ms=1500, source=StageSource.PIPECAT, others_ms=others, is_disputed=True
    )
    return row(*known, stages=(model, whole), **fields)


def side(result: Result, **fields: Any) -> SideSpeech:
    """One side with the same known result in every field."""
    names = ("speech_ms", "longest_monologue_ms", "words_per_minute", "repeated_questions")
    return SideSpeech(**dict.fromkeys(names, result) | fields)


def speech(status: TurnStatus = TurnStatus.FINAL, **fields: Any) -> CallValues:
    """The caller spoke for 20 s; nothing is known of the assistant."""
    unheard = Unscored(reason=UnscoredReason.NO_ASSISTANT_SPEECH)
    user = side(Scored(value=20_000.0), words_per_minute=Scored(value=120.5), repeated_questions=Scored(value=2.0))
    whole = dict.fromkeys(("result", "overlap_ms", "dead_air_ms", "first_word_ms"), unheard)
    given: dict[str, Any] = {"source": "pipecat", "user": user, "assistant": side(unheard)} | whole
    return call(speech=SpeechScore(**given | fields), status=status)


def word_errors(words: int, status: TurnStatus = TurnStatus.FINAL, **fields: Any) -> CallValues:
    given: dict[str, Any] = {"turns": 2, "substitutions": 3, "deletions": 2, "insertions": 0, "reference_words": words}
    return call(stt_wer=WordErrorRate(**given | {"result": Scored(value=0.25)} | fields), status=status)


def disagreement(status: TurnStatus = TurnStatus.FINAL) -> CallValues:
    """The assistant's speech has only one transcript."""
    result = Scored(value=0.1)
    user = SideDisagreement(result=result, differences=1, words=10, turns=2)
    assistant = SideDisagreement(result=NotApplicable(reason="one transcript"))
    both = TranscriptDisagreement(result=result, user=user, assistant=assistant)
    return call(transcript_disagreement=both, status=status)


AGENT_LATENCY = (*WHO, "pipecat", "vad")
WAIT = Counted("callgauge_user_turns_total", WHO)
START = CallSoFar()
FINAL: dict[str, Any] = {"status": TurnStatus.FINAL}
REVISION = Counted("callgauge_turn_revisions_total", (*WHO, "turn_response_latency"))
LATENCY_NAME, NO_SPEECH = "voice_to_voice_latency_ms", UnscoredReason.NO_USER_SPEECH
ERROR = EstimateError(error_ms=-850.0, estimated_ms=1_150.0, recorded_ms=2_000.0)
TURN = Counted("callgauge_turns_total", WHO)
DEAD_AIR = {"turn": 2, "silent_since_ms": CAUSED_AT_MS, "threshold_ms": 3000}
NOT_KNOWN = Unscored(reason=UnscoredReason.DEADLINE)
REACHED = Counted("callgauge_subgoals_reached_total", (*WHO, "code"))
TOOL = {"turn": 1, "tool": "book", "outcome": ToolOutcome.ERROR, "duration_ms": 40}

CASES: list[tuple[str, AnyScoreRecord, list[Sample]]] = [
    (
        "a first latency is observed in seconds",
        latency(1500),
        [WAIT, Observed("callgauge_turn_response_latency_seconds", AGENT_LATENCY, 1.5)],
    ),
    (
        "no silence at all is a latency of zero",
        latency(0),
        [WAIT, Observed("callgauge_turn_response_latency_seconds", AGENT_LATENCY, 0.0)],
    ),
    (
        "a negative one counts as overlapped",
        latency(-30),
        [WAIT, Counted("callgauge_turns_overlapped_total", AGENT_LATENCY)],
    ),
    ("a first value that took two revisions is observed, and no revision", latency(1500, revision=2), [
        WAIT, Observed("callgauge_turn_response_latency_seconds", AGENT_LATENCY, 1.5)
    ]),
    ("a later value only counts as a revision", latency(1400, base=AnyRecord, revision=2), [REVISION]),
    ("one that changes at the end does too", latency(1400, base=AnyRecord, revision=2, **FINAL), [REVISION]),
    (
        "what schema 1 restates at the end adds nothing",
        latency(1400, base=AnyRecord, revision=2, schema_version=1, **FINAL),
        [],
    ),
    ("a value taken back is a revision", latency(None, base=AnyRecord, revision=2), [REVISION]),
    ("turns without a latency are counted at the end", call(unscored_turns={LATENCY_NAME: {NO_SPEECH: 2}}), [
        Counted("callgauge_turns_unmeasured_total", (*WHO, "no_user_speech"), 2)
    ]),
    (
        "turns with a latency are counted at the end, by their last value",
        call(latencies={Anchor.VAD: FinalLatencies(measured=2, measured_ms=2_500.0, overlapped=1)}),
        [
            Counted("callgauge_turns_final_total", (*WHO, "vad", "measured"), 2),
            Counted("callgauge_turns_final_total", (*WHO, "vad", "overlapped"), 1),
            Counted("callgauge_turns_final_latency_seconds_total", (*WHO, "vad"), 2.5),
        ],
    ),
    ("and not before", call(unscored_turns={LATENCY_NAME: {NO_SPEECH: 2}}, status=TurnStatus.PROVISIONAL), []),
    (
        "a call starts, and its other counters appear",
        CallStartedFact(**FIRST),
        [
            Counted("callgauge_calls_started_total", WHO),
        ],
    ),
    ("labels that became known start no second call", CallStartedFact(**AnyRecord | {"revision": 2}), []),
    ("a turn counts once it is left", row(base=FIRST, turn=1, status=TurnStatus.PROVISIONAL), [TURN]),
    ("a turn that nothing answered does not count", row(turn=1, **FINAL), []),
    ("a row said again counts no second turn", row(turn=1, revision=2), []),
    ("the greeting is turn 0 and no turn", row(base=FIRST, turn=0), []),
    ("nor is turn -1", row(base=FIRST, turn=-1), []),
    ("a row that is withdrawn", row(is_withdrawn=True, revision=2), []),
    ("an interruption waits for the end of its turn", InterruptionFact(**FIRST, turn=1, name="interruption_by_user"), []),
    ("dead air", DeadAirFact(**FIRST | DEAD_AIR), [WAIT, Counted("callgauge_dead_air_total", WHO)]),
    ("dead air said again", DeadAirFact(**AnyRecord | DEAD_AIR), []),
    ("a tool answers", ToolUseFact(**FIRST | TOOL), [Counted("callgauge_tool_calls_total", (*WHO, "book", "error"))]),
    ("a tool's answer said again", ToolUseFact(**AnyRecord | TOOL), []),
    ("an error of the agent", AgentErrorsFact(**FIRST, errors=2, last_ms=1), [Counted("callgauge_calls_with_agent_errors_total", WHO)]),
    ("further errors of the agent", AgentErrorsFact(**AnyRecord, errors=2, last_ms=1), []),
    ("a call has goals", goals(), [
        Counted("callgauge_calls_with_goals_total", WHO),
        Counted("callgauge_goal_set_calls_total", (*WHO, "booking", "success"), 0),
        Counted("callgauge_goal_set_calls_total", (*WHO, "booking", "failure"), 0),
        Counted("callgauge_subgoals_total", (*WHO, "code"), 2),
        Counted("callgauge_subgoals_total", (*WHO, "judge"), 1),
    ]),
    ("goals said again", goals(base=AnyRecord), []),
    ("a subgoal is reached", subgoal(Scored(value=1), 2, is_first=True), [REACHED]),
    ("a judge says so", subgoal(Scored(value=1), 2, is_first=True, checked_by="judge"), [
        Counted("callgauge_subgoals_reached_total", (*WHO, "judge"))
    ]),
    ("it is reached in another turn", subgoal(Scored(value=1), 3, revision=2), []),
    ("it is not reached after all", subgoal(Scored(value=0), revision=3), []),
    ("it was reached in the last turn", subgoal(Scored(value=1), 3, is_first=True, **FINAL), [REACHED]),
    ("it was not reached", subgoal(Scored(value=0), **FINAL), []),
    ("a verdict on it may still come", subgoal(NOT_KNOWN), []),
    ("no verdict on it came", subgoal(NOT_KNOWN, **FINAL), []),
    ("that is counted with the call", call(unscored_subgoals={UnscoredReason.DEADLINE: 2}), [
        Counted("callgauge_subgoals_unscored_total", (*WHO, "deadline"), 2)
    ]),
    ("no verdict on it came yet", call(unscored_subgoals={UnscoredReason.DEADLINE: 2}, status=TurnStatus.PROVISIONAL), []),
    ("progress is shown, not counted", progress(Scored(value=0.5)), []),
    ("nor at the end", progress(Scored(value=0.5), **FINAL), []),
    ("all goals were reached", call(success_final_turn=Scored(value=1)), [
        Counted("callgauge_calls_scored_total", (*WHO, "success"))
    ]),
    ("not all were", call(success_final_turn=Scored(value=0)), [
        Counted("callgauge_calls_scored_total", (*WHO, "failure"))
    ]),
    ("nobody knows whether all were", call(success_final_turn=NOT_KNOWN), [
        Counted("callgauge_calls_unscored_total", (*WHO, "deadline"))
    ]),
    ("nobody can ask for it", call(success_final_turn=NotApplicable(reason="none")), []),
    ("tool correctness so far", call(tool_correctness=Scored(value=0.5), status=TurnStatus.PROVISIONAL), []),
    ("tool correctness at the end", call(tool_correctness=Scored(value=0.25)), [
        Observed("callgauge_tool_correctness_ratio", WHO, 0.25)
    ]),
    (
        "tools of a turn that never came",
        call(tool_correctness=Unscored(reason=UnscoredReason.EXPECTED_TURN_NOT_REACHED)),
        [Counted("callgauge_scores_unscored_total", (*WHO, "tool_correctness"))],
    ),
    ("a rating so far", call(faithfulness=rating(Scored(value=0.5)), status=TurnStatus.PROVISIONAL), []),
    (
        "ratings at the end",
        call(faithfulness=rating(Scored(value=0.5)), conversation_progression=rating(NOT_KNOWN)),
        [
            Observed("callgauge_text_rating_ratio", (*WHO, "faithfulness"), 0.5),
            Counted("callgauge_scores_unscored_total", (*WHO, "conversation_progression")),
        ],
    ),
    (
        "ratings of a turn",
        row(
            "conciseness", "speakability", "transcription_accuracy_key_entities", conciseness=rating(Scored(value=0)),
            speakability=rating(Scored(value=1)), transcription_accuracy_key_entities=rating(Scored(value=0.5)),
        ),
        [
            Observed("callgauge_text_rating_ratio", (*WHO, "conciseness"), 0),
            Observed("callgauge_text_rating_ratio", (*WHO, "speakability"), 1),
            Observed("callgauge_text_rating_ratio", (*WHO, "transcription_accuracy_key_entities"), 0.5),
        ],
    ),
    ("a rating of a turn that changes", row(conciseness=rating(Scored(value=0.5)), revision=2), []),
    ("a rating of a turn that nobody gave yet", row(conciseness=rating(NOT_KNOWN)), []),
    (
        "turns that nobody rated or timed",
        call(unscored_turns={"conciseness": {UnscoredReason.DEADLINE: 2, UnscoredReason.REFUSED: 1}, "turn_taking": {NO_SPEECH: 1}}),
        [
            Counted("callgauge_scores_unscored_total", (*WHO, "conciseness"), 3),
            Counted("callgauge_scores_unscored_total", (*WHO, "turn_taking"), 1),
        ],
    ),
    ("a turn's timing", row("turn_taking", turn_taking=timing(Scored(value=0.7))), [
        Observed("callgauge_turn_taking_ratio", (*WHO, "vad"), 0.7)
    ]),
    ("a turn's timing that changes", row(turn_taking=timing(Scored(value=0.8)), revision=2, **FINAL), []),
    ("a turn's timing that nobody knows", row(turn_taking=timing(NOT_KNOWN, None), **FINAL), []),
    (
        "one of EVA's metrics so far",
        eva("eva_tool_call_validity", Scored(value=0.5), 0.5, status=TurnStatus.PROVISIONAL),
        [],
    ),
    ("one of EVA's metrics at the end", eva("eva_tool_call_validity", Scored(value=0.5), 0.5), [
        Observed("callgauge_eva_score_ratio", (*WHO, "eva_tool_call_validity"), 0.5)
    ]),
    ("one of EVA's metrics that is no share", eva("eva_response_speed", Scored(value=5.6)), []),
    ("one of EVA's metrics that nobody knows", eva("eva_response_speed", NOT_KNOWN), [
        Counted("callgauge_scores_unscored_total", (*WHO, "eva_response_speed"))
    ]),
    ("one of EVA's metrics that a call cannot have", eva("eva_conversation_valid_end", NotApplicable(reason="real")), []),
    ("a call is stuck", StallFact(**FIRST | FINAL, since_turn=1, by="seconds"), [
        Counted("callgauge_progress_stalls_total", (*WHO, "seconds"))
    ]),
    ("a stall said again", StallFact(**AnyRecord | FINAL, since_turn=1, by="turns"), []),
    ("how a call sounds so far", speech(TurnStatus.PROVISIONAL), []),
    ("how one side of a call sounded", speech(), [
        Counted("callgauge_talk_seconds_total", (*WHO, "user"), 20.0),
        Observed("callgauge_longest_monologue_seconds", (*WHO, "user"), 20.0),
        Observed("callgauge_words_per_minute", (*WHO, "user"), 120.5),
        Counted("callgauge_repeated_questions_total", (*WHO, "user"), 2.0),
    ]),
    (
        "what takes both sides of a call",
        speech(
            user=side(NotApplicable(reason="none")), overlap_ms=Scored(value=1_500), dead_air_ms=Scored(value=0),
            first_word_ms=Scored(value=800),
        ),
        [
            Counted("callgauge_overlap_seconds_total", WHO, 1.5),
            Counted("callgauge_dead_air_seconds_total", WHO, 0.0),
            Observed("callgauge_first_word_seconds", WHO, 0.8),
        ],
    ),
    ("word errors so far", word_errors(20, TurnStatus.PROVISIONAL), []),
    ("word errors of a call", word_errors(20), [
        Counted("callgauge_stt_reference_words_total", WHO, 20),
        Counted("callgauge_stt_word_errors_total", (*WHO, "substitution"), 3),
        Counted("callgauge_stt_word_errors_total", (*WHO, "deletion"), 2),
        Counted("callgauge_stt_word_errors_total", (*WHO, "insertion"), 0),
    ]),
    ("a call without words to get wrong", word_errors(0, turns=0, result=NotApplicable(reason="real")), []),
    ("transcripts that disagree so far", disagreement(TurnStatus.PROVISIONAL), []),
    ("transcripts that disagree", disagreement(), [
        Counted("callgauge_transcript_words_total", (*WHO, "user"), 10),
        Counted("callgauge_transcript_differences_total", (*WHO, "user"), 1),
    ]),
    ("stages of an answer", stages("stages.llm_first_token", "stages.voice_to_voice"), [
        Observed("callgauge_stage_latency_seconds", (*WHO, "pipecat", "llm_first_token"), 0.4),
        Observed("callgauge_stage_latency_seconds", (*WHO, "pipecat", "voice_to_voice"), 1.5),
    ]),
    ("a stage that is known later", stages("stages.voice_to_voice", revision=2), [
        Observed("callgauge_stage_latency_seconds", (*WHO, "pipecat", "voice_to_voice"), 1.5),
    ]),
    ("stages said again", stages(revision=3, **FINAL), []),
    (
        "at the end, what sources disagree on",
        call(stages={
            Stage.VOICE_TO_VOICE: StageAgreement(compared=4, disputed=3), Stage.TOOL_RUN: StageAgreement(compared=1),
            Stage.PIPELINE: StageAgreement(),
        }),
        [
            Counted("callgauge_stage_disagreements_total", (*WHO, "voice_to_voice"), 3),
            Counted("callgauge_stage_disagreements_total", (*WHO, "tool_run"), 0),
        ],
    ),
    ("an estimate that was too short", row("estimate_error_ms", estimate_error=ERROR), [
        Observed("callgauge_estimate_error_seconds", WHO, 0.85)
    ]),
    ("an estimate's error said again", row(estimate_error=ERROR, revision=2, **FINAL), []),
    (
        "a call so far",
        call(stages={Stage.VOICE_TO_VOICE: StageAgreement(compared=1, disputed=1)}, status=TurnStatus.PROVISIONAL),
        [],
    ),
    ("a call of which nothing is known", call(), []),
    ("what an agent used and told", call(uses=USES, notes=NOTES, cost=Unscored(reason=UnscoredReason.NO_PRICE)), [
        Counted("callgauge_agent_usage_total", (*WHO, "input_tokens"), 80),
        Counted("callgauge_agent_usage_total", (*WHO, "output_tokens"), 9),
        Counted("callgauge_agent_usage_total", (*WHO, "characters"), 40),
        Counted("callgauge_calls_without_cost_total", WHO),
        Counted("callgauge_handoffs_total", WHO),
        Counted("callgauge_false_interruptions_total", WHO),
        Counted("callgauge_interruption_causes_total", (*WHO, "program")),
    ]),
    ("what an agent cost", call(uses=USES[:1], cost=Scored(value=0.5)), [
        Counted("callgauge_agent_usage_total", (*WHO, "input_tokens"), 80),
        Counted("callgauge_agent_usage_total", (*WHO, "output_tokens"), 9),
        Observed("callgauge_call_cost_dollars", WHO, 0.5),
    ]),
    ("a call closes", closed(CloseReason.IDLE), [
        Counted("callgauge_calls_ended_total", (*WHO, "idle")), Observed("callgauge_call_turns", WHO, 3)
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("record", "samples"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_record_is_counted(record: AnyScoreRecord, samples: list[Sample]) -> None:
    assert list(project(record, NOW_MS, START))[ALWAYS:] == samples


def test_every_kind_of_record_has_a_case() -> None:
    assert {type(record) for _, record, _ in CASES} == set(get_args(AnyScoreRecord))


@pytest.mark.parametrize("record", [case[1] for case in CASES[:1] + CASES[-1:]])
def test_every_record_is_counted_as_read_and_timed(record: AnyScoreRecord) -> None:
    assert list(itertools.islice(project(record, NOW_MS, START), ALWAYS)) == [
        Counted("callgauge_scores_read_total", (record.kind,)),
        Observed("callgauge_event_to_score_seconds", ("s2s",), 0.25),
    ]


def test_what_waits_for_verdicts_is_not_timed() -> None:
    over = CallSoFar().after(call(status=TurnStatus.PROVISIONAL, is_over=True))
    metrics = [sample.metric for sample in project(closed(CloseReason.ENDED), NOW_MS, over)]
    assert "callgauge_calls_ended_total" in metrics
    assert "callgauge_event_to_score_seconds" not in metrics
    running = CallSoFar().after(call(status=TurnStatus.PROVISIONAL))
    assert "callgauge_event_to_score_seconds" in [
        sample.metric for sample in project(closed(CloseReason.ENDED), NOW_MS, running)
    ]


@pytest.mark.parametrize("final", [0.0, 0.75, 1.0])
def test_a_call_that_closes_says_how_far_it_got_and_how_soon(final: float) -> None:
    soon = {"auc": Scored(value=0.9), "ppt": Scored(value=0.4), "auc_if_ended_now": Scored(value=0.1)}
    so_far = CallSoFar().after(goals()).after(progress(Scored(value=final), **soon))
    assert list(project(closed(CloseReason.ENDED), NOW_MS, so_far))[ALWAYS:] == [
        Counted("callgauge_calls_ended_total", (*WHO, "ended")),
        Observed("callgauge_call_turns", WHO, 3),
        Observed("callgauge_call_auc_ratio", WHO, 0.9),
        Observed("callgauge_call_ppt_ratio", WHO, 0.4),
        Observed("callgauge_call_progress_ratio", WHO, final),
        Observed("callgauge_goal_set_progress_ratio", (*WHO, "booking"), final),
    ]


def test_speed_that_is_not_known_is_not_observed() -> None:
    """And that of a turn that does not exist counts for nothing."""
    known, unknown = progress(Scored(value=0.5), ppt=NOT_KNOWN), progress(NOT_KNOWN, turn=2, auc=Scored(value=0.3))
    gone = progress(WITHDRAWN, turn=2, revision=2)
    for records, expected in [
        ([known], {"callgauge_call_auc_ratio": 0.5, "callgauge_call_progress_ratio": 0.5}),
        ([known, unknown], {"callgauge_call_auc_ratio": 0.3}),
        ([known, unknown, gone], {"callgauge_call_auc_ratio": 0.5, "callgauge_call_progress_ratio": 0.5}),
    ]:
        so_far = CallSoFar()
        for record in records:
            so_far = so_far.after(record)
        samples = project(closed(CloseReason.ENDED), NOW_MS, so_far)
        seen = {each.metric: each.value for each in samples if isinstance(each, Observed) and "_ratio" in each.metric}
        assert seen == expected


@pytest.mark.parametrize(
    ("result", "outcome"), [(Scored(value=1), "success"), (Scored(value=0), "failure"), (NOT_KNOWN, "unscored")]
)
def test_a_call_that_closes_counts_for_its_goal_set(result: Result, outcome: str) -> None:
    so_far = CallSoFar().after(goals()).after(progress(Scored(value=1)))
    samples = list(project(call(success_final_turn=result), NOW_MS, so_far))
    assert samples[-1] == Counted("callgauge_goal_set_calls_total", (*WHO, "booking", outcome))
    nameless = CallSoFar().after(progress(Scored(value=1)))
    unnamed = [
        *project(call(success_final_turn=result), NOW_MS, nameless),
        *project(closed(CloseReason.ENDED), NOW_MS, nameless),
    ]
    assert [sample for sample in unnamed if "goal_set" in sample.metric] == []


def test_a_cause_in_the_future_is_a_delay_of_zero() -> None:
    delay = list(project(closed(CloseReason.ENDED), CAUSED_AT_MS - 1, START))[1]
    assert delay == Observed("callgauge_event_to_score_seconds", ("s2s",), 0.0)


@pytest.mark.parametrize("missing", ["anchor", "source"])
def test_a_value_without_what_it_was_measured_between_cannot_be_counted(missing: str) -> None:
    record = latency(1500).model_copy(update={missing: None})
    with pytest.raises(UncountableRecordError):
        list(project(record, NOW_MS, START))


def test_a_turns_timing_without_its_anchor_cannot_be_counted() -> None:
    with pytest.raises(UncountableRecordError, match="names no anchor"):
        list(project(row("turn_taking", turn_taking=timing(Scored(value=0.5), None)), NOW_MS, START))


@pytest.mark.parametrize("name", [*TURN_VALUE_NAMES, "stages.llm_first_token", "stages.", "of a later version"])
def test_a_row_that_lacks_what_it_knows_for_the_first_time_cannot_be_counted(name: str) -> None:
    """A latency is a moment of its own, and never new in a row."""
    with pytest.raises(UncountableRecordError, match="has no such value"):
        list(project(row(name, conciseness=rating(NOT_KNOWN), turn_taking=timing(NOT_KNOWN)), NOW_MS, START))


def test_only_what_has_a_metric_is_counted_as_not_known() -> None:
    with pytest.raises(UncountableRecordError, match="no metric counts"):
        list(project(call(unscored_turns={"estimate_error_ms": {NO_SPEECH: 1}}), NOW_MS, START))


@pytest.mark.parametrize(
    "record",
    [
        call(unscored_turns={LATENCY_NAME: {UnscoredReason.DEADLINE: 1}}),
        call(unscored_subgoals={UnscoredReason.USER_STILL_SPEAKING: 1}),
        call(success_final_turn=Unscored(reason=UnscoredReason.ONE_TURN_HAS_NO_AREA)),
    ],
    ids=["latency", "subgoal", "success"],
)
def test_a_reason_that_does_not_fit_cannot_be_counted(record: AnyScoreRecord) -> None:
    with pytest.raises(UncountableRecordError, match="because of"):
        list(project(record, NOW_MS, START))


def test_samples_name_metrics_of_the_exporter_with_their_labels() -> None:
    for _, record, _ in CASES:
        for sample in project(record, NOW_MS, START):
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


def test_what_the_contract_says_of_goals_is_what_labels_say() -> None:
    schema = SCORE_RECORD.json_schema()["$defs"]
    for metric, place, record, field in (
        ("callgauge_subgoals_total", 3, "SubgoalScore", "checked_by"),
        ("callgauge_progress_stalls_total", 3, "StallFact", "by"),
    ):
        assert set(metric_named(metric).label_set[place].values) == set(schema[record]["properties"][field]["enum"])
    values = SCORE_RECORD.json_schema()["$defs"]["CallValues"]["properties"]
    of_eva = set(values["eva"]["propertyNames"]["enum"])
    assert set(metric_named("callgauge_eva_score_ratio").label_set[3].values) == of_eva - {"eva_response_speed"}
    ratings = {
        name
        for record in (TurnValues, CallValues)
        for name, field in record.model_fields.items()
        if field.annotation == TextRating | None
    }
    assert set(metric_named("callgauge_text_rating_ratio").label_set[3].values) == ratings
    unscored = {"tool_correctness", "turn_taking", *of_eva, *ratings}
    assert set(metric_named("callgauge_scores_unscored_total").label_set[3].values) == unscored


def test_every_reason_is_one_of_something_that_is_counted() -> None:
    """The omitted reasons belong to values that no metric splits by reason: areas, tool correctness, costs, and EVA's metrics."""
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


def test_kinds_and_sources_are_the_words_of_the_contract() -> None:
    schema = SCORE_RECORD.json_schema()["$defs"]
    kinds = {schema[record.__name__]["properties"]["kind"]["const"] for record in get_args(AnyScoreRecord)}
    (kind,) = metric_named("callgauge_scores_read_total").label_set
    assert set(kind.values) == kinds
    (sources,) = [
        branch["enum"] for branch in schema["VoiceToVoiceLatency"]["properties"]["source"]["anyOf"] if "enum" in branch
    ]
    assert set(metric_named("callgauge_turns_overlapped_total").label_set[3].values) == set(sources)


def test_an_exemplar_fits_however_long_the_id_is() -> None:
    long_id = "ü" * 256
    exemplar = exemplar_of(closed(CloseReason.ENDED).model_copy(update={"conversation_id": long_id}))
    assert exemplar == {"conversation_id": long_id[:MAX_EXEMPLAR_CHARS]}
    assert sum(len(name) + len(value) for name, value in exemplar.items()) == 128


def test_each_value_of_a_turn_that_is_new_in_a_row_has_a_metric() -> None:
    """The latency of a turn is counted at a record of its own."""
    counted = {name for _, record, _ in CASES if isinstance(record, TurnValues) for name in record.first_known}
    assert {*TURN_VALUE_NAMES} - {LATENCY_NAME} <= counted


def versioned(version: str | None, **base: Any) -> CallStartedFact:
    return CallStartedFact(**FIRST | base, version=version)


def test_scores_of_a_call_are_those_of_its_agent_s_version() -> None:
    so_far = CallSoFar().after(versioned(None)).after(versioned("v7", revision=2)).after(versioned(None, revision=3))
    so_far = so_far.after(goals()).after(progress(Scored(value=0.5)))
    record = call(
        success_final_turn=Scored(value=1), faithfulness=rating(Scored(value=0.5)), tool_correctness=NOT_KNOWN
    )
    samples = [*project(record, NOW_MS, so_far), *project(closed(CloseReason.ENDED), NOW_MS, so_far)]
    metric = "callgauge_version_score_ratio"
    assert [sample for sample in samples if sample.metric == metric] == [
        Observed(metric, (*WHO, "v7", name), value)
        for name, value in (("success", 1), ("faithfulness", 0.5), ("progress", 0.5))
    ]
    nameless = project(record, NOW_MS, CallSoFar().after(versioned(None)))
    assert not [sample for sample in nameless if sample.metric == metric]


def test_no_metric_of_the_exporter_is_out_of_reach() -> None:
    """Every counter and histogram has a record that moves it, but for those that count the exporter's own doings."""
    moved = {
        sample.metric
        for _, record, _ in CASES
        for sample in project(
            record,
            NOW_MS,
            CallSoFar().after(versioned("v7")).after(goals()).after(progress(Scored(value=0.5))).after(seen()),
        )
    }
    own = {
        "callgauge_calls_forgotten_total", "callgauge_otlp_events_total", "callgauge_scores_refused_total",
    }  # fmt: skip
    rows = {metric.name for metric in METRICS if metric.role == "exporter" and metric.type != "gauge"}
    assert rows - moved == own


# An interruption counts once, when the call leaves its turn, unless it was withdrawn before.


def fields(turn: int | None, revision: int, index: int = 0) -> dict[str, Any]:
    return AnyRecord | {"turn": turn, "index": index, "revision": revision, "is_first": revision == 1}


def seen(turn: int = 1, revision: int = 1, by: Speaker = Speaker.ASSISTANT) -> InterruptionFact:
    return InterruptionFact(**fields(turn, revision), name=f"interruption_by_{by.value}")


def withdrawn(turn: int = 1, revision: int = 2) -> InterruptionFact:
    return InterruptionFact(**fields(turn, revision), name="interruption_by_assistant", is_withdrawn=True)


def left(turn: int = 1, revision: int = 1) -> TurnValues:
    return TurnValues(**fields(turn, revision), voice_to_voice_ms=WITHDRAWN)


CLOSED = ClosedFact(**fields(None, 1), reason=CloseReason.ENDED, turns=2, through={}, ended_reason=None, events=9)


def counted(*records: AnyScoreRecord) -> list[Speaker]:
    states = accumulate(records, Interruptions.after, initial=Interruptions())
    return [by for state, record in zip(states, records, strict=False) for by in state.counted(record)]


ASSISTANT, USER = Speaker.ASSISTANT, Speaker.USER


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([seen()], []),
        ([seen(), left()], [ASSISTANT]),
        ([seen(), seen(by=USER), left()], [ASSISTANT, USER]),
        ([seen(), left(), left(revision=2), CLOSED], [ASSISTANT]),
        ([seen(), withdrawn(), left(), CLOSED], []),
        ([seen(), withdrawn(), seen(revision=3), left()], [ASSISTANT]),
        ([seen(), withdrawn(), left(), seen(revision=3), CLOSED], []),  # it comes back too late to be known as new
        ([seen(), left(), withdrawn(), seen(revision=3), CLOSED], [ASSISTANT]),
        ([left(), seen(), left(revision=2)], [ASSISTANT]),
        ([seen(turn=2), left(turn=1)], []),
        ([seen(turn=1), left(turn=2)], [ASSISTANT]),
        ([seen(), CLOSED], [ASSISTANT]),
        ([withdrawn(), left()], []),
        ([seen(revision=3), left()], []),  # the exporter has not read its beginning
    ],
)
def test_an_interruption_counts_once_when_its_turn_is_left(
    records: list[AnyScoreRecord], expected: list[Speaker]
) -> None:
    assert counted(*records) == expected


def test_nothing_is_kept_of_turns_that_the_call_has_left() -> None:
    records: list[AnyScoreRecord] = [seen(), seen(turn=2), withdrawn(turn=2), left(turn=2)]
    *_, state = accumulate(records, Interruptions.after, initial=Interruptions())
    assert state == Interruptions()


def test_the_counter_gets_it_with_the_row_of_the_turn() -> None:
    before = CallSoFar().after(seen())
    samples = [each for each in project(left(), 0, before) if each.metric == "callgauge_interruptions_total"]
    assert samples == [Counted("callgauge_interruptions_total", (*WHO, "assistant"))]


# A caller who waits for an answer counts once, with every outcome and in any order of the records.


def answer(turn: int = 1, *, is_first: bool = True) -> VoiceToVoiceLatency:
    return latency(900.0, base=fields(turn, 1 if is_first else 2), turn=turn)


def silence(turn: int = 1, index: int = 1, *, is_first: bool = True) -> DeadAirFact:
    return DeadAirFact(**fields(turn, 1 if is_first else 2, index), silent_since_ms=index, threshold_ms=3000)


def waits(*records: AnyScoreRecord) -> int:
    """The waits that these records of a call show, one after the other."""
    states = accumulate(records, UserTurns.after, initial=UserTurns())
    return sum(state.new_waits(record) for state, record in zip(states, records, strict=False))


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([answer()], 1),
        ([silence()], 1),
        ([silence(), answer()], 1),
        ([answer(), silence()], 1),  # the silence before the answer, which waited for broker time
        ([silence(1, 1), silence(1, 2), silence(1, 3)], 3),  # a mute agent: the caller asks again and again
        ([silence(1, 1), silence(1, 2), answer()], 2),
        ([answer(1), answer(2), silence(3), answer(3), answer(4)], 4),
        ([answer(), answer(is_first=False)], 1),
        ([silence(), silence(is_first=False)], 1),
        ([answer().model_copy(update={"result": WITHDRAWN})], 0),
        ([silence(0)], 1),  # not even a greeting
    ],
)
def test_each_wait_counts_once(records: list[AnyScoreRecord], expected: int) -> None:
    assert waits(*records) == expected


def test_the_order_of_the_records_of_a_turn_changes_nothing() -> None:
    records: list[AnyScoreRecord] = [answer(), silence(1, 1), silence(1, 2)]
    assert {waits(*order) for order in permutations(records)} == {2}


@given(
    st.lists(
        st.builds(
            lambda turn, dead, index: silence(turn, index) if dead else answer(turn),
            st.integers(1, 4),
            st.booleans(),
            st.integers(1, 3),
        )
    )
)
def test_one_record_shows_one_wait_at_most(records: list[AnyScoreRecord]) -> None:
    states = list(accumulate(records, UserTurns.after, initial=UserTurns()))
    for (before, after), record in zip(pairwise(states), records, strict=True):
        assert before.new_waits(record) in (0, 1)
        assert after.turn is not None
        assert after.turn >= (before.turn or 0)
