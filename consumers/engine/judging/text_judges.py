"""EVA's text judges, live: each turn when the call leaves it, and the call so far with at most one open question.

A turn's rating rests on the call up to it, and is asked again when that part changes. Faithfulness is the lowest rating of
all judged versions of the call, conversation progression the rating of the newest. Nothing here waits.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, Final

from consumers.engine.effects import Effect, RequestVerdict
from consumers.engine.judging.asking_budget import AskingBudget
from consumers.engine.judging.judged_turns import facts_of, transcript_of
from consumers.engine.judging.open_questions import Answer, OpenQuestions
from consumers.engine.judging.ratings import OF_THE_CALL, OF_TURNS, Outcome, Ratings
from consumers.engine.judging.rules import GoalRules
from consumers.engine.judging.turn_facts import TurnFacts
from consumers.engine.records.revisions import Revisions
from consumers.engine.turns.live_call import LiveCall, LiveChanges
from schemas.events.call import PipelineType
from schemas.judging import (
    PROMPT_VERSIONS,
    JudgeKind,
    JudgeRequest,
    JudgeVerdict,
    NotRateable,
    Rated,
    TranscriptItem,
)
from schemas.scores.all_records import UnscoredReason

LOOKED_AT_AGAIN: Final = 3
"""Turns before the newest that are compared again: their texts may come late."""

_About = tuple[JudgeKind, int]


class TextJudges:
    """Judges the text of one call. Effects are appended to `out`."""

    def __init__(self, conversation_id: str, rules: GoalRules, revisions: Revisions, ratings: Ratings) -> None:
        self._agent = "unknown"
        self._conversation_id = conversation_id
        self._rules = rules
        self._revisions = revisions
        self._ratings = ratings
        self._questions: OpenQuestions[_About] = OpenQuestions()
        self._facts: dict[int, TurnFacts] = {}
        self._transcripts: dict[int, tuple[TranscriptItem, ...]] = {}
        self._inputs: dict[int, str] = {-1: ""}
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

    def follow(self, live: LiveCall, _changes: LiveChanges, _time_ms: int, broker_ms: int, out: list[Effect]) -> None:
        """Judges the turns that the call has left, and those that changed."""
        seen = (live.turn, live.is_simulated, live.history.replays.elements)
        if self._is_over or seen[0] == self._seen[0]:
            return
        first = 0 if seen[1:] != self._seen[1:] else self._last + 1 - LOOKED_AT_AGAIN
        self._seen = seen
        self._look(live, first, seen[0] - 1, broker_ms, out)

    def finish(self, live: LiveCall, _time_ms: int | None, broker_ms: int, out: list[Effect], *, asks: bool) -> None:
        """Judges the whole call at its end; `asks` says whether judges can still answer."""
        self._is_over, self._is_late = True, not asks
        self._look(live, 0, live.turn, broker_ms, out)

    def fold(self, verdict: JudgeVerdict, _live: LiveCall, broker_ms: int, out: list[Effect]) -> None:
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

    def give_up(self) -> None:
        """Closes the open questions at the end of the call: they become ratings with a reason."""
        self._is_late = True
        self._apply(self._questions.give_up())
        self._ask(0)
        self._rate()

    # Questions.

    def _look(self, live: LiveCall, first: int, last: int, broker_ms: int, out: list[Effect]) -> None:
        last = max(-1, last)  # a call can return to before its greeting
        for turn in range(last + 1, self._last + 1):
            for known in (self._facts, self._transcripts, self._inputs):
                known.pop(turn, None)  # the turn does not exist any more
            for kind in OF_TURNS:
                if self._found.pop((kind, turn), None) is not None:
                    self._ratings.rate_turn(kind, turn, None)
                self._asked.pop((kind, turn), None)
        self._last = last
        for kind in OF_THE_CALL:
            judged = [turn for each, turn in self._found if each is kind]
            for turn in judged:
                if turn > last:
                    del self._found[kind, turn]
                    self._asked.pop((kind, turn), None)
            if judged and min(judged) > last:
                self._ratings.rate_call(kind, None, 0)
        first = max(0, min(first, last + 1))
        for turn, facts in facts_of(live, range(first, last + 1)).items():
            before = self._facts.get(turn)
            self._facts[turn] = facts
            if before is None or before.content_hash != facts.content_hash:
                self._transcripts[turn] = transcript_of(turn, facts, self._revisions.redactor)
        self._inputs[-1] = live.history.pipeline_type.value
        for turn in range(first, last + 1):
            digest = hashlib.blake2b(self._inputs[turn - 1].encode(), digest_size=16)
            digest.update(self._facts[turn].content_hash.encode())
            self._inputs[turn] = digest.hexdigest()
        self._settle([], broker_ms, out)

    def _settle(self, answers: list[Answer[_About]], broker_ms: int, out: list[Effect]) -> None:
        self._apply(answers)
        requests = self._ask(broker_ms)
        out.extend([RequestVerdict(request) for request in requests])
        self._rate()

    def _ask(self, broker_ms: int) -> list[JudgeRequest]:
        requests = []
        budget = AskingBudget()
        for kind in self._rules.text_judges:
            turns = range(self._last + 1) if kind in OF_TURNS else self._newest(kind)
            for turn in turns:
                asked = self._put((kind, turn), broker_ms, budget)
                if isinstance(asked, JudgeRequest):
                    requests.append(asked)
                elif asked is not None:
                    self._apply([asked])
        return requests

    def _newest(self, kind: JudgeKind) -> list[int]:
        """The newest version of the call, unless a question about it is open; then the next version waits for the answer."""
        is_under_way = any(about[0] is kind for about in self._questions.abouts)
        return [] if self._last < 0 or is_under_way else [self._last]

    def _put(self, about: _About, broker_ms: int, budget: AskingBudget) -> JudgeRequest | Answer[_About] | None:
        kind, turn = about
        input_hash = self._inputs[turn]
        if self._asked.get(about) == input_hash or (budget.is_spent and not self._is_late):
            return None  # a question that must wait is considered again with the next one
        self._asked[about] = input_hash
        self._questions.forget_unless(lambda open_about, open_hash: open_about != about or open_hash == input_hash)
        if not self._rules.asks_judge:
            return Answer(about, input_hash, UnscoredReason.JUDGE_DISABLED)
        if kind is JudgeKind.SPEAKABILITY and self._inputs[-1] == PipelineType.S2S:
            return Answer(about, input_hash, NotRateable(reason="the agent speaks without a text of its own"))
        if kind in OF_TURNS and not self._facts[turn].assistant_words:
            return Answer(about, input_hash, NotRateable(reason="the assistant said nothing"))
        if budget.is_spent:
            return Answer(about, input_hash, UnscoredReason.CALL_CUT_OFF)
        said: Iterable[tuple[TranscriptItem, ...]] = map(self._transcripts.__getitem__, range(turn + 1))
        if kind is JudgeKind.SPEAKABILITY:
            said = [tuple(item for item in self._transcripts[turn] if item.kind == "assistant")]
        transcript = budget.transcript(said)
        request = JudgeRequest(
            conversation_id=self._conversation_id, kind=kind, turn=turn, transcript=transcript,
            trials=1, prompt_version=PROMPT_VERSIONS[kind], asked_at_ms=broker_ms,
            deadline_ms=broker_ms + self._rules.verdict_deadline_ms, agent=self._agent,
        )  # fmt: skip
        return self._questions.ask(about, input_hash, request, is_late=self._is_late)

    def _apply(self, answers: list[Answer[_About]]) -> None:
        for answer in answers:
            if self._inputs.get(answer.about[1]) != answer.input_hash and answer.about[0] in OF_TURNS:
                continue
            result: Any = answer.result
            self._found[answer.about] = result if isinstance(result, Outcome) else UnscoredReason.INVALID_ANSWERS

    def _rate(self) -> None:
        """Passes on the known ratings: of turns, and of the call so far."""
        for (kind, turn), outcome in self._found.items():
            if kind in OF_TURNS and turn <= self._last:
                self._ratings.rate_turn(kind, turn, outcome)
        for kind in OF_THE_CALL:
            judged = [turn for each, turn in self._found if each is kind]
            if judged:
                self._ratings.rate_call(kind, self._outcome(kind, max(judged)), max(judged))

    def _outcome(self, kind: JudgeKind, turn: int) -> Outcome:
        if kind is not JudgeKind.FAITHFULNESS:
            return self._found[kind, turn]
        ratings = [found for (each, _), found in self._found.items() if each is kind and isinstance(found, Rated)]
        return min(ratings, key=lambda rated: rated.rating, default=self._found[kind, turn])
