"""Why trials fail: their faults in groups, each with a sentence and the calls behind it, by code or
by a judge.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from consumers.engine.redaction.redactor import Redactor
from consumers.judge.prompts import (
    CHARS_PER_TOKEN,
    MAX_CAUSE_CHARS,
    Case,
    JudgePrompt,
    causes_question,
    read_causes,
)
from consumers.judge.reply import Asks, Reply, RequestTries
from consumers.view.words import counted, in_words
from schemas.closed_sets import TrialOutcome
from schemas.judging import TokenUse
from schemas.units import to_seconds
from schemas.wire import MAX_NAME_CHARS
from streamer.offline.judge_in_process import MOST_EXAMPLE_CHARS, KeptVerdicts, keeping, require_on
from streamer.settings.all_settings import Settings
from streamer.terminal import say
from streamer.trials.calls import Fault, FaultKind, Trial

# The groups, as data.

BY_CODE: Final = "subgoal, tool, turn and last words"
NOT_GROUPED: Final = "not grouped"
MOST_NAMED: Final = 3
"""Calls that a line names: enough to look at."""
MOST_SHOWN: Final = 25
"""Groups that the text lists, more than a judge makes; JSON has all."""
_KINDS: Final[dict[FaultKind, str]] = {
    "missed_subgoal": "missed subgoal",
    "failed_tool": "failed tool",
    "ending": "ending",
}


class FaultOfCall(NamedTuple):
    """A fault, and the call that has it."""

    trial: Trial
    fault: Fault


@dataclass(frozen=True, slots=True)
class CauseGroup:
    """Faults with one cause.

    Attributes:
        sentence: The cause, in a sentence of the judge without personal data, or in words that code
            puts together.
        faults: At least one, in the order of the trials.
        is_grouped: Whether it is a group; False for what is left over.
    """

    sentence: str
    faults: tuple[FaultOfCall, ...]
    is_grouped: bool = True

    @property
    def calls(self) -> list[Trial]:
        """The calls behind it, each once, in the order of the trials."""
        return [*{id(each.trial): each.trial for each in self.faults}.values()]

    @property
    def kinds(self) -> str:
        """How many faults of each kind it has, in words."""
        counts = Counter(each.fault.kind for each in self.faults)
        return ", ".join(
            counted(counts[kind], words) for kind, words in _KINDS.items() if counts[kind]
        )


@dataclass(frozen=True, slots=True)
class Causes:
    """All faults of some trials, each in one group.

    Attributes:
        by: Who grouped them: the name of a model, or `BY_CODE`.
        groups: Most calls first; what is not grouped is the last.
        is_complete: Whether every question to the judge was asked and has an answer that can be
            used.
    """

    by: str
    groups: tuple[CauseGroup, ...]
    is_complete: bool = True

    def lines(self) -> Iterator[str]:
        """Each group with its calls."""
        yield f"Causes, by {self.by}:" if self.groups else "Causes: no call has a fault."
        for each in self.groups[:MOST_SHOWN]:
            calls = each.calls
            places = ", ".join(trial.place or trial.conversation_id for trial in calls[:MOST_NAMED])
            more = f" and {len(calls) - MOST_NAMED} more" if len(calls) > MOST_NAMED else ""
            yield f"  {counted(len(calls), 'call')}: {each.sentence} ({each.kinds}): {places}{more}"
        if (left := len(self.groups) - MOST_SHOWN) > 0:
            yield f"  and {counted(left, 'group')} more; --json has all."

    def document(self) -> dict[str, Any]:
        """The groups as plain values."""
        return {
            "by": self.by,
            "groups": [
                {
                    "cause": each.sentence if each.is_grouped else None,
                    "calls": [trial.place or trial.conversation_id for trial in each.calls],
                    "faults": [
                        {"conversation_id": trial.conversation_id, **fault._asdict()}
                        for trial, fault in each.faults
                    ],
                }
                for each in self.groups
            ],
        }


def faults_of(trials: Iterable[Trial]) -> list[FaultOfCall]:
    """The faults of all calls, in the order of the trials."""
    return [FaultOfCall(trial, fault) for trial in trials for fault in trial.faults]


def grouped_by_code(trials: Iterable[Trial], redactor: Redactor) -> Causes:
    """Groups faults of one kind, of one subgoal, tool or ending, in one turn, after the same last
    words. The same trials give the same.
    """
    found: defaultdict[str, list[FaultOfCall]] = defaultdict(list)
    for each in faults_of(trials):
        kind, what, turn = each.fault
        where = "" if turn is None else f" in turn {turn}"
        said = (
            ""
            if turn is None or turn not in each.trial.words
            else each.trial.words[turn].last_words
        )
        of = f" of {each.trial.goal_set.id}" if kind == "missed_subgoal" else ""
        after = f', after "{said}"' if said else ""
        found[redactor.redact(f"{_KINDS[kind]} {what}{of}{where}{after}")].append(each)
    return Causes(
        BY_CODE, in_order(CauseGroup(sentence, tuple(faults)) for sentence, faults in found.items())
    )


def in_order(causes: Iterable[CauseGroup]) -> tuple[CauseGroup, ...]:
    """Most calls first; what is not grouped is the last."""
    return tuple(
        sorted(
            causes,
            key=lambda each: (
                not each.is_grouped,
                -len(each.calls),
                -len(each.faults),
                each.sentence,
            ),
        )
    )


# The questions, and what their answers decide. Pure.
#
# Calls that went the same way are one case. The cases are in the order of their texts, so the same
# calls make the same questions in whatever order they come, and a kept answer serves again.

MOST_QUESTIONS: Final = 10
"""Questions to a judge: 1,000 faults. Faults of further cases are not grouped."""
MOST_FAULTS_ASKED: Final = 100
"""Faults of one question: their numbers and some sentences fit an answer of 1,000 tokens."""
MOST_CHARS_ASKED: Final = 40_000
"""Characters of the evidence of one question, some 10,000 tokens; a case that is longer by itself
is asked about alone.
"""
MOST_CAUSES: Final = 20
"""Causes of all calls: more are no groups. What a judge puts into further ones is not grouped."""
_MOST_KNOWN_TOKENS: Final = MOST_CAUSES * (2 * MAX_CAUSE_CHARS) // CHARS_PER_TOKEN
_MOST_DETAILS_CHARS: Final = 300


def cases_of(trials: Iterable[Trial], redactor: Redactor) -> dict[Case, list[Trial]]:
    """The cases of calls with a fault, in the order of their texts, each with its calls."""
    found: defaultdict[Case, list[Trial]] = defaultdict(list)
    for trial in trials:
        if case := _case_of(trial, redactor):
            found[case].append(trial)
    return {case: found[case] for case in sorted(found, key=repr)}


def _case_of(trial: Trial, redactor: Redactor) -> Case | None:
    details = {each.id: each.details for each in trial.goal_set.subgoals}
    faults = tuple(
        (
            fault.kind,
            redactor.beginning(fault.what, MAX_NAME_CHARS),
            fault.turn,
            redactor.beginning(details.get(fault.what, ""), _MOST_DETAILS_CHARS)
            if fault.kind == "missed_subgoal"
            else "",
        )
        for fault in trial.faults
    )
    turns = sorted({turn for _, _, turn, _ in faults if turn is not None and turn in trial.words})
    said = tuple((turn, redactor.redact(trial.words[turn].text)) for turn in turns)
    return Case(faults, said) if faults else None


def questions_of(cases: Mapping[Case, Sequence[Trial]]) -> list[list[Case]]:
    """The cases of each question, all of them."""
    questions: list[list[Case]] = []
    faults = chars = 0
    for case in cases:
        faults, chars = faults + len(case.faults), chars + len(repr(case))
        if not questions or faults > MOST_FAULTS_ASKED or chars > MOST_CHARS_ASKED:
            questions.append([])
            faults, chars = len(case.faults), len(repr(case))
        questions[-1].append(case)
    return questions


Numbered = Sequence[Sequence[FaultOfCall]]
"""The faults behind each number of a question, from 1: those of all calls of a case."""


@dataclass(slots=True)
class Groups:
    """The groups that a judge makes, question by question. Every fault that none of its answers
    places stays, as not grouped.

    Attributes:
        by_sentence: The faults of each cause.
        left: The faults without a cause.
        remarks: What is wrong with answers, in sentences for a person.
    """

    by_sentence: dict[str, list[FaultOfCall]] = field(default_factory=dict)
    left: list[FaultOfCall] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add_answer(
        self, name: str, numbered: Numbered, answer: Iterable[tuple[str, list[int]]]
    ) -> None:
        """Takes an answer. A number that was not asked about is refused, and of two groups with one
        number the first counts.

        Args:
            name: The question, for sentences about its answer.
            numbered: What it was about.
            answer: Each sentence with its numbers.
        """
        free = dict(enumerate(numbered, 1))
        odd: defaultdict[str, set[int]] = defaultdict(set)
        for sentence, numbers in answer:
            is_one_more = sentence not in self.by_sentence
            is_refused = sentence in ("", NOT_GROUPED) or (
                is_one_more and len(self.by_sentence) == MOST_CAUSES
            )
            for number in numbers:
                if not 1 <= number <= len(numbered):
                    odd[f"not in the question, which has 1 to {len(numbered)}: refused"].add(number)
                elif is_refused:
                    odd[f"without a sentence, or beyond {MOST_CAUSES} causes: not grouped"].add(
                        number
                    )
                elif number not in free:
                    odd["in a second group, too: the first counts"].add(number)
                else:
                    self.by_sentence.setdefault(sentence, []).extend(free.pop(number))
        self.leave(free.values())
        for what, found in odd.items():
            some = ", ".join(map(str, sorted(found)[:MOST_NAMED]))
            self.remarks.append(
                f"{name}: expected each of its faults in one group; seen "
                f"{counted(len(found), 'number')} {what} (for example {some}). The rest of the "
                "answer counts."
            )

    def leave(self, numbered: Iterable[Sequence[FaultOfCall]]) -> None:
        """Leaves faults without a cause."""
        self.left += [each for faults in numbered for each in faults]

    def causes(self, model: str, trials: Iterable[Trial], *, is_complete: bool) -> Causes:
        """The groups so far."""
        places = {id(trial): place for place, trial in enumerate(trials)}
        left = {NOT_GROUPED: self.left} if self.left else {}
        groups = (
            CauseGroup(
                sentence,
                tuple(sorted(faults, key=lambda each: places[id(each.trial)])),
                sentence != NOT_GROUPED,
            )
            for sentence, faults in (self.by_sentence | left).items()
        )
        return Causes(model, in_order(groups), is_complete)


# Asks the judge, one question after the other, because each names the causes that are known by
# then.

_ENDPOINT_FAILED: Final = frozenset(
    {
        TrialOutcome.RATE_LIMITED,
        TrialOutcome.REJECTED,
        TrialOutcome.UNAVAILABLE,
        TrialOutcome.TIMED_OUT,
    }
)
_UNPAID: Final = _ENDPOINT_FAILED - {TrialOutcome.TIMED_OUT}


def causes_of(
    trials: Sequence[Trial], settings: Settings, *, asks_judge: bool, verdicts: Path | None = None
) -> Causes:
    """Groups the faults of trials. What a judge may cost is said before it is asked.

    Args:
        trials: The calls, with the words of the turns that have a fault as far as they are known.
        settings: The judge, and the rules of redaction.
        asks_judge: Whether a judge groups them; otherwise code does.
        verdicts: File of kept answers; None keeps none.

    Raises:
        SetupError: A judge is asked for, and no model can be asked.
        VerdictFileError: The file of verdicts cannot be used.
    """
    redactor = Redactor(settings.redaction)
    if not asks_judge:
        return grouped_by_code(trials, redactor)
    require_on(settings.judge)
    cases = cases_of(trials, redactor)
    if not cases:
        return Causes(settings.judge.model, ())
    asking = _Asking(settings, redactor, cases)
    with keeping(verdicts, settings.judge) as kept:
        asyncio.run(asking.ask_all(kept))
    for remark in asking.groups.remarks:
        say(remark)
    return asking.groups.causes(settings.judge.model, trials, is_complete=asking.is_complete)


class _Asking:
    """One run of questions about causes, within its bounds."""

    def __init__(
        self, settings: Settings, redactor: Redactor, cases: Mapping[Case, Sequence[Trial]]
    ) -> None:
        self.groups = Groups()
        self.is_complete = True
        self._settings = settings.judge
        self._patience_seconds = to_seconds(settings.goals.verdict_deadline_ms)
        self._redactor = redactor
        self._cases = cases
        self._questions = questions_of(cases)
        self._recalled = self._requests = self._tokens = self._most_tokens = 0
        self._cost = 0.0

    async def ask_all(self, kept: KeptVerdicts | None) -> None:
        """Asks question by question, up to the bounds, and no more once the endpoint fails."""
        # brings the client, which is not needed without a judge
        from consumers.judge.endpoint import Endpoint

        assert self._settings.api_key is not None, "the judge is on"  # noqa: S101 - so it is
        endpoint = Endpoint(self._settings, self._settings.api_key.get_secret_value())
        self._say_bounds()
        ending: str | None = None
        unasked: list[Sequence[FaultOfCall]] = []
        try:
            for number, cases in enumerate(self._questions, 1):
                numbered = [faults for case in cases for faults in self._numbered(case)]
                if ending is None and number > MOST_QUESTIONS:
                    ending = f"a comparison asks {MOST_QUESTIONS} questions at most"
                if ending is None:
                    name = f"Question {number} of {len(self._questions)} about causes"
                    ending = await self._ask(name, cases, numbered, kept, endpoint)
                else:
                    unasked += numbered
        finally:
            await endpoint.close()
        if unasked:
            self._leave(
                unasked,
                f"Judge: not every fault was asked about, because {ending}.",
                "Compare fewer calls.",
            )
        elif len(self.groups.by_sentence) == 1 and not self.groups.left and len(self._cases) > 1:
            self.groups.remarks.append(
                "The judge put all faults of all calls into one group, so it tells nothing apart. "
                "If that cannot be, ask another model, or leave --judge off: then code groups them."
            )
        self._say_cost()

    def _numbered(self, case: Case) -> Iterator[list[FaultOfCall]]:
        calls = [(trial, tuple(trial.faults)) for trial in self._cases[case]]
        return (
            [FaultOfCall(trial, faults[place]) for trial, faults in calls]
            for place in range(len(case.faults))
        )

    async def _ask(
        self,
        name: str,
        cases: Sequence[Case],
        numbered: Numbered,
        kept: KeptVerdicts | None,
        endpoint: Asks,
    ) -> str | None:
        """Asks one question, or recalls its answer; returns why no further one is of use, None if
        it is.
        """
        settings = self._settings
        known = [*self.groups.by_sentence]
        question = causes_question(
            [(case, len(self._cases[case])) for case in cases], known, settings.answer_form
        )
        if kept is not None and (text := kept.text_for(question)) is not None:
            self._recalled += 1
            self.groups.add_answer(name, numbered, read_causes(text, self._redactor) or [])
            return None
        most = TokenUse(prompt=question.most_tokens, answer=settings.max_answer_tokens)
        if self._cost + settings.prices.cost_of(most) > settings.budget_per_hour:
            self._leave(
                numbered,
                f"{name} was not asked.",
                "Raise judge.budget_per_hour, or compare fewer calls.",
            )
            return "the money is spent (judge.budget_per_hour)"
        if self._tokens + most.prompt + most.answer > self._most_tokens:
            self._leave(
                numbered,
                f"{name} was not asked.",
                "The endpoint counts more tokens than a text can have: compare fewer calls.",
            )
            return "the tokens that were said are spent"
        reply = await self._reply(question, endpoint)
        used = reply.believed_tokens(question.chars) or (
            TokenUse() if reply.outcome in _UNPAID else most
        )
        self._requests += reply.requests
        self._tokens += used.prompt + used.answer
        self._cost += settings.prices.cost_of(used)
        answer = read_causes(reply.text, self._redactor)
        if answer is not None:
            if kept is not None:
                groups = [{"cause": sentence, "faults": numbers} for sentence, numbers in answer]
                kept.keep_text(question, json.dumps({"groups": groups}))
            self.groups.add_answer(name, numbered, answer)
            return None
        if reply.outcome in _ENDPOINT_FAILED:
            why = f"the endpoint gives no answer ({in_words(reply.outcome)})"
            self._leave(
                numbered,
                f"{name}: {why}.",
                "Check judge.model, judge.base_url and the key, and start again.",
            )
            return why
        seen = self._redactor.beginning(reply.text or "", MOST_EXAMPLE_CHARS)
        self._leave(
            numbered,
            f"{name}: the answer of {settings.model} cannot be read ({in_words(reply.outcome)}): "
            f"expected one JSON object with groups of numbers; seen, for example: {seen!r}.",
            "Ask a model that keeps to this form, raise judge.max_answer_tokens for one that is "
            "cut off, or leave --judge off.",
        )
        return None

    async def _reply(self, question: JudgePrompt, endpoint: Asks) -> Reply:
        delivery = RequestTries()
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await endpoint.ask(
                    question, to_seconds(self._settings.request_timeout_ms), delivery
                )
        except TimeoutError:
            return Reply(TrialOutcome.TIMED_OUT, requests=max(1, delivery.tries))

    def _leave(self, numbered: Numbered, what: str, to_do: str) -> None:
        self.is_complete = False
        self.groups.leave(numbered)
        calls = {id(each.trial) for faults in numbered for each in faults}
        count = sum(map(len, numbered))
        self.groups.remarks.append(
            f"{what} Its {counted(count, 'fault')} of {counted(len(calls), 'call')} are under "
            f'"{NOT_GROUPED}". {to_do}'
        )

    def _say_bounds(self) -> None:
        settings, cost = self._settings, 0.0
        asked = self._questions[:MOST_QUESTIONS]
        for number, cases in enumerate(asked):
            question = causes_question(
                [(case, len(self._cases[case])) for case in cases], (), settings.answer_form
            )
            prompt = question.most_tokens + (_MOST_KNOWN_TOKENS if number else 0)
            most = TokenUse(prompt=prompt, answer=settings.max_answer_tokens)
            self._most_tokens += most.prompt + most.answer
            cost += settings.prices.cost_of(most)
        say(
            f"Judge: at most {counted(len(asked), 'question')} about causes and "
            f"{self._most_tokens:,} tokens, cost {cost:.4f} by judge.price_*; one that fails at "
            f"the endpoint is sent again, {settings.max_retries} times at most."
        )

    def _say_cost(self) -> None:
        recalled = (
            f" {counted(self._recalled, 'answer')} of an earlier run." if self._recalled else ""
        )
        say(
            f"Judge: {counted(self._requests, 'request')} about causes, {self._tokens:,} tokens, "
            f"cost {self._cost:.4f} by judge.price_*.{recalled}"
        )
