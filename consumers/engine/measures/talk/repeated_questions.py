"""Finds questions asked again in the same words: by a caller who was not understood, or by an agent that forgot."""

import re
from bisect import insort
from typing import Final

MIN_WORDS: Final = 3
"""Fewest words of a question whose repetition means something, unlike "Really?", "And you?"."""
MAX_WORDS: Final = 40
"""Words of one question that are compared; the longest questions of agents have some 30."""
MAX_QUESTIONS_PER_TURN: Final = 20
"""Questions of one side in one turn; more is a list that is read out."""

_SENTENCE = re.compile(r"[^.?!\n]+[.?!\n]*")
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)?")
_ASKING: Final = frozenset(
    {
        *(
            "what",
            "when",
            "where",
            "which",
            "who",
            "whose",
            "why",
            "how",
            "can",
            "could",
            "would",
            "will",
            "shall",
            "should",
        ),
        *("may", "do", "does", "did", "is", "are", "was", "were", "have", "has"),
    }
)
"""First words of English questions. Recognisers often leave the question mark out."""
_OPENING: Final = frozenset(
    {
        *("and", "but", "so", "okay", "ok", "well", "now", "then", "sorry", "please", "yes", "no", "alright", "thanks"),
        *("again", "um", "uh", "er", "hm", "hmm"),
    }
)
"""Words before or within a question that do not change it."""


def questions_in(text: str) -> frozenset[str]:
    """The questions of a text, in one spelling: the sentences with a question mark, and those that begin like one.

    Example:
        >>> sorted(questions_in("Sorry, what is your code? Okay. And can I have your name, please"))
        ['can i have your name', 'what is your code']
        >>> questions_in("I know what it is. Really?")
        frozenset()
    """
    found: set[str] = set()
    for sentence in _SENTENCE.findall(text):
        words = [word for word in map(str.lower, _WORD.findall(sentence)) if word not in _OPENING]
        if len(words) >= MIN_WORDS and ("?" in sentence or words[0] in _ASKING):
            found.add(" ".join(words[:MAX_WORDS]))
            if len(found) == MAX_QUESTIONS_PER_TURN:
                break
    return frozenset(found)


class RepeatedQuestions:
    """The questions of one side of a call by turn. Adding, replacing or removing a turn costs only that turn."""

    def __init__(self) -> None:
        self._by_turn: dict[int, frozenset[str]] = {}
        self._turns: dict[str, list[int]] = {}
        self._again: dict[str, list[int]] = {}

    @property
    def count(self) -> int:
        """Number of questions that had been asked in an earlier turn."""
        return sum(len(turns) - 1 for turns in self._again.values())

    @property
    def turns(self) -> tuple[int, ...]:
        """The turns with such questions, lowest first."""
        return tuple(sorted({turn for turns in self._again.values() for turn in turns[1:]}))

    def put(self, turn: int, questions: frozenset[str]) -> bool:
        """Sets the questions of a turn; returns whether they differ from before."""
        known = self._by_turn.get(turn, frozenset())
        if questions == known:
            return False
        for question in known - questions:
            turns = self._turns[question]
            turns.remove(turn)
            if len(turns) == 1:
                del self._again[question]
            elif not turns:
                del self._turns[question]
        for question in sorted(questions - known):  # sorted, so that equal states are equal byte for byte
            turns = self._turns.setdefault(question, [])
            insort(turns, turn)
            if len(turns) > 1:
                self._again[question] = turns
        if questions:
            self._by_turn[turn] = questions
        else:
            self._by_turn.pop(turn, None)
        return True
