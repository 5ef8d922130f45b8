"""Options of judging subgoals that goal sets, settings and questions share: bounds of trials, and a prompt of one's own.

Such a prompt is a template: a text with named places for the parts of a question. A place is a name in braces, for example
`{call}`; two braces are one brace of the text. The judge puts a frame around the call and says how to answer, so a template has
only what is to be decided, and how.
"""

import hashlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MAX_TRIALS: Final = 99
MAX_RETRY_WAVES: Final = 20
CALL: Final = "call"
SUBGOAL: Final = "subgoal"
PLACES: Final[Mapping[str, str]] = MappingProxyType(
    {
        CALL: "the call up to the turn, a line for each utterance and each use of a tool, in a frame",
        SUBGOAL: "the details of the subgoal, as JSON text",
        "turn": "the number of the turn up to which the call is shown",
        "user_instruction": "the user's instruction of the goal set, as JSON text; null if there is none",
    }
)
"""Each place, and the part of the question that replaces it. The first two are required."""
MAX_TEMPLATE_CHARS: Final = 20_000
"""Longest template: it is a part of every question. agent-inspect's own has 2,500 characters."""
OWN_PROMPT: Final = "own.1"
"""Version of the frame and of the words about the answer around a template. The version of a prompt has the template's hash behind it,
so a changed template asks again, as a changed frame does."""
_AGENT_INSPECT: Final = MappingProxyType(
    {"trajectories": CALL, "answers": CALL, "dynamicDialogue": CALL, "userTask": "user_instruction"}
)
"""Places of agent-inspect's templates, and the place that has the same."""
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
        >>> check_template("Read {answers}.")
        Traceback (most recent call last):
        schemas.judge_options.TemplateError: line 1: the place {answers} is not known; it is agent-inspect's, and {call} has the same here
    """
    if len(text) > MAX_TEMPLATE_CHARS:
        raise TemplateError(
            f"the template has {len(text):,} characters, and {MAX_TEMPLATE_CHARS:,} are allowed; shorten it"
        )
    lines: dict[str, list[int]] = {}
    for found in _PLACE.finditer(text):
        if (name := found[1]) is None:
            continue
        line = text.count("\n", 0, found.start()) + 1
        if name not in PLACES:
            raise TemplateError(f"line {line}: the place {{{name}}} is not known; {_instead_of(name)}")
        lines.setdefault(name, []).append(line)
    for name in (CALL, SUBGOAL):
        if name not in lines:
            raise TemplateError(f"the place {{{name}}} is missing; put it where the judge should read {PLACES[name]}")
    if len(lines[CALL]) > 1:
        places = " and ".join(f"line {line}" for line in lines[CALL])
        raise TemplateError(f"the place {{{CALL}}} is in {places}; leave one of them")
    return text


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


def _instead_of(name: str) -> str:
    if (same := _AGENT_INSPECT.get(name)) is not None:
        return f"it is agent-inspect's, and {{{same}}} has the same here"
    *names, last = (f"{{{place}}}" for place in PLACES)
    return f"known are {', '.join(names)} and {last}"
