"""How a call ended for its caller, decided by its row."""

from schemas.closed_sets import CallOutcome, CloseReason
from schemas.rows import CallRow
from schemas.scores.trouble import ERROR_MS, ERROR_REASON


def set_end(call: CallRow, *, has_answer: bool, is_told: bool) -> None:
    """Sets how a call that is over ended.

    Args:
        call: Its row, with all that follows from its turns.
        has_answer: Whether a turn was answered.
        is_told: Whether an event said that it ended.
    """
    ended_ms = call.last_known_ms or call.known_ms
    call.outcome = _outcome(call, ended_ms, has_answer=has_answer, is_told=is_told)
    call.in_vain_ms = None
    if call.waiting is not None and call.outcome is not CallOutcome.EVENTS_STOPPED:
        call.in_vain_ms = ended_ms - call.waiting.since_ms


def _outcome(call: CallRow, ended_ms: int, *, has_answer: bool, is_told: bool) -> CallOutcome:
    waiting, errors = call.waiting, call.errors
    is_cut_off = call.close_reason not in {None, CloseReason.IDLE}  # by a limit of callgauge
    if waiting is not None and not is_told and (waiting.silences == 1 or is_cut_off):
        return CallOutcome.EVENTS_STOPPED
    if not has_answer and _lacks_answers(call):
        return CallOutcome.NEVER_ANSWERED
    if call.ended_reason == ERROR_REASON:
        return CallOutcome.FAILED
    if waiting is not None:
        return CallOutcome.HUNG_UP
    if errors is not None and ended_ms - errors.known_ms <= ERROR_MS:
        return CallOutcome.FAILED
    return CallOutcome.ENDED


def _lacks_answers(call: CallRow) -> bool:
    """Whether each turn but perhaps one is known to lack an answer, or the agent never began."""
    waiting = call.waiting
    if waiting is not None and waiting.turn == 0:
        return True
    lacking = max(call.unanswered, int(waiting is not None))
    turns = call.turns if waiting is None else max(call.turns, waiting.turn)
    return call.p50_ms is None and lacking >= max(1, turns - 1)
