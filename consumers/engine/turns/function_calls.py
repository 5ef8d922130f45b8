"""Tools of a call from pipecat's `FunctionCallObserver`; they count where no other source has tools."""

from typing import Final

from consumers.engine.turns.bot.history import BotHistory
from consumers.engine.turns.bot.reported_tools import ReportedTools
from consumers.engine.turns.dead_air import DeadAirWatch
from consumers.engine.turns.timeline.silence import BrokerMoment
from schemas.closed_sets import InputSource
from schemas.events.pipecat import FunctionCall

_MS_PER_SECOND: Final = 1_000


class FunctionCalls:
    """Follows the function calls of one call. A requested tool is not in use yet: it may wait for another, and never run. A
    cancelled tool runs no more and has no answer.
    """

    __slots__ = ("_gave_way_at", "_heard", "_tools")

    def __init__(self) -> None:
        self._tools = ReportedTools(InputSource.PIPECAT)
        self._heard: set[tuple[str, bool]] = set()
        self._gave_way_at: BrokerMoment | None = None

    def fold(
        self, call: FunctionCall, logged_ms: int, at: BrokerMoment, dead_air: DeadAirWatch, bot: BotHistory | None
    ) -> None:
        """Folds one event of a function call. `bot` is None where a simulated caller hears the call."""
        call_id, name = call.tool_call_id, call.function_name
        is_over = call.is_over
        if call_id is None or name is None or not (is_over or call.is_in_progress):
            return
        at_ms = logged_ms if call.timestamp is None else int(call.timestamp * _MS_PER_SECOND)
        if (call_id, is_over) not in self._heard:
            self._heard.add((call_id, is_over))
            dead_air.function_settled(at_ms, at) if is_over else dead_air.function_called(at_ms, at)
        if bot is None or self._gave_way_at is not None:
            return
        if not is_over:
            self._tools.called(bot, call_id, name, at_ms, call.arguments)
        elif call.in_progress_at is not None:
            self._tools.called(bot, call_id, name, int(call.in_progress_at * _MS_PER_SECOND), None)
        if call.has_answered:
            result = call.result if call.error is None else {"status": "error", "message": call.error}
            self._tools.answered(
                bot, call_id, name, at_ms, result, is_error=call.has_failed, is_withheld=call.withholds_result
            )

    def give_way(self, at: BrokerMoment, dead_air: DeadAirWatch, bot: BotHistory | None) -> None:
        """Drops these tools: another source, the audit log or an ElevenLabs agent, has reported a tool at this moment.

        They leave the timeline at once, the earlier ones too. A silence that one of them explains is decided in the broker's order,
        so there they count until the first such moment in that order.
        """
        if self._gave_way_at is None and bot is not None:
            self._tools.withdraw(bot)
        if self._gave_way_at is None or at < self._gave_way_at:
            self._gave_way_at = at
            dead_air.functions_give_way(at)
