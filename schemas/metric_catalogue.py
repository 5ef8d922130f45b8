"""Every Prometheus metric of callgauge, as data: the one table that code, rules, dashboards and documents read.

Nothing here counts anything. The roles build their instruments from these rows, and the tests of `deploy/` hold every
rule and every panel against them, so a metric cannot be renamed in one place only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

MetricType = Literal["counter", "gauge", "histogram"]
Role = Literal["exporter", "evaluator", "judge"]
Unit = Literal[
    "calls", "dead airs", "elements", "events", "fields", "hits", "info", "interruptions", "messages", "money", "partitions",
    "questions", "records", "requests", "revisions", "seconds", "tokens", "tool calls", "turns", "unix seconds", "values",
    "verdicts",
]  # fmt: skip
LabelName = Literal[
    "agent", "anchor", "budget", "by", "environment", "group", "kind", "label", "limit", "model", "name", "outcome", "partition",
    "pipeline", "reason", "source", "tenant", "tool", "topic", "version",
]  # fmt: skip

PREFIX: Final = "callgauge_"
OVERFLOW_VALUE: Final = "other"
"""What a capped label says for every value that came after its cap was reached."""

LATENCY_EDGES_SECONDS: Final = (
    0.1, 0.2, 0.3, 0.5, 0.8, 0.815, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 5.0, 8.0, 10.0, 15.0,
)  # fmt: skip
"""Edges of speech latencies. A ratio is exact only at an edge, so every limit an alert may use is one: 1.5 is the
objective (95 % of turns), 3.5 the warning and 5.0 the critical p95 of published voice-agent fleets, 0.8 to 1.2 where
callers start to doubt the line, 0.8 and 0.815 the usual p95 limits of speech recognition and of speech's first byte."""

EVENT_TO_SCORE_EDGES_SECONDS: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Edges of our own delay: 0.25 is the p99 the design promises, 10.0 the limit of scores fresh enough to act on."""

JUDGE_REQUEST_EDGES_SECONDS: Final = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 60.0)
"""Edges of one request to a judge's model: a short answer takes 0.5 to 3 s, 20 is where one try is given up."""

JUDGE_VERDICT_EDGES_SECONDS: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 60.0)
"""Edges of a whole verdict, waiting included: 30 is the usual deadline of one, 60 the longest."""


@dataclass(frozen=True, slots=True)
class Label:
    """One label as one metric uses it. What bounds its values is exactly one of three things.

    Attributes:
        name: The label's name.
        meaning: What a value says, one phrase.
        values: The closed set of values, empty if the set is not known beforehand.
        cap: For values that arrive in events: how many distinct ones keep their name; later ones are `OVERFLOW_VALUE`.

    A label with neither takes its values from the deployment (partitions, consumer groups), never from an event.
    """

    name: LabelName
    meaning: str
    values: tuple[str, ...] = ()
    cap: int | None = None


_AGENT = Label("agent", "the voice agent, as `call_started` names it", cap=50)
_TENANT = Label("tenant", "whose call it is", cap=20)
_ENVIRONMENT = Label("environment", "where the agent runs", cap=10)
_TOOL = Label("tool", "the tool's name", cap=50)
_GROUP = Label("group", "the consumer group")
_TOPIC = Label("topic", "the topic read")
_PARTITION = Label("partition", "the partition's number")
_VERSION = Label("version", "the installed version")
_MODEL = Label("model", "the judge's model")

_CALL_OUTCOME = Label(
    "outcome",
    "why the call closed",
    (
        "ended",
        "session_ended",
        "idle",
        "limit_duration",
        "limit_events",
        "limit_turns",
        "limit_kept_bytes",
        "limit_replays",
        "limit_open_calls",
    ),
)
_TOOL_OUTCOME = Label("outcome", "how the tool call ended", ("success", "error", "unanswered"))
_EVENT_OUTCOME = Label(
    "outcome",
    "what became of the event",
    ("folded", "repeated", "late", "quarantined", "unknown", "after_close", "replayed"),
)
_EVENT_SOURCE = Label("source", "who sent the event", ("pipecat", "elevenlabs", "audit", "judge", "control"))
_SPEECH_SOURCE = Label("source", "the stream the times came from", ("elevenlabs", "pipecat", "audit"))
_ANCHOR = Label(
    "anchor",
    "what the end of the user's speech was read from",
    ("audio", "vad", "turn_release", "transcript", "estimated"),
)
_PIPELINE = Label("pipeline", "the kind of agent", ("cascade", "audio_llm", "s2s"))
_BY = Label("by", "who spoke over the other", ("user", "assistant"))
_UNMEASURED_REASON = Label(
    "reason",
    "what was missing",
    ("no_user_speech", "no_assistant_speech", "no_speech_events", "user_still_speaking", "withdrawn"),
)
_QUARANTINE_REASON = Label(
    "reason",
    "why the record can never be processed",
    (
        "undecodable", "empty_key", "record_too_large", "text_too_long", "time_out_of_bounds", "unknown_role",
        "invalid_event",
    ),
)  # fmt: skip
_KIND = Label("kind", "the kind of score record", ("score", "fact", "closed"))
_SCORE_NAME = Label("name", "the score's name", ("turn_response_latency",))
_LIMIT = Label("limit", "the limit", ("duration", "events", "turns", "kept_bytes", "replays", "held", "open_calls"))
_CAPPED_LABEL = Label("label", "the label whose cap was reached", ("agent", "tenant", "environment", "tool"))

_JUDGE_KIND = Label(
    "kind",
    "what is judged",
    ("subgoal", "conciseness", "speakability", "faithfulness", "conversation_progression"),
)
_REQUEST_OUTCOME = Label(
    "outcome",
    "what came of the request",
    (
        "answered", "unreadable", "truncated", "refused", "rate_limited", "rejected", "unavailable", "timed_out",
    ),
)  # fmt: skip
_VERDICT_OUTCOME = Label(
    "outcome",
    "the verdict, or why there is none",
    (
        "complete", "incomplete", "rated", "not_applicable", "judge_disabled", "not_sampled", "over_budget", "queue_full",
        "too_long", "unknown_prompt", "deadline", "superseded", "invalid_answers", "refused", "unavailable", "rejected",
        "circuit_open",
    ),
)  # fmt: skip
_TOKEN_KIND = Label("kind", "read, read before, or written", ("prompt", "cached", "answer"))
_BUDGET = Label("budget", "all calls together, or the agent that spent most", ("hour", "agent"))

_WHO = (_AGENT, _TENANT, _ENVIRONMENT)
_LAG = (_GROUP, _TOPIC, _PARTITION)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: what it counts, in what unit, split by what, and who exposes it.

    Attributes:
        name: The full name, as it stands on `/metrics` (a histogram's without its suffixes).
        type: Counter, gauge or histogram.
        unit: What one step of the value is.
        help: A full sentence; for a duration or an event, from when to when or at which moment.
        role: The role whose `/metrics` shows it.
        label_set: Its labels, in the order in which children are addressed.
        edges: Upper edges of a histogram's buckets in seconds, ascending, without infinity; empty otherwise.
    """

    name: str
    type: MetricType
    unit: Unit
    help: str
    role: Role
    label_set: tuple[Label, ...] = ()
    edges: tuple[float, ...] = ()

    @property
    def labels(self) -> tuple[LabelName, ...]:
        """The label names, in the order in which children are addressed."""
        return tuple(label.name for label in self.label_set)

    @property
    def series(self) -> Mapping[str, frozenset[str]]:
        """The names rules and panels may select, each with the labels that its samples carry."""
        names = frozenset[str](self.labels)
        if self.type != "histogram":
            return {self.name: names}
        return {f"{self.name}_bucket": names | {"le"}, f"{self.name}_count": names, f"{self.name}_sum": names}

    @property
    def le_values(self) -> tuple[str, ...]:
        """The texts that `le` takes on `/metrics`: one per edge, always with a decimal point, then `+Inf`."""
        return (*(str(float(edge)) for edge in self.edges), "+Inf") if self.edges else ()

    @property
    def most_children(self) -> int:
        """How many label combinations there can be, overflow included; labels of the deployment count as one value."""
        sizes = (len(label.values) or (label.cap + 1 if label.cap else 1) for label in self.label_set)
        return math.prod(sizes)


METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "callgauge_calls_active", "gauge", "calls",
        "Calls whose first event has been seen and that have not closed yet.",
        "exporter", _WHO,
    ),
    Metric(
        "callgauge_calls_started_total", "counter", "calls",
        "Calls seen to start, each counted once, at the first score record of the call.",
        "exporter", _WHO,
    ),
    Metric(
        "callgauge_calls_ended_total", "counter", "calls",
        "Calls that closed, by why they closed, each counted once, when its closing record is read.",
        "exporter", (*_WHO, _CALL_OUTCOME),
    ),
    Metric(
        "callgauge_calls_forgotten_total", "counter", "calls",
        "Open calls that the exporter dropped from its memory because it held as many as it may.",
        "exporter",
    ),
    Metric(
        "callgauge_turns_total", "counter", "turns",
        "Turns from turn 1 on (the greeting is turn 0 and does not count), each counted once, when the next one begins, "
        "or at the end of the call if it was answered.",
        "exporter", _WHO,
    ),
    Metric(
        "callgauge_turn_response_latency_seconds", "histogram", "seconds",
        "Voice-to-voice latency of a turn, from the end of the user's audio to the start of the assistant's, observed "
        "once, when the assistant starts to speak.",
        "exporter", (_AGENT, _SPEECH_SOURCE, _ANCHOR), LATENCY_EDGES_SECONDS,
    ),
    Metric(
        "callgauge_turns_overlapped_total", "counter", "turns",
        "Turns whose latency is negative because the assistant started before the user's audio ended; they are not in "
        "the latency histogram.",
        "exporter", (_AGENT, _SPEECH_SOURCE, _ANCHOR),
    ),
    Metric(
        "callgauge_turns_unmeasured_total", "counter", "turns",
        "Turns that ended without a latency anyone could know, by what was missing.",
        "exporter", (_AGENT, _UNMEASURED_REASON),
    ),
    Metric(
        "callgauge_turn_revisions_total", "counter", "revisions",
        "Scores of a turn that were published again with another value after they had been counted.",
        "exporter", (_AGENT, _SCORE_NAME),
    ),
    Metric(
        "callgauge_interruptions_total", "counter", "interruptions",
        "Times one side started to speak while the other still spoke, by who started.",
        "exporter", (_AGENT, _BY),
    ),
    Metric(
        "callgauge_dead_air_total", "counter", "dead airs",
        "Silences that outlasted the threshold, from the end of the user's audio with nobody speaking and no tool "
        "running; each counted once, when the threshold passes, and never taken back.",
        "exporter", (_AGENT,),
    ),
    Metric(
        "callgauge_tool_calls_total", "counter", "tool calls",
        "Tool calls by how they ended, each counted once, at its answer or, unanswered, at the end of the call.",
        "exporter", (_AGENT, _TOOL, _TOOL_OUTCOME),
    ),
    Metric(
        "callgauge_event_to_score_seconds", "histogram", "seconds",
        "Our own delay, from the broker's timestamp of the record that caused a score to the update of its metric.",
        "exporter", (_PIPELINE,), EVENT_TO_SCORE_EDGES_SECONDS,
    ),
    Metric(
        "callgauge_label_overflow_total", "counter", "values",
        "Uses of a label value that came after the label's cap was reached and is shown as `other`.",
        "exporter", (_CAPPED_LABEL,),
    ),
    Metric(
        "callgauge_scores_read_total", "counter", "records",
        "Score records read and counted, by kind.",
        "exporter", (_KIND,),
    ),
    Metric(
        "callgauge_scores_refused_total", "counter", "records",
        "Score records that could not be decoded and were left out.",
        "exporter",
    ),
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
        "callgauge_limits_hit_total", "counter", "hits",
        "Times a call reached a limit and was closed by it; `held` closes nothing: an input lagged too far to wait for it.",
        "evaluator", (_LIMIT,),
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
        "Records between the first record of the oldest open call and the last one folded: what a successor reads again.",
        "evaluator", _LAG,
    ),
    Metric(
        "callgauge_input_records_lost_total", "counter", "records",
        "Input records that retention took before they were read; calls they belong to are incomplete.",
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
        "evaluator", (_KIND,),
    ),
    Metric(
        "callgauge_build_info", "gauge", "info",
        "Always 1; the label says which version runs.",
        "evaluator", (_VERSION,),
    ),
    Metric(
        "callgauge_judge_verdicts_total", "counter", "verdicts",
        "Questions answered, by the verdict or by why there is none, each counted once, when the answer is made.",
        "judge", (_JUDGE_KIND, _VERDICT_OUTCOME),
    ),
    Metric(
        "callgauge_judge_verdict_seconds", "histogram", "seconds",
        "Time of a verdict, from its question's arrival at the judge to the verdict, waiting included.",
        "judge", (_JUDGE_KIND,), JUDGE_VERDICT_EDGES_SECONDS,
    ),
    Metric(
        "callgauge_judge_requests_total", "counter", "requests",
        "Requests put to the model, each counted once at its end, however often it had to be sent.",
        "judge", (_MODEL, _REQUEST_OUTCOME),
    ),
    Metric(
        "callgauge_judge_retries_total", "counter", "requests",
        "Times a request to the model was sent again after it had failed or had been put off.",
        "judge", (_MODEL,),
    ),
    Metric(
        "callgauge_judge_request_seconds", "histogram", "seconds",
        "Time of a request to the model, from its first sending to the end of the last answer.",
        "judge", (_MODEL, _REQUEST_OUTCOME), JUDGE_REQUEST_EDGES_SECONDS,
    ),
    Metric(
        "callgauge_judge_tokens_total", "counter", "tokens",
        "Tokens as the endpoint counts them; what it had cached is not counted as read.",
        "judge", (_MODEL, _REQUEST_OUTCOME, _TOKEN_KIND),
    ),
    Metric(
        "callgauge_judge_cost_total", "counter", "money",
        "Money spent on the model, by the configured prices; a request whose tokens nobody counted costs what it could.",
        "judge", (_MODEL, _REQUEST_OUTCOME),
    ),
    Metric(
        "callgauge_judge_budget_left", "gauge", "money",
        "Money left of this hour of the clock: of the whole budget, and of the agent's that has least left.",
        "judge", (_BUDGET,),
    ),
    Metric(
        "callgauge_judge_waiting_questions", "gauge", "questions",
        "Questions that wait to be put to the model.",
        "judge",
    ),
    Metric(
        "callgauge_judge_waiting_seconds", "gauge", "seconds",
        "Age of the question that has waited longest, from its arrival at the judge; 0 if none waits.",
        "judge",
    ),
    Metric(
        "callgauge_judge_votes_not_unanimous_total", "counter", "verdicts",
        "Votes in which the model contradicted itself on the same question.",
        "judge", (_MODEL,),
    ),
    Metric(
        "callgauge_judge_questions_refused_total", "counter", "records",
        "Records of judge.requests that are no questions and were left out.",
        "judge",
    ),
)  # fmt: skip

LABEL_CAPS: Final[Mapping[LabelName, int]] = MappingProxyType(
    {label.name: label.cap for metric in METRICS for label in metric.label_set if label.cap is not None}
)
"""How many distinct values a label may take before later ones become `OVERFLOW_VALUE`."""

_BY_NAME: Final = {metric.name: metric for metric in METRICS}
_BY_SERIES: Final = {series: metric for metric in METRICS for series in metric.series}


def metric_named(name: str) -> Metric:
    """The metric of that full name.

    Raises:
        KeyError: No metric has that name; the catalogue is the only place to add one.
    """
    return _BY_NAME[name]


def metric_of_series(series: str) -> Metric:
    """The metric a selector reads: `callgauge_x_bucket` gives `callgauge_x`.

    Raises:
        KeyError: No metric exposes a series of that name.
    """
    return _BY_SERIES[series]


def metrics_of(role: Role) -> tuple[Metric, ...]:
    """The metrics that one role exposes, in the order of the table."""
    return tuple(metric for metric in METRICS if metric.role == role)


def render_markdown() -> str:
    """The table as GitHub markdown: one row per metric, then one per label. Ends with a line break."""
    lines = ["| metric | type | unit | labels | on | meaning |", "|---|---|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{name}`" for name in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.type} | {metric.unit} | {labels} | {metric.role} | {metric.help} |")
    lines += ["", "| label | meaning | values |", "|---|---|---|"]
    labels_in_order = dict.fromkeys(label for metric in METRICS for label in metric.label_set)
    for label in sorted(labels_in_order, key=lambda label: label.name):
        if label.values:
            bound = ", ".join(f"`{value}`" for value in label.values)
        elif label.cap:
            bound = f"the first {label.cap}, then `{OVERFLOW_VALUE}`"
        else:
            bound = "given by the deployment"
        lines.append(f"| `{label.name}` | {label.meaning} | {bound} |")
    return "\n".join(lines) + "\n"
