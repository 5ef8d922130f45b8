"""Questions to judges, their votes and verdicts, and the options of judging."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    computed_field,
    model_validator,
)

from schemas.closed_sets import JudgeKind, TrialOutcome, UnjudgedReason
from schemas.wire import MAX_INSTRUCTIONS_CHARS, Name, Text, WireModel

# Options of judging subgoals that goal sets, settings and questions share: bounds of trials, and a
# prompt of one's own.
#
# Such a prompt is a template: a text with named places for the parts of a question. A place is a
# name in braces, for example `{call}`; two braces are one brace of the text. The judge puts a frame
# around the call and says how to answer, so a template has only what is to be decided, and how.

MAX_TRIALS: Final = 99
MAX_RETRY_WAVES: Final = 20
CALL: Final = "call"
SUBGOAL: Final = "subgoal"
_SPOKEN: Final = frozenset({"user", "assistant"})
_ALL: Final = _SPOKEN | {"tool_call", "tool_response"}
FRAMES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        CALL: _ALL,
        "trajectories": _ALL,
        "dynamicDialogue": _SPOKEN,
        "answers": frozenset({"assistant"}),
        "questions": frozenset({"user"}),
    }
)
"""Each place of words of the call, in a frame, and the kinds of `TranscriptItem` that it shows. A
template has at least one of them, and each at most once, because each costs as much as the call is
long.
"""
PLACES: Final[Mapping[str, str]] = MappingProxyType(
    {
        CALL: (
            "the call up to the turn, a line for each utterance and each use of a tool, in a frame"
        ),
        SUBGOAL: "the details of the subgoal, as JSON text",
        "turn": "the number of the turn up to which the call is shown",
        "user_instruction": (
            "the user's instruction of the goal set, as JSON text; null if there is none"
        ),
        "trajectories": "the same as {call}, under agent-inspect's name",
        "dynamicDialogue": "of the call what both sides said, in a frame",
        "answers": "of the call what the assistant said, in a frame",
        "questions": "of the call what the user said, in a frame",
        "userTask": "the same as {user_instruction}, under agent-inspect's name",
    }
)
"""Each place, and the part of the question that replaces it. The last five are agent-inspect's
names, so its templates can be used.
"""
MAX_TEMPLATE_CHARS: Final = 20_000
"""Longest template: it is a part of every question. agent-inspect's own has 2,500 characters."""
OWN_PROMPT: Final = "own.1"
"""Version of the frame and of the words about the answer around a template. The version of a prompt
has the template's hash behind it, so a changed template asks again, as a changed frame does.
"""
_PLACE: Final = re.compile(r"\{\{|\}\}|\{(\w+)\}")


class TemplateError(ValueError):
    """A template has an unknown place, lacks one, or is too long."""


def check_template(text: str) -> str:
    """Checks a template, and returns it.

    Raises:
        TemplateError: The template cannot be used; says which place, in which line.

    Example:
        >>> check_template("{call} Is {subgoal} done?")
        '{call} Is {subgoal} done?'
        >>> check_template("Read {answers}.")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        schemas.judging.TemplateError: the place {subgoal} is missing; put it where the judge should read the details of the subgoal, ...
    """
    if len(text) > MAX_TEMPLATE_CHARS:
        raise TemplateError(
            f"the template has {len(text):,} characters, and {MAX_TEMPLATE_CHARS:,} are allowed; "
            "shorten it"
        )
    lines = places_in(text)
    for name, numbers in lines.items():
        if name not in PLACES:
            *names, last = (f"{{{place}}}" for place in PLACES)
            known = f"{', '.join(names)} and {last}"
            raise TemplateError(
                f"line {numbers[0]}: the place {{{name}}} is not known; known are {known}"
            )
        if name in FRAMES and len(numbers) > 1:
            places = " and ".join(f"line {number}" for number in numbers)
            raise TemplateError(f"the place {{{name}}} is in {places}; leave one of them")
    if SUBGOAL not in lines:
        raise _missing(SUBGOAL)
    if not FRAMES.keys() & lines.keys():
        raise _missing(CALL)
    return text


def _missing(name: str) -> TemplateError:
    return TemplateError(
        f"the place {{{name}}} is missing; put it where the judge should read {PLACES[name]}"
    )


def places_in(template: str) -> dict[str, list[int]]:
    r"""The names of a template's places in their order, and the lines in which each is.

    Example:
        >>> places_in("{call} {{x}}\nIs {subgoal} done? {call}")
        {'call': [1, 2], 'subgoal': [2]}
    """
    lines: dict[str, list[int]] = {}
    for found in _PLACE.finditer(template):
        if (name := found[1]) is not None:
            lines.setdefault(name, []).append(template.count("\n", 0, found.start()) + 1)
    return lines


def prompt_version_of(template: str) -> str:
    """The version of the prompt that a template makes: another one for each text.

    Example:
        >>> prompt_version_of("{call} Is {subgoal} done?")
        'own.1.5a75c592a7e0e620'
    """
    return f"{OWN_PROMPT}.{hashlib.blake2b(template.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with values in its places. A place inside a value stays as it is.

    Example:
        >>> filled('{call} Is {subgoal} done? Answer {{"yes"}}.', {"call": "{subgoal}", "subgoal": "it"})
        '{subgoal} Is it done? Answer {"yes"}.'
    """
    return _PLACE.sub(lambda found: found[0][0] if found[1] is None else values[found[1]], template)


def odd(trials: int) -> int:
    """The number of trials, which must be odd.

    Raises:
        ValueError: It is even.
    """
    if trials % 2 == 0:
        raise ValueError(f"expected an odd number, so that no vote is a tie, saw {trials}")
    return trials


# Questions to the judges and their answers: the records of `judge.requests` and `judge.verdicts`.
#
# The engine asks, the judge answers, and the engine folds the answer. A question and its answer
# share a request id, which is a hash of the question. So asking twice is harmless: the second
# question has the same id, and the judge asks its model once.

MAX_TRANSCRIPT_CHARS: Final = 200_000
"""Characters of all items of a transcript together: three hours of talk. A longer question would
not fit a Kafka record: the engine does not send it, and the verdict is `UnjudgedReason.TOO_LONG`.
The judge applies the same limit.
"""
MAX_TRANSCRIPT_ITEMS: Final = 5_000
"""Characters of each text of an agent's brief."""
MAX_EXPLANATION_CHARS: Final = 500
"""Characters kept of a judge's explanation. The prompt asks for two sentences."""
MAX_RAW_ANSWER_CHARS: Final = 4_000
"""Characters kept of a model's whole answer, if it is kept: a usual one has 300."""
MAX_QUESTION_BYTES: Final = 1_000_000
"""Largest question written to `judge.requests`: a little less than the default limit of Kafka's
clients and topics.
"""
_MOST_BYTES_OF_A_CHAR: Final = 6
_MOST_BYTES_OF_AN_ITEM: Final = 100

VERDICT_SOURCE: Final = "callgauge.judge"
"""`ce_source` of every verdict. Its `ce_id` is the request id, so a second verdict on a question
counts as a repeat.
"""
VERDICT_TYPE: Final = "callgauge.judge.verdict.v1"


PROMPT_VERSIONS: Final[Mapping[JudgeKind, str]] = MappingProxyType(
    {
        kind: f"{kind.value}.{2 if kind in (JudgeKind.SUBGOAL, JudgeKind.FAITHFULNESS) else 1}"
        for kind in JudgeKind
    }
)
"""Version of the prompt of each kind. A changed text needs a new version: the request ids change
with it, so verdicts on the old prompt do not count as verdicts on the new one.
"""


def prompt_version(template: str | None) -> str:
    """The version of the prompt for a subgoal: that of the template, or of callgauge's
    own prompt.
    """
    return PROMPT_VERSIONS[JudgeKind.SUBGOAL] if template is None else prompt_version_of(template)


def is_known_prompt(kind: JudgeKind, version: str, template: str | None = None) -> bool:
    """Whether a judge of this release has the prompt of this version for this kind of question, or
    for this template.
    """
    if template is not None:
        return kind is JudgeKind.SUBGOAL and version == prompt_version(template)
    return version == PROMPT_VERSIONS[kind]


class JudgeModel(BaseModel):
    """Base of questions, verdicts and their parts: immutable, and validation errors do not repeat
    the input.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class TranscriptItem(JudgeModel):
    """An utterance, a tool call or a tool response in a transcript.

    Attributes:
        turn: The conversation's turn; 0 is the greeting.
        kind: The side that spoke, or whether a tool was called or answered; `heard` is what the
            agent understood of the user.
        text: The words, or the parameters or result of a tool as compact JSON.
        tool: Name of the tool; None for an utterance.
    """

    turn: int
    kind: Literal["user", "assistant", "tool_call", "tool_response", "heard"]
    text: Text
    tool: Name | None = None

    @cached_property
    def hashed(self) -> bytes:
        """The item's bytes in an input hash. Cached, because every later question of the call
        contains the item.
        """
        return b"".join(map(_hashed, (str(self.turn), self.kind, self.tool, self.text)))


def transcript_chars(items: Iterable[TranscriptItem]) -> int:
    """Characters of a transcript, the number that `MAX_TRANSCRIPT_CHARS` limits."""
    return sum(len(item.text) + len(item.tool or "") for item in items)


class GoalSetRef(JudgeModel):
    """The goal set of a subgoal, and the digest of that set."""

    id: Name
    digest: Name


_Brief = Annotated[str, StringConstraints(max_length=MAX_INSTRUCTIONS_CHARS)]


class AgentBrief(JudgeModel):
    """Instructions of the agent, as far as they are known. Faithfulness is judged against them."""

    role: _Brief | None = None
    instructions: _Brief | None = None
    tools: _Brief | None = None
    current_date_time: Name | None = None


class JudgeRequest(JudgeModel):
    """One question about one turn, with all a judge needs to answer it.

    Attributes:
        conversation_id: The call, also the record's key.
        kind: Subject of the judgement.
        turn: The question is about the call up to this turn.
        goal_set: The goal set of the subgoal; None for EVA's metrics.
        subgoal_id: Id of the subgoal within the goal set; None for EVA's metrics.
        subgoal: The subgoal in plain words; None for EVA's metrics.
        user_instruction: The caller's instruction, if known.
        agent_brief: The agent's instructions, if known. Only faithfulness uses them.
        transcript: The call up to the turn, in order. For speakability, only the assistant's text
            in the turn; for key entities, only what the user meant in it and what the agent
            understood.
        trials: Most answers to ask the model for, an odd number. For EVA's metrics, the model is
            always asked once.
        stops_early: Whether asking ends once a majority is certain (agent-inspect's optimised
            mode).
        retry_waves: How often invalid answers are asked again when `stops_early` is off.
        prompt_version: One of `PROMPT_VERSIONS`, or the version of the template.
        template: A prompt of the user's own for the subgoal (`JudgeOptions`); None for callgauge's
            prompt.
        asked_at_ms: Broker time of the record that made the engine ask.
        deadline_ms: Broker time after which an answer is useless.
        agent: The agent's name, for its budget.
        priority: 0 to 9, higher for a call at risk. It is not part of the request id.
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
    template: str | None = Field(None, max_length=MAX_TEMPLATE_CHARS)
    asked_at_ms: int
    deadline_ms: int
    agent: Name = "unknown"
    priority: int = Field(0, ge=0, le=9)

    @model_validator(mode="after")
    def _is_complete(self) -> "JudgeRequest":
        if (self.kind is JudgeKind.SUBGOAL) != (
            self.subgoal is not None and self.subgoal_id is not None
        ):
            raise ValueError("a subgoal has subgoal_id and subgoal, a metric has neither")
        if self.trials % 2 == 0:
            raise ValueError(
                f"expected an odd number of trials, so that no vote is a tie, saw {self.trials}"
            )
        return self

    # mypy cannot stack decorators on property
    @computed_field(  # type: ignore[prop-decorator]
        description="Hash of the judge's input: the same input needs no second verdict."
    )
    @cached_property
    def input_hash(self) -> str:
        """Hash of subgoal, instructions and transcript."""
        digest = hashlib.blake2b(digest_size=16)
        brief = self.agent_brief or AgentBrief()
        texts = (
            self.subgoal,
            self.user_instruction,
            *(getattr(brief, name) for name in AgentBrief.model_fields),
        )
        digest.update(b"".join([*map(_hashed, texts), *(item.hashed for item in self.transcript)]))
        return digest.hexdigest()

    # as above
    @computed_field(description=("Identifies the question; its verdict carries the same."))  # type: ignore[prop-decorator]
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
        """Whether the question does not fit a Kafka record. Do not send such a question: it is
        `UnjudgedReason.TOO_LONG`.
        """
        brief = self.agent_brief or AgentBrief()
        of_brief = [getattr(brief, name) for name in AgentBrief.model_fields]
        texts = (self.subgoal, self.user_instruction, self.template, *of_brief)
        chars = transcript_chars(self.transcript) + sum(
            len(text) for text in texts if text is not None
        )
        most_bytes = (
            chars * _MOST_BYTES_OF_A_CHAR + (len(self.transcript) + 1) * _MOST_BYTES_OF_AN_ITEM
        )
        # A cheap lower bound first: it nearly always decides. Only otherwise are the bytes counted.
        return (
            most_bytes > MAX_QUESTION_BYTES
            and len(self.model_dump_json().encode()) > MAX_QUESTION_BYTES
        )


def _hashed(text: str | None) -> bytes:
    """Bytes of a text with its length in front, so that "ab", "c" and "a", "bc" differ."""
    if text is None:
        return b"-"
    encoded = text.encode()
    return b"%d:%b" % (len(encoded), encoded)


class Judged(JudgeModel):
    """The verdict on a subgoal: complete or not."""

    outcome: Literal["judged"] = "judged"
    is_completed: bool


class Rated(JudgeModel):
    """The rating of one of EVA's metrics.

    Attributes:
        rating: On EVA's scale, where higher is better: 1 to 3; for speakability and the caller's
            fidelity 0 or 1; for key entities the number that was understood.
        normalised: The same rating from 0 to 1.
        dimensions: Rating of each judged dimension, 1 to 3, if the metric has dimensions. Below 3,
            the dimension is flagged.
        not_applicable: Why a dimension was not judged, by its name.
        failure_modes: Faults of the turn or the call, if the metric names them; for key entities
            the types that were misunderstood.
    """

    outcome: Literal["rated"] = "rated"
    rating: int
    normalised: float
    dimensions: dict[str, int] = {}
    not_applicable: dict[str, str] = {}
    failure_modes: tuple[str, ...] = ()


class Unjudged(JudgeModel):
    """The reason why there is no verdict."""

    outcome: Literal["unscored"] = "unscored"
    reason: UnjudgedReason


class NotRateable(JudgeModel):
    """The metric does not apply to this turn: the assistant said nothing in it."""

    outcome: Literal["not_applicable"] = "not_applicable"
    reason: str


VerdictResult = Annotated[Judged | Rated | Unjudged | NotRateable, Field(discriminator="outcome")]


class Votes(JudgeModel):
    """Votes of the trials. An invalid answer counts each time, also when the model was
    asked again.
    """

    complete: int = 0
    incomplete: int = 0
    invalid: int = 0

    @property
    def is_unanimous(self) -> bool:
        """Whether all usable answers agree."""
        return not (self.complete and self.incomplete)

    @property
    def confidence(self) -> float | None:
        """Share of the majority among the usable answers; None without usable answers."""
        usable = self.complete + self.incomplete
        return max(self.complete, self.incomplete) / usable if usable else None


class TrialAnswer(JudgeModel):
    """Answer to one request to the model.

    Attributes:
        trial: Number of the request, from 1.
        outcome: Outcome of the request.
        grade: True for complete, False for incomplete; None without a valid vote.
        explanation: The model's explanation, cut to `MAX_EXPLANATION_CHARS`.
        raw: The model's whole answer, redacted and cut to `MAX_RAW_ANSWER_CHARS`, also if it is
            unreadable. None if there is none, and without the setting `judge.keeps_raw_answers`.
        latency_ms: From sending to the end of the answer, retries and the waits between them
            included.
    """

    trial: int
    outcome: TrialOutcome
    grade: bool | None = None
    explanation: str = ""
    raw: Annotated[str, StringConstraints(max_length=MAX_RAW_ANSWER_CHARS)] | None = None
    latency_ms: int = 0


class TokenUse(JudgeModel):
    """Tokens as the endpoint counts them. `cached` is the part of `prompt` that came from its
    cache.
    """

    prompt: int = 0
    cached: int = 0
    answer: int = 0

    def __add__(self, other: "TokenUse") -> "TokenUse":
        return TokenUse(
            prompt=self.prompt + other.prompt,
            cached=self.cached + other.cached,
            answer=self.answer + other.answer,
        )


class JudgeVerdict(WireModel):
    """The answer to one question, on `judge.verdicts` under the call's id. The first verdict of a
    request id counts.

    Attributes:
        timestamp: When the verdict was made, in ms on the judge's clock.
        request_id: Id of the question. Kind, turn, subgoal and hashes are those of the question.
        result: The verdict, or why there is none.
        votes: Votes of the trials; all zero for EVA's metrics.
        answers: Answer of each trial, in the order of asking.
        confidence: Share of the usable answers that agree with the result; None without a vote.
        model: The model; empty when it was not asked.
        tokens: Tokens of all trials.
        cost: Cost of all trials, in the currency of the configured prices. A request without a
            token count costs the most that it could have cost.
        requests: Requests sent to the model, retries included.
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
