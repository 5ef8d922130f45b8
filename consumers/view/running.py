"""A running call as a line of a list: what pages, `top` and the demo show of it. Pure: a row of a
call in, plain data out.
"""

from typing import Final, Literal, NamedTuple

from consumers.view.calls import span_of
from consumers.view.words import day_and_time, in_words, seconds
from schemas.closed_sets import CloseReason
from schemas.rows import CallRow
from schemas.scores.running import ShownCall, heard_ms
from schemas.scores.trouble import SLOW_MS, VERY_SLOW_MS

ID_CHARS: Final = 6
"""Characters of the end of a conversation id: its beginning is often the same for all calls."""
MOST_WHOLE_ID: Final = 16
"""A conversation id with no more characters is shown whole."""
Level = Literal["", "bad", "urgent"]
"""How bad something is: not at all, trouble, or heard by the caller at this moment."""


def short_id(conversation_id: str) -> str:
    """Returns an id as lists show it: of a long one the end.

    >>> short_id("my-34506b"), short_id("sim-1795960958624-544448894543")
    ('my-34506b', '894543')
    """
    is_long = len(conversation_id) > MOST_WHOLE_ID
    return conversation_id[-ID_CHARS:] if is_long else conversation_id


class RunningLine(NamedTuple):
    """One call.

    Attributes:
        conversation_id: Its id.
        short_id: What a list shows of it.
        agent: Its agent.
        labels: Tenant and environment, as far as they are known.
        chips: What is wrong, the worst first, each with how bad it is.
        state: Whether it runs, and how it ended.
        turn: The newest turn; empty before the first.
        latency: The newest answer's, or how long the caller waited in vain until the end; empty
            before the first.
        latency_level: How bad it is.
        goals: How many are reached; a question mark where verdicts are missing.
        first_ms: Broker time of its first event, in epoch ms.
        heard_ms: That of its newest event.
        length_ms: How long it was, if it is over; None while it runs.
    """

    conversation_id: str
    short_id: str
    agent: str
    labels: str
    chips: tuple[tuple[Level, str], ...]
    state: str
    turn: str
    latency: str
    latency_level: Level
    goals: str
    first_ms: int
    heard_ms: int
    length_ms: float | None

    @property
    def level(self) -> Level:
        """How bad the worst is."""
        return self.chips[0][0] if self.chips else ""


def running_line(shown: ShownCall) -> RunningLine:
    """The line of a call."""
    call, labels = shown.call, shown.call.labels
    chips: list[tuple[Level, str]] = [
        *(("bad", each) for each in (shown.ending,) if each is not None),
        *(("urgent" if each.is_urgent else "bad", each.reason) for each in shown.troubles),
    ]
    ending, (begin_ms, end_ms) = end_in_words(call), span_of(call)
    wait_ms = None if call.answer is None else call.answer.wait_ms
    has_ended = call.state != "running"
    if call.in_vain_ms is not None:
        wait_ms = call.in_vain_ms
    found = None if call.goals is None else call.goals.progress
    state = ending if has_ended else "running"
    if shown.has_stopped and not has_ended:
        state = f"no event since {day_and_time(heard_ms(call))[11:19]} UTC"
    if call.state == "closed":
        state = f"over: {ending}"
    latency = ""
    if wait_ms is not None:
        latency = "overlap" if wait_ms < 0 else seconds(wait_ms)
    goals = ""
    if found is not None:
        goals = f"{found.reached} of {found.subgoals}{'?' * bool(found.missing)}"
    return RunningLine(
        conversation_id=call.conversation_id,
        short_id=short_id(call.conversation_id),
        agent=labels.agent,
        labels=", ".join(name for name in (labels.tenant, labels.environment) if name != "unknown"),
        chips=tuple(chips),
        state=state,
        turn="" if call.turn is None else str(call.turn),
        latency=latency,
        latency_level=wait_level(wait_ms),
        goals=goals,
        first_ms=call.first_known_ms,
        heard_ms=heard_ms(call),
        length_ms=end_ms - begin_ms if has_ended else None,
    )


def end_in_words(call: CallRow) -> str:
    """How a call ended."""
    if call.state != "closed":
        return "not yet" if call.state == "running" else "over, final values soon"
    if call.close_reason == CloseReason.ENDED and call.ended_reason in {None, "", "ended"}:
        return "no reason given"
    reason = call.ended_reason or call.close_reason or "not known"
    return _ENDS.get(reason) or in_words(reason)


_ENDS: Final = {"user_initiated": "closed by its program"}
"""Reasons that mean another thing than they say: who uses LiveKit's session is no caller."""


def wait_level(wait_ms: float | None) -> Level:
    """How bad a wait is by the objectives."""
    if wait_ms is None or wait_ms <= SLOW_MS:
        return ""
    return "bad" if wait_ms <= VERY_SLOW_MS else "urgent"
