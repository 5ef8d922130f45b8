"""The metrics of the judge role: questions, verdicts, latencies and costs."""

from typing import Final

from schemas.closed_sets import JudgeKind, TrialOutcome, UnjudgedReason
from schemas.metrics.definition import REDACTION_TYPE, Label, Metric, MetricsOf, words_of

_JUDGE = MetricsOf("judge")

JUDGE_REQUEST_EDGES_SECONDS: Final = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 60.0)
"""Edges of one request to a judge's model: a short answer takes 0.5 to 3 s, 20 is where one try is
given up.
"""

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
_REPLY_FAULT = Label(
    "cause", "fault of the reply", ("too_large", "compressed", "redirected", "token_count")
)
_TOKEN_KIND = Label("kind", "read, read before, or written", ("prompt", "cached", "answer"))
_BUDGET = Label("budget", "all calls together, or the agent that spent most", ("hour", "agent"))

JUDGE_METRICS: Final[tuple[Metric, ...]] = (
    _JUDGE.counter("callgauge_judge_verdicts_total", "verdicts", _JUDGE_KIND, _VERDICT_OUTCOME)(
        "Questions answered, by the verdict or by why there is none, each counted once, when the "
        "answer is made."
    ),
    _JUDGE.histogram(
        "callgauge_judge_verdict_seconds", "seconds", JUDGE_VERDICT_EDGES_SECONDS, _JUDGE_KIND
    )(
        "Time of a verdict, from its question's arrival at the judge to the verdict, waiting "
        "included."
    ),
    _JUDGE.counter("callgauge_judge_requests_total", "requests", _MODEL, _REQUEST_OUTCOME)(
        "Requests put to the model, each counted once at its end, however often it had to be sent."
    ),
    _JUDGE.counter("callgauge_judge_retries_total", "requests", _MODEL)(
        "Times a request to the model was sent again after it had failed or had been put off."
    ),
    _JUDGE.counter("callgauge_judge_reply_faults_total", "requests", _MODEL, _REPLY_FAULT)(
        "Requests to the model with a reply that was dropped (larger than 1 MB, compressed, a "
        "redirect), or with a count of tokens that cannot be, such as 0, and was not taken."
    ),
    _JUDGE.histogram(
        "callgauge_judge_request_seconds",
        "seconds",
        JUDGE_REQUEST_EDGES_SECONDS,
        _MODEL,
        _REQUEST_OUTCOME,
    )("Time of a request to the model, from its first sending to the end of the last answer."),
    _JUDGE.counter("callgauge_judge_tokens_total", "tokens", _MODEL, _REQUEST_OUTCOME, _TOKEN_KIND)(
        "Tokens as the endpoint counts them; cached ones are not counted as read."
    ),
    _JUDGE.counter("callgauge_judge_cost_total", "money", _MODEL, _REQUEST_OUTCOME)(
        "Money spent on the model, by the configured prices; a request with uncounted tokens costs "
        "what it could, one that never reached the endpoint nothing."
    ),
    _JUDGE.gauge("callgauge_judge_budget_left", "money", _BUDGET)(
        "Money left of this hour of the clock: of the whole budget, and of the agent's that has "
        "least left."
    ),
    _JUDGE.gauge("callgauge_judge_waiting_questions", "questions")(
        "Questions that wait to be put to the model."
    ),
    _JUDGE.gauge("callgauge_judge_waiting_seconds", "seconds")(
        "Age of the question that has waited longest, from its arrival at the judge; 0 if none "
        "waits."
    ),
    _JUDGE.counter("callgauge_judge_votes_not_unanimous_total", "verdicts", _MODEL)(
        "Votes in which the model contradicted itself on the same question."
    ),
    _JUDGE.counter("callgauge_judge_redactions_total", "values", REDACTION_TYPE)(
        "Pieces of personal data taken out of what models wrote, although they had been shown none."
    ),
    _JUDGE.counter("callgauge_judge_questions_refused_total", "records")(
        "Records of judge.requests that are no questions and were left out."
    ),
)
"""In the order in which they are listed."""
