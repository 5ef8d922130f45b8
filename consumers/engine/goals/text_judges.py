"""EVA's text judges, live: one question at a time about the call so far, and the ratings."""

import hashlib
from collections.abc import Iterable, Mapping
from json import dumps
from typing import Any, Final

from consumers.engine.effects import Effect, RequestVerdict
from consumers.engine.goals.checks import CalledTool, TurnFacts
from consumers.engine.goals.questions import AskingBudget, OpenQuestions, QuestionOutcome
from consumers.engine.limits import GoalRules
from consumers.engine.redaction.redactor import CallRedactor, Redactor
from consumers.engine.rows import CallRows
from consumers.engine.sources.facts import Started
from consumers.engine.turns.heard import HeardTurn, Purpose
from consumers.engine.turns.live import LiveCall, LiveChanges
from consumers.engine.turns.timeline import PairedUse, outcome_of
from schemas.closed_sets import (
    CALL_JUDGES,
    TURN_JUDGES,
    JudgeKind,
    PipelineType,
    ToolOutcome,
    UnscoredReason,
)
from schemas.judging import (
    PROMPT_VERSIONS,
    AgentBrief,
    JudgeRequest,
    JudgeVerdict,
    NotRateable,
    Rated,
    TranscriptItem,
)
from schemas.rows import NotApplicable, Rating, Unscored, number
from schemas.units import MS_PER_SECOND
from schemas.wire import MAX_INSTRUCTIONS_CHARS, MAX_TEXT_CHARS

# The turns of a conversation as goals are judged on them: words, tools, and times.

MAX_ITEM_CHARS = 20_000
"""Longest arguments or answer of one tool in a judge's transcript; the longest recorded ones have
6,000.
"""


def facts_of(live: LiveCall, turns: range) -> dict[int, TurnFacts]:
    """The facts of these turns as known now. A turn that does not exist has empty facts."""
    heard = live.heard(since=turns.start)
    return {number: _facts(heard.turn(number)) for number in turns}


def _facts(turn: HeardTurn | None) -> TurnFacts:
    if turn is None:
        return TurnFacts("", "")
    times_ms = [*turn.words.logged_times_ms]
    times_ms += (int(time_s * MS_PER_SECOND) for times_s in turn.times_s for time_s in times_s)
    for use in turn.tools:
        if use.called_at_ms is not None:
            times_ms += (use.called_at_ms, use.called_at_ms + (use.duration_ms or 0))
    return TurnFacts(
        turn.user.said(Purpose.JUDGED),
        turn.assistant.said(Purpose.JUDGED),
        tuple(map(_called, turn.tools)),
        min(times_ms, default=None),
        max(times_ms, default=None),
    )


def transcript_of(
    turn: int, facts: TurnFacts, redactor: Redactor | CallRedactor
) -> tuple[TranscriptItem, ...]:
    """The turn as a judge reads it, without personal data."""
    items = []
    if facts.user_words:
        items.append(
            TranscriptItem(
                turn=turn, kind="user", text=redactor.beginning(facts.user_words, MAX_TEXT_CHARS)
            )
        )
    for call in facts.calls:
        items.append(
            TranscriptItem(
                turn=turn, kind="tool_call", text=_json(call.arguments, redactor), tool=call.tool
            )
        )
        if call.is_success is not None:
            items.append(
                TranscriptItem(
                    turn=turn,
                    kind="tool_response",
                    text=_json(_answer(call), redactor),
                    tool=call.tool,
                )
            )
    if facts.assistant_words:
        items.append(
            TranscriptItem(
                turn=turn,
                kind="assistant",
                text=redactor.beginning(facts.assistant_words, MAX_TEXT_CHARS),
            )
        )
    return tuple(items)


def _answer(call: CalledTool) -> object:
    """The answer, marked as failed where the tool failed: a judge sees no other sign of it."""
    says_enough = call.is_success or outcome_of(call.answer) is ToolOutcome.ERROR
    return call.answer if says_enough else {"status": "error", "result": call.answer}


def _called(use: PairedUse) -> CalledTool:
    arguments: Mapping[str, Any] = use.arguments if isinstance(use.arguments, Mapping) else {}
    is_known = use.outcome not in (None, ToolOutcome.UNKNOWN)
    is_success = use.outcome is ToolOutcome.SUCCESS if is_known else None
    return CalledTool(
        use.tool, arguments, use.answer, is_success, use.is_withheld, use.lacks_arguments
    )


def _json(value: object, redactor: Redactor | CallRedactor) -> str:
    text = _dumped(value)
    # A cut value is no JSON any more, so it is redacted as text.
    if len(text) > MAX_ITEM_CHARS:
        return redactor.beginning(text, MAX_ITEM_CHARS)
    redacted = redactor.redact_value(value)
    return text if redacted == value else _dumped(redacted)[:MAX_ITEM_CHARS]


def _dumped(value: object) -> str:
    return dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


class JudgedTurns:
    """The turns of a call up to the last one that is judged.

    Attributes:
        facts: Facts of each turn as last seen.
        transcripts: Each turn as a judge reads it; none where no judge is asked.
        inputs: By turn, a hash of all words and tools up to it: what a judge is asked about.
    """

    def __init__(self, redactor: CallRedactor, *, asks_judge: bool = True) -> None:
        self.facts: dict[int, TurnFacts] = {}
        self.transcripts: dict[int, tuple[TranscriptItem, ...]] = {}
        self.inputs: dict[int, str] = {}
        self._redactor = redactor
        self._asks_judge = asks_judge

    def look(self, live: LiveCall, first: int, last: int) -> set[int]:
        """Reads the turns from `first` to `last` again; returns those with other words or tools
        than before.
        """
        changed = set()
        for turn, facts in facts_of(live, range(first, last + 1)).items():
            before = self.facts.get(turn)
            self.facts[turn] = facts
            if before is None or before.content_hash != facts.content_hash:
                changed.add(turn)
                if self._asks_judge:  # to redact costs more than all else of a turn
                    self.transcripts[turn] = transcript_of(turn, facts, self._redactor)
        return changed

    def drop(self, turn: int) -> bool:
        """Drops a turn that does not exist any more; returns whether there was one."""
        self.transcripts.pop(turn, None)
        self.inputs.pop(turn, None)
        return self.facts.pop(turn, None) is not None

    def hash_from(self, first: int, last: int, beginning: str) -> None:
        """Makes the hashes of these turns; that of turn 0 rests on `beginning`, all others on the
        turn before.
        """
        for turn in range(first, last + 1):
            before = self.inputs[turn - 1] if turn else beginning
            digest = hashlib.blake2b(before.encode(), digest_size=16)
            digest.update(self.facts[turn].content_hash.encode())
            self.inputs[turn] = digest.hexdigest()


# The ratings that judges gave to a call's texts so far: of turns, and of the call.

Outcome = Rated | NotRateable | UnscoredReason

OF_A_SIMULATION: Final = frozenset({JudgeKind.KEY_ENTITIES, JudgeKind.USER_FIDELITY})
"""Kinds that need to know what the caller meant: only a simulated caller says that."""


class Ratings:
    """The newest rating of each kind, with the turn up to which it counts.

    Attributes:
        changed_turns: Turns whose ratings changed; who publishes them clears it.
    """

    def __init__(self) -> None:
        self.changed_turns: set[int] = set()
        self._of_turns: dict[tuple[JudgeKind, int], Rating] = {}
        self._of_call: dict[JudgeKind, Rating] = {}

    def rate_turn(self, kind: JudgeKind, turn: int, outcome: Outcome | None) -> None:
        """Keeps the outcome of a turn; None drops it."""
        rating = None if outcome is None else rating_of(outcome, turn)
        if self._of_turns.get((kind, turn)) == rating:
            return
        self.changed_turns.add(turn)
        if rating is None:
            del self._of_turns[kind, turn]
        else:
            self._of_turns[kind, turn] = rating

    def rate_call(self, kind: JudgeKind, outcome: Outcome | None, through_turn: int) -> None:
        """Keeps the outcome of the call up to a turn; None drops it."""
        if outcome is None:
            self._of_call.pop(kind, None)
        else:
            self._of_call[kind] = rating_of(outcome, through_turn)

    def of_turn(self, kind: JudgeKind, turn: int) -> Rating | None:
        """The rating of a turn; None before it has one."""
        return self._of_turns.get((kind, turn))

    def of_call(self, kind: JudgeKind) -> Rating | None:
        """The rating of the call so far; None before it has one."""
        return self._of_call.get(kind)

    def known_of_turns(self, kind: JudgeKind) -> list[float]:
        """Ratings from 0 to 1 of all turns that have one, in the order of the turns."""
        rated = sorted(
            (turn, number(rating.result))
            for (each, turn), rating in self._of_turns.items()
            if each is kind
        )
        return [value for _, value in rated if value is not None]


def rating_of(outcome: Outcome, through_turn: int) -> Rating:
    """The outcome as rows have it."""
    match outcome:
        case Rated():
            return Rating(
                outcome.normalised,
                through_turn,
                outcome.rating,
                outcome.dimensions,
                outcome.not_applicable,
                outcome.failure_modes,
            )
        case NotRateable(reason=reason):
            return Rating(NotApplicable(reason), through_turn)
        case UnscoredReason():
            return Rating(Unscored(outcome), through_turn)


# EVA's text judges, live: each turn when the call leaves it, and the call so far with at most one
# open question.
#
# A turn's rating rests on the call up to it, and is asked again when that part changes.
# Faithfulness is the lowest rating of all judged versions of the call, conversation progression the
# rating of the newest. The fidelity of a simulated caller is asked once, when the call is over.
# Nothing here waits.

LOOKED_AT_AGAIN: Final = 3
"""Turns before the newest that are compared again: their texts may come late."""

_About = tuple[JudgeKind, int]


class TextJudges:
    """Judges the text of one call. Effects are appended to `out`."""

    def __init__(
        self, conversation_id: str, rules: GoalRules, rows: CallRows, ratings: Ratings
    ) -> None:
        self._agent = "unknown"
        self._brief: AgentBrief | None = None
        self._conversation_id = conversation_id
        self._rules = rules
        self._redactor = rows.redactor
        self._ratings = ratings
        self._questions: OpenQuestions[_About] = OpenQuestions()
        self._turns = JudgedTurns(rows.redactor)
        self._is_s2s = False
        self._is_simulated = False
        self._instruction: str | None = None
        self._user_words: dict[int, tuple[str | None, str | None]] = {}
        self._found: dict[_About, Outcome] = {}
        self._asked: dict[_About, str] = {}
        self._last = -1
        self._seen: tuple[int, bool | None, int] = (0, None, 0)
        self._is_over = False
        self._is_late = False

    @property
    def next_wakeup_ms(self) -> int | None:
        """Broker time of the next deadline of a verdict; None without an open question."""
        return self._questions.next_deadline_ms

    def follow(
        self, live: LiveCall, _changes: LiveChanges, broker_ms: int, out: list[Effect]
    ) -> None:
        """Judges the turns that the call has left, and those that changed."""
        seen = (live.turn, live.is_simulated, live.history.replays.elements)
        if self._is_over or seen[0] == self._seen[0]:
            return
        first = 0 if seen[1:] != self._seen[1:] else self._last + 1 - LOOKED_AT_AGAIN
        self._seen = seen
        self._look(live, first, seen[0] - 1, broker_ms, out)

    def finish(self, live: LiveCall, broker_ms: int, out: list[Effect], *, asks: bool) -> None:
        """Judges the whole call at its end; `asks` says whether judges can still answer."""
        self._is_over, self._is_late = True, not asks
        self._look(live, 0, live.turn, broker_ms, out)

    def fold(
        self, verdict: JudgeVerdict, _live: LiveCall, broker_ms: int, out: list[Effect]
    ) -> None:
        """Applies a verdict."""
        answer = self._questions.fold(verdict, broker_ms)
        if answer is not None:
            self._settle([answer], broker_ms, out)

    def reached(self, _live: LiveCall, now_ms: int, out: list[Effect]) -> None:
        """Expires verdicts whose deadline broker time `now_ms` has reached."""
        late = self._questions.expire(now_ms)
        if late:
            self._settle(late, now_ms, out)

    @property
    def awaits_verdicts(self) -> bool:
        """Whether a question is open."""
        return self._questions.next_deadline_ms is not None

    def set_agent(self, agent: str) -> None:
        """Sets the agent whose budget pays for the judges' work."""
        self._agent = agent

    def started(self, event: Started) -> None:
        """Keeps the role, instructions, tools and date of the agent, redacted. A field that the
        event omits stays unchanged.
        """
        tools = event.tools and _dumped(
            [tool.model_dump(exclude_none=True) for tool in event.tools]
        )
        told = {
            "role": event.role,
            "instructions": event.instructions,
            "tools": tools,
            "current_date_time": event.current_date_time,
        }
        redacted = {
            name: self._redactor.beginning(text, MAX_INSTRUCTIONS_CHARS)
            for name, text in told.items()
            if text
        }
        if redacted:
            self._brief = (self._brief or AgentBrief()).model_copy(update=redacted)

    def set_instruction(self, instruction: str | None) -> None:
        """Sets the caller's instruction, as the goal set of the call has it."""
        if instruction is not None and instruction.strip():
            self._instruction = self._redactor.beginning(instruction, MAX_INSTRUCTIONS_CHARS)

    def give_up(self) -> None:
        """Closes the open questions at the end of the call: they become ratings with a reason."""
        self._is_late = True
        self._apply(self._questions.give_up())
        self._ask(0)
        self._rate()

    # Questions.

    def _look(
        self, live: LiveCall, first: int, last: int, broker_ms: int, out: list[Effect]
    ) -> None:
        last = max(-1, last)  # a call can return to before its greeting
        for turn in range(last + 1, self._last + 1):
            self._turns.drop(turn)
            self._user_words.pop(turn, None)
            for kind in TURN_JUDGES:
                if self._found.pop((kind, turn), None) is not None:
                    self._ratings.rate_turn(kind, turn, None)
                self._asked.pop((kind, turn), None)
        self._last = last
        for kind in CALL_JUDGES:
            judged = [turn for each, turn in self._found if each is kind]
            for turn in judged:
                if turn > last:
                    del self._found[kind, turn]
                    self._asked.pop((kind, turn), None)
            if judged and min(judged) > last:
                self._ratings.rate_call(kind, None, 0)
        first = max(0, min(first, last + 1))
        self._turns.look(live, first, last)
        self._turns.hash_from(first, last, live.history.pipeline_type.value)
        self._is_s2s = live.history.pipeline_type is PipelineType.S2S
        self._is_simulated = live.is_simulated
        if self._is_simulated and OF_A_SIMULATION.intersection(self._rules.text_judges):
            heard = live.heard(since=first)
            for turn in range(first, last + 1):
                user = found.user if (found := heard.turn(turn)) is not None else None
                meant, understood = (
                    user and user.wording(purpose)
                    for purpose in (Purpose.MEANT, Purpose.UNDERSTOOD)
                )
                self._user_words[turn] = meant, understood
        self._settle([], broker_ms, out)

    def _settle(
        self, answers: list[QuestionOutcome[_About]], broker_ms: int, out: list[Effect]
    ) -> None:
        self._apply(answers)
        requests = self._ask(broker_ms)
        out.extend([RequestVerdict(request) for request in requests])
        self._rate()

    def _ask(self, broker_ms: int) -> list[JudgeRequest]:
        requests = []
        budget = AskingBudget()
        for kind in self._rules.text_judges:
            turns = range(self._last + 1) if kind in TURN_JUDGES else self._newest(kind)
            for turn in turns:
                asked = self._put((kind, turn), broker_ms, budget)
                if isinstance(asked, JudgeRequest):
                    requests.append(asked)
                elif asked is not None:
                    self._apply([asked])
        return requests

    def _newest(self, kind: JudgeKind) -> list[int]:
        """The newest version of the call, unless a question about it is open; then the next version
        waits for the answer.
        """
        if kind is JudgeKind.USER_FIDELITY and not self._is_over:
            return []
        is_under_way = any(about[0] is kind for about in self._questions.abouts)
        return [] if self._last < 0 or is_under_way else [self._last]

    def _put(
        self, about: _About, broker_ms: int, budget: AskingBudget
    ) -> JudgeRequest | QuestionOutcome[_About] | None:
        kind, turn = about
        input_hash = self._input_hash(about)
        if self._asked.get(about) == input_hash or (budget.is_spent and not self._is_late):
            return None  # a question that must wait is considered again with the next one
        self._asked[about] = input_hash
        self._questions.forget_unless(
            lambda open_about, open_hash: open_about != about or open_hash == input_hash
        )
        if not self._rules.asks_judge:
            return QuestionOutcome(about, input_hash, UnscoredReason.JUDGE_DISABLED)
        if (reason := self._not_rateable(about)) is not None:
            return QuestionOutcome(about, input_hash, NotRateable(reason=reason))
        if budget.is_spent:
            return QuestionOutcome(about, input_hash, UnscoredReason.CALL_CUT_OFF)
        transcript = budget.transcript(self._shown(about))
        request = JudgeRequest(
            conversation_id=self._conversation_id,
            kind=kind,
            turn=turn,
            user_instruction=self._instruction if kind is JudgeKind.USER_FIDELITY else None,
            agent_brief=self._brief if kind is JudgeKind.FAITHFULNESS else None,
            transcript=transcript,
            trials=1,
            prompt_version=PROMPT_VERSIONS[kind],
            asked_at_ms=broker_ms,
            deadline_ms=broker_ms + self._rules.verdict_deadline_ms,
            agent=self._agent,
        )
        return self._questions.ask(about, input_hash, request, is_late=self._is_late)

    def _input_hash(self, about: _About) -> str:
        kind, turn = about
        input_hash = self._turns.inputs.get(turn, "")
        if kind is JudgeKind.FAITHFULNESS and self._brief is not None:
            return _hash_of((input_hash, *self._brief.model_dump().values()))
        if kind is JudgeKind.KEY_ENTITIES:
            return _hash_of(self._user_words.get(turn, ()))
        if kind is JudgeKind.USER_FIDELITY:
            return _hash_of((input_hash, self._instruction, *sorted(self._user_words.items())))
        return input_hash

    def _not_rateable(self, about: _About) -> str | None:
        """Why a metric does not apply to the turn or the call; None if it does."""
        kind, turn = about
        if kind in OF_A_SIMULATION and not self._is_simulated:
            return "no simulated caller says what was meant"
        match kind:
            case JudgeKind.SPEAKABILITY if self._is_s2s:
                return "the agent speaks without a text of its own"
            case JudgeKind.CONCISENESS | JudgeKind.SPEAKABILITY if not self._turns.facts[
                turn
            ].assistant_words:
                return "the assistant said nothing"
            case JudgeKind.KEY_ENTITIES if not all(self._user_words.get(turn, (None, None))):
                return "what the user meant or what the agent understood is not known"
            case JudgeKind.USER_FIDELITY if self._instruction is None:
                return "no goal set says what the caller was told to do"
            case _:
                return None

    def _shown(self, about: _About) -> Iterable[tuple[TranscriptItem, ...]]:
        """Yields the items of each turn that the judge reads."""
        kind, last = about
        redactor = self._redactor
        if kind is JudgeKind.KEY_ENTITIES:
            meant, understood = (
                redactor.beginning(text or "", MAX_TEXT_CHARS) for text in self._user_words[last]
            )
            yield (
                TranscriptItem(turn=last, kind="user", text=meant),
                TranscriptItem(turn=last, kind="heard", text=understood),
            )
            return
        for turn in (last,) if kind is JudgeKind.SPEAKABILITY else range(last + 1):
            items = self._turns.transcripts[turn]
            if kind is JudgeKind.SPEAKABILITY:
                items = tuple(item for item in items if item.kind == "assistant")
            elif kind is JudgeKind.USER_FIDELITY and (
                said := self._user_words.get(turn, (None, None))[0]
            ):
                others = tuple(item for item in items if item.kind != "user")
                said = redactor.beginning(said, MAX_TEXT_CHARS)
                items = (TranscriptItem(turn=turn, kind="user", text=said), *others)
            yield items

    def _apply(self, answers: list[QuestionOutcome[_About]]) -> None:
        for answer in answers:
            if (
                self._input_hash(answer.about) != answer.input_hash
                and answer.about[0] in TURN_JUDGES
            ):
                continue
            result: Any = answer.result
            self._found[answer.about] = (
                result if isinstance(result, Outcome) else UnscoredReason.INVALID_ANSWERS
            )

    def _rate(self) -> None:
        """Passes on the known ratings: of turns, and of the call so far."""
        for (kind, turn), outcome in self._found.items():
            if kind in TURN_JUDGES and turn <= self._last:
                self._ratings.rate_turn(kind, turn, outcome)
        for kind in CALL_JUDGES:
            judged = [turn for each, turn in self._found if each is kind]
            if judged:
                self._ratings.rate_call(kind, self._outcome(kind, max(judged)), max(judged))

    def _outcome(self, kind: JudgeKind, turn: int) -> Outcome:
        if kind is not JudgeKind.FAITHFULNESS:
            return self._found[kind, turn]
        ratings = [
            found
            for (each, _), found in self._found.items()
            if each is kind and isinstance(found, Rated)
        ]
        return min(ratings, key=lambda rated: rated.rating, default=self._found[kind, turn])


def _hash_of(inputs: tuple[Any, ...]) -> str:
    """Hash of what a question is about: equal for equal inputs, in every process."""
    return hashlib.blake2b(repr(inputs).encode(), digest_size=8).hexdigest()
