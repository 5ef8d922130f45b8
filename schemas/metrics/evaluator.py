"""The metrics of the evaluator role: the outcomes of events, and its lag on the log."""

from typing import Final

from schemas.closed_sets import ClockSkew, InputSource, MisreadReason, RefusalReason, Telling
from schemas.metrics.definition import (
    REDACTION_TYPE,
    SCORE_KIND,
    Label,
    Metric,
    MetricsOf,
    words_of,
)
from schemas.scores.latency_stages import Stage, StageSource

_EVALUATOR = MetricsOf("evaluator")

_GROUP = Label("group", "the consumer group")
_TOPIC = Label("topic", "the topic read")
_PARTITION = Label("partition", "the partition's number")
_EVENT_OUTCOME = Label(
    "outcome",
    "what became of the event",
    ("folded", "repeated", "late", "quarantined", "unknown", "after_close", "replayed"),
)
_EVENT_SOURCE = Label("source", "who sent the event", (*words_of(InputSource), "control"))
_QUARANTINE_REASON = Label(
    "reason", "why the record can never be processed", words_of(RefusalReason)
)
_MISREAD_REASON = Label("reason", "the part that is not understood", words_of(MisreadReason))
_TELLING = Label(
    "kind", "what the events are about; `unread` could not be read at all", words_of(Telling)
)
_SKEW = Label(
    "kind",
    "whether the event's own time is ahead of the broker's by more than a second, or behind by "
    "more than a minute",
    words_of(ClockSkew),
)
_LIMIT = Label(
    "limit",
    "the limit",
    (
        "duration",
        "events",
        "turns",
        "kept_bytes",
        "replays",
        "open_calls",
        "transcript",
        "redaction",
        "judge_request",
        "quarantine_record",
        "words",
        "stage_values",
        "running_speech",
        "running_comparison",
        "agent_records",
        "placed_records",
        "turn_details",
    ),
)
_STAGE_SOURCE = Label(
    "source", "which source reported the stage", words_of(StageSource, without=StageSource.SPEECH)
)
_STAGE = Label("stage", "the stage", words_of(Stage))
_CALL_SOURCE = Label(
    "source", "which source's topic", words_of(InputSource, without=InputSource.JUDGE)
)
_FILE_OUTCOME = Label(
    "outcome",
    "whether it was written; one that failed is tried again until it is, one whose record no "
    "client can decode is not",
    ("written", "failed", "undecodable"),
)
_LAG = (_GROUP, _TOPIC, _PARTITION)

_CHANGE_CAUSE = Label(
    "cause",
    "an event that came late, the back-dated log of a speech-to-speech agent, an event in order "
    "that showed turns to be others, or only the end of the call",
    ("late_event", "backdated_log", "counted_anew", "end_of_call"),
)

EVALUATOR_METRICS: Final[tuple[Metric, ...]] = (
    _EVALUATOR.counter("callgauge_events_total", "events", _EVENT_SOURCE, _EVENT_OUTCOME)(
        "Events read, by what became of them; every event has exactly one outcome."
    ),
    _EVALUATOR.counter("callgauge_late_events_total", "events", _EVENT_SOURCE)(
        "Events that arrived after later ones of their call had been folded, so that a part of the "
        "call was replayed."
    ),
    _EVALUATOR.counter("callgauge_source_events_dropped_total", "events", _TELLING)(
        "Events that the observer in a bot dropped because the broker did not take them in time, "
        "as its calls report it. A call without events of speech has turns without latency."
    ),
    _EVALUATOR.counter("callgauge_agent_errors_total", "events", _EVENT_SOURCE)(
        "Errors that agents report while a call runs: processors of pipecat bots (`error`), and "
        "ElevenLabs (`error`, `client_error`), for example a quota that is used up. An error from "
        "which the agent recovers counts too."
    ),
    _EVALUATOR.counter("callgauge_replayed_elements_total", "elements")(
        "Timeline elements folded again because of late events: the price of lateness."
    ),
    _EVALUATOR.counter("callgauge_quarantined_total", "records", _EVENT_SOURCE, _QUARANTINE_REASON)(
        "Records that can never be processed and went to the quarantine topic, by reason."
    ),
    _EVALUATOR.counter("callgauge_unknown_fields_total", "fields", _EVENT_SOURCE)(
        "Fields of known events that the contract does not know; they are carried, not used."
    ),
    _EVALUATOR.counter(
        "callgauge_misread_records_total", "records", _EVENT_SOURCE, _MISREAD_REASON
    )(
        "Records that are taken and do nothing, or less than they could: of a type or kind that "
        "the contract does not know, a CloudEvent in the body, or a field of another type or form "
        "that can be left out. The log and `callgauge doctor` name them."
    ),
    _EVALUATOR.counter("callgauge_stage_values_unmapped_total", "values", _EVENT_SOURCE)(
        "Latencies and token counts that were reported under a name, or as a value, that no table "
        "of stages has."
    ),
    _EVALUATOR.counter(
        "callgauge_stage_values_contradicted_total", "values", _STAGE_SOURCE, _STAGE
    )(
        "Latencies of stages that are in no score, because the sounds of their turn contradict "
        "them: longer than the wait that they are part of, or than the turn. Usually a producer "
        "sends another unit. Counted when a call closes."
    ),
    _EVALUATOR.counter("callgauge_limits_hit_total", "hits", _LIMIT)(
        "Times a call reached a limit and was closed by it. Some close nothing: at `transcript`, "
        "`judge_request`, `words` and `quarantine_record` such a record was too large and is not "
        "written, at `redaction` one step of the call had too much text to redact and judges read "
        "`[TOO_LONG]` in place of the rest, at `stage_values` further latencies of the call do not "
        "count, at `running_speech` and `running_comparison` these scores of the call are only "
        "said at its end, and at `agent_records` and `placed_records` what further records of an "
        "agent's call, or further words, change is only said then. At `turn_details` the "
        "transcript lacks the latest of them."
    ),
    _EVALUATOR.counter("callgauge_settled_turns_total", "turns")(
        "Turns that were settled while their call ran, counted when it closes."
    ),
    _EVALUATOR.counter("callgauge_settled_turns_changed_total", "turns", _CHANGE_CAUSE)(
        "Settled turns whose timing turned out otherwise by the end of the call, by what changed "
        "it."
    ),
    _EVALUATOR.gauge("callgauge_calls_open", "calls")(
        "Calls the evaluator holds in memory, from their first event until they close."
    ),
    _EVALUATOR.gauge("callgauge_consumer_lag_messages", "messages", *_LAG)(
        "Records between the last one processed and the end of the partition."
    ),
    _EVALUATOR.gauge("callgauge_consumer_lag_seconds", "seconds", *_LAG)(
        "At most how old the oldest record of the partition that is not processed yet is, by the "
        "broker's timestamps; 0 if there is none, and the time since the broker last answered "
        "while it does not."
    ),
    _EVALUATOR.gauge("callgauge_watermark_lag_messages", "messages", *_LAG)(
        "Records between the first record of the oldest open call and the last one folded; a "
        "successor reads them again."
    ),
    _EVALUATOR.counter("callgauge_log_records_lost_total", "records")(
        "Records of `events` that were deleted before they were folded; calls they belong to are "
        "incomplete."
    ),
    _EVALUATOR.counter("callgauge_log_repeats_total", "records")(
        "Events of the log that were in it already, and so are passed over: a sequencer began a "
        "little before the end of the one before it."
    ),
    _EVALUATOR.counter("callgauge_log_void_total", "records")(
        "Records of the log by a sequencer whose successor had written already, and so are passed "
        "over: it was frozen, or cut off."
    ),
    _EVALUATOR.counter("callgauge_calls_incomplete_total", "calls")(
        "Calls that were open when records of their partition of `events` were deleted unread; the "
        "log names them. One that a successor folds again is counted again there."
    ),
    _EVALUATOR.counter("callgauge_skewed_events_total", "events", _CALL_SOURCE, _SKEW)(
        "Events whose own time is far from the broker's timestamp of their record. Ahead: the "
        "clock of the producer is wrong, and so are latencies between two sources. Behind: a wrong "
        "clock, a producer that sends late, or a replay of old calls."
    ),
    _EVALUATOR.gauge("callgauge_scores_unwritten", "records")(
        "Score records decided and not written yet; reading pauses when there are too many."
    ),
    _EVALUATOR.gauge("callgauge_log_file_bytes", "bytes")(
        "Size of the log in the folder of `serve`; at 4 GiB the oldest events go before their "
        "seven days are over."
    ),
    _EVALUATOR.counter("callgauge_log_file_write_failures_total", "writes")(
        "Writes of that log that the disk refused; senders send again, and nothing that was "
        "acknowledged is lost."
    ),
    _EVALUATOR.counter("callgauge_partitions_fenced_total", "partitions")(
        "Partitions that turned out to be another process's while this one still wrote; nothing it "
        "wrote then counts."
    ),
    _EVALUATOR.gauge(
        "callgauge_source_last_event_timestamp_seconds", "unix seconds", _EVENT_SOURCE
    )("When the newest event of this source reached the broker."),
    _EVALUATOR.counter("callgauge_scores_published_total", "records", SCORE_KIND)(
        "Score records written to the scores topic, by kind."
    ),
    _EVALUATOR.counter("callgauge_transcripts_published_total", "records")(
        "Transcripts of closed calls written to the transcripts topic."
    ),
    _EVALUATOR.counter("callgauge_transcript_files_total", "files", _FILE_OUTCOME)(
        "Attempts to write the file of a transcript, by outcome."
    ),
    _EVALUATOR.counter("callgauge_redactions_total", "values", REDACTION_TYPE)(
        "Pieces of personal data taken out of texts before they left the evaluator, once for each "
        "text they were taken out of."
    ),
    _EVALUATOR.gauge("callgauge_goal_files_broken", "files")(
        "Files of the goals folder that have a mistake now; the last right content of each stays "
        "in use."
    ),
    _EVALUATOR.counter("callgauge_goal_records_refused_total", "records")(
        "Records of the topic `goals` that were no goal set; the one before with the same key "
        "stays in use."
    ),
)
"""In the order in which they are listed."""
