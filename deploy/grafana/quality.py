"""The dashboard of the people who build agents: how good the calls are, agent by agent, beside the
same period before.

Most values are known when a call closes, so each point covers ten minutes at least.
"""

from collections.abc import Callable

from charts import BEFORE, Chart, Row

_K = 3
"""Calls of pass@k and pass^k."""


def _grown(series: str, selector: str, by: str, offset: str) -> str:
    return f"sum by ({by}) (rate({series}{{{selector}}}[$__rate_interval]{offset}))"


def _now_and_before(by: str, query: Callable[[str], str]) -> dict[str, str]:
    """Returns what `query` makes of no offset and of the length of the shown period, with legends
    of these labels.
    """
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return {legend: query(""), f"{legend}{BEFORE}": query(" offset $__range")}


def _share(
    part: str, whole: str, by: str = "agent", of_part: str = "WHOSE", of_whole: str = "WHOSE"
) -> dict[str, str]:
    """Returns the queries of one counter divided by another one, now and in the period before."""
    return _now_and_before(
        by,
        lambda offset: (
            f"{_grown(part, of_part, by, offset)} / ({_grown(whole, of_whole, by, offset)} > 0)"
        ),
    )


def _mean(histogram: str, by: str = "agent", selector: str = "WHOSE") -> dict[str, str]:
    """Returns the queries of the mean of a histogram, now and in the period before."""
    return _share(f"{histogram}_sum", f"{histogram}_count", by, selector, selector)


def _eva(name: str) -> dict[str, str]:
    return _mean("callgauge_eva_score_ratio", selector=f'WHOSE,name="{name}"')


def _per_call(counter: str, by: str = "agent", selector: str = "WHOSE") -> dict[str, str]:
    """Returns the queries of a counter divided by the closed calls, now and in the
    period before.
    """
    return _share(counter, "callgauge_call_turns_count", by, of_part=selector)


def _quantile(share: float, histogram: str, by: str = "agent") -> dict[str, str]:
    return _now_and_before(
        by,
        lambda offset: (
            f"histogram_quantile({share}, "
            f"{_grown(f'{histogram}_bucket', 'WHOSE', f'{by}, le', offset)})"
        ),
    )


_CALLS_OF_SETS = "callgauge_goal_set_calls_total"
_SUCCESS = _share(
    _CALLS_OF_SETS,
    _CALLS_OF_SETS,
    "goal_set",
    'WHOSE,outcome="success"',
    'WHOSE,outcome!="unscored"',
)
_SUCCESS_NOW = _SUCCESS["{{goal_set}}"]

ROWS: tuple[Row, ...] = (
    (
        "Goal sets",
        (
            Chart(
                "Success of goal sets",
                "Share of the closed calls of each goal set that reached every subgoal, of those "
                "where that is known. The alert about falling success compares the last hour with "
                "the day before it.",
                "percentunit",
                8,
                _SUCCESS,
            ),
            Chart(
                "Success of three calls",
                "Chance that one of three calls of a goal set succeeds (pass@3), and that all "
                "three do (pass^3), if calls do not depend on each other. `callgauge trials` "
                "estimates both from single calls.",
                "percentunit",
                8,
                {
                    f"{{{{goal_set}}}} pass@{_K}": f"1 - (1 - {_SUCCESS_NOW}) ^ {_K}",
                    f"{{{{goal_set}}}} pass^{_K}": f"({_SUCCESS_NOW}) ^ {_K}",
                },
            ),
            Chart(
                "Progress of goal sets",
                "Mean share of the subgoals that the closed calls of each goal set had reached.",
                "percentunit",
                8,
                _mean("callgauge_goal_set_progress_ratio", "goal_set"),
            ),
        ),
    ),
    (
        "How far calls get, and how soon",
        (
            Chart(
                "Progress of closed calls",
                "Mean share of their subgoals that calls had reached when they closed.",
                "percentunit",
                6,
                _mean("callgauge_call_progress_ratio"),
            ),
            Chart(
                "AUC",
                "Mean area under the progress of closed calls: 1 if the first turn reaches "
                "everything. It falls when calls get as far as before and later.",
                "percentunit",
                6,
                _mean("callgauge_call_auc_ratio"),
            ),
            Chart(
                "PPT",
                "Mean progress per turn of closed calls: progress divided by the turn that first "
                "had it.",
                "percentunit",
                6,
                _mean("callgauge_call_ppt_ratio"),
            ),
            Chart(
                "Success by agent",
                "Share of the closed calls with goals that reached every subgoal, of those where "
                "that is known.",
                "percentunit",
                6,
                _share(
                    "callgauge_calls_scored_total",
                    "callgauge_calls_scored_total",
                    of_part='WHOSE,outcome="success"',
                ),
            ),
        ),
    ),
    (
        "Versions",
        (
            Chart(
                "Success by version",
                "Share of the closed calls of each version of the agents that reached every "
                "subgoal, of those where that is known. `call_started` says the version; "
                "`callgauge history compare` tells chance from change.",
                "percentunit",
                12,
                _mean("callgauge_version_score_ratio", "agent, version", 'WHOSE,name="success"'),
            ),
            Chart(
                "Scores by version",
                "Mean of each score of closed calls by version, over the chosen agents.",
                "percentunit",
                12,
                _mean("callgauge_version_score_ratio", "version, name"),
            ),
        ),
    ),
    (
        "Tools",
        (
            Chart(
                "Tool correctness",
                "Mean share of the expected tool calls that were made as expected. The record "
                "`call` names those that were not.",
                "percentunit",
                12,
                _mean("callgauge_tool_correctness_ratio"),
            ),
            Chart(
                "Tool call validity",
                "EVA's share of tool calls without an error about their name or arguments. Where "
                "tools do not name their errors as EVA's do, `eva_tool_schema_validity` among "
                "EVA's metrics below says it.",
                "percentunit",
                12,
                _eva("eva_tool_call_validity"),
            ),
        ),
    ),
    (
        "EVA",
        (
            Chart(
                "Turn taking",
                "How well turns were timed by EVA's turn_taking, from 0 to 1: neither late nor "
                "over the other's words.",
                "percentunit",
                6,
                _mean("callgauge_turn_taking_ratio"),
            ),
            Chart(
                "EVA-X, mean",
                "EVA's composite of the experience: the mean of those of turn taking, conciseness "
                "and conversation progression that are known. Without text judges it is turn "
                "taking alone.",
                "percentunit",
                6,
                _eva("eva_x_mean"),
            ),
            Chart(
                "EVA-X, pass",
                "Share of the calls in which each part of EVA-X is good enough.",
                "percentunit",
                6,
                _eva("eva_x_pass"),
            ),
            Chart(
                "EVA's metrics of calls",
                "Mean of each of EVA's metrics that need no judge, over the chosen agents.",
                "percentunit",
                6,
                _mean("callgauge_eva_score_ratio", "name"),
            ),
        ),
    ),
    (
        "Text judges",
        (
            Chart(
                "Ratings of text",
                "Mean rating by each text judge, from 0 to 1, over the chosen agents. A judge that "
                "is not switched on has no line.",
                "percentunit",
                12,
                _mean("callgauge_text_rating_ratio", "name"),
            ),
            Chart(
                "Scores that nobody knows",
                "Scores per closed call that stay unknown, over the chosen agents: their lines "
                "above are those of the other calls.",
                "short",
                12,
                {
                    "{{name}}": f"{_grown('callgauge_scores_unscored_total', 'WHOSE', 'name', '')} "
                    "/ "
                    "scalar("
                    f"sum(rate(callgauge_call_turns_count{{WHOSE}}[$__rate_interval])) > 0)"
                },
            ),
        ),
    ),
    (
        "Words",
        (
            Chart(
                "Word error rate",
                "Words that speech recognition got wrong, left out or put in, by the words that "
                "simulated callers meant to say.",
                "percentunit",
                8,
                _share("callgauge_stt_word_errors_total", "callgauge_stt_reference_words_total"),
            ),
            Chart(
                "Differences between transcripts",
                "Words by which the transcripts of the two sides differ, by the words that a side "
                "meant to say. Which of them is wrong is not known.",
                "percentunit",
                8,
                _share(
                    "callgauge_transcript_differences_total",
                    "callgauge_transcript_words_total",
                    "agent, speaker",
                ),
            ),
            Chart(
                "Repeated questions",
                "Questions per call that a side had asked before in the same words: it was not "
                "understood, or has forgotten.",
                "short",
                8,
                {
                    legend.replace("{{agent}}", f"{{{{agent}}}} {speaker}"): query
                    for speaker in ("user", "assistant")
                    for legend, query in _per_call(
                        "callgauge_repeated_questions_total", selector=f'WHOSE,speaker="{speaker}"'
                    ).items()
                },
            ),
        ),
    ),
    (
        "Speech",
        (
            Chart(
                "Talk ratio",
                "The agent's share of the time in which either side was heard.",
                "percentunit",
                6,
                _share(
                    "callgauge_talk_seconds_total",
                    "callgauge_talk_seconds_total",
                    of_part='WHOSE,speaker="assistant"',
                ),
            ),
            Chart(
                "Both at once",
                "How long both sides were heard at once, per call.",
                "s",
                6,
                _per_call("callgauge_overlap_seconds_total"),
            ),
            Chart(
                "Silence",
                "How long callers waited in silences of 3 s or longer, per call.",
                "s",
                6,
                _per_call("callgauge_dead_air_seconds_total"),
            ),
            Chart(
                "Time to the first word",
                "From the beginning of a call to the assistant's first sound, in half of the "
                "calls.",
                "s",
                6,
                _quantile(0.5, "callgauge_first_word_seconds"),
            ),
        ),
    ),
    (
        "Manner, and cost",
        (
            Chart(
                "Longest monologue",
                "A side's longest stretch of speech without a word of the other, in half of the "
                "calls.",
                "s",
                8,
                _quantile(0.5, "callgauge_longest_monologue_seconds", "agent, speaker"),
            ),
            Chart(
                "Pace",
                "Mean words per minute of a side. People talk at 120 to 180; above 200 a voice is "
                "hard to follow.",
                "short",
                8,
                _mean("callgauge_words_per_minute", "agent, speaker"),
            ),
            Chart(
                "Cost per call",
                "Mean cost of the agent's models, of the calls whose cost is known. "
                "`callgauge_calls_without_cost_total` counts those in which a model has no price.",
                "currencyUSD",
                8,
                _mean("callgauge_call_cost_dollars"),
            ),
        ),
    ),
)
