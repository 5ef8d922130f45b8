"""Functions for notebooks and scripts: scores of recorded calls and of agent-inspect's traces, and
past calls.

They are what the commands run: `score` is `callgauge score`, `past_calls` is `callgauge history
find`, and `auc` and the others are its `--format agent-inspect`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from consumers.engine.agent_inspect import (
    Asking,
    Ballot,
    NumericalScore,
    SubGoalValidationResult,
    Vote,
    auc_of,
    of_curve,
    ppt_of,
    progress_of,
    progress_through_turns,
    static_progress,
    success_at_end_of,
    success_from,
)
from consumers.engine.agent_inspect import Trace as FinishedTrace
from consumers.engine.agent_inspect import tool_correctness as tools_of
from consumers.engine.goals.curve import area_under
from consumers.engine.goals.questions import Voting, grade_of
from consumers.engine.redaction.redactor import Redactor
from consumers.history.opening import opened
from consumers.history.search import CallSearch, Condition
from consumers.measures.own import Measure
from consumers.runtime.process import wall_clock_ms
from schemas.columns import CALL_COLUMNS, TURN_COLUMNS, Column, Flat, flat
from schemas.metric_context import MetricContext
from schemas.rows import CallRow, GoalsRow, OwnRow, TurnRow, WordsRow
from schemas.transcript import TRANSCRIPT, TranscriptTurn
from streamer.agent_inspect import (
    REMEDY,
    NotJudgedError,
    TraceQuestions,
    document_in,
    prompt_of,
)
from streamer.offline.contexts import recorded_context
from streamer.offline.own_values import OwnMeasures
from streamer.offline.scoring import RecordedScoring, plan_from, score_judged, scored, scoring_of
from streamer.recordings.elements import element_at
from streamer.recordings.files import At, RecordedCall, RecordingError
from streamer.recordings.places import RecordedFiles
from streamer.recordings.reader import goals_for, read_call, read_recordings
from streamer.served_folder import history_in
from streamer.settings.listing import settings_from
from streamer.sources.replay import compact_json
from streamer.time_bounds import moment_given

# Past calls.


def past_calls(
    since: str = "7d",
    until: str | None = None,
    *,
    where: Iterable[str] = (),
    text: str = "",
    folder: str | Path | None = None,
    config: str | Path | None = None,
) -> list[dict[str, Flat]]:
    """The calls of the history that began in a period, a row each, as `callgauge history find`
    prints them. An unknown value is None.

    Args:
        since: A moment as the command takes it: `7d`, `2026-11-20`, `2026-11-20T12:00`.
        until: The end of the period; None for now.
        where: Conditions that all must hold, such as `p95_ms > 3000`.
        text: Words that must all have been said.
        folder: The folder of history or of `callgauge serve`; None for what the settings say, which
            may be ClickHouse.
        config: A settings file; None for the variables and defaults.

    Raises:
        OperatorError: A condition cannot be understood, or history cannot be read.
    """
    settings = settings_from(None if config is None else Path(config))
    there = history_in(None if folder is None else Path(folder), settings)
    end_ms = wall_clock_ms() + 1 if until is None else moment_given(until)
    conditions = [Condition.parse(each) for each in where]
    question = CallSearch(moment_given(since), end_ms, conditions, text.split(), most=None)
    with opened(there) as store:
        return [dict(row) for row in store.find(question)]


# Recorded calls.

_EVENTS: Final = Path("events")
"""Stands for the file in messages about events that are in none, and for the id of their call if
they name no other.
"""


@dataclass(frozen=True, slots=True)
class ScoredCall:
    """What is known of one recorded call at its end.

    Attributes:
        conversation_id: Its id in the recording.
        call: The row of the call, as `callgauge score` prints it.
        turns: The rows of its turns, in order; those that later events have withdrawn are left out.
        goals: Its goal set; None without goals.
        words: What was said in each turn, redacted as the settings say.
        transcript: The transcript in ElevenLabs' format, redacted likewise; None if it is too large
            for its topic.
        context: The `MetricContext`, as `callgauge context` prints it: the words in it are not
            redacted.
        remarks: Sentences for a person: events that were left out, goals and files that are
            missing.
        own: The values of one's own measures: by measure, then by turn.
    """

    conversation_id: str
    call: CallRow
    turns: tuple[TurnRow, ...]
    goals: GoalsRow | None
    words: tuple[WordsRow, ...]
    transcript: tuple[TranscriptTurn, ...] | None
    context: MetricContext
    remarks: tuple[str, ...]
    own: tuple[OwnRow, ...] = ()

    def to_dict(self) -> dict[str, Flat]:
        """The columns of the call, by their names."""
        return _named(CALL_COLUMNS, self.call)

    def to_dicts(self) -> list[dict[str, Flat]]:
        """The columns of each turn, for example for `pandas.DataFrame(call.to_dicts())`.

        Where a value has no number it is None, and the column with `.reason` behind the name says
        why.

        Example:
            >>> (call,) = score("sample")
            >>> turn = call.to_dicts()[2]
            >>> turn["turn"], turn["wait_ms"], turn["talk.user.words"]
            (2, 919.22, 14)
        """
        return [_named(TURN_COLUMNS, row) for row in self.turns]


def _named(columns: Sequence[Column], row: CallRow | TurnRow) -> dict[str, Flat]:
    return dict(zip((column.name for column in columns), flat(columns, row), strict=True))


def score(
    recording: str | Path | Iterable[Mapping[str, Any]],
    *,
    goals: str | Path | None = None,
    agent: str | None = None,
    judge: bool = False,
    config: str | Path | None = None,
    measures: Iterable[Measure] | None = None,
) -> list[ScoredCall]:
    """Scores recorded calls through the live engine, in the order of the recordings.

    Args:
        recording: A path as `callgauge score` takes it, `sample` too; or events as `POST /events`
            takes them, of one call or of several.
        goals: A file of goal sets, or a folder of them; None for no goals.
        agent: The agent of calls that name none.
        judge: Whether the judge of the settings is asked; that costs money.
        config: A settings file; None for the variables and defaults.
        measures: Measures of one's own: functions under `@measure`; None for those of the settings.

    Raises:
        RecordingError: A recording or an event cannot be read, or there is none; nothing is
            returned then.
        OperatorError: Settings or goals cannot be used, or the judge answers nothing.

    Example:
        >>> (call,) = score("sample")
        >>> call.conversation_id, len(call.turns), call.call.longest_wait_ms
        ('sample-call', 8, 3000.0)
        >>> call.transcript[0].message
        'Good morning, this is the rebooking desk of Larkwing Air. How can I help you today?'
        >>> call.context.turns_by, call.context.tools_called
        ('eva', ['find_booking', 'find_flights'])
    """
    if isinstance(recording, str | Path):
        path = Path(recording)
        calls: Iterable[RecordedCall] = read_recordings(path)
    else:
        path = _EVENTS
        calls = _calls_of(recording)
    settings = settings_from(None if config is None else Path(config))
    sets = goals_for([path], None if goals is None else Path(goals))
    plan = plan_from(settings, sets, agent, asks_judge=judge, writes_transcripts=True)
    own = OwnMeasures(settings.measures, measures)
    if not judge:
        return [_call(call, scored(call, plan), own) for call in calls]
    calls = [*calls]
    judged: list[RecordedScoring] = []
    scorings = (scoring_of(call, plan) for call in calls)
    # because the thread of a notebook has an event loop that runs
    with ThreadPoolExecutor(1) as thread:
        thread.submit(score_judged, scorings, settings, judged.append).result()
    return [_call(call, scoring, own) for call, scoring in zip(calls, judged, strict=True)]


def _call(recorded: RecordedCall, scoring: RecordedScoring, own: OwnMeasures) -> ScoredCall:
    entries = (
        None if scoring.transcript is None else tuple(TRANSCRIPT.validate_json(scoring.transcript))
    )
    context, _ = recorded_context(recorded)
    rows = scoring.newest_rows()
    (of_call,) = [row for row in rows if isinstance(row, CallRow)]
    turns = tuple(row for row in rows if isinstance(row, TurnRow) and row.status != "withdrawn")
    goals = next((row for row in rows if isinstance(row, GoalsRow)), None)
    words = {row.turn: row for row in scoring.words}
    return ScoredCall(
        recorded.conversation_id,
        of_call,
        turns,
        goals,
        tuple(words[turn] for turn in sorted(words)),
        entries,
        context,
        scoring.remarks,
        tuple(own.of(scoring)),
    )


def _calls_of(events: Iterable[Mapping[str, Any]]) -> Iterator[RecordedCall]:
    files = RecordedFiles()
    elements = [
        element_at(At(_EVENTS, number), compact_json(event))
        for number, event in enumerate(events, 1)
    ]
    yield from map(read_call, chain(files.among(elements, _EVENTS), files.of_spans()))


# Traces of agent-inspect.

Trace = Mapping[str, Any]
"""A trace with its sample, as docs/sources/agent-inspect.md describes a line of a file."""
Answer = str | bool | None
"""Whether the subgoal is complete, or the model's answer, whose last line is `GRADE: C` or `GRADE:
I`; None is an invalid answer.
"""
Judge = Callable[[str], Answer]
"""Gets a whole prompt. It is asked as often as agent-inspect asks."""
Curve = Sequence[NumericalScore] | Sequence[float]
"""Progress over turns, as `progress` gives it, or its plain values."""


def progress(trace: Trace, judge: Judge | None = None) -> list[NumericalScore]:
    """The progress after each turn, padded to `max_turns`; of a static conversation, whose subgoals
    name turns, one value.

    Args:
        trace: The trace with its sample.
        judge: Says which subgoals are complete.

    Raises:
        RecordingError: The trace has another shape.
        NotJudgedError: A question needs a judge, and there is none.
        TypeError: The judge gives something else than an answer.
        EvaluationError, InvalidInputValueError: As in agent-inspect.

    Example:
        >>> def turn(user, agent):
        ...     return {"agent_input": user, "agent_response": {"response": agent}, "steps": []}
        >>> trace = {
        ...     "agent_trace": {"turns": [turn("A table for two", "For when?"), turn("Tonight", "It is booked.")]},
        ...     "evaluation_data_sample": {"sub_goals": [{"details": "A table is booked."}]},
        ...     "config": {"max_turns": 4},
        ... }
        >>> curve = progress(trace, judge=lambda prompt: "It is booked." in prompt)
        >>> [after.score for after in curve], auc(curve).score, ppt(curve).score, success(curve).score
        ([0.0, 1.0, 1.0, 1.0], 0.8333, 0.5, 1)
        >>> curve[1].explanations
        [{'A table is booked.': ['After turn 2 the subgoal is completed: A table is booked.']}]
    """
    asked = _Asked(trace, judge)
    return asked.judged(static_progress if asked.trace.is_static else progress_through_turns)


def auc(trace: Trace | Curve, judge: Judge | None = None) -> NumericalScore:
    """The area under the progress of a trace, with the progress of each turn; or of these values,
    as agent-inspect's helper.

    Raises as `progress`.

    Example:
        >>> auc([0, 0.5, 1]).score
        0.5
    """
    if isinstance(trace, Mapping):
        return of_curve(area_under, _curve(trace, judge))
    return NumericalScore(auc_of(_values(trace)))


def ppt(trace: Trace | Curve, judge: Judge | None = None) -> NumericalScore:
    """The progress per turn: the highest progress divided by the first turn that has it. Of a trace
    it is rounded and comes with the progress of each turn; of these values it is as agent-inspect's
    helper has it.

    Raises as `progress`.

    Example:
        >>> ppt([0, 0.5, 1, 1]).score
        0.3333333333333333
    """
    if isinstance(trace, Mapping):
        return of_curve(ppt_of, _curve(trace, judge))
    return NumericalScore(ppt_of(_values(trace)))


def success(
    trace: Trace | Curve | NumericalScore | Sequence[SubGoalValidationResult],
    judge: Judge | None = None,
) -> NumericalScore:
    """1 if every subgoal was reached by the last turn of a trace; or if the last progress of these
    is 1; or if all of these verdicts are complete. Otherwise 0.

    Raises as `progress`; ValueError for no progress at all.

    Example:
        >>> success([0, 0.5, 1]).score, success([1, 0.75]).score
        (1, 0)
    """
    if isinstance(trace, Mapping):
        asked = _Asked(trace, judge)
        if asked.trace.is_static:
            return success_from(asked.judged(static_progress)[0])
        return success_at_end_of(asked.judged(progress_through_turns))
    if isinstance(trace, NumericalScore):
        return success_from(trace)
    if not trace:
        raise ValueError("expected the progress after at least one turn; seen no value")
    flags = [each.is_completed for each in trace if isinstance(each, SubGoalValidationResult)]
    if flags:
        return success_from(NumericalScore(progress_of(flags)))
    last: Any = trace[-1]
    return success_from(last if isinstance(last, NumericalScore) else NumericalScore(last))


def tool_correctness(trace: Trace, judge: Judge | None = None) -> NumericalScore:
    """The share of the expected tool calls that were made as expected, and for each the reasons.

    Raises as `progress`.

    Example:
        >>> expected = {"tool": "book", "expected_parameters": [{"name": "people", "value": 2}], "turn": 0}
        >>> made = {"tool": "book", "tool_input_args": [{"name": "people", "value": 3}], "tool_output": "ok"}
        >>> turn = {"agent_input": "Two of us", "agent_response": {"response": "Booked."}, "steps": [made]}
        >>> sample = {"sub_goals": [], "expected_tool_calls": [expected]}
        >>> tool_correctness({"agent_trace": {"turns": [turn]}, "evaluation_data_sample": sample}).score
        0.0
    """
    return _Asked(trace, judge).judged(tools_of)[0]


def _curve(trace: Trace, judge: Judge | None) -> list[NumericalScore]:
    return _Asked(trace, judge).judged(progress_through_turns)


def _values(curve: Curve) -> list[float]:
    return [each.score if isinstance(each, NumericalScore) else each for each in curve]


class _Asked:
    """A trace with the judge who is asked about it."""

    def __init__(self, trace: Trace, judge: Judge | None) -> None:
        try:
            self.trace = document_in(trace, "trace", "trace", {}, {})
        except RecordingError as error:
            error.consequence = "Nothing was computed."
            error.remedy = REMEDY
            raise
        self._judge = judge
        self._questions = TraceQuestions(self.trace, "unknown", 0, Redactor())

    def judged(
        self, scorer: Callable[[FinishedTrace], Asking[list[NumericalScore]]]
    ) -> list[NumericalScore]:
        """The results of a scorer, whose questions the judge answers."""
        asking = scorer(self.trace)
        try:
            ballot = next(asking)
            while True:
                ballot = asking.send(self._vote(ballot))
        except StopIteration as ended:
            results: list[NumericalScore] = ended.value
            return results

    def _vote(self, ballot: Ballot) -> Vote:
        prompt = prompt_of(self._questions.request(ballot), "grade")
        if self._judge is None:
            raise NotJudgedError("this trace has a question for a judge; pass one as `judge`")
        voting = Voting(
            ballot.trials, stops_early=ballot.stops_early, retry_waves=ballot.retry_waves
        )
        texts: list[str] = []
        while wave := voting.next_wave:
            answers = [_answer(self._judge, prompt) for _ in range(wave)]
            texts += [answer for answer in answers if isinstance(answer, str) and answer]
            voting.fold(
                [answer if isinstance(answer, bool) else grade_of(answer) for answer in answers]
            )
        keeps_prompt = self.trace.options.include_prompt_sent_to_llmj
        return Vote(voting.verdict, tuple(texts), prompt if keeps_prompt else None)


def _answer(judge: Judge, prompt: str) -> Answer:
    given: Any = judge(prompt)
    if given is None or isinstance(given, str | bool):
        return given
    raise TypeError(
        "the judge gave no answer: expected the model's answer as text, True, False or None; seen "
        f"{type(given).__name__}"
    )
