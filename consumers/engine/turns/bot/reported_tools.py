"""Uses of tools as an ElevenLabs agent or pipecat reports them: with the id of the call, in any order, repeatedly."""

from collections.abc import Iterator

from pydantic_core import from_json

from consumers.engine.turns.bot.bot_turn import SpeechMoment
from consumers.engine.turns.bot.history import BotHistory
from consumers.engine.turns.timeline.elements import ToolUse
from schemas.closed_sets import InputSource
from schemas.wire import without_infinity


class _Tool:
    """One use of a tool, as far as its events have come: `call` and `reply` are its keys on the timeline."""

    __slots__ = (
        "arguments", "call", "called_ms", "is_exact", "is_withheld", "replied_ms", "reply", "result", "result_is_error", "took_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.is_exact = True
        self.took_ms: int | None = None
        self.call: int | None = None
        self.called_ms = 0
        self.arguments: object = None
        self.reply: int | None = None
        self.replied_ms = 0
        self.result: object = None
        self.is_withheld = False
        self.result_is_error = False


class ReportedTools:
    """The tools of one call that `source` reports. Of repeated reports the earlier time and the fuller value count."""

    __slots__ = ("_source", "_tools")

    def __init__(self, source: InputSource) -> None:
        self._source = source
        self._tools: dict[str, _Tool] = {}

    def called(
        self,
        bot: BotHistory,
        call_id: str,
        name: str,
        at_ms: int,
        arguments: object,
        event_id: int | None = None,
        *,
        is_exact: bool = True,
    ) -> bool:
        """Adds the call of a tool at `at_ms`; `arguments` are None if not reported, `is_exact` is false for a time that gives
        only the order.

        Returns:
            Whether it is the first report of this call.
        """
        tool = self._tools.setdefault(call_id, _Tool())
        is_news = tool.call is None
        if arguments is not None:
            tool.arguments = arguments
        if tool.call is not None:
            bot.timeline.remove(tool.call)
        tool.called_ms = at_ms if is_news else min(tool.called_ms, at_ms)
        tool.is_exact = tool.is_exact and is_exact
        use = ToolUse(name, tool.arguments, call_id, is_exact=tool.is_exact, source=self._source)
        tool.call = bot.from_agent(SpeechMoment.TOOL_CALL, tool.called_ms, event_id, use)
        return is_news

    def answered(
        self,
        bot: BotHistory,
        call_id: str,
        name: str,
        at_ms: int,
        result: object,
        event_id: int | None = None,
        *,
        is_error: bool,
        is_withheld: bool = False,
        is_exact: bool = True,
        took_ms: int | None = None,
    ) -> bool:
        """Adds the answer of a tool at `at_ms`.

        Args:
            bot: The timeline.
            call_id: Id of the call.
            name: Name of the tool.
            at_ms: When it answered.
            result: Its answer, parsed if the text holds JSON, so that an error in it is found; None if not reported.
            event_id: Id of the event.
            is_error: Whether it failed.
            is_withheld: Whether the producer keeps the answer back; `result` is then None, or its status alone.
            is_exact: Whether the time is its own, and not only its place in the order.
            took_ms: Its time, if the event itself has it.

        Returns:
            Whether it is the first report of this answer.
        """
        tool = self._tools.setdefault(call_id, _Tool())
        is_news = tool.reply is None
        tool.result_is_error = tool.result_is_error or is_error
        if result is not None or tool.result is None:
            tool.is_withheld = is_withheld
        if result is not None:
            tool.result = _parsed(result)
        tool.is_exact = tool.is_exact and is_exact
        tool.took_ms = took_ms if tool.took_ms is None else tool.took_ms
        if tool.reply is not None:
            bot.timeline.remove(tool.reply)
        tool.replied_ms = at_ms if is_news else min(tool.replied_ms, at_ms)
        # A failure without a result gets an answer of its own, because EVA sees no answer in None.
        answer = {"status": "error"} if tool.result is None and tool.result_is_error else tool.result
        use = ToolUse(
            name,
            answer,
            call_id,
            is_error=tool.result_is_error,
            is_withheld=tool.is_withheld and answer is tool.result,
            is_exact=tool.is_exact,
            took_ms=tool.took_ms,
            source=self._source,
        )
        tool.reply = bot.from_agent(SpeechMoment.TOOL_RESPONSE, tool.replied_ms, event_id, use)
        return is_news

    def withdraw(self, bot: BotHistory) -> None:
        """Removes these tools from the timeline: a better source reports them."""
        for key in self._keys():
            bot.timeline.remove(key)
        self._tools.clear()

    def _keys(self) -> Iterator[int]:
        for tool in self._tools.values():
            yield from (key for key in (tool.call, tool.reply) if key is not None)


def _parsed(result: object) -> object:
    if isinstance(result, str) and result.lstrip()[:1] in ("{", "["):
        try:
            return without_infinity(from_json(result, allow_inf_nan=False))
        except ValueError:
            return result
    return result
