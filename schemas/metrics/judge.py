"""The metrics of the judge role: questions, verdicts, latencies and costs."""

from typing import Final

from schemas.closed_sets import JudgeKind, TrialOutcome, UnjudgedReason
from schemas.metrics.definition import REDACTION_TYPE, Label, Metric, words_of

JUDGE_REQUEST_EDGES_SECONDS: Final = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 60.0)
"""Edges of one request to a judge's model: a short answer takes 0.5 to 3 s, 20 is where one try is given up."""

JUDGE_VERDICT_EDGES_SECONDS: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 60.0)
"""Edges of a whole verdict, waiting included: 30 is the usual deadline of one, 60 the longest."""

_MODEL = Label("model", "the judge's model")
_JUDGE_KIND = Label("kind", "kind of the question", words_of(JudgeKind))
_REQUEST_OUTCOME = Label("outcome", "result of the request", words_of(TrialOutcome))
_VERDICT_OUTCOME = Label(
    "outcome",
    "the verdict, or why there is none",
    ("complete", "incomplete", "rated", "not_applicable", *words_of(UnjudgedReason)),
)
_REPLY_FAULT = Label("cause", "fault of the reply", ("too_large", "compressed", "redirected", "token_count"))
_TOKEN_KIND = Label("kind", "read, read before, or written", ("prompt", "cached", "answer"))
_BUDGET = Label("budget", "all calls together, or the agent that spent most", ("hour", "agent"))

JUDGE_METRICS: Final[tuple[Metric, ...]] = (
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
        "callgauge_judge_reply_faults_total", "counter", "requests",
        "Requests to the model with a reply that was dropped (larger than 1 MB, compressed, a redirect), or with a count of "
        "tokens that cannot be and was not taken.",
        "judge", (_MODEL, _REPLY_FAULT),
    ),
    Metric(
        "callgauge_judge_request_seconds", "histogram", "seconds",
        "Time of a request to the model, from its first sending to the end of the last answer.",
        "judge", (_MODEL, _REQUEST_OUTCOME), JUDGE_REQUEST_EDGES_SECONDS,
    ),
    Metric(
        "callgauge_judge_tokens_total", "counter", "tokens",
        "Tokens as the endpoint counts them; cached ones are not counted as read.",
        "judge", (_MODEL, _REQUEST_OUTCOME, _TOKEN_KIND),
    ),
    Metric(
        "callgauge_judge_cost_total", "counter", "money",
        "Money spent on the model, by the configured prices; a request whose tokens nobody counted costs what it could, "
        "one that never reached the endpoint nothing.",
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
        "callgauge_judge_redactions_total", "counter", "values",
        "Pieces of personal data taken out of what models wrote, although they had been shown none.",
        "judge", (REDACTION_TYPE,),
    ),
    Metric(
        "callgauge_judge_questions_refused_total", "counter", "records",
        "Records of judge.requests that are no questions and were left out.",
        "judge",
    ),
)  # fmt: skip
"""In the order in which they are listed."""
