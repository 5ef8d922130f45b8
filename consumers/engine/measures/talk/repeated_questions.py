"""Questions that are asked again in the same words: by the caller, who was not understood, or by the agent, who forgot."""

import re
from bisect import insort
from typing import Final

MIN_WORDS: Final = 3
"""A shorter question says nothing by being repeated: "Really?", "And you?"."""
MAX_WORDS: Final = 40
"""What is compared of one question; the longest that agents ask have some 30 words."""
MAX_QUESTIONS_PER_TURN: Final = 20
"""Of one side in one turn; more is a list that is read out."""

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
"""What an English question begins with. Recognisers often leave the question mark out."""
_OPENING: Final = frozenset(
    {
        *("and", "but", "so", "okay", "ok", "well", "now", "then", "sorry", "please", "yes", "no", "alright", "thanks"),
        *("again", "um", "uh", "er", "hm", "hmm"),
    }
)
"""Said before or within a question without changing it."""


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
    """What one side of a call asked in which turn. A turn is put in, replaced or taken out at the cost of that turn."""

    def __init__(self) -> None:
        self._by_turn: dict[int, frozenset[str]] = {}
        self._turns: dict[str, list[int]] = {}
        self._again: dict[str, list[int]] = {}

    @property
    def count(self) -> int:
        """How many times a question was asked that had been asked in an earlier turn."""
        return sum(len(turns) - 1 for turns in self._again.values())

    @property
    def turns(self) -> tuple[int, ...]:
        """The turns in which that happened, lowest first."""
        return tuple(sorted({turn for turns in self._again.values() for turn in turns[1:]}))

    def put(self, turn: int, questions: frozenset[str]) -> bool:
        """These are the questions of a turn now; whether they were others before."""
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
