"""The metrics of the sequencer role: how far the log has come, and what is not in it."""

from typing import Final

from schemas.closed_sets import InputSource, RefusalReason
from schemas.metrics.definition import Label, Metric, MetricsOf, words_of

_SEQUENCER = MetricsOf("sequencer")

_TOPIC = Label("topic", "the topic read")
_SOURCE = Label("source", "the input", words_of(InputSource))
_REASON = Label("reason", "why the record can never be processed", words_of(RefusalReason))

SEQUENCER_METRICS: Final[tuple[Metric, ...]] = (
    _SEQUENCER.counter("callgauge_sequencer_events_total", "events", _SOURCE)(
        "Events appended to the log; after a takeover some are appended again, which readers drop."
    ),
    _SEQUENCER.counter("callgauge_sequencer_refused_total", "records", _SOURCE, _REASON)(
        "Records that went to the quarantine topic for their bytes: without a key or a value, too "
        "large, or undecodable."
    ),
    _SEQUENCER.gauge("callgauge_sequencer_lag_messages", "messages", _TOPIC)(
        "Records of the input that are not in the log yet. Only an active sequencer has it."
    ),
    _SEQUENCER.gauge("callgauge_sequencer_lag_seconds", "seconds", _TOPIC)(
        "At most how old the oldest record of the input is that is not in the log yet, by the "
        "broker's timestamps; 0 if there is none, and the time since the broker last told the end "
        "while it does not."
    ),
    _SEQUENCER.gauge("callgauge_sequencer_known_behind_seconds", "seconds")(
        "By how much the time in the log is behind the clock of this machine: a silence is judged "
        "that much later. Half a second is usual."
    ),
    _SEQUENCER.gauge("callgauge_sequencer_term", "number")(
        "Term of the active sequencer; it rises with each takeover. What a lower one appends later "
        "is void."
    ),
    _SEQUENCER.gauge("callgauge_sequencer_inputs_left_out", "partitions")(
        "Input partitions that have given no answer for 30 s, so that time goes on without them."
    ),
    _SEQUENCER.gauge("callgauge_sequencer_clock_difference_seconds", "seconds")(
        "By how much this machine's clock is ahead of the brokers', as their stamps of our ticks "
        "show; negative when it is behind."
    ),
    _SEQUENCER.counter("callgauge_input_records_lost_total", "records")(
        "Input records that were deleted before they were read; calls they belong to are "
        "incomplete."
    ),
)
"""In the order in which they are listed."""
