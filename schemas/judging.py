"""Questions to the judges and their answers: the records of `judge.requests` and `judge.verdicts`.

The engine asks, the judge answers, the engine folds the answer. A question and its answer share a request id that follows
from what is asked, so asking twice is harmless: whoever asks again gets the same id, and the judge asks its model once.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, computed_field, model_validator

from schemas.closed_sets import TEXT_JUDGES as TEXT_JUDGES
from schemas.closed_sets import JudgeKind as JudgeKind
from schemas.closed_sets import TrialOutcome as TrialOutcome
from schemas.closed_sets import UnjudgedReason as UnjudgedReason
from schemas.wire import Name, Text, WireModel

MAX_TRANSCRIPT_CHARS: Final = 200_000
"""Characters of all items of a transcript together: three hours of talk. Beyond it a question would not fit a record of
Kafka, so the asker answers itself with `UnjudgedReason.TOO_LONG`; the judge does so too."""
MAX_TRANSCRIPT_ITEMS: Final = 5_000
MAX_BRIEF_CHARS: Final = 100_000
"""Characters of each text that says what the agent was told to do."""
MAX_EXPLANATION_CHARS: Final = 500
"""What is kept of a judge's explanation; it is asked for two sentences."""
MAX_QUESTION_BYTES: Final = 1_000_000
"""Largest question that is put on `judge.requests`: a little less than what Kafka's clients and topics take by default."""
_MOST_BYTES_OF_A_CHAR: Final = 6
_MOST_BYTES_OF_AN_ITEM: Final = 100
MAX_TRIALS: Final = 99
MAX_RETRY_WAVES: Final = 20

VERDICT_SOURCE: Final = "callgauge.judge"
"""`ce_source` of every verdict; its `ce_id` is the request id, so that a second verdict of a question counts as a repeat."""
VERDICT_TYPE: Final = "callgauge.judge.verdict.v1"
REPLY_PARTITION_HEADER: Final = "callgauge_reply_partition"
"""Header of a question: the partition number of `judge.verdicts` for the answer, that of the call's own partition. Without
it the answer goes where its key leads."""
REQUEST_PARTITION_HEADER: Final = "callgauge_request_partition"
"""Header of a verdict: the partition number of `judge.requests` where the question stood, so that whoever takes that
partition over finds what was answered."""


PROMPT_VERSIONS: Final[Mapping[JudgeKind, str]] = MappingProxyType({kind: f"{kind.value}.1" for kind in JudgeKind})
"""The prompt each kind is asked with. Another text is another version: it makes new request ids, so that verdicts of the
old one are not taken for its own."""


class JudgeModel(BaseModel):
    """Parts of questions and verdicts: closed shapes, never changed after they are made. Their errors repeat no texts."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class TranscriptItem(JudgeModel):
    """One thing that happened in a call, in its order.

    Attributes:
        turn: The conversation's turn; 0 is the greeting.
        kind: Who spoke, or whether a tool was called or answered.
        text: The words; of a tool its parameters or its result, as compact JSON.
        tool: The tool's name; None for words.
    """

    turn: int
    kind: Literal["user", "assistant", "tool_call", "tool_response"]
    text: Text
    tool: Name | None = None

    @cached_property
    def hashed(self) -> bytes:
        """What the item is in an input's hash; kept, since it is in every question of its call from here on."""
        return b"".join(map(_hashed, (str(self.turn), self.kind, self.tool, self.text)))


def transcript_chars(items: Iterable[TranscriptItem]) -> int:
    """Characters of a transcript, to be held against `MAX_TRANSCRIPT_CHARS`."""
    return sum(len(item.text) + len(item.tool or "") for item in items)


class GoalSetRef(JudgeModel):
    """The goal set a subgoal belongs to, and the digest of its text."""

    id: Name
    digest: Name


_Brief = Annotated[str, StringConstraints(max_length=MAX_BRIEF_CHARS)]


class AgentBrief(JudgeModel):
    """What the agent was told to do: what faithfulness is judged against, as far as it is known."""

    role: _Brief | None = None
    instructions: _Brief | None = None
    tools: _Brief | None = None
    current_date_time: Name | None = None


class JudgeRequest(JudgeModel):
    """One question about one turn, with all a judge needs to answer it.

    Attributes:
        conversation_id: The call, also the record's key.
        kind: What is judged.
        turn: The turn after which it is asked.
        goal_set: Where the subgoal stands; None for EVA's metrics.
        subgoal_id: Names the subgoal within the call's goal set; None for EVA's metrics.
        subgoal: The subgoal in plain words; None for EVA's metrics.
        user_instruction: What the caller set out to do, if known.
        agent_brief: What the agent was told, if known; only faithfulness uses it.
        transcript: The call up to the turn, in order. For speakability only the turn's own assistant text.
        trials: How often the model is asked at most, odd; EVA's metrics are asked once whatever it says.
        stops_early: Whether asking ends once a majority is certain (agent-inspect's optimised mode).
        retry_waves: How often invalid answers are asked again when `stops_early` is off.
        prompt_version: Of `PROMPT_VERSIONS`.
        asked_at_ms: Broker time of the record that made the engine ask.
        deadline_ms: When an answer is no longer wanted, on the same clock.
        agent: The agent's name, for its budget.
        priority: 0 to 9; a call at risk has more. It is not part of what is asked.
    """

    type: Literal["judge_request"] = "judge_request"
    schema_version: Literal[1] = 1
    conversation_id: Name
    kind: JudgeKind
    turn: int
    goal_set: GoalSetRef | None = None
    subgoal_id: Name | None = None
    subgoal: Text | None = None
    user_instruction: Text | None = None
    agent_brief: AgentBrief | None = None
    transcript: tuple[TranscriptItem, ...] = Field(max_length=MAX_TRANSCRIPT_ITEMS)
    trials: int = Field(5, gt=0, le=MAX_TRIALS)
    stops_early: bool = True
    retry_waves: int = Field(5, ge=0, le=MAX_RETRY_WAVES)
    prompt_version: Name
    asked_at_ms: int
    deadline_ms: int
    agent: Name = "unknown"
    priority: int = Field(0, ge=0, le=9)

    @model_validator(mode="after")
    def _is_complete(self) -> "JudgeRequest":
        if (self.kind is JudgeKind.SUBGOAL) != (self.subgoal is not None and self.subgoal_id is not None):
            raise ValueError("a subgoal has subgoal_id and subgoal, a metric has neither")
        if self.trials % 2 == 0:
            raise ValueError(f"expected an odd number of trials, so that no vote is a tie, saw {self.trials}")
        return self

    @computed_field(description="Hash of what the judge reads: the same input needs no second verdict.")  # type: ignore[prop-decorator]  # mypy cannot stack decorators on property
    @cached_property
    def input_hash(self) -> str:
        """Hash of subgoal, instructions and transcript."""
        digest = hashlib.blake2b(digest_size=16)
        brief = self.agent_brief or AgentBrief()
        texts = (self.subgoal, self.user_instruction, *(getattr(brief, name) for name in AgentBrief.model_fields))
        digest.update(b"".join([*map(_hashed, texts), *(item.hashed for item in self.transcript)]))
        return digest.hexdigest()

    @computed_field(description="Identifies the question; its verdict carries the same.")  # type: ignore[prop-decorator]  # as above
    @cached_property
    def request_id(self) -> str:
        """Hash of (conversation, kind, turn, subgoal, prompt version, input hash)."""
        identity = "\x00".join(
            (
                self.conversation_id,
                self.kind,
                str(self.turn),
                self.subgoal_id or "",
                self.prompt_version,
                self.input_hash,
            )
        )
        return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()

    @property
    def is_too_large(self) -> bool:
        """Whether it fits no record of Kafka: do not send it, it is `UnjudgedReason.TOO_LONG`."""
        brief = self.agent_brief or AgentBrief()
        texts = (self.subgoal, self.user_instruction, *(getattr(brief, name) for name in AgentBrief.model_fields))
        chars = transcript_chars(self.transcript) + sum(len(text) for text in texts if text is not None)
        most_bytes = chars * _MOST_BYTES_OF_A_CHAR + (len(self.transcript) + 1) * _MOST_BYTES_OF_AN_ITEM
        # Nearly always that is enough to know; else it is counted.
        return most_bytes > MAX_QUESTION_BYTES and len(self.model_dump_json().encode()) > MAX_QUESTION_BYTES


def _hashed(text: str | None) -> bytes:
    """A text with its length before it, which keeps neighbours apart: "ab", "c" is not "a", "bc"."""
    if text is None:
        return b"-"
    encoded = text.encode()
    return b"%d:%b" % (len(encoded), encoded)


class Judged(JudgeModel):
    """The subgoal is complete, or it is not."""

    outcome: Literal["judged"] = "judged"
    is_completed: bool


class Rated(JudgeModel):
    """One of EVA's metrics has a rating.

    Attributes:
        rating: On EVA's scale: 1 to 3, of speakability 0 or 1; higher is better.
        normalised: The same from 0 to 1.
        dimensions: Rating of each dimension, 1 to 3, where the metric has any; below 3 it is flagged.
        failure_modes: What was wrong with the turn, where the metric names modes.
    """

    outcome: Literal["rated"] = "rated"
    rating: int
    normalised: float
    dimensions: dict[str, int] = {}
    failure_modes: tuple[str, ...] = ()


class Unjudged(JudgeModel):
    """There is no verdict, and why."""

    outcome: Literal["unscored"] = "unscored"
    reason: UnjudgedReason


class NotRateable(JudgeModel):
    """The metric does not apply to this turn: the assistant said nothing in it."""

    outcome: Literal["not_applicable"] = "not_applicable"
    reason: str


VerdictResult = Annotated[Judged | Rated | Unjudged | NotRateable, Field(discriminator="outcome")]


class Votes(JudgeModel):
    """How the trials went; an answer that was asked again because it was invalid counts each time."""

    complete: int = 0
    incomplete: int = 0
    invalid: int = 0

    @property
    def is_unanimous(self) -> bool:
        """Whether no usable answers contradict each other."""
        return not (self.complete and self.incomplete)

    @property
    def confidence(self) -> float | None:
        """Share of the usable answers on the side of most of them; None without any."""
        usable = self.complete + self.incomplete
        return max(self.complete, self.incomplete) / usable if usable else None


class TrialAnswer(JudgeModel):
    """What one request to the model brought.

    Attributes:
        trial: Its number in the order of asking, from 1.
        outcome: What came of it.
        grade: True for complete; None where there is no such vote.
        explanation: What the model said about it, cut to `MAX_EXPLANATION_CHARS`.
        latency_ms: From sending to the end of the answer, waiting for repeats included.
    """

    trial: int
    outcome: TrialOutcome
    grade: bool | None = None
    explanation: str = ""
    latency_ms: int = 0


class TokenUse(JudgeModel):
    """Tokens as the endpoint counts them; `cached` is the part of `prompt` that it had seen before."""

    prompt: int = 0
    cached: int = 0
    answer: int = 0

    def __add__(self, other: "TokenUse") -> "TokenUse":
        return TokenUse(
            prompt=self.prompt + other.prompt, cached=self.cached + other.cached, answer=self.answer + other.answer
        )


class JudgeVerdict(WireModel):
    """The answer to one question, on `judge.verdicts` under the call's id. The first of a request id counts.

    Attributes:
        timestamp: When it was made, in ms on the judge's clock.
        request_id: Of the question; kind, turn, subgoal and hashes repeat what it asked.
        result: The verdict, or why there is none.
        votes: How the trials went; for EVA's metrics all zero.
        answers: What each trial brought, in the order of asking.
        confidence: Share of the usable answers that agree with the result; None without a vote.
        model: Who was asked; empty when nobody was.
        tokens: All trials together.
        cost: All trials together, in the currency of the configured prices. Of a request that ended without a count of
            its tokens, what it could have cost at most.
        requests: Requests sent to the model, repeats included.
        waited_ms: From the question's arrival at the judge to the first request.
        latency_ms: From the question's arrival at the judge to its verdict.
    """

    model_config = ConfigDict(frozen=True)

    type: Literal["judge_verdict"] = "judge_verdict"
    timestamp: int
    request_id: Name
    conversation_id: Name
    kind: JudgeKind
    turn: int
    goal_set: GoalSetRef | None = None
    subgoal_id: Name | None = None
    input_hash: Name
    prompt_version: Name
    result: VerdictResult
    votes: Votes = Votes()
    answers: tuple[TrialAnswer, ...] = ()
    confidence: float | None = None
    agent: Name = "unknown"
    model: Name = ""
    tokens: TokenUse = TokenUse()
    cost: float = Field(0.0, ge=0)
    requests: int = Field(0, ge=0)
    waited_ms: int = Field(0, ge=0)
    latency_ms: int = Field(0, ge=0)
