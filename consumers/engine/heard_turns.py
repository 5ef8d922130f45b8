"""The turns of a call as a transcript has them: what each side said, in the words that are nearest to what was heard, and when."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final, NamedTuple

from consumers.engine.elements import ToolUse, key_time_ms
from consumers.engine.history import EvaHistory
from consumers.engine.speaking import SpeakingMachine, SpeakingTurn, Words
from consumers.engine.spoken_prefix import without_labels
from consumers.engine.turn_machine import TurnMachine
from consumers.engine.turn_state import Pieces, TurnState, in_order, joined

PLACEHOLDER: Final = "[user audio]"
"""What stands in the log of an audio-LLM agent until somebody has transcribed the caller; it says nothing of the words."""


class HeardTurn(NamedTuple):
    """One turn. Texts are empty where nothing is known, and have no labels of EVA's in them.

    `user` is what the agent understood of the caller; where that is not known, what a simulated caller meant to say. `spoken`
    is what the agent said, as far as it came: the text that speech synthesis had got to, else what the caller heard. `written`
    is what its model had written, in the audit log. Starts and spans are of sound, in epoch seconds; a span without an end
    goes on for ever. `user_ms` and `agent_ms` are when the words were logged, for a side without sound. `is_corrected` says that
    an ElevenLabs agent told how much of its answer was heard.
    """

    user: str = ""
    spoken: str = ""
    written: str = ""
    user_starts: tuple[float, ...] = ()
    agent_spans: tuple[tuple[float, float], ...] = ()
    user_ms: int | None = None
    agent_ms: int | None = None
    is_barge_in: bool = False
    is_corrected: bool = False


def heard_turns(machine: TurnMachine | SpeakingMachine, history: EvaHistory) -> dict[int, HeardTurn]:
    """Every turn of the call by its number, lowest first: EVA's turns or the bot's own, whichever the call is heard in."""
    if isinstance(machine, SpeakingMachine):
        numbers = sorted({*machine.turns, *machine.words})
        return {number: _heard_by_the_bot(machine, history, number) for number in numbers}
    return _heard_by_the_caller(machine)


def cut_off_turns(turns: dict[int, HeardTurn]) -> set[int]:
    """The turns in which the caller spoke over the agent: each time, the one whose sound it was.

    A barge-in stands in the caller's turn, which is the next one, or the same where the agent had no text yet. Where no
    sound tells, it was the turn before. A correction stands in the turn itself, also where the caller then hung up.
    """
    cut = {number for number, turn in turns.items() if turn.is_corrected}
    for number, turn in turns.items():
        if turn.is_barge_in:
            over = [
                each for each in (number - 1, number) if each in turns and _is_heard_at(turns[each], turn.user_starts)
            ]
            cut.update(over or [number - 1])
    return cut


def _is_heard_at(turn: HeardTurn, times_s: Iterable[float]) -> bool:
    return any(start_s <= time_s < end_s for time_s in times_s for start_s, end_s in turn.agent_spans)


def _heard_by_the_caller(machine: TurnMachine) -> dict[int, HeardTurn]:
    written: defaultdict[int, list[str]] = defaultdict(list)
    logged_ms: dict[tuple[int, str], int] = {}
    for entry in in_order(machine.trace):
        if entry.role is None or isinstance(entry.content, ToolUse):
            continue
        if entry.is_from_audit:
            written[entry.turn].append(_plain(entry.content))
        if entry.time_ms is not None:
            logged_ms.setdefault((entry.turn, entry.role), entry.time_ms)
    turns = {}
    for number in sorted(machine.turns):
        state = machine.turns[number]
        turns[number] = HeardTurn(
            user=_plain(state.transcribed_user) or _plain(state.intended_user),
            spoken=_spoken(state),
            written=" ".join(filter(None, written[number])),
            user_starts=state.user_starts,
            agent_spans=_spans(state.assistant_starts, state.assistant_ends),
            user_ms=logged_ms.get((number, "user")),
            agent_ms=logged_ms.get((number, "assistant")),
            is_barge_in=state.user_interrupted,
        )
    return turns


def _heard_by_the_bot(machine: SpeakingMachine, history: EvaHistory, number: int) -> HeardTurn:
    heard = machine.turns.get(number, SpeakingTurn())
    said = machine.words.get(number, ())
    texts: defaultdict[tuple[bool, int], list[str]] = defaultdict(list)
    for words in said:
        text = _plain(words.ref if isinstance(words.ref, str) else history.text_at(words.ref))
        if text:
            texts[words.is_user, words.rank].append(text)
    by_rank = {place: " ".join(parts) for place, parts in texts.items()}
    return HeardTurn(
        user=by_rank.get((True, 0)) or by_rank.get((True, 1), ""),
        # Of the assistant, 1 is the log's; pipecat's own record, 2, was cut where the bot was.
        spoken=by_rank.get((False, 0)) or by_rank.get((False, 2), ""),
        written=by_rank.get((False, 1), ""),
        user_starts=heard.vad_starts or heard.release_starts,
        agent_spans=_spans(heard.bot_starts, heard.bot_ends),
        user_ms=_first_ms(heard.transcripts or heard.agent_heard, said, is_user=True),
        agent_ms=_first_ms(heard.bot_texts or heard.agent_said, said, is_user=False),
        is_barge_in=heard.user_interrupted,
        # The audit log's words are keys in EVA's history, so a text of this rank is the whole of a corrected answer.
        is_corrected=any(not words.is_user and words.rank == 1 and isinstance(words.ref, str) for words in said),
    )


def _first_ms(times_s: Sequence[float], said: Iterable[Words], *, is_user: bool) -> int | None:
    """When this side's first words were logged; of what pipecat recorded only the text is kept."""
    if times_s:
        return int(times_s[0] * 1000)
    return next((key_time_ms(each.ref) for each in said if each.is_user is is_user and isinstance(each.ref, int)), None)


def _spoken(state: TurnState) -> str:
    synthesised = _plain(" ".join(group.text for group in state.segments))
    return synthesised or _plain(state.transcribed_assistant)


def _spans(starts: Sequence[float], ends: Sequence[float]) -> tuple[tuple[float, float], ...]:
    return tuple((start_s, ends[place] if place < len(ends) else inf) for place, start_s in enumerate(starts))


def _plain(text: Pieces | None) -> str:
    return "" if text is None else without_labels(joined(text).replace(PLACEHOLDER, " "))
