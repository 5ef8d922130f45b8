"""The facts of a call: the one vocabulary into which each source translates its events, and which
the engine reads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from consumers.engine.turns.bot import TokenUsage
from consumers.engine.turns.timeline import ElementKind, ToolPayload
from schemas.closed_sets import InputSource, PipelineType, Telling
from schemas.events import audit, elevenlabs
from schemas.events.codec import Misread
from schemas.judging import JudgeVerdict
from schemas.scores.latency_stages import ServiceKind, Stage, StageSource

AgentTool = audit.AgentTool
"""A tool as the agent was told of it, in the contract's own shape."""
RecordEntry = elevenlabs.RecordEntry
"""An entry of a record, which is in the format of a transcript already; so are its two kinds of
steps of tools.
"""
RecordedToolCall = elevenlabs.RecordedToolCall
RecordedToolResult = elevenlabs.RecordedToolResult

# A fact says what happened, in words that are the same for every source. Its time is that of its
# event, except where it has a time of its own. Facts are small and short-lived: most are folded and
# dropped.


class Recording(NamedTuple):
    """Where the sound of the call is kept.

    Attributes:
        url: Its address.
        starts_ms: When it begins, on the call's own clock; None where that is not told.
    """

    url: str
    starts_ms: int | None


class Started(NamedTuple):
    """What is known of a call and its agent. It comes at any time, also repeatedly; None leaves a
    value as it is.

    The fields are those of the contract's `call_started`. A tool of the agent keeps its shape
    there.
    """

    pipeline_type: PipelineType | None
    agent: str | None
    tenant: str | None
    environment: str | None
    version: str | None
    goals: str | None
    tools: Sequence[AgentTool] | None
    expected_state: Mapping[str, Any] | None
    role: str | None
    instructions: str | None
    current_date_time: str | None
    language: str | None
    is_told_later: bool
    traceparent: str | None
    is_from_record: bool
    recording: Recording | None = None


class Ended(NamedTuple):
    """The call is over. The fields are those of the contract's `call_ended`; None where it leaves
    one out.
    """

    reason: str | None
    final_state: Mapping[str, Any] | None
    final_state_hash: str | None
    response_latencies_ms: Sequence[float] | None
    awaits_record: bool | None
    recording: Recording | None = None


class Line(NamedTuple):
    """The state of the simulated caller's line; `details` says more in the caller's own words. A
    line that has ended ends the call.
    """

    has_ended: bool
    details: object


class Layer(IntEnum):
    """Where speech is heard.

    Attributes:
        LINE: At the simulated caller's end of the line: what a human hears.
        SOUND: In the bot's process: what its detector hears, and what it plays.
        RULING: In the bot's process: the decision whose turn it is.
    """

    LINE = 0
    SOUND = 1
    RULING = 2


class SpeechFact(NamedTuple):
    """A side begins or ends to speak at `at_s` (epoch seconds). An end may name its start, which
    counts where that was lost; a start may have the id of its sound, which its words have too.
    """

    layer: Layer
    is_user: bool
    is_start: bool
    at_s: float
    started_s: float | None = None
    sound_id: str | None = None


class Text(NamedTuple):
    """A piece of the bot's answer on its way to speech synthesis, or as its model wrote it.
    `stamp_ms` has fractions of a ms.
    """

    stamp_ms: float
    text: str
    is_written: bool = False


class TextBorder(NamedTuple):
    """A border of the bot's texts. Equal names that follow each other are one border."""

    name: str
    stamp_ms: float


class Teller(IntEnum):
    """Where words and uses of tools come from.

    Attributes:
        LOG: The agent's audit log, which EVA reads too.
        BOT: The bot's framework.
        AGENT: A hosted agent while it runs. No sound tells of its turns, so its words do.
        RECORD: What was made of that agent's record afterwards. It counts only where nothing came
            while the call ran.
    """

    LOG = 0
    BOT = 1
    AGENT = 2
    RECORD = 3


INPUT_OF: Final[Mapping[Teller, InputSource]] = {
    Teller.LOG: InputSource.AUDIT,
    Teller.BOT: InputSource.PIPECAT,
    Teller.AGENT: InputSource.ELEVENLABS,
    Teller.RECORD: InputSource.ELEVENLABS,
}
"""The input of each, as metrics and scores name it."""


class WordsFact(NamedTuple):
    """The words of a side.

    Attributes:
        teller: Who tells them.
        text: The words; of a log's user perhaps a placeholder.
        at_ms: When they were said.
        is_user: Whose they are.
        id: By which a correction names them; None if none can.
        is_cut: Whether an answer is the part that was heard before the user cut it off.
        tells_cuts: Whether the teller distinguishes such an answer from a whole one.
        is_exact: Whether the time is its own, and not only a place in the order.
        sounded_s: A moment of their sound (epoch seconds), where the teller knows it and it is not
            that of the event.
        is_from_record: Whether they were taken from a record of the whole call, made after its end.
        sound_id: The id of their sound, where that has one.
    """

    teller: Teller
    text: str
    at_ms: int
    is_user: bool
    id: int | None = None
    is_cut: bool = False
    tells_cuts: bool = False
    is_exact: bool = True
    sounded_s: float | None = None
    is_from_record: bool = False
    sound_id: str | None = None


class Corrected(NamedTuple):
    """A correction: `text` replaces words that came before. They are those with the id, and, if it
    has several, with the words `instead_of`; without an id a log's newest ones of the user.
    """

    teller: Teller
    text: str
    id: int | None
    instead_of: str = ""


class CutOff(NamedTuple):
    """The user speaks while the agent does, and the agent stops."""

    teller: Teller
    at_ms: int
    id: int | None
    is_exact: bool


class ToolUsed(NamedTuple):
    """The audit log's entry of a tool that is called, or has answered."""

    use: ToolPayload
    is_response: bool


class ToolState(IntEnum):
    """What a tool does from now on. One that is only asked for may wait for another,
    and never run.
    """

    ASKED = 0
    RUNS = 1
    ANSWERED = 2
    CANCELLED = 3


class ToolFact(NamedTuple):
    """A use of a tool, told in steps with its id, in any order and repeatedly.

    Attributes:
        teller: Who tells it.
        state: What it does now.
        call_id: The id of the use.
        name: The tool's name; None where this step does not have it.
        at_ms: When it happened.
        value: The arguments of a tool that runs, the answer of one that has answered; None where it
            is not told.
        event_id: Its place among the events of its teller; None without one.
        began_ms: Of an end, when it began to run; None where that is not told.
        is_error: Whether it failed.
        is_withheld: Whether the teller keeps the answer back; `value` is then None, or its status
            alone.
        is_exact: Whether the time is its own, and not only a place in the order.
        took_ms: Its time, if this step itself has it.
        kind: Where the tool runs, in ElevenLabs' words, such as `webhook`; None where this step
            does not tell.
    """

    teller: Teller
    state: ToolState
    call_id: str
    name: str | None
    at_ms: int
    value: object = None
    event_id: int | None = None
    began_ms: int | None = None
    is_error: bool = False
    is_withheld: bool = False
    is_exact: bool = True
    took_ms: int | None = None
    kind: str | None = None


# What a hosted agent's provider tells of a call when it is over.


class RecordedTurn(NamedTuple):
    """One turn of a record.

    Attributes:
        user_words: The caller's words, in small letters and with single blanks.
        ids: (whether the caller's, id of the live event) of its entries.
        latency_ms: The latency that ElevenLabs measured for the caller; None without one.
        metrics: Seconds by name; of several entries' values the one that `SEVERAL` chooses.
        usage: Tokens and their prices by model.
    """

    user_words: str
    ids: frozenset[tuple[bool, int]]
    latency_ms: float | None
    metrics: Mapping[str, float]
    usage: Mapping[str, TokenUsage] = {}

    @property
    def measured(self) -> tuple[object, ...]:
        """The measured values, without the fields that identify the turn."""
        return self[2:]


class Recorded(NamedTuple):
    """The record of a conversation with a hosted agent.

    Attributes:
        is_final: Whether the conversation is over; otherwise it was fetched too early.
        worth: Of two records the one with more is better.
        turns: Its turns, grouped as live events are: one begins when the caller speaks after the
            agent has.
        entries: The entries of a record that is final, in the format of a transcript; otherwise
            none.
        agent_id: The provider's id of the agent; None where the record has none.
        ended_reason: Why the call ended, in the provider's words; None where the record does not
            say.
        ended_ms: When the call ended, in ms since 1970; 0 where the record does not say.
    """

    is_final: bool
    worth: tuple[bool, int, float]
    turns: Sequence[RecordedTurn]
    entries: Sequence[RecordEntry]
    agent_id: str | None
    ended_reason: str | None
    ended_ms: int


class RecordFollows(NamedTuple):
    """The agent is a hosted one, whose record comes after the end of the call."""


class Detailed(NamedTuple):
    """Details of a turn of the agent beside its sound and words; None where this event has none.

    Attributes:
        at_ms: A moment of the turn it is about.
        told_ms: When it was told.
        rag_retrieval_info: What was retrieved, in ElevenLabs' form.
        feedback: The caller's score of an answer, `like` or `dislike`.
        llm_override: The model that answered in the place of the usual one.
        workflow_node_id: The node of the workflow that the agent is in from then on.
    """

    at_ms: int
    told_ms: int
    rag_retrieval_info: Mapping[str, Any] | None
    feedback: str | None
    llm_override: str | None
    workflow_node_id: str | None


# The rest: what EVA alone reads, what is measured, and what goes wrong.


class Fallback(NamedTuple):
    """The agent's timer for the end of a turn fired and nudged its model."""


class EvaElement(NamedTuple):
    """An entry of a log that EVA reads and no other rule does; with `kind` None only its time and
    its place in the log count.
    """

    kind: ElementKind | None = None
    text: str | None = None
    is_audit: bool = False


class NoteFact(NamedTuple):
    """Something that no sound shows: when, what, and its particulars by their names in
    `FrameworkNote`.
    """

    at_ms: int
    what: str
    more: tuple[tuple[str, str | bool], ...]


RANKS: Final = (0, 1)
"""Ranks of one source's values for a turn; only the lowest present counts. Pipecat reports some
values in two ways, one of which has more detail.
"""


class Measured(NamedTuple):
    """A stage took `seconds` from `begin_s` (epoch); `rank` is one of `RANKS`."""

    begin_s: float
    stage: Stage
    source: StageSource
    seconds: float
    rank: int = 0
    model: str = ""


class ToldWait(NamedTuple):
    """The user waited `seconds` for an answer, in the one turn that lies between these moments
    (epoch seconds).
    """

    begin_s: float
    end_s: float
    seconds: float


class Used(NamedTuple):
    """What a model used: tokens, or an `amount` of characters or of seconds of sound. All sources
    count the same, and those of the lowest `rank` win: 0, 1 or 2.
    """

    at_s: float
    rank: int
    model: str
    usage: TokenUsage
    kind: ServiceKind = ServiceKind.LLM
    provider: str = ""
    amount: float = 0.0


class AgentError(NamedTuple):
    """The agent reports an error, of this kind of service if that is known. Of one that is told in
    two ways, `told_twice` has the framework's name of it and the way.
    """

    source: InputSource
    component: ServiceKind | None
    told_twice: tuple[str, str] | None = None


class Lost(NamedTuple):
    """So many events about this were lost before they could be sent."""

    what: Telling
    events: int


class Unread(NamedTuple):
    """The event does nothing, or not all that it could."""

    source: InputSource
    misread: Misread


def plain_words(text: str) -> str:
    """Words in small letters with single blanks, to compare them."""
    return " ".join(text.casefold().split())


Verdict = JudgeVerdict
"""A judge's answer. It is the contract's own, so nothing is to be translated."""

Translator = Callable[[Any], Iterable[Any]]
"""The facts that an event of one type tells, in order."""


def nothing(_event: object) -> tuple[()]:
    """The facts of an event that no rule reads: only its time counts."""
    return ()


@dataclass(frozen=True, slots=True)
class EventRule:
    """How one type of event is read.

    Attributes:
        facts: Its facts.
        is_kept: Whether some of its content is kept until the call closes, so that its bytes count.
            A type for which this is wrongly true costs too much rather than nothing.
        is_of_a_stream: Whether its time advances the watermark of its stream.
        outcome: Label in the events counter when it comes in time.
        may_be_from_record: Whether a record of the whole call may tell the same, as the field
            `is_from_record` says: only what came first counts.
    """

    facts: Translator
    is_kept: bool = True
    is_of_a_stream: bool = True
    outcome: str = "folded"
    may_be_from_record: bool = False


UNREAD: Final = EventRule(nothing, is_kept=False)
"""A known event that no rule reads."""
