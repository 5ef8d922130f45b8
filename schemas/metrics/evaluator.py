"""The metrics of the evaluator role: the outcomes of events, and its lag."""

from typing import Final

from schemas.closed_sets import ClockSkew, InputSource, MisreadReason, RefusalReason, Telling
from schemas.metrics.definition import REDACTION_TYPE, SCORE_KIND, Label, Metric, words_of

_GROUP = Label("group", "the consumer group")
_TOPIC = Label("topic", "the topic read")
_PARTITION = Label("partition", "the partition's number")
_EVENT_OUTCOME = Label(
    "outcome",
    "what became of the event",
    ("folded", "repeated", "late", "quarantined", "unknown", "after_close", "replayed"),
)
_EVENT_SOURCE = Label("source", "who sent the event", (*words_of(InputSource), "control"))
_QUARANTINE_REASON = Label("reason", "why the record can never be processed", words_of(RefusalReason))
_MISREAD_REASON = Label("reason", "the part that is not understood", words_of(MisreadReason))
_TELLING = Label("kind", "what the events are about; `unread` could not be read at all", words_of(Telling))
_SKEW = Label(
    "kind", "whether the event's own time is ahead of the broker's by more than a second, or behind by more than a minute",
    words_of(ClockSkew),
)  # fmt: skip
_LIMIT = Label(
    "limit",
    "the limit",
    (
        "duration",
        "events",
        "turns",
        "kept_bytes",
        "replays",
        "held",
        "open_calls",
        "transcript",
        "redaction",
        "judge_request",
        "quarantine_record",
        "stage_values",
        "running_speech",
        "running_comparison",
        "agent_records",
        "placed_records",
    ),
)
_CALL_SOURCE = Label("source", "which source's topic", words_of(InputSource, without=InputSource.JUDGE))
_FILE_OUTCOME = Label(
    "outcome",
    "whether it was written; one that failed is tried again until it is, one whose record no client can decode is not",
    ("written", "failed", "undecodable"),
)
_LAG = (_GROUP, _TOPIC, _PARTITION)

_CHANGE_CAUSE = Label(
    "cause",
    "an event that came late, the back-dated log of a speech-to-speech agent, an event in order that showed turns to be "
    "others, or only the end of the call",
    ("late_event", "backdated_log", "counted_anew", "end_of_call"),
)

EVALUATOR_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "callgauge_events_total", "counter", "events",
        "Events read, by what became of them; every event has exactly one outcome.",
        "evaluator", (_EVENT_SOURCE, _EVENT_OUTCOME),
    ),
    Metric(
        "callgauge_late_events_total", "counter", "events",
        "Events that arrived after later ones of their call had been folded, so that a part of the call was replayed.",
        "evaluator", (_EVENT_SOURCE,),
    ),
    Metric(
        "callgauge_source_events_dropped_total", "counter", "events",
        "Events that the observer in a bot dropped because the broker did not take them in time, as its calls report it. A call "
        "without events of speech has turns without latency.",
        "evaluator", (_TELLING,),
    ),
    Metric(
        "callgauge_agent_errors_total", "counter", "events",
        "Errors that agents report while a call runs: processors of pipecat bots (`error`), and ElevenLabs (`error`, "
        "`client_error`), for example a quota that is used up. An error from which the agent recovers counts too.",
        "evaluator", (_EVENT_SOURCE,),
    ),
    Metric(
        "callgauge_replayed_elements_total", "counter", "elements",
        "Timeline elements folded again because of late events: the price of lateness.",
        "evaluator",
    ),
    Metric(
        "callgauge_quarantined_total", "counter", "records",
        "Records that can never be processed and went to the quarantine topic, by reason.",
        "evaluator", (_EVENT_SOURCE, _QUARANTINE_REASON),
    ),
    Metric(
        "callgauge_unknown_fields_total", "counter", "fields",
        "Fields of known events that the contract does not know; they are carried, not used.",
        "evaluator", (_EVENT_SOURCE,),
    ),
    Metric(
        "callgauge_misread_records_total", "counter", "records",
        "Records that are taken and do nothing, or less than they could: of a type or kind that the contract does not know, a "
        "CloudEvent in the body, or a field of another type that no rule reads. The log and `callgauge doctor` name them.",
        "evaluator", (_EVENT_SOURCE, _MISREAD_REASON),
    ),
    Metric(
        "callgauge_stage_values_unmapped_total", "counter", "values",
        "Latencies and token counts that were reported under a name, or as a value, that no table of stages has.",
        "evaluator", (_EVENT_SOURCE,),
    ),
    Metric(
        "callgauge_limits_hit_total", "counter", "hits",
        "Times a call reached a limit and was closed by it. Some close nothing: at `held` an input lagged too far to wait for "
        "it, at `transcript`, `judge_request` and `quarantine_record` such a record was too large and is not written, at "
        "`redaction` one step of the call had too much text to redact and judges read `[TOO_LONG]` in place of the rest, at "
        "`stage_values` further latencies of the call do not count, at `running_speech` and `running_comparison` these scores of "
        "the call are only said at its end, and at `agent_records` and `placed_records` what further records of an agent's "
        "call, or further words, change is only said then.",
        "evaluator", (_LIMIT,),
    ),
    Metric(
        "callgauge_settled_turns_total", "counter", "turns",
        "Turns that were settled while their call ran, counted when it closes.",
        "evaluator",
    ),
    Metric(
        "callgauge_settled_turns_changed_total", "counter", "turns",
        "Settled turns whose timing turned out otherwise by the end of the call, by what changed it.",
        "evaluator", (_CHANGE_CAUSE,),
    ),
    Metric(
        "callgauge_calls_open", "gauge", "calls",
        "Calls the evaluator holds in memory, from their first event until they close.",
        "evaluator",
    ),
    Metric(
        "callgauge_consumer_lag_messages", "gauge", "messages",
        "Records between the last one processed and the end of the partition.",
        "evaluator", _LAG,
    ),
    Metric(
        "callgauge_consumer_lag_seconds", "gauge", "seconds",
        "At most how old the oldest record of the partition not processed yet is, by the broker's timestamps; 0 if there "
        "is none, and the time since the broker last answered while it does not.",
        "evaluator", _LAG,
    ),
    Metric(
        "callgauge_watermark_lag_messages", "gauge", "messages",
        "Records between the first record of the oldest open call and the last one folded; a successor reads them again.",
        "evaluator", _LAG,
    ),
    Metric(
        "callgauge_input_records_lost_total", "counter", "records",
        "Input records that were deleted before they were read; calls they belong to are incomplete.",
        "evaluator",
    ),
    Metric(
        "callgauge_calls_incomplete_total", "counter", "calls",
        "Calls that were open when input records of their partition were deleted unread; the log names them. One that a "
        "successor replays is counted again there.",
        "evaluator",
    ),
    Metric(
        "callgauge_clock_steps_total", "counter", "steps",
        "Times that this machine's wall clock was set by a quarter of a second or more; no call closes or waits because of it.",
        "evaluator",
    ),
    Metric(
        "callgauge_clock_offset_seconds", "gauge", "seconds",
        "By how much this machine's wall clock is ahead of the broker's time, as far as steps and records have shown; "
        "negative when it is behind.",
        "evaluator",
    ),
    Metric(
        "callgauge_skewed_events_total", "counter", "events",
        "Events whose own time is far from the broker's timestamp of their record. Ahead: the clock of the producer is wrong, and "
        "so are latencies between two sources. Behind: a wrong clock, a producer that sends late, or a replay of old calls.",
        "evaluator", (_CALL_SOURCE, _SKEW),
    ),
    Metric(
        "callgauge_misplaced_records_total", "counter", "records",
        "Records of an input on another partition than murmur2 of their key gives, as Java and aiokafka place them. All inputs "
        "must be placed by one hash, whichever that is: where only some count here, calls are torn apart.",
        "evaluator", (_CALL_SOURCE,),
    ),
    Metric(
        "callgauge_order_unusable_total", "counter", "partitions",
        "Takeovers of partitions whose `order` was missing or did not reach back to the oldest open call: values of open calls "
        "were published once again.",
        "evaluator",
    ),
    Metric(
        "callgauge_input_records_waiting", "gauge", "records",
        "Records read that wait for another input of their partition to come as far; an input far ahead is not read on.",
        "evaluator",
    ),
    Metric(
        "callgauge_scores_unwritten", "gauge", "records",
        "Score records decided and not written yet; reading pauses when there are too many.",
        "evaluator",
    ),
    Metric(
        "callgauge_partitions_fenced_total", "counter", "partitions",
        "Partitions that turned out to be another process's while this one still wrote; nothing it wrote then counts.",
        "evaluator",
    ),
    Metric(
        "callgauge_source_last_event_timestamp_seconds", "gauge", "unix seconds",
        "When the newest event of this source reached the broker.",
        "evaluator", (_EVENT_SOURCE,),
    ),
    Metric(
        "callgauge_scores_published_total", "counter", "records",
        "Score records written to the scores topic, by kind.",
        "evaluator", (SCORE_KIND,),
    ),
    Metric(
        "callgauge_transcripts_published_total", "counter", "records",
        "Transcripts of closed calls written to the transcripts topic.",
        "evaluator",
    ),
    Metric(
        "callgauge_transcript_files_total", "counter", "files",
        "Attempts to write the file of a transcript, by outcome.",
        "evaluator", (_FILE_OUTCOME,),
    ),
    Metric(
        "callgauge_redactions_total", "counter", "values",
        "Pieces of personal data taken out of texts before they left the evaluator, once for each text they were taken out of.",
        "evaluator", (REDACTION_TYPE,),
    ),
    Metric(
        "callgauge_goal_files_broken", "gauge", "files",
        "Files of the goals folder that have a mistake now; the last right content of each stays in use.",
        "evaluator",
    ),
    Metric(
        "callgauge_goal_records_refused_total", "counter", "records",
        "Records of the topic `goals` that were no goal set; the one before with the same key stays in use.",
        "evaluator",
    ),
)  # fmt: skip
"""In the order in which they are listed."""
