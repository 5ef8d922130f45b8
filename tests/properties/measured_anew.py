"""Measures of a turn, computed from the whole call as it is now, without earlier state: the batch
of these laws.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from consumers.engine.call import Call
from consumers.engine.effects import Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.measures.eva_timing import (
    NOT_ANSWERED,
    HeardTimes,
    TurnScore,
    final_taking,
    heard_times,
    live_score,
    live_taking,
    turn_scores_of,
)
from consumers.engine.measures.stages import StageLatencies
from consumers.engine.measures.talk import LONG_SILENCE_MS, talk_of
from consumers.engine.measures.words import CallWordErrors, ErrorSums, compare, differences
from consumers.engine.turns.bot import BotTurnMachine
from consumers.engine.turns.eva import Pieces, joined
from consumers.engine.turns.heard import HeardTurn, view_of_bot_turn, view_of_eva_turn
from consumers.engine.turns.live import LiveCall
from consumers.engine.turns.timeline import (
    MS_DIGITS,
    TurnView,
    unmeasured_reason,
    voice_to_voice_ms,
)
from schemas.closed_sets import Anchor, PipelineType
from schemas.metric_context import MetricContext
from schemas.rows import (
    Disagreement,
    EstimateError,
    NotApplicable,
    TurnRow,
    TurnTaking,
    Unscored,
    Value,
)
from schemas.rows import WordErrors as WordErrorRate
from tests.properties.evaluation import LIMITS, holds
from tests.support.fakes.engine_feed import Json, rows_of

PARTS = frozenset(
    {
        *(
            "wait_ms",
            "anchor",
            "wait_source",
            "after_tools_ms",
            "stages",
            "outcome",
            "turn_taking",
            "talk",
        ),
        *("stt_wer", "user_disagreement", "assistant_disagreement", "estimate_error"),
    }
)
"""The measures of a turn that its events decide: all in its row but its moments, and the ratings of
judges.
"""
OF_THE_WAIT = {"wait_ms", "anchor", "wait_source"}
WITHOUT_ANSWER = {None, "unanswered", "failed"}
"""Outcomes that an error, a silence or a source can change later; they are looked at when the turn
is settled.
"""
OF_WORDS = {"words", "stt_wer", "user_disagreement", "assistant_disagreement"}
"""Those that follow from words. A word that comes late is looked for when the turn is settled, or
changes in another way.
"""


class MeasuredTurns:
    """Follows an evaluator of one call, and compares its rows of turns with the turns measured
    anew.

    Attributes:
        newest: The newest row of each turn.
    """

    def __init__(self, evaluator: PartitionEvaluator) -> None:
        self.newest: dict[int, TurnRow] = {}
        self._evaluator = evaluator
        self._turn = 0
        self._settled: set[int] = set()

    def take(self, effects: Iterable[Effect], conversation_id: str) -> Call | None:
        """Follows the effects of an event on this call; returns the call when its turns were
        measured now.
        """
        published = [row for row in rows_of(effects) if isinstance(row, TurnRow)]
        measured = {
            row.turn
            for row in published
            if is_measured(row) and differs(self.newest.get(row.turn), row)
        }
        self.newest |= {row.turn: row for row in published}
        call = self._evaluator._calls.get(conversation_id)
        if call is None:
            return None  # a limit has closed it
        before, self._turn = self._turn, call.live.machine.turn
        before_settled, self._settled = self._settled, set(call.live.turns.ever_settled)
        looked_at = measured | (self._settled - before_settled)
        if self._turn == before and not looked_at:
            return None
        left = {turn for turn in call.live.turns.turns if turn < self._turn}
        known = {turn for turn, row in self.newest.items() if holds(row) and is_measured(row)}
        assert left <= known <= call.live.turns.turns, (
            "each turn that was left is measured, and no other"
        )
        for turn in sorted(left):
            found = differing(self.newest[turn], measured_now(call, turn))
            if turn not in looked_at:
                found = {part: values for part, values in found.items() if part not in OF_WORDS}
                if not {*found.get("outcome", ["answered"])} - WITHOUT_ANSWER:
                    del found["outcome"]
            assert not found, f"turn {turn} has, and should have: {found}"
        return call


def is_measured(row: TurnRow) -> bool:
    """Whether the row has the measures of its turn: a turn that the call is in for the first time
    has moments alone.
    """
    return row.talk is not None


def differs(before: TurnRow | None, now: TurnRow) -> bool:
    """Whether the turn was measured since: one of its measures is another, beside its wait, which
    is set whenever it is known.
    """
    parts = PARTS - OF_THE_WAIT
    return before is None or any(getattr(before, part) != getattr(now, part) for part in parts)


def differing(row: TurnRow, expected: Json) -> Json:
    """The parts of a turn's row that differ: the row's value, and the expected one."""
    assert expected.keys() == PARTS, "each value of a turn is measured anew, in `_parts`"
    said, wanted = _parts_of({part: getattr(row, part) for part in PARTS}), _parts_of(expected)
    return {part: (said[part], wanted[part]) for part in said if said[part] != wanted[part]}


def _parts_of(parts: Json) -> Json:
    talk = parts["talk"]
    silent = replace(
        talk, user=replace(talk.user, words=None), assistant=replace(talk.assistant, words=None)
    )
    return {**parts, "talk": silent, "words": (talk.user.words, talk.assistant.words)}


def measured_now(call: Call, turn: int) -> Json:
    """The parts of a turn while the call runs, without any earlier knowledge."""
    live = call.live
    heard = times_now(live, turn)
    machine = live.machine
    errors: Json = _NO_DIFFERENCES
    if not isinstance(machine, BotTurnMachine):
        state = machine.turns[turn]
        errors = _differences(
            live,
            turn,
            (_text(state.intended_user), _text(state.transcribed_user)),
            (_text(state.intended_assistant), _text(state.transcribed_assistant)),
        )
    taking = None if heard is None else live_taking(turn, heard)
    return _parts(call, turn, _view(live, turn), taking, errors, None, is_over=False)


def measured_at_the_close(call: Call) -> dict[int, Json]:
    """The parts of every turn of a call that ends now."""
    live, context = call.live, call.eva_context()
    machine = live.machine
    if isinstance(machine, BotTurnMachine):
        machine.is_over = True  # as the close sets it: no report of speech can come any more
    session_end_s = live.history.session_end_s()
    heard = {
        turn: heard_times(said, _view(live, turn, session_end_s))
        for turn in sorted(machine.turns)
        if (said := live.heard().turn(turn)) is not None
    }
    scores = scores_at_the_close(live, context, heard)
    end_ms = live.heard().sound_end_ms(live.history.last_time_ms())
    found = {}
    for turn in machine.turns:
        view = _view(live, turn, session_end_s)
        value = final_taking(heard[turn], scores.get(turn), is_last=turn == machine.turn)
        taking = value if turn or turn in scores else None
        texts = (
            (context.intended_user_turns.get(turn), context.transcribed_user_turns.get(turn)),
            (
                context.intended_assistant_turns.get(turn),
                context.transcribed_assistant_turns.get(turn),
            ),
        )
        parts = _parts(
            call, turn, view, taking, _differences(live, turn, *texts), end_ms, is_over=True
        )
        is_answered = view.has_assistant or view.is_answered_in_text
        if turn >= 1 and turn == machine.turn and view.has_user and not is_answered:
            parts["wait_ms"] = NOT_ANSWERED
        found[turn] = parts
    return found


def scores_at_the_close(
    live: LiveCall, context: MetricContext, heard: dict[int, HeardTimes]
) -> dict[int, TurnScore]:
    """How well each turn was timed: by EVA's own function where a simulated caller
    hears the call.
    """
    if live.is_simulated:
        return turn_scores_of(context)
    return {
        turn: score for turn, each in heard.items() if (score := live_score(turn, each)) is not None
    }


def stages_anew(call: Call) -> StageLatencies:
    """The stages of a call: the reported values, and everything derived from them
    computed again.
    """
    live, known = call.live, call._measures.stages
    anew = StageLatencies(LIMITS)
    anew._values, anew._used = known._values, known._used
    if live.record is not None:
        for turn in live.turns.turns:
            anew.fold_convai(turn, live.record.recorded(turn).metrics)
    anew.stale_turns(live.heard(), set(live.machine.turns))
    return anew


def times_now(live: LiveCall, turn: int) -> HeardTimes | None:
    """A turn as EVA's formulas read it; None before its first event."""
    heard, view = live.heard().turn(turn), live.turns.view(turn)
    if heard is None or view is None:
        return None
    assert heard.has_tool_call is (turn in turns_with_tools(live.machine.last_tool))
    return heard_times(heard, view)


def turns_with_tools(last: Any) -> set[int]:
    """The turns in which a tool was called, of the whole chain."""
    turns = set()
    while last is not None:
        if not last.is_response:
            turns.add(last.turn)
        last = last.previous
    return turns


def _view(live: LiveCall, turn: int, session_end_s: float | None = None) -> TurnView:
    machine = live.machine
    if not isinstance(machine, BotTurnMachine):
        return view_of_eva_turn(machine.turns[turn], session_end_s)
    view = view_of_bot_turn(machine, turn)
    recorded_ms = None if live.record is None else live.record.recorded(turn).latency_ms
    if recorded_ms is None or view.anchor is not Anchor.ESTIMATED:
        return view
    return view._replace(recorded_ms=recorded_ms, anchor=Anchor.RECORD)


def _parts(
    call: Call,
    turn: int,
    view: TurnView,
    taking: TurnTaking | None,
    errors: Json,
    end_ms: int | None,
    *,
    is_over: bool,
) -> Json:
    live = call.live
    waited: Value | None = voice_to_voice_ms(view)
    if turn < 1:
        waited = NotApplicable("the greeting answers nobody")
    elif waited is None:
        waited = Unscored(unmeasured_reason(view, has_speech_events=live.has_speech_events))
    heard, error = live.heard(), None
    said = heard.turn(turn)
    assert said is not None
    outcome = outcome_of(call, turn, view, is_over=is_over)
    if view.recorded_ms is not None and view.heard_ms is not None:
        error_ms = round(view.heard_ms - view.recorded_ms, MS_DIGITS)
        error = EstimateError(error_ms, view.heard_ms, view.recorded_ms)
    return {
        "wait_ms": waited,
        "anchor": view.anchor,
        "wait_source": view.source,
        "stages": stages_anew(call).stages_of(heard, turn),
        "turn_taking": taking,
        "talk": talk_of(said, heard.sides, end_ms, is_cut_off=outcome == "interrupted"),
        "estimate_error": error,
        "outcome": outcome,
        "after_tools_ms": after_tools_of(said, view),
        **errors,
    }


def outcome_of(call: Call, turn: int, view: TurnView, *, is_over: bool) -> str | None:
    """How the turn ended, from its events, its silences and the errors of the agent."""
    live, turns = call.live, call.live.heard()
    begins = {
        number: found.begin_s
        for number in turns.numbers()
        if (found := turns.turn(number)) is not None
    }
    if turn < 1 or not view.has_user:
        return None
    if view.has_assistant or view.is_answered_in_text or view.recorded_ms is not None:
        machine_turn: Any = live.machine.turns.get(turn + 1)
        is_cut = machine_turn is not None and getattr(
            machine_turn, "spoke_over", machine_turn.user_interrupted
        )
        return "interrupted" if is_cut else "answered"
    silences = call.rows.turns[turn].dead_air if turn in call.rows.turns else ()
    is_heard = live.has_speech_events and view.are_times_exact
    if not is_heard or (turn >= turns.current and not is_over):
        return None
    said = turns.turn(turn)
    assert said is not None
    pauses_s = [
        later_s - max(end_s for end_s in said.user.ends if end_s <= later_s)
        for later_s in said.user.starts
        if any(end_s <= later_s for end_s in said.user.ends)
    ]
    has_asked_again = max(pauses_s, default=0.0) >= LONG_SILENCE_MS / 1_000
    is_cut_off = call.end._announced is None and call.end._recorded_ms is None
    if turn >= turns.current and is_cut_off and not has_asked_again:
        return None
    from_s, until_s = begins[turn], begins.get(turn + 1)
    errors_s = [ms / 1_000 for ms in live.errors._times_ms]
    if from_s is not None and any(
        from_s <= at_s and (until_s is None or at_s < until_s) for at_s in errors_s
    ):
        return "failed"
    if not (turns.sides.assistant or silences):
        return None
    return "abandoned" if turn >= turns.current and not silences else "unanswered"


def after_tools_of(turn: HeardTurn, view: TurnView) -> float | None:
    """The wait for the first sound behind the tools, if another sound came before they
    were done.
    """
    if (
        view.user_end_s is None
        or view.assistant_start_s is None
        or not view.are_times_exact
        or turn.assistant.has_gaps
    ):
        return None
    ends = [
        use.called_at_ms + use.duration_ms
        for use in turn.tools
        if use.is_exact and use.called_at_ms is not None and use.duration_ms is not None
    ]
    sounds = sorted(turn.assistant.starts)
    behind = [start_s for start_s in sounds if ends and start_s * 1_000 >= max(ends)]
    if not behind or view.assistant_start_s * 1_000 >= max(ends):
        return None
    return round(round(behind[0] - view.user_end_s, 6) * 1_000, MS_DIGITS)


def _differences(
    live: LiveCall, turn: int, user: Sequence[str | None], assistant: Sequence[str | None]
) -> Json:
    sums: list[ErrorSums | None] = []
    for (one, other), way in ((user, compare), (assistant, differences)):
        errors = CallWordErrors("en", way)
        errors.put(turn, one, other)
        found = errors.turns.get(turn)
        sums.append(None if found is None else found.sums)
    is_cascade = live.history.pipeline_type is PipelineType.CASCADE
    of_user, of_assistant = sums
    return {
        "stt_wer": WordErrorRate(round(of_user.rate, 3), *of_user, 1, "en")
        if is_cascade and of_user
        else None,
        "user_disagreement": _disagreement(of_user),
        "assistant_disagreement": _disagreement(of_assistant),
    }


def _disagreement(sums: ErrorSums | None) -> Disagreement | None:
    return (
        None
        if sums is None
        else Disagreement(round(sums.rate, 3), sums.errors, sums.reference_words, 1)
    )


_NO_DIFFERENCES: Json = {"stt_wer": None, "user_disagreement": None, "assistant_disagreement": None}


def _text(pieces: Pieces | None) -> str | None:
    return None if pieces is None else joined(pieces)
