"""Functions for notebooks and scripts: scores of recorded calls and of agent-inspect's traces, and past calls.

They are what the commands run: `score` is `callgauge score`, `past_calls` is `callgauge history find`, and
`auc` and the others are its `--format agent-inspect`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

from consumers.engine.agent_inspect import (
    Asking,
    Ballot,
    Vote,
    auc_of,
    auc_of_conversation,
    ppt_of,
    ppt_of_conversation,
    progress_through_turns,
    static_progress,
    success_of,
)
from consumers.engine.agent_inspect import tool_correctness as tools_of
from consumers.engine.goals.questions import Voting, grade_of
from consumers.engine.redaction.redactor import Redactor
from consumers.history.opening import opened
from consumers.history.rows import Value
from consumers.history.search import Condition, Question
from consumers.history.settings import HistorySettings
from consumers.runtime.process import wall_clock_ms
from schemas.metric_context import MetricContext
from schemas.scores.records import AnyScoreRecord
from schemas.transcript import TRANSCRIPT, TranscriptTurn
from streamer.agent_inspect.scoring import NotJudgedError, TraceQuestions
from streamer.agent_inspect.traces import REMEDY, Samples, TraceDocument, document_in
from streamer.offline.contexts import recorded_context
from streamer.offline.scoring import RecordedScoring, plan_from, score_judged, scored, scoring_of
from streamer.recordings.elements import element_at
from streamer.recordings.files import At, RecordedCall, RecordingError
from streamer.recordings.places import RecordedFiles
from streamer.recordings.reader import goals_for, read_call, read_recordings
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
) -> list[dict[str, Value]]:
    """The calls of the history that began in a period, a row each, as `callgauge history find` prints them. An unknown value is None.

    Args:
        since: A moment as the command takes it: `7d`, `2026-11-20`, `2026-11-20T12:00`.
        until: The end of the period; None for now.
        where: Conditions that all must hold, such as `p95_ms > 3000`.
        text: Words that must all have been said.
        folder: The folder of history; None for what the settings say, which may be ClickHouse.
        config: A settings file; None for the variables and defaults.

    Raises:
        OperatorError: A condition cannot be understood, or history cannot be read.
    """
    settings = settings_from(None if config is None else Path(config)).history
    end_ms = wall_clock_ms() + 1 if until is None else moment_given(until)
    conditions = [Condition.parse(each) for each in where]
    question = Question(moment_given(since), end_ms, conditions, text.split(), most=None)
    with opened(settings if folder is None else HistorySettings(folder=Path(folder))) as store:
        return [dict(row) for row in store.find(question)]


# Recorded calls.

_EVENTS: Final = Path("events")
"""Stands for the file in messages about events that are in none, and for the id of their call if they name no other."""


@dataclass(frozen=True, slots=True)
class ScoredCall:
    """The scores of one recorded call at its end.

    Attributes:
        conversation_id: Its id in the recording.
        records: The newest record of each score, as `callgauge score` prints them.
        transcript: The transcript in ElevenLabs' format, redacted as the settings say; None if it is too large for its topic.
        context: The `MetricContext`, as `callgauge context` prints it: the words in it are not redacted.
        remarks: Sentences for a person: events that were left out, goals and files that are missing.
    """

    conversation_id: str
    records: tuple[AnyScoreRecord, ...]
    transcript: tuple[TranscriptTurn, ...] | None
    context: MetricContext
    remarks: tuple[str, ...]

    def to_dicts(self, name: str | None = None) -> list[dict[str, Any]]:
        """The records as rows for a table, for example `pandas.DataFrame(call.to_dicts("turn"))`.

        Fields of fields are joined by a dot. A score is its number; where it has none it is None, and the row says why under the
        same name with `.reason`. A list stays a list.

        Args:
            name: Only records of this name, for example `turn`, `call` or `tool_call`; None for all.

        Example:
            >>> (call,) = score("sample")
            >>> turn = call.to_dicts("turn")[2]
            >>> turn["turn"], turn["voice_to_voice_ms"], turn["talk.user.words"]
            (2, 919.22, 14)
        """
        rows = []
        for record in self.records:
            if name is None or record.name == name:
                row: dict[str, Any] = {}
                _put(row, "", record.model_dump(mode="json"))
                rows.append(row)
        return rows


def _put(row: dict[str, Any], path: str, value: Any) -> None:
    match value:
        case {"outcome": "scored", "value": number}:
            row[path] = number
        case {"outcome": "unscored" | "not_applicable", "reason": reason}:
            row |= {path: None, f"{path}.reason": reason}
        case dict():
            for name, part in value.items():
                _put(row, f"{path}.{name}" if path else name, part)
        case _:
            row[path] = value


def score(
    recording: str | Path | Iterable[Mapping[str, Any]],
    *,
    goals: str | Path | None = None,
    agent: str | None = None,
    judge: bool = False,
    config: str | Path | None = None,
) -> list[ScoredCall]:
    """Scores recorded calls through the live engine, in the order of the recordings.

    Args:
        recording: A path as `callgauge score` takes it, `sample` too; or events as `POST /events` takes them, of one call or of
            several.
        goals: A file of goal sets, or a folder of them; None for no goals.
        agent: The agent of calls that name none.
        judge: Whether the judge of the settings is asked; that costs money.
        config: A settings file; None for the variables and defaults.

    Raises:
        RecordingError: A recording or an event cannot be read, or there is none; nothing is returned then.
        OperatorError: Settings or goals cannot be used, or the judge answers nothing.

    Example:
        >>> (call,) = score("sample")
        >>> call.conversation_id, len(call.to_dicts("turn"))
        ('sample-call', 8)
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
    if not judge:
        return [_call(call, scored(call, plan)) for call in calls]
    calls = [*calls]
    judged: list[RecordedScoring] = []
    scorings = (scoring_of(call, plan) for call in calls)
    with ThreadPoolExecutor(1) as thread:  # because the thread of a notebook has an event loop that runs
        thread.submit(score_judged, scorings, settings, judged.append).result()
    return [_call(call, scoring) for call, scoring in zip(calls, judged, strict=True)]


def _call(recorded: RecordedCall, scoring: RecordedScoring) -> ScoredCall:
    entries = None if scoring.transcript is None else tuple(TRANSCRIPT.validate_json(scoring.transcript))
    context, _ = recorded_context(recorded)
    return ScoredCall(recorded.conversation_id, tuple(scoring.final_records()), entries, context, scoring.remarks)


def _calls_of(events: Iterable[Mapping[str, Any]]) -> Iterator[RecordedCall]:
    files = RecordedFiles()
    elements = [element_at(At(_EVENTS, number), compact_json(event)) for number, event in enumerate(events, 1)]
    yield from map(read_call, chain(files.among(elements, _EVENTS), files.of_spans()))


# Traces of agent-inspect.

Trace = Mapping[str, Any]
"""A trace with its sample, as docs/sources/agent-inspect.md describes a line of a file."""
Judge = Callable[[str], str | bool | None]
"""Gets a whole prompt. Gives whether the subgoal is complete, or the model's answer, whose last line is `GRADE: C` or `GRADE: I`; None is
an invalid answer. It is asked as often as agent-inspect asks."""
Result = TypeVar("Result")


def progress(trace: Trace, judge: Judge | None = None) -> list[float]:
    """The progress after each turn, padded to `max_turns`; of a static conversation, whose subgoals name turns, one value.

    Args:
        trace: The trace with its sample.
        judge: Says which subgoals are complete.

    Raises:
        RecordingError: The trace has another shape.
        NotJudgedError: A question needs a judge, and there is none.
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
        >>> curve, auc(curve), ppt(curve), success(curve)
        ([0.0, 1.0, 1.0, 1.0], 0.8333, 0.5, 1)
    """
    document = _document(trace)
    if any(isinstance(subgoal.turn, int) for subgoal in document.subgoals):
        static = _judged(static_progress(_turns(document), document.subgoals, document.config), document, judge)
        return [static.progress]
    return _curve(document, judge)


def auc(trace: Trace | Sequence[float], judge: Judge | None = None) -> float:
    """The area under the progress of a trace, or under these values.

    Raises as `progress`.

    Example:
        >>> auc([0, 0.5, 1])
        0.5
    """
    if isinstance(trace, Mapping):
        return auc_of_conversation(_curve(_document(trace), judge)).value
    return auc_of(trace)


def ppt(trace: Trace | Sequence[float], judge: Judge | None = None) -> float:
    """The progress per turn: the highest progress of a trace, or of these values, divided by the first turn that has it.

    Raises as `progress`.

    Example:
        >>> ppt([0, 0.5, 1, 1])
        0.3333333333333333
    """
    if isinstance(trace, Mapping):
        return ppt_of_conversation(_curve(_document(trace), judge)).value
    return ppt_of(trace)


def success(trace: Trace | Sequence[float], judge: Judge | None = None) -> float:
    """1 if every subgoal was reached by the last turn of a trace, or if the last of these values is 1; otherwise 0.

    Raises as `progress`; ValueError for no value at all.

    Example:
        >>> success([0, 0.5, 1]), success([1, 0.75])
        (1, 0)
    """
    values = progress(trace, judge) if isinstance(trace, Mapping) else trace
    if not values:
        raise ValueError("expected the progress after at least one turn; seen no value")
    return success_of(values[-1]).value


def tool_correctness(trace: Trace, judge: Judge | None = None) -> float:
    """The share of the expected tool calls that were made as expected.

    Raises as `progress`.

    Example:
        >>> expected = {"tool": "book", "expected_parameters": [{"name": "people", "value": 2}], "turn": 0}
        >>> made = {"tool": "book", "tool_input_args": [{"name": "people", "value": 3}], "tool_output": "ok"}
        >>> turn = {"agent_input": "Two of us", "agent_response": {"response": "Booked."}, "steps": [made]}
        >>> sample = {"sub_goals": [], "expected_tool_calls": [expected]}
        >>> tool_correctness({"agent_trace": {"turns": [turn]}, "evaluation_data_sample": sample})
        0.0
    """
    document = _document(trace)
    expected: Any = document.expected_calls  # without any it ends as agent-inspect does
    return _judged(tools_of(_turns(document), expected, document.config), document, judge).score


def _document(trace: Trace) -> TraceDocument:
    try:
        return document_in(trace, "trace", "trace", Samples(), {})
    except RecordingError as error:
        error.consequence = "Nothing was computed."
        error.remedy = REMEDY
        raise


def _turns(document: TraceDocument) -> Any:
    return document.turns


def _curve(document: TraceDocument, judge: Judge | None) -> list[float]:
    entries = progress_through_turns(_turns(document), document.subgoals, document.config, document.user_instruction)
    return [entry.progress for entry in _judged(entries, document, judge)]


def _judged(asking: Asking[Result], document: TraceDocument, judge: Judge | None) -> Result:
    questions = TraceQuestions(document, "unknown", 0, Redactor())
    try:
        ballot = next(asking)
        while True:
            ballot = asking.send(_vote(ballot, questions.prompt(ballot, "grade"), judge))
    except StopIteration as ended:
        result: Result = ended.value
        return result


def _vote(ballot: Ballot, prompt: str, judge: Judge | None) -> Vote:
    if judge is None:
        raise NotJudgedError("this trace has a question for a judge; pass one as `judge`")
    voting = Voting(ballot.trials, stops_early=ballot.stops_early, retry_waves=ballot.retry_waves)
    texts: list[str] = []
    while wave := voting.next_wave:
        answers = [judge(prompt) for _ in range(wave)]
        texts += [answer for answer in answers if isinstance(answer, str)]
        voting.fold([answer if isinstance(answer, bool) else grade_of(answer) for answer in answers])
    return Vote(voting.verdict, tuple(texts))
