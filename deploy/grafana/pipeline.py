"""The dashboard of the people who run callgauge: what comes in, where it waits, what it costs, for
all agents.
"""

from charts import Chart, Row, per_minute, quantile

_VERDICTS = "callgauge_judge_verdict_seconds_bucket[$__rate_interval]"
_UNANSWERED = 'callgauge_subgoals_unscored_total{reason="deadline"}'

ROWS: tuple[Row, ...] = (
    (
        "Is it up to date?",
        (
            Chart(
                "Running",
                "Processes that Prometheus reaches, by version. During an upgrade there are two.",
                "short",
                4,
                {"{{version}}": "count by (version) (callgauge_build_info)"},
                "number",
            ),
            Chart(
                "Behind, in seconds",
                "Age of the oldest record not yet taken up: of inputs by the sequencer, of the log "
                "by evaluators. The alert begins at a minute.",
                "s",
                5,
                {
                    "sequencer: {{topic}}": "max by (topic) (callgauge_sequencer_lag_seconds)",
                    "{{group}}: {{topic}}": (
                        "max by (group, topic) (callgauge_consumer_lag_seconds)"
                    ),
                },
            ),
            Chart(
                "Behind, in records",
                "Records not yet taken up, by topic. A burst that falls again is no trouble.",
                "short",
                5,
                {
                    "sequencer: {{topic}}": "sum by (topic) (callgauge_sequencer_lag_messages)",
                    "evaluators: {{topic}}": "sum by (topic) (callgauge_consumer_lag_messages)",
                },
                "areas",
            ),
            Chart(
                "From event to metric",
                "From the broker's timestamp of an event to the metric that it changed, by kind of "
                "agent. The objective is 10 s.",
                "s",
                5,
                {
                    "{{pipeline}}, p99": "histogram_quantile(0.99, sum by (pipeline, le) "
                    "(rate(callgauge_event_to_score_seconds_bucket[$__rate_interval])))"
                },
            ),
            Chart(
                "Where an event waits",
                "Median time of each step to a metric of a moment: until an evaluator takes the "
                "event up from the log, has decided, begins to write, has committed (a part of the "
                "last one), and until an exporter has counted.",
                "s",
                5,
                {
                    "{{step}}": "histogram_quantile(0.5, sum by (step, le) "
                    "(rate(callgauge_event_step_seconds_bucket[$__rate_interval])))"
                },
            ),
        ),
    ),
    (
        "What comes in",
        (
            Chart(
                "Events by source",
                "Events per minute that became part of a call.",
                "cpm",
                6,
                {"{{source}}": per_minute('callgauge_events_total{outcome="folded"}', "source")},
                "areas",
            ),
            Chart(
                "Silence of a source",
                "Time since the last event of each source. Calls without one of their sources lack "
                "a part of their scores.",
                "s",
                6,
                {
                    "{{source}}": (
                        "time() - max by (source) (callgauge_source_last_event_timestamp_seconds)"
                    )
                },
            ),
            Chart(
                "Late, repeated and refused",
                "Events per minute that were more than a step: `late` costs work, `repeated` costs "
                "little, `quarantined` is lost.",
                "cpm",
                6,
                {
                    "{{source}}: {{outcome}}": per_minute(
                        'callgauge_events_total{outcome!="folded"}', "source, outcome"
                    )
                },
            ),
            Chart(
                "Quarantined",
                "Records per minute that can never be processed, by source and reason: bytes that "
                "the sequencer cannot read, events that evaluators cannot. `callgauge quarantine "
                "list` shows them.",
                "cpm",
                6,
                {
                    "bytes of {{source}}: {{reason}}": per_minute(
                        "callgauge_sequencer_refused_total", "source, reason"
                    ),
                    "{{source}}: {{reason}}": per_minute(
                        "callgauge_quarantined_total", "source, reason"
                    ),
                },
                "areas",
            ),
        ),
    ),
    (
        "The log of events",
        (
            Chart(
                "Time behind now",
                "By how much the time up to which all inputs are read is behind now. Silence is "
                "judged and calls close up to there. Half a second is usual; the alert begins at a "
                "minute.",
                "s",
                5,
                {"behind": "max(callgauge_sequencer_known_behind_seconds)"},
            ),
            Chart(
                "Appended",
                "Events per minute that the sequencer wrote to `events`, by input.",
                "cpm",
                5,
                {"{{source}}": per_minute("callgauge_sequencer_events_total", "source")},
                "areas",
            ),
            Chart(
                "Term of the sequencer",
                "It rises when another sequencer becomes active.",
                "short",
                4,
                {"term": "max(callgauge_sequencer_term)"},
            ),
            Chart(
                "Dropped from the log",
                "Records per hour that evaluators drop: what a new sequencer wrote again, and what "
                "the one before it wrote after that.",
                "short",
                5,
                {
                    "repeats": "3600 * sum(rate(callgauge_log_repeats_total[$__rate_interval]))",
                    "void": "3600 * sum(rate(callgauge_log_void_total[$__rate_interval]))",
                },
            ),
            Chart(
                "Inputs and clocks",
                "Input partitions that give no answer, so that time goes on without them; and by "
                "how many seconds the clock of the sequencer differs from the brokers'.",
                "short",
                5,
                {
                    "left out": "sum(callgauge_sequencer_inputs_left_out)",
                    "clock, s": "max(abs(callgauge_sequencer_clock_difference_seconds))",
                },
            ),
        ),
    ),
    (
        "Evaluators",
        (
            Chart(
                "Open calls",
                "Calls in the memory of all evaluators, with those that only wait for a verdict. "
                "One takes some 75 kB.",
                "short",
                5,
                {"open": "sum(callgauge_calls_open)"},
            ),
            Chart(
                "To read again after a kill",
                "Records of the log between the oldest open call and the newest record: a "
                "successor reads them again.",
                "short",
                5,
                {"{{topic}}": "sum by (topic) (callgauge_watermark_lag_messages)"},
                "areas",
            ),
            Chart(
                "Waiting inside",
                "Records of scores that wait for their transaction. They fall within seconds.",
                "short",
                4,
                {"scores": "sum(callgauge_scores_unwritten)"},
            ),
            Chart(
                "Log in a folder",
                "Of `serve` alone: size of its log. At 4 GiB the oldest events go before their "
                "time.",
                "bytes",
                4,
                {"log": "max(callgauge_log_file_bytes)"},
            ),
            Chart(
                "Trouble",
                "Per hour: partitions taken away by another evaluator, roles restarted, records "
                "deleted unread, limits reached, stops of a process for more than 0.5 s.",
                "short",
                6,
                {
                    "fenced": (
                        "3600 * sum(rate(callgauge_partitions_fenced_total[$__rate_interval]))"
                    ),
                    "restarts": "3600 * sum(rate(callgauge_role_restarts_total[$__rate_interval]))",
                    "lost": "3600 * "
                    "(sum(rate(callgauge_input_records_lost_total[$__rate_interval]))"
                    " + sum(rate(callgauge_log_records_lost_total[$__rate_interval])))",
                    "limits": "3600 * sum(rate(callgauge_limits_hit_total[$__rate_interval]))",
                    "stops": "3600 * (sum(rate(callgauge_loop_lag_seconds_count[$__rate_interval]))"
                    ' - sum(rate(callgauge_loop_lag_seconds_bucket{le="0.5"}[$__rate_interval])))',
                },
            ),
        ),
    ),
    (
        "What goes out",
        (
            Chart(
                "Scores",
                "Records of scores per minute: published by evaluators, read by exporters.",
                "cpm",
                6,
                {
                    "published": per_minute("callgauge_scores_published_total"),
                    "read": per_minute("callgauge_scores_read_total"),
                },
            ),
            Chart(
                "Scores and transcripts that failed",
                "Per hour: scores that an exporter cannot read, and attempts to write the file of "
                "a transcript that failed.",
                "short",
                6,
                {
                    "scores": "3600 * sum(rate(callgauge_scores_refused_total[$__rate_interval]))",
                    "transcripts": "3600 * sum(rate("
                    'callgauge_transcript_files_total{outcome=~"failed|undecodable"}[$__rate_interval]))',
                },
            ),
            Chart(
                "Wrong clocks",
                "Events per minute that are dated into the future or long ago, by source. "
                "Latencies of those calls are wrong.",
                "cpm",
                6,
                {
                    "{{source}}: {{kind}}": per_minute(
                        "callgauge_skewed_events_total", "source, kind"
                    )
                },
            ),
            Chart(
                "Goal files with mistakes",
                "Files of the goals folder that cannot be read now. Calls are judged against what "
                "they held before.",
                "short",
                6,
                {"files": "max(callgauge_goal_files_broken)"},
                "number",
            ),
        ),
    ),
    (
        "Judge",
        (
            Chart(
                "Judge spending",
                "Money per hour at the present rate, in the currency of the configured prices, by "
                "model; and what is left of the budget of this hour of the clock.",
                "short",
                6,
                {
                    "{{model}}": (
                        "3600 * sum by (model) (rate(callgauge_judge_cost_total[$__rate_interval]))"
                    ),
                    "left of the hour": 'sum(callgauge_judge_budget_left{budget="hour"})',
                },
            ),
            Chart(
                "Judge latency",
                "From a question's arrival at the judge to its verdict, waiting included, and the "
                "requests to the model alone.",
                "s",
                6,
                {
                    **{
                        f"verdict p{share * 100:.0f}": quantile(share, _VERDICTS)
                        for share in (0.5, 0.95)
                    },
                    "request p95": quantile(
                        0.95, "callgauge_judge_request_seconds_bucket[$__rate_interval]"
                    ),
                },
            ),
            Chart(
                "Judge verdicts",
                "Answers per minute, by the verdict or by why there is none.",
                "cpm",
                6,
                {"{{outcome}}": per_minute("callgauge_judge_verdicts_total", "outcome")},
                "areas",
            ),
            Chart(
                "Waiting for the judge",
                "Age of the question that has waited longest, in seconds, and how many wait. Above "
                "the deadline of a verdict, a minute unless set otherwise, questions are given up: "
                "the subgoals per minute that had no answer when their call closed.",
                "short",
                6,
                {
                    "longest": "max(callgauge_judge_waiting_seconds)",
                    "questions": "sum(callgauge_judge_waiting_questions)",
                    "subgoals without an answer": f"{per_minute(_UNANSWERED)} or vector(0)",
                },
            ),
        ),
    ),
    (
        "Processes",
        (
            Chart(
                "Processor",
                "Cores that each process uses. An evaluator uses one at most: near 1 it needs "
                "another one beside it.",
                "short",
                8,
                {
                    "{{instance}}": (
                        "sum by (instance) (rate(process_cpu_seconds_total[$__rate_interval]))"
                    )
                },
            ),
            Chart(
                "Memory",
                "Resident memory of each process. It follows the open calls.",
                "bytes",
                8,
                {"{{instance}}": "sum by (instance) (process_resident_memory_bytes)"},
            ),
            Chart(
                "Names folded into `other`",
                "Values per hour that lost their name: a label has too many of them, or the page "
                "has too many series.",
                "short",
                8,
                {
                    "{{label}}": (
                        "3600 * sum by (label) "
                        "(rate(callgauge_label_overflow_total[$__rate_interval]))"
                    ),
                    "series": "3600 * sum(rate(callgauge_series_folded_total[$__rate_interval]))",
                },
            ),
        ),
    ),
)
