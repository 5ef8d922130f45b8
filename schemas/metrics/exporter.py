"""Metrics of the exporter role: the quality of calls, counted from the rows of `scores`."""

from dataclasses import replace
from typing import Final

from schemas.closed_sets import (
    CALL_JUDGES,
    GOAL_REASONS,
    LATENCY_REASONS,
    Anchor,
    CloseReason,
    InputSource,
    InterruptionCause,
    JudgeKind,
    PipelineType,
    Speaker,
    ToolOutcome,
    UnscoredReason,
)
from schemas.metrics.definition import SCORE_KIND, TENANT, Label, Metric, MetricsOf, words_of
from schemas.scores.latency_stages import Stage, StageSource

_EXPORTER = MetricsOf("exporter")

LATENCY_EDGES_SECONDS: Final = (
    0.1,
    0.2,
    0.3,
    0.5,
    0.8,
    0.815,
    1.0,
    1.2,
    1.5,
    2.0,
    2.5,
    3.0,
    3.5,
    5.0,
    8.0,
    10.0,
    15.0,
)
"""Edges of speech latencies. A ratio is exact only at an edge, so every limit an alert may use is
one: 1.5 is the objective (95 % of turns), 3.5 the warning and 5.0 the critical p95 of published
voice-agent fleets, 0.8 to 1.2 where callers start to doubt the line, 0.8 and 0.815 the usual p95
limits of speech recognition and of speech's first byte.
"""

EVENT_TO_SCORE_EDGES_SECONDS: Final = (
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.25,
    0.35,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Edges of our own delay: 0.1 and 0.25 are the p50 and p99 the design promises, 10.0 the limit of
scores fresh enough to act on.
"""

CALL_TURNS_EDGES: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0)
"""Edges of the turns of a call: a caller who hangs up immediately has 1 or 2."""

RATIO_EDGES: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Edges of ratios. The first bucket has exactly 0, and the last one everything above 0.9."""

COST_EDGES_DOLLARS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Of a call: a minute costs some cents."""

RATING_EDGES: Final = (0.0, 0.5, 1.0)
"""Edges of ratings: EVA's scale of three, brought to 0 to 1, so that every rating has a bucket of
its own.
"""

GOAL_EDGES: Final = (0.0, 0.5, 1.0)
"""Edges of progress by goal set: none, up to half, all. The mean is exact, because it needs no
edge.
"""

_AGENT = Label("agent", "the voice agent, as `call_started` names it", cap=50)
_ENVIRONMENT = Label("environment", "where the agent runs", cap=10)
_AGENT_VERSION = Label(
    "version", "the agent's version, as `call_started` says it", cap=50, yields=True
)
_GOAL_SET = Label("goal_set", "the name of the goal set", cap=50)
_TOOL = Label("tool", "the tool's name", cap=50)
_CALL_OUTCOME = Label("outcome", "why the call closed", words_of(CloseReason))
_TOOL_OUTCOME = Label("outcome", "how the tool call ended", words_of(ToolOutcome))
_SPEECH_SOURCE = Label(
    "source", "the stream the times came from", words_of(InputSource, without=InputSource.JUDGE)
)
_ANCHOR = Label("anchor", "source of the end of the user's speech", words_of(Anchor))
_STAGE_SOURCE = Label("source", "who measured it", words_of(StageSource))
_STAGE = Label("stage", "the stretch of time on the way to an answer", words_of(Stage))
_PIPELINE = Label("pipeline", "the kind of agent", words_of(PipelineType))
_BY = Label("by", "who spoke over the other", words_of(Speaker))
_UNMEASURED_REASON = Label(
    "reason", "the missing part", words_of(UnscoredReason, only=LATENCY_REASONS)
)
_FINAL_LATENCY = Label(
    "outcome", "whether the final latency is negative", ("measured", "overlapped")
)
_UNSCORED_REASON = Label(
    "reason", "why it is not known", words_of(UnscoredReason, only=GOAL_REASONS)
)
_CHECKED_BY = Label("checked_by", "what decides whether the subgoal is reached", ("code", "judge"))
_STALLED_BY = Label("by", "what there was too much of without progress", ("turns", "seconds"))
_SUCCESS = Label("outcome", "whether every subgoal was reached", ("success", "failure"))
_GOAL_OUTCOME = Label(
    "outcome",
    "whether every subgoal was reached, or that it is unknown",
    ("success", "failure", "unscored"),
)
_PROGRESS = Label("progress", "whether the call's progress is known", ("known", "unknown"))
_OTLP_OUTCOME = Label(
    "outcome",
    "whether the endpoint took the event, and if not, why",
    ("sent", "queue_full", "failed", "unsent_at_stop", "not_kept"),
)
USED_AMOUNTS: Final = (
    "input_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "output_tokens",
    "characters",
    "audio_seconds",
)
"""Kinds of amounts that a model uses, by their names in `ServiceUse`."""
_AMOUNT = Label("kind", "what was used", USED_AMOUNTS)
_CAUSE = Label("cause", "why the answer was cut off", words_of(InterruptionCause))
_SUBGOAL_STATE = Label("state", "whether the subgoal is reached by now", ("reached", "open"))
_TEXT_METRICS = words_of(JudgeKind, without=JudgeKind.SUBGOAL)
_TEXT_METRIC = Label("name", "EVA's metric", _TEXT_METRICS)
_EVA_RATIOS = (
    "eva_turn_taking",
    "eva_tool_call_validity",
    "eva_tool_schema_validity",
    "eva_conversation_correctly_finished",
    "eva_conversation_completed_on_time",
    "eva_conversation_valid_end",
    "eva_authentication_success",
    "eva_task_completion",
    "eva_a_mean",
    "eva_a_pass",
    "eva_x_mean",
    "eva_x_pass",
)
_EVA_RATIO = Label("name", "EVA's metric behind `eva_`", _EVA_RATIOS)
_FINAL_SCORE = Label(
    "name",
    "the score's name",
    ("tool_correctness", *_TEXT_METRICS, "turn_taking", "eva_response_speed", *_EVA_RATIOS),
)
_VERSION_SCORE = Label(
    "name",
    "the score's name",
    (
        "success",
        "progress",
        "tool_correctness",
        "eva_turn_taking",
        "eva_x_mean",
        *map(str, CALL_JUDGES),
    ),
)
_SCORE_NAME = Label("name", "the score's name", ("turn_response_latency",))
_TENANT_IF_ROOM = replace(
    TENANT,
    meaning=(
        "whose call it is, in what pages no one: new combinations are `other` once half of "
        "`max_series` is used"
    ),
    yields=True,
)
_WHO = (_AGENT, TENANT, _ENVIRONMENT)
"""Labels of the signals that page."""
_WHOSE = (_AGENT, _TENANT_IF_ROOM, _ENVIRONMENT)
"""Labels of all other signals about calls. Tenants multiply the series of an agent, so these give
way to those that page.
"""

EXPORTER_METRICS: Final[tuple[Metric, ...]] = (
    _EXPORTER.gauge("callgauge_calls_active", "calls", *_WHO)(
        "Calls whose first event has been seen and that are not over yet. A call that only waits "
        "for verdicts is over."
    ),
    _EXPORTER.counter("callgauge_calls_started_total", "calls", *_WHO)(
        "Calls seen to start, each counted once, at the first row of the call."
    ),
    _EXPORTER.counter("callgauge_calls_ended_total", "calls", *_WHO, _CALL_OUTCOME)(
        "Calls that closed, by why they closed, each counted once, when its closed row is read."
    ),
    _EXPORTER.counter("callgauge_calls_forgotten_total", "calls")(
        "Open calls that the exporter dropped from its memory because it held as many as it may."
    ),
    _EXPORTER.histogram("callgauge_call_turns", "turns", CALL_TURNS_EDGES, *_WHOSE)(
        "Turns of a call, observed when it closes: callers who hang up early have few."
    ),
    _EXPORTER.counter("callgauge_user_turns_total", "turns", *_WHO)(
        "Times a caller had spoken and an answer was due, each counted once: when the answer "
        "begins, or when the silence becomes dead air. So unanswered turns count too, and several "
        "in the same turn if the caller speaks again."
    ),
    _EXPORTER.counter("callgauge_turns_total", "turns", *_WHO)(
        "Turns from turn 1 on (the greeting is turn 0 and does not count), each counted once, when "
        "the next one begins, or at the end of the call if it was answered."
    ),
    _EXPORTER.histogram(
        "callgauge_turn_response_latency_seconds",
        "seconds",
        LATENCY_EDGES_SECONDS,
        *_WHO,
        _SPEECH_SOURCE,
        _ANCHOR,
    )(
        "Voice-to-voice latency of a turn, from the end of the user's audio to the start of the "
        "assistant's, observed once, when the assistant starts to speak. It keeps the first value "
        "of a turn, as the caller felt it; a later event can change the turn "
        "(`callgauge_turn_revisions_total`). `callgauge_turns_final_total` and "
        "`callgauge_turns_final_latency_seconds_total` have the values at the close, as in "
        "`scores`."
    ),
    _EXPORTER.histogram(
        "callgauge_stage_latency_seconds",
        "seconds",
        LATENCY_EDGES_SECONDS,
        *_WHOSE,
        _STAGE_SOURCE,
        _STAGE,
    )(
        "How long a stage of an answer took, as who measured it reports, observed once for a turn "
        "and stage, when the call has left the turn, or later when its first number comes later."
    ),
    _EXPORTER.counter("callgauge_stage_disagreements_total", "stages", *_WHOSE, _STAGE)(
        "Stages of turns for which two sources gave numbers further apart than measuring twice "
        "explains, counted when the call closes."
    ),
    _EXPORTER.histogram(
        "callgauge_estimate_error_seconds", "seconds", LATENCY_EDGES_SECONDS, *_WHOSE
    )(
        "How far the live estimate of a turn's voice-to-voice latency was from what the record of "
        "the conversation with an ElevenLabs agent has, whichever of the two was longer, observed "
        "once, when the record has been read and the call has left the turn."
    ),
    _EXPORTER.counter("callgauge_turns_final_total", "turns", *_WHOSE, _ANCHOR, _FINAL_LATENCY)(
        "Turns with a latency, as `scores` has it at the close: measured, or overlapped where it "
        "is negative. `callgauge_turns_unmeasured_total` has the others."
    ),
    _EXPORTER.counter("callgauge_turns_final_latency_seconds_total", "seconds", *_WHOSE, _ANCHOR)(
        "Sum of the latencies of the measured turns in `callgauge_turns_final_total`, so that the "
        "quotient is the mean in `scores`; the histogram keeps first values, and its mean can "
        "differ."
    ),
    _EXPORTER.counter("callgauge_turns_overlapped_total", "turns", *_WHO, _SPEECH_SOURCE, _ANCHOR)(
        "Turns whose first latency is negative because the assistant started before the user's "
        "audio ended; they are not in the latency histogram."
    ),
    _EXPORTER.counter("callgauge_turns_unmeasured_total", "turns", *_WHOSE, _UNMEASURED_REASON)(
        "Turns whose latency cannot be known, by the missing part, counted when the call closes."
    ),
    _EXPORTER.counter("callgauge_turn_revisions_total", "revisions", *_WHOSE, _SCORE_NAME)(
        "Scores of a turn that were published again with another value after they had been "
        "counted; changes that are written together are one."
    ),
    _EXPORTER.counter("callgauge_interruptions_total", "interruptions", *_WHOSE, _BY)(
        "Times one side started to speak while the other still spoke, by who started, each counted "
        "once, when the call leaves its turn, or later if it is known later; one that is withdrawn "
        "after that stays counted."
    ),
    _EXPORTER.counter("callgauge_dead_air_total", "dead airs", *_WHO)(
        "Silences that outlasted the threshold, from the end of the user's audio with nobody "
        "speaking and no tool running; each counted once, when the threshold passes, and never "
        "taken back."
    ),
    _EXPORTER.counter("callgauge_calls_with_agent_errors_total", "calls", *_WHO)(
        "Calls in which the agent reported an error, counted at the first; "
        "`callgauge_agent_errors_total` counts the errors."
    ),
    _EXPORTER.counter("callgauge_agent_usage_total", "values", *_WHOSE, _AMOUNT)(
        "What the models of the agents used, as their frameworks or providers count it, added when "
        "a call closes."
    ),
    _EXPORTER.histogram("callgauge_call_cost_dollars", "dollars", COST_EDGES_DOLLARS, *_WHOSE)(
        "What the models of the agent cost in a call, by the prices in `limits.prices`, otherwise "
        "by ElevenLabs' record, observed when it closes; a call whose cost is not known is not in "
        "it."
    ),
    _EXPORTER.counter("callgauge_calls_without_cost_total", "calls", *_WHOSE)(
        "Calls whose cost is not known because a model, or a kind of amount that it used, has no "
        "price."
    ),
    _EXPORTER.counter("callgauge_handoffs_total", "handoffs", *_WHOSE)(
        "Times that another agent took a call over, as the agent's framework tells it, added when "
        "the call closes."
    ),
    _EXPORTER.counter("callgauge_false_interruptions_total", "interruptions", *_WHOSE)(
        "What looked like an interruption to the agent's framework and was none, added when the "
        "call closes."
    ),
    _EXPORTER.counter("callgauge_interruption_causes_total", "interruptions", *_WHOSE, _CAUSE)(
        "Answers that were cut off, by the cause that the agent's framework tells, added when the "
        "call closes. Frameworks that tell none are not in it; `callgauge_interruptions_total` "
        "counts what was heard."
    ),
    _EXPORTER.counter("callgauge_tool_calls_total", "tool calls", *_WHOSE, _TOOL, _TOOL_OUTCOME)(
        "Tool calls by how they ended, each counted once, at its answer or, unanswered, at the end "
        "of the call. Of a turn the first 50 count."
    ),
    _EXPORTER.gauge("callgauge_calls_with_goals_active", "calls", *_WHO, _PROGRESS)(
        "Running calls that have goals. Progress is unknown until a turn is judged, and while a "
        "verdict it needs cannot be had."
    ),
    _EXPORTER.gauge("callgauge_progress_active", "calls", *_WHO)(
        "Progress of the running calls, 0 to 1 each, after the newest turn judged, added up over "
        "those whose progress is known: divided by their number it is their mean."
    ),
    _EXPORTER.gauge("callgauge_subgoals_active", "subgoals", *_WHO, _SUBGOAL_STATE)(
        "Subgoals of the running calls, by whether they are reached after the newest turn judged."
    ),
    _EXPORTER.counter("callgauge_calls_with_goals_total", "calls", *_WHOSE)(
        "Calls that were given goals, each counted once, when it gets its goal set."
    ),
    _EXPORTER.counter("callgauge_subgoals_total", "subgoals", *_WHOSE, _CHECKED_BY)(
        "Subgoals of the calls that were given goals, counted when the call gets its goal set."
    ),
    _EXPORTER.counter("callgauge_subgoals_reached_total", "subgoals", *_WHOSE, _CHECKED_BY)(
        "Subgoals reached, each counted once, at the first turn found to reach it, and never taken "
        "back."
    ),
    _EXPORTER.counter("callgauge_subgoals_unscored_total", "subgoals", *_WHOSE, _UNSCORED_REASON)(
        "Subgoals of which it is unknown at the end of the call whether they were reached, by why, "
        "counted when it closes."
    ),
    _EXPORTER.counter("callgauge_progress_stalls_total", "stalls", *_WHOSE, _STALLED_BY)(
        "Times a call went on for too many turns or too long without reaching a further subgoal, "
        "each counted once, when the limit passes."
    ),
    _EXPORTER.histogram("callgauge_call_progress_ratio", "ratio", RATIO_EDGES, *_WHOSE)(
        "Progress of a call after its last turn, the share of its subgoals that were reached, "
        "observed when it closes."
    ),
    _EXPORTER.histogram("callgauge_call_auc_ratio", "ratio", RATIO_EDGES, *_WHOSE)(
        "Area under the progress of a call, agent-inspect's AUC: from its first turn to the most "
        "turns that its goal set counts, observed when it closes. Progress that comes early gives "
        "more of it."
    ),
    _EXPORTER.histogram("callgauge_call_ppt_ratio", "ratio", RATIO_EDGES, *_WHOSE)(
        "Progress per turn of a call, agent-inspect's PPT: its progress divided by the turn that "
        "first had it, observed when it closes."
    ),
    _EXPORTER.counter("callgauge_calls_scored_total", "calls", *_WHOSE, _SUCCESS)(
        "Calls with goals that closed, by whether every subgoal was reached by the last turn that "
        "counts."
    ),
    _EXPORTER.counter("callgauge_calls_unscored_total", "calls", *_WHOSE, _UNSCORED_REASON)(
        "Calls with goals that closed without anyone knowing whether every subgoal was reached, by "
        "why."
    ),
    _EXPORTER.counter("callgauge_goal_set_calls_total", "calls", *_WHOSE, _GOAL_SET, _GOAL_OUTCOME)(
        "Calls with goals that closed, by goal set and by whether every subgoal was reached by the "
        "last turn that counts."
    ),
    _EXPORTER.histogram(
        "callgauge_goal_set_progress_ratio", "ratio", GOAL_EDGES, *_WHOSE, _GOAL_SET
    )(
        "Progress of a call after its last turn, by goal set, observed when it closes; the calls "
        "are those of `callgauge_goal_set_calls_total`, without those whose progress is unknown."
    ),
    _EXPORTER.histogram("callgauge_tool_correctness_ratio", "ratio", RATIO_EDGES, *_WHOSE)(
        "Share of a call's expected tool calls that were made as expected, observed when the call "
        "closes."
    ),
    _EXPORTER.histogram(
        "callgauge_text_rating_ratio", "ratio", RATING_EDGES, *_WHOSE, _TEXT_METRIC
    )(
        "Ratings of text by EVA's metrics, from 0 to 1: of a turn observed once, at its first "
        "rating, of a whole call when it closes."
    ),
    _EXPORTER.histogram("callgauge_turn_taking_ratio", "ratio", RATIO_EDGES, *_WHOSE, _ANCHOR)(
        "How well each turn was timed by EVA's turn_taking, from 0 to 1, observed once, when the "
        "call has left the turn."
    ),
    _EXPORTER.histogram("callgauge_eva_score_ratio", "ratio", RATIO_EDGES, *_WHOSE, _EVA_RATIO)(
        "EVA's metrics of a call that need no judge, and its composites, from 0 to 1, observed "
        "when the call closes."
    ),
    _EXPORTER.histogram(
        "callgauge_version_score_ratio",
        "ratio",
        (0.5, 1.0),
        *_WHOSE,
        _AGENT_VERSION,
        _VERSION_SCORE,
    )(
        "Scores from 0 to 1 of closed calls whose agent says its version, so that one version can "
        "be compared with the next."
    ),
    _EXPORTER.counter("callgauge_scores_unscored_total", "scores", *_WHOSE, _FINAL_SCORE)(
        "Tool correctness, ratings of text, timing of turns and EVA's metrics that are unknown at "
        "the end of the call, each turn counted by itself."
    ),
    _EXPORTER.histogram(
        "callgauge_event_to_score_seconds", "seconds", EVENT_TO_SCORE_EDGES_SECONDS, _PIPELINE
    )(
        "Our own delay, from the broker's timestamp of the record that decided a row to the update "
        "of the metrics that it moves. Rows of a call that is over and waits for verdicts are left "
        "out, because nothing delays them but that wait."
    ),
    _EXPORTER.counter("callgauge_otlp_events_total", "events", _OTLP_OUTCOME)(
        "Evaluation events of closed calls for OpenTelemetry, by whether they were sent, counted "
        "when that is known; 0 unless otlp.endpoint is set."
    ),
    _EXPORTER.counter("callgauge_scores_read_total", "records", SCORE_KIND)(
        "Rows read and counted, by what they are of."
    ),
    _EXPORTER.counter("callgauge_scores_refused_total", "records")(
        "Rows that could not be decoded, or that lack what their metrics need, and were left out."
    ),
)
"""In the order in which they are listed."""


# The exporter's metrics of speech times and of differences between transcripts, counted when a call
# closes.

FIRST_WORD_EDGES_SECONDS: Final = (0.2, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 15.0)
"""Edges of the time to the first word: callers doubt the line after about a second, and hang up
after some five.
"""

MONOLOGUE_EDGES_SECONDS: Final = (5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 180.0)
"""Edges of the longest monologue: two sentences take 10 s, and a text is not remembered that takes
longer than half a minute.
"""

PACE_EDGES: Final = (60.0, 80.0, 100.0, 120.0, 140.0, 160.0, 180.0, 200.0, 220.0, 250.0, 300.0)
"""Edges of words per minute: people talk at 120 to 180 on the telephone; above 200 a voice is hard
to follow.
"""

_SPEAKER = Label("speaker", "whose speech it is", words_of(Speaker))
_WORD_ERROR = Label("kind", "what became of the word", ("substitution", "deletion", "insertion"))

SPEECH_METRICS: Final[tuple[Metric, ...]] = (
    _EXPORTER.counter("callgauge_talk_seconds_total", "seconds", *_WHOSE, _SPEAKER)(
        "How long a side was heard, overlapping speech of one side counted once; its share of both "
        "is the talk ratio."
    ),
    _EXPORTER.counter("callgauge_overlap_seconds_total", "seconds", *_WHOSE)(
        "How long both sides were heard at once."
    ),
    _EXPORTER.counter("callgauge_dead_air_seconds_total", "seconds", *_WHOSE)(
        "How long callers waited in silences of 3 s or longer, each from its beginning to the next "
        "sound or tool."
    ),
    _EXPORTER.histogram(
        "callgauge_first_word_seconds", "seconds", FIRST_WORD_EDGES_SECONDS, *_WHOSE
    )("From the beginning of a call, or its first event, to the assistant's first sound."),
    _EXPORTER.histogram(
        "callgauge_longest_monologue_seconds", "seconds", MONOLOGUE_EDGES_SECONDS, *_WHOSE, _SPEAKER
    )(
        "A side's longest stretch of speech in a call, without a word of the other and without a "
        "pause of 3 s."
    ),
    _EXPORTER.histogram(
        "callgauge_words_per_minute", "words per minute", PACE_EDGES, *_WHOSE, _SPEAKER
    )("How fast a side spoke in a call, over the turns whose words are known."),
    _EXPORTER.counter("callgauge_repeated_questions_total", "questions", *_WHOSE, _SPEAKER)(
        "Questions that a side asked in the same words as in an earlier turn of the call."
    ),
    _EXPORTER.counter("callgauge_transcript_words_total", "words", *_WHOSE, _SPEAKER)(
        "Words that a side meant to say in turns of which the other side's transcript is known too."
    ),
    _EXPORTER.counter("callgauge_transcript_differences_total", "words", *_WHOSE, _SPEAKER)(
        "Words by which the other side's transcript differs from what a side meant to say; which "
        "of them is wrong is not known."
    ),
    _EXPORTER.counter("callgauge_stt_reference_words_total", "words", *_WHOSE)(
        "Words that simulated callers meant to say, in turns for which a cascade's speech "
        "recognition understood any."
    ),
    _EXPORTER.counter("callgauge_stt_word_errors_total", "words", *_WHOSE, _WORD_ERROR)(
        "Words that speech recognition got wrong, left out or put in; by the reference words it is "
        "the word error rate."
    ),
)
"""In the order in which they are listed."""
