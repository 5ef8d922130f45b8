"""What others take for a part of what callgauge does, in the same run: Quix Streams and Bytewax on the
evaluator's backlog, EVA's processor on a call that is over, agent-inspect's scorers on the same
votes.

Each is in an environment of its own, made at the first run. One that cannot be had is left out, and
a sentence says so. `EVA_DIR` names a checkout of EVA, which is on no package index.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.engine.admission import Arrival, admit
from consumers.engine.agent_inspect import AgentTurn, Ballot, Options, PlainSubgoal, Trace
from consumers.engine.evaluator import context_of
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource, PipelineType
from streamer.agent_inspect import TraceQuestions, default_scorers, metrics_of, prompt_of
from tests.benchmarks.engine_cost import LIMITS, fold, processor_seconds
from tests.benchmarks.evaluator_cost import EVALUATOR, PARTITIONS, backlog
from tests.benchmarks.figures import Figures, say
from tests.benchmarks.traffic import interleaved, recorded_events
from tests.support.brokers.backlog import put_on_topic
from tests.support.brokers.topic_changes import create_topics
from tests.support.calls.agent_inspect_votes import JudgeAnswer, driven
from tests.support.conformance_data import RECORD
from tests.support.environments import python_with

PROGRAMS: Final = Path(__file__).parent / "peers"
TOPIC: Final = "bench.peers"
QUIX: Final = ("quixstreams", "3.28.1")
BYTEWAX: Final = ("bytewax", "0.21.1", "confluent-kafka==2.6.1")
AGENT_INSPECT: Final = ("agent-quality-inspect", "2.0.0a1")
BESIDE_EVA: Final = ("litellm", "1.85.0", "pipecat-ai==1.14.0", "pydantic-settings", "pyyaml")
"""What EVA's processor imports, in the versions that EVA 2.1.0 names."""
MOST_SECONDS: Final = 300.0
ROUNDS: Final = 20
TURNS: Final = 10
REACHED: Final = (3, 6, 10)
"""The turn in which each subgoal of the scored trace is reached."""
YES, NO = "It was done.\nGRADE: C", "It was not done.\nGRADE: I"
NO_EVA: Final = "EVA is on no package index: EVA_DIR names a checkout of it"

Python = Callable[[], Path]


def measure_peers(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Measures frameworks on one topic with the events of the evaluator's backlog."""
    records = backlog()
    say(
        f"on Kafka, others on the same {len(records):,} events: they parse, keep a state of each "
        "call and send a latency"
    )
    asyncio.run(create_topics(bootstrap, {TOPIC: PARTITIONS}))
    put_on_topic(bootstrap, TOPIC, records)
    quix, bytewax = partial(python_with, *QUIX), partial(python_with, *BYTEWAX)
    events = str(len(records))
    for name, what, python, program, options in (
        ("bytewax", f"Bytewax {BYTEWAX[1]}, no guarantee", bytewax, "bytewax_flow", ()),
        (
            "quix_at_least_once",
            f"Quix Streams {QUIX[1]}, at least once",
            quix,
            "quix_streams",
            (events, "at-least-once"),
        ),
        (
            "quix_exactly_once",
            f"Quix Streams {QUIX[1]}, exactly once",
            quix,
            "quix_streams",
            (events, "exactly-once"),
        ),
    ):
        output = f"{TOPIC}.{name}"
        asyncio.run(create_topics(bootstrap, {output: PARTITIONS}))
        figure = f"{name}_us_per_event"
        run = _run(figures, figure, what, python, program, bootstrap, TOPIC, output, *options)
        if run is not None:
            assert run["events"] == len(records), run
            figures.add(figure, run["processor_seconds"] / len(records) * 1e6, what, "us/event")
    ours, theirs = (figures.value(name) for name in (EVALUATOR, "quix_exactly_once_us_per_event"))
    what = "evaluator, times Quix Streams, both exactly once"
    if ours is None or theirs is None:
        figures.not_measured("evaluator_backlog_of_quix", what, "one of them is not measured")
    else:
        figures.add("evaluator_backlog_of_quix", ours / theirs, what, "x", goal=2)


def measure_batch_tools(figures: Figures) -> None:
    """Measures what others compute of a call that is over."""
    _measure_eva(figures)
    _measure_agent_inspect(figures)


def _run(
    figures: Figures,
    figure: str,
    what: str,
    python: Python,
    program: str,
    *arguments: str,
    given: str | None = None,
) -> Any:
    """What a program prints in its environment; None without the environment or if the program
    fails, and the figure's name has the reason: the others are measured all the same.
    """
    try:
        command = [str(python()), "-W", "ignore", str(PROGRAMS / f"{program}.py"), *arguments]
        ended = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=MOST_SECONDS
        )
    except pytest.skip.Exception as missing:
        why = str(missing.msg)
    except subprocess.TimeoutExpired:
        why = f"it did not end within {MOST_SECONDS:.0f} s"
    else:
        if ended.returncode == 0:
            return json.loads(ended.stdout.splitlines()[-1])
        say(ended.stderr)
        why = f"it ended with {ended.returncode}"
    figures.not_measured(figure, what, why)
    return None


# EVA.


def _measure_eva(figures: Figures) -> None:
    eva = Path(os.environ.get("EVA_DIR") or os.devnull)
    record = RECORD if RECORD.is_dir() else eva / "tests" / "artifacts" / "records" / "1.1.2"
    traffic = interleaved([recorded_events(record)]) if record.is_dir() else []
    say(f"EVA's recorded call, {len(traffic):,} events, beside EVA")
    what = "EVA's processor, once, when the call is over"
    live = "after each event; mean of ten beginnings x events"
    if not traffic:
        why = "the recorded call is not here (CONFORMANCE_DIR or EVA_DIR)"
        figures.not_measured("our_call_ms", "the call by us", why)
        return
    if not (eva / "src" / "eva").is_dir():
        figures.not_measured("eva_context_ms", what, NO_EVA)
    else:
        python = partial(python_with, *BESIDE_EVA)
        arguments = (str(eva), "times", str(record), str(ROUNDS))
        run = _run(figures, "eva_context_ms", what, python, "eva_processor", *arguments)
        if run is not None:
            figures.add("eva_context_ms", run["processor_seconds"] * 1e3, what, "ms")
            figures.add("eva_live_ms", run["mean_seconds"] * 1e3 * len(traffic), live, "ms")
    context_ms = 1e3 * processor_seconds(
        lambda: context_of(_arrivals(traffic), PipelineType.CASCADE, None), ROUNDS
    )
    what = "the context by us, event by event"
    figures.add("our_context_ms", context_ms, what, "ms")
    whole_ms = 1e3 * processor_seconds(lambda: fold(traffic), ROUNDS)
    what = "the call by us, with all rows, words, transcript"
    figures.add("our_call_ms", whole_ms, what, "ms")


def _arrivals(traffic: Sequence[tuple[InputSource, Any]]) -> Iterator[Arrival]:
    for source, record in traffic:
        arrival = admit(source, record, LIMITS)
        assert isinstance(arrival, Arrival), arrival
        yield arrival


# agent-inspect.


def _measure_agent_inspect(figures: Figures) -> None:
    turns = [(f"Question {number}?", f"Answer {number}.") for number in range(1, TURNS + 1)]
    subgoals = [f"Step {number} is done." for number in range(1, len(REACHED) + 1)]
    config: dict[str, Any] = {"max_turns": TURNS, "include_judge_explanation": True}
    instruction = "Ask all questions."
    answers = [
        YES if turn == reached else NO
        for turn in range(1, TURNS + 1)
        for reached in REACHED
        if turn <= reached
    ]
    given = {
        "turns": turns,
        "subgoals": subgoals,
        "user_instruction": instruction,
        "answers": answers,
        "config": config,
        "rounds": ROUNDS,
    }
    say(
        f"agent-inspect's four scorers, {TURNS} turns, {len(subgoals)} subgoals, {len(answers)} "
        "known votes"
    )
    what = f"agent-inspect {AGENT_INSPECT[1]}, each scorer judges"
    run = _run(
        figures,
        "agent_inspect_ms",
        what,
        partial(python_with, *AGENT_INSPECT),
        "agent_inspect_scores",
        given=json.dumps(given),
    )
    trace = Trace(
        "bench",
        tuple(AgentTurn(user, assistant) for user, assistant in turns),
        tuple(PlainSubgoal(details) for details in subgoals),
        user_instruction=instruction,
        options=Options(**config),
    )
    redactor = Redactor()
    ours_ms = 1e3 * processor_seconds(lambda: _scored(trace, answers, redactor), ROUNDS)
    if run is not None:
        assert run["scores"] == _scored(trace, answers, redactor), "the same scores"
        figures.add("agent_inspect_ms", run["processor_seconds"] * 1e3, what, "ms")
    figures.add("our_scorers_ms", ours_ms, "the same by us, judged once for all", "ms")


def _scored(trace: Trace, answers: Sequence[str], redactor: Redactor) -> dict[str, Any]:
    """Our scores of a trace; each question is made as the judge gets it, and redacted."""
    questions = TraceQuestions(trace, "bench", round(MOST_SECONDS * 1e3), redactor)
    remaining = iter(answers)

    def judge_of(ballot: Ballot) -> Callable[[int], list[JudgeAnswer]]:
        prompt_of(questions.request(ballot), "grade")
        answer = JudgeAnswer(200, next(remaining))
        return lambda wave: [answer] * wave

    scores = driven(metrics_of(trace, default_scorers(trace)), judge_of)
    return {
        "progress": [each.score for each in scores["ProgressScoresThroughTurns"]],
        "auc": scores["AUC"].score,
        "ppt": scores["PPT"].score,
        "success": scores["SuccessScoreFinalTurn"].score,
    }
