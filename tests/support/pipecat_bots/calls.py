"""Calls of real bots: the caller's acts, and the peculiarity of each call."""

import asyncio
from typing import Any, Final

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    EagerTranscriptionFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
)
from pipecat.turns.user_start import MinWordsUserTurnStartStrategy
from pipecat.turns.user_stop import EagerUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies
from pipecat.utils.time import time_now_iso8601

from tests.support.pipecat_bots.bot import Bot, Call, patient_turns
from tests.support.pipecat_bots.vendors import Answer

HELLO: Final = Answer(0.3, "Good day, what may I do?")
ONE_BREATH: Final = (
    "We have four rooms left and the red one looks over the lake and the blue one has a large desk."
)
LIST: Final = (
    "We have four rooms left. The red one looks over the lake. The blue one has a large desk. The "
    "green one is quiet."
)


async def _plain(bot: Bot) -> None:
    await bot.greet()
    await bot.say(1.5, "When does the museum open?")
    await bot.answered()
    await bot.say(1.0, "Thanks a lot.")
    await bot.answered()


async def _barge_in(bot: Bot) -> None:
    await bot.greet()
    await bot.say(1.0, "Which rooms are there?")
    await bot.hears()
    await asyncio.sleep(1.8)
    await bot.say(1.2, "Stop, the red one.")
    await bot.answered()


async def _pauses(bot: Bot) -> None:
    await bot.greet()
    await bot.say(0.8, "I want", heard_after=0.02, is_final=False)
    await asyncio.sleep(0.1)
    await bot.say(0.8, "to move", heard_after=0.02, is_final=False)
    await asyncio.sleep(0.1)
    await bot.say(0.9, "my visit.")
    await bot.answered()


async def _silent_caller(bot: Bot) -> None:
    await bot.greet()
    await asyncio.sleep(5.0)
    await bot.greet()


async def _one_question(bot: Bot) -> None:
    await bot.greet()
    await bot.say(1.5, "When does the museum open?")
    await bot.answered()


async def _writes_only(bot: Bot) -> None:
    """Nothing is heard of a bot without synthesis."""
    await bot.begin_to_greet()
    await bot.model_is_asked(1)
    await asyncio.sleep(1.0)
    await bot.say(1.5, "When does the museum open?")
    await bot.model_is_asked(2)
    await asyncio.sleep(1.5)


async def _tools(bot: Bot) -> None:
    await bot.greet()
    await bot.say(1.0, "Find my visit A1.")
    await bot.answered()
    await bot.say(1.0, "Cancel it and find B2.")
    await bot.answered()
    await bot.say(1.0, "Count all visitors.")
    await bot.tool_is_called("count_visitors")
    await asyncio.sleep(1.0)
    await bot.say(1.0, "No, leave it.")
    await bot.answered()


async def _goes_on(bot: Bot) -> None:
    await bot.greet()
    await bot.say(1.0, "When does the museum open")
    await bot.model_is_asked(2)  # the turn was ruled over, but nothing is heard yet
    await asyncio.sleep(0.2)
    await bot.say(1.0, "on Sundays?")
    await bot.answered()


async def _eager(bot: Bot) -> None:
    async def guess(text: str) -> None:
        await bot.ear.push_frame(EagerTranscriptionFrame(text, "caller", time_now_iso8601()))

    await bot.greet()
    await bot.begin_to_speak()
    await asyncio.sleep(0.8)
    await guess("When does it open")
    await asyncio.sleep(0.5)
    await bot.ear.broadcast_frame(EagerEndOfTurnCancelFrame)
    await asyncio.sleep(0.3)
    await guess("When does it open on Sundays?")
    await bot.fall_silent()
    await asyncio.sleep(0.1)
    await bot.ear.broadcast_frame(ProposedUserStoppedSpeakingFrame)
    await bot.ear.hear("When does it open on Sundays?")
    await bot.answered()


async def _late(bot: Bot) -> None:
    await bot.greet()
    await bot.begin_to_speak()
    await asyncio.sleep(0.5)
    bot.attach()
    await asyncio.sleep(0.5)
    await bot.fall_silent()
    await asyncio.sleep(0.1)
    await bot.ear.hear("When does the museum open?")
    await bot.answered()
    await bot.say(1.0, "Thanks a lot.")
    await bot.answered()


async def _cough(bot: Bot) -> None:
    await bot.greet()
    await bot.say(1.0, "Which rooms are there?")
    await bot.hears()
    await asyncio.sleep(1.3)
    await bot.begin_to_speak()
    await asyncio.sleep(0.2)
    await bot.fall_silent()
    await bot.answered()
    await bot.say(1.0, "Thanks a lot then.")
    await bot.answered()


async def _no_detector(bot: Bot) -> None:
    await bot.greet()
    for text in ("When does it open?", "Thanks."):
        await bot.ear.broadcast_frame(ProposedUserStartedSpeakingFrame)
        await asyncio.sleep(1.25)
        await bot.ear.hear(text)
        await bot.ear.broadcast_frame(ProposedUserStoppedSpeakingFrame)
        await bot.answered()


async def _model_fails(bot: Bot) -> None:
    await bot.greet()
    await bot.say(1.0, "When does it open?")
    await bot.model_is_asked(2)
    await asyncio.sleep(1.7)
    await bot.say(1.0, "Hello?")
    await bot.answered()


async def _over_greeting(bot: Bot) -> None:
    await bot.begin_to_greet()
    await bot.hears()
    await asyncio.sleep(0.9)
    await bot.say(1.0, "When does it open?")
    await bot.answered()


async def find_visit(call: Any) -> None:
    await asyncio.sleep(0.8)
    await call.result_callback({"status": "ok", "visit": "V7"})


async def cancel_visit(_call: Any) -> None:
    await asyncio.sleep(0.3)
    raise RuntimeError("the database is down")


async def count_visitors(call: Any) -> None:
    await asyncio.sleep(9)
    await call.result_callback({"status": "ok"})


FIND: Final = FunctionSchema("find_visit", "Finds a visit.", {"code": {"type": "string"}}, ["code"])
CALLS: Final[dict[str, Call]] = {
    "plain": Call(
        [HELLO, Answer(0.4, "It opens at nine."), Answer(0.6, "With pleasure, goodbye.")], _plain
    ),
    "barge_in": Call([HELLO, Answer(0.3, LIST), Answer(0.3, "The red one is yours.")], _barge_in),
    "words_are_timed": Call(
        [HELLO, Answer(0.3, ONE_BREATH), Answer(0.3, "The red one is yours.")],
        _barge_in,
        synthesis={"times_words": True},
    ),
    "pauses": Call([HELLO, Answer(0.4, "I move it for you.")], _pauses),
    "silent_caller": Call([HELLO, Answer(0.3, "Can you hear me?")], _silent_caller),
    "no_text_of_synthesis": Call(
        [HELLO, Answer(0.4, "It opens at nine.")], _one_question, synthesis={"has_text": False}
    ),
    "tools": Call(
        [
            HELLO,
            Answer(0.3, tools=[("find_visit", "c1", {"code": "A1"})]),
            Answer(0.3, "I have found it."),
            Answer(0.3, tools=[("cancel_visit", "c2", {}), ("find_visit", "c3", {"code": "B2"})]),
            Answer(0.3, "I cannot cancel it."),
            Answer(0.3, tools=[("count_visitors", "c4", {})]),
            Answer(0.3, "As you like."),
        ],
        _tools,
        tools={
            "find_visit": find_visit,
            "cancel_visit": cancel_visit,
            "count_visitors": count_visitors,
        },
        schemas=[FIND],
    ),
    "no_synthesis": Call([HELLO, Answer(0.3, "It opens at nine.")], _writes_only, synthesis=None),
    "goes_on": Call(
        [HELLO, Answer(0.8, "Nobody hears this."), Answer(0.3, "On Sundays at ten.")], _goes_on
    ),
    "eager": Call(
        [HELLO, Answer(0.2, "A wrong guess."), Answer(0.3, "On Sundays at ten.")],
        _eager,
        turns=lambda: patient_turns(stop=[EagerUserTurnStopStrategy()]),
    ),
    "attached_late": Call(
        [HELLO, Answer(0.4, "It opens at nine."), Answer(0.4, "Goodbye then.")],
        _late,
        attaches_late=True,
    ),
    "cough": Call(
        [HELLO, Answer(0.3, LIST), Answer(0.3, "Goodbye.")],
        _cough,
        turns=lambda: patient_turns(start=[MinWordsUserTurnStartStrategy(min_words=2)]),
    ),
    "no_detector": Call(
        [HELLO, Answer(0.3, "At nine."), Answer(0.3, "Goodbye.")],
        _no_detector,
        turns=ExternalUserTurnStrategies,
    ),
    "model_fails": Call(
        [HELLO, Answer(0.3, fails=True), Answer(0.3, "Here I am again.")], _model_fails
    ),
    "over_greeting": Call(
        [
            Answer(0.3, "Good day, what may I do for you on this fine morning?"),
            Answer(0.3, "At nine."),
        ],
        _over_greeting,
    ),
    "cancelled": Call(
        [HELLO, Answer(0.4, "It opens at nine.")], _one_question, ends_by_cancelling=True
    ),
}
"""By name, which is the conversation id."""
