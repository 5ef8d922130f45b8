"""The dashboard Grafana shows first: what callers feel now, and whether these numbers are fresh."""

from charts import LATENCY, VARIABLES, Chart, Row, per_minute, quantile

from schemas.scores.latency_stages import CONTRIBUTIONS, Stage

_OR_NOBODYS = ",".join(f'{name}=~"${name}|"' for name in VARIABLES)
"""An alert about the pipeline, or about a whole tenant, does not have all of these labels."""
_STAGES = "callgauge_stage_latency_seconds"
_SERVICE_STAGES = "|".join(
    (
        Stage.ENDPOINTING,
        Stage.STT_TRAILING,
        Stage.LLM_FIRST_TOKEN,
        Stage.LLM_FIRST_SENTENCE,
        Stage.LLM_LAST_SENTENCE,
        Stage.TOOL_REQUEST,
        Stage.TOOL_RUN,
        Stage.TTS_FIRST_BYTE,
    )
)
"""Those on the way to an answer; the six latencies of an ElevenLabs agent are among them."""
_CONTRIBUTIONS = "|".join(
    stage for stage in CONTRIBUTIONS.values() if stage is not Stage.FIRST_REQUEST
)
"""A wait for the greeting begins with the first request, not with the user's last sound."""


def _share_of_turns(series: str, by: str = "") -> str:
    counted = f"sum{f' by ({by})' if by else ''} (rate({series}[$__rate_interval]))"
    return f"{counted} / scalar(sum(rate(callgauge_turns_total{{WHOSE}}[$__rate_interval])) > 0)"


def _of_each_stage(share: float, stages: str) -> str:
    times = f'{_STAGES}_bucket{{WHOSE,stage=~"{stages}"}}[$__rate_interval]'
    return f"histogram_quantile({share}, sum by (le, stage) (rate({times})))"


def rows(console: str, runbooks: str) -> tuple[Row, ...]:
    """Returns the rows of the dashboard.

    Args:
        console: Address of the console, for the pages of calls; empty for no links to them.
        runbooks: Address of the folder of runbooks; empty as well.
    """
    return (_alerts(console, runbooks), *_ROWS, _FRESHNESS)


def _alerts(console: str, runbooks: str) -> Row:
    labels = "&".join(f"{name}=${{__data.fields.{name}:percentencode}}" for name in VARIABLES)
    links = {"Runbook": f"{runbooks}/${{__data.fields.alertname}}.md"} if runbooks else {}
    links |= {"Calls": f"{console}/calls?{labels}"} if console else {}
    table = Chart(
        "Alerts",
        "Alerts that fire, or will if their trouble lasts, of the chosen agents, tenants and "
        "environments and of none in particular. The watchdog is always here: without it "
        "Prometheus has no rules.",
        "short",
        24,
        {"": f'ALERTS{{alertname=~"Callgauge.+",{_OR_NOBODYS}}}'},
        "table",
        links,
    )
    return "What is wrong", (table,)


_ROWS: tuple[Row, ...] = (
    (
        "Calls",
        (
            Chart(
                "Calls active",
                "Calls running now: begun and not closed yet.",
                "short",
                6,
                {"active": "sum(callgauge_calls_active{WHOSE})"},
                "number",
            ),
            Chart(
                "Calls started and ended",
                "Calls per minute. The lines follow each other; a gap that stays means that calls "
                "do not close.",
                "cpm",
                9,
                {
                    "started": per_minute("callgauge_calls_started_total{WHOSE}"),
                    "ended": per_minute("callgauge_calls_ended_total{WHOSE}"),
                },
            ),
            Chart(
                "Why calls ended",
                "Closed calls per minute by reason. `ended` and `session_ended` are regular; "
                "`idle` means that no end was ever sent.",
                "cpm",
                9,
                {"{{outcome}}": per_minute("callgauge_calls_ended_total{WHOSE}", "outcome")},
                "areas",
            ),
        ),
    ),
    (
        "Voice to voice",
        (
            Chart(
                "Voice-to-voice latency",
                "From the end of the user's audio to the start of the assistant's. The objective "
                "is 95 % of turns within 1.5 s. A point names one turn's conversation. The first "
                "value of each turn counts, as the caller felt it; `callgauge_turns_final_total` "
                "has the values at the close.",
                "s",
                12,
                {f"p{share * 100:.0f}": quantile(share, LATENCY) for share in (0.5, 0.95, 0.99)},
            ),
            Chart(
                "Voice-to-voice latency, all turns",
                "How many turns took how long. Two bands mean two kinds of turns, often those with "
                "and without a tool.",
                "s",
                12,
                {"{{le}}": f"sum by (le) (increase({LATENCY}))"},
                "heatmap",
            ),
        ),
    ),
    (
        "Where the time goes",
        (
            Chart(
                "Stages of an answer, median",
                "How long each stage takes in half of the turns, as whoever measured it says. "
                "Stages overlap, and not every source measures all of them.",
                "s",
                12,
                {"{{stage}}": _of_each_stage(0.5, _SERVICE_STAGES)},
            ),
            Chart(
                "Stages of an answer, p95",
                "How long each stage takes at most in 95 % of the turns. The limits of "
                "`CallgaugeStageSlow`, in `deploy/slo.yaml`, are about these and about the median.",
                "s",
                12,
                {"{{stage}}": _of_each_stage(0.95, _SERVICE_STAGES)},
            ),
        ),
    ),
    (
        "What a wait is made of",
        (
            Chart(
                "Contributions to a wait, mean",
                "Of the turns for which pipecat reports a latency breakdown: its contributions, "
                "which add up to the wait from the user's last sound to the bot's first.",
                "s",
                9,
                {
                    "{{stage}}": "sum by (stage) (rate("
                    f'{_STAGES}_sum{{WHOSE,stage=~"{_CONTRIBUTIONS}"}}[$__rate_interval])) / '
                    "scalar(sum(rate("
                    f'{_STAGES}_count{{WHOSE,stage="endpointing_wait"}}[$__rate_interval])) > 0)'
                },
                "areas",
            ),
            Chart(
                "Contributions to a wait, p95",
                "How long each of these contributions takes at most in 95 % of the turns that have "
                "it. They do not add up: the slowest turns of one are not those of another.",
                "s",
                9,
                {"{{stage}}": _of_each_stage(0.95, _CONTRIBUTIONS)},
            ),
            Chart(
                "Sources that disagree",
                "Stages of turns, per minute, for which two sources gave numbers further apart "
                "than measuring twice explains: a clock is skewed, or one measures something else.",
                "cpm",
                6,
                {"{{stage}}": per_minute("callgauge_stage_disagreements_total{WHOSE}", "stage")},
            ),
        ),
    ),
    (
        "Conversation",
        (
            Chart(
                "Turns",
                "Turns begun per minute, without the greeting.",
                "cpm",
                6,
                {"turns": per_minute("callgauge_turns_total{WHOSE}")},
            ),
            Chart(
                "Interruptions",
                "Interruptions per turn, by who spoke over the other.",
                "percentunit",
                6,
                {"by {{by}}": _share_of_turns("callgauge_interruptions_total{WHOSE}", "by")},
            ),
            Chart(
                "Dead air",
                "Share of turns in which the user had spoken and nobody answered for longer than "
                "the threshold.",
                "percentunit",
                6,
                {"dead air": _share_of_turns("callgauge_dead_air_total{WHOSE}")},
            ),
            Chart(
                "Turns without a latency",
                "Share of turns that the latency does not count: unmeasured, by what was missing, "
                "and overlapped, where the assistant spoke first.",
                "percentunit",
                6,
                {
                    "{{reason}}": _share_of_turns(
                        "callgauge_turns_unmeasured_total{WHOSE}", "reason"
                    ),
                    "overlapped": _share_of_turns("callgauge_turns_overlapped_total{WHOSE}"),
                },
            ),
        ),
    ),
    (
        "Tools",
        (
            Chart(
                "Tool calls",
                "Tool calls per minute by how they ended.",
                "cpm",
                12,
                {"{{outcome}}": per_minute("callgauge_tool_calls_total{WHOSE}", "outcome")},
                "areas",
            ),
            Chart(
                "Tool errors",
                "Share of each tool's calls that failed or were never answered.",
                "percentunit",
                12,
                {
                    "{{tool}}": "sum by (tool) (rate(callgauge_tool_calls_total"
                    '{WHOSE,outcome=~"error|unanswered"}[$__rate_interval])) / (sum by (tool) '
                    "(rate(callgauge_tool_calls_total{WHOSE}[$__rate_interval])) > 0)"
                },
            ),
        ),
    ),
    (
        "Progress",
        (
            Chart(
                "Progress of running calls",
                "Mean share of their subgoals that running calls have reached, as far as it is "
                "known. A line that falls may only mean that new calls have begun.",
                "percentunit",
                6,
                {
                    "{{agent}}": "sum by (agent) "
                    "(callgauge_progress_active{WHOSE}) / (sum by "
                    "(agent) "
                    '(callgauge_calls_with_goals_active{WHOSE,progress="known"}) > 0)'
                },
            ),
            Chart(
                "Subgoals",
                "Subgoals reached per minute by what checked them, beside those of the calls that "
                "began.",
                "cpm",
                6,
                {
                    "reached, {{checked_by}}": per_minute(
                        "callgauge_subgoals_reached_total{WHOSE}", "checked_by"
                    ),
                    "of new calls": per_minute("callgauge_subgoals_total{WHOSE}"),
                },
            ),
            Chart(
                "Stalls",
                "Calls per minute that went on for too many turns, or for too long, without "
                "reaching a further subgoal.",
                "cpm",
                6,
                {"by {{by}}": per_minute("callgauge_progress_stalls_total{WHOSE}", "by")},
                "areas",
            ),
            Chart(
                "Success",
                "Share of the calls with goals that closed with every subgoal reached, of those "
                "where that is known.",
                "percentunit",
                6,
                {
                    "{{agent}}": "sum by (agent) (rate(callgauge_calls_scored_total"
                    '{WHOSE,outcome="success"}[$__rate_interval])) / (sum by (agent) '
                    "(rate(callgauge_calls_scored_total{WHOSE}[$__rate_interval])) > 0)"
                },
            ),
        ),
    ),
)

_FRESHNESS: Row = (
    "Are these numbers fresh? (all agents)",
    (
        Chart(
            "Evaluator behind",
            "Age of the oldest event not yet processed. Above a minute every number here is old.",
            "s",
            8,
            {"{{topic}}": "max by (topic) (callgauge_consumer_lag_seconds)"},
        ),
        Chart(
            "Event to score",
            "From the broker's timestamp of an event to the metric that it changed, without waits "
            "that are meant.",
            "s",
            8,
            {
                f"p{share * 100:.0f}": quantile(
                    share, "callgauge_event_to_score_seconds_bucket[$__rate_interval]"
                )
                for share in (0.5, 0.99)
            },
        ),
        Chart(
            "Events",
            "Events per minute by what became of them. `late` costs work, `quarantined` is lost to "
            "the scores.",
            "cpm",
            8,
            {"{{outcome}}": per_minute("callgauge_events_total", "outcome")},
            "areas",
        ),
    ),
)
