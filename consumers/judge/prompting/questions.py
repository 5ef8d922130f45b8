"""Builds the prompt of a question: the call first, the question last.

The part before END is the same for all subgoals and trials of a turn, and is the start of the next turn's prompt, so an
endpoint that caches prefixes reads the call once. Each utterance is on a line of its own, as JSON text. The code after END is
derived from the prompt, so nobody on the call can know it or write a line that looks like ours. In a template of the user's own, the
call is in a frame with such a code at both ends.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from consumers.judge.prompting.answers import schema_of
from consumers.judge.prompting.forms import AnswerForm
from consumers.judge.prompting.plain_text import plain
from schemas.judge_options import OWN_PROMPT, filled
from schemas.judging import AgentBrief, JudgeKind, JudgeRequest, TranscriptItem, is_known_prompt

CHARS_PER_TOKEN: Final = 3
"""Low estimate of the characters of a token, so that the cost of a question is not underestimated: English has 4, other languages
fewer."""

_SECTION: Final = re.compile(r"^\[(\w+)\]\n", re.MULTILINE)


class UnknownPromptError(ValueError):
    """A question needs a prompt that this version does not have. The model is not asked."""


@dataclass(frozen=True, slots=True)
class Question:
    """The prompt for the model.

    Attributes:
        system: The rules.
        user: The call and the question about it.
        schema: JSON schema of the answer; None if the prompt describes its form in words.
    """

    system: str
    user: str
    schema: Mapping[str, Any] | None

    @property
    def chars(self) -> int:
        """Characters of the prompt."""
        return len(self.system) + len(self.user)

    @property
    def most_tokens(self) -> int:
        """High estimate of the prompt's tokens."""
        return self.chars // CHARS_PER_TOKEN + 1


def question_of(request: JudgeRequest, form: AnswerForm) -> Question:
    """Builds the prompt.

    Args:
        request: The question.
        form: `structured` for an answer by JSON schema; `grade` for an endpoint without schemas.

    Raises:
        UnknownPromptError: The question needs another version of the prompt.
    """
    if not is_known_prompt(request.kind, request.prompt_version, request.template):
        raise UnknownPromptError(f"there is no prompt {request.prompt_version} for {request.kind}")
    sections = sections_of(request.prompt_version if request.template is None else OWN_PROMPT)
    has_grade = form == "grade" and request.kind is JudgeKind.SUBGOAL
    return Question(
        system=f"{sections['system']}\n\n{sections['grade' if has_grade else 'structured']}",
        user=_asked(request, sections["question"]),
        schema=schema_of(request.kind) if form == "structured" else None,
    )


def _asked(request: JudgeRequest, question: str) -> str:
    """The call and the question about it, or the template with both in its places."""
    lines = _lines(request) if request.template is None else map(_line, request.transcript)
    call = "".join(f"{line}\n" for line in lines)
    values = {"mark": _mark(request, call), "turn": str(request.turn), "subgoal": _quoted(request.subgoal or "")}
    if request.template is None:
        return call + filled(question, values)
    instruction = "null" if request.user_instruction is None else _quoted(request.user_instruction)
    framed = filled(question, {**values, "lines": call})
    return filled(request.template, {**values, "call": framed, "user_instruction": instruction})


@cache
def sections_of(prompt_version: str) -> Mapping[str, str]:
    """Returns the sections of a prompt's file by name, without the blank lines around them."""
    text = files(__package__).joinpath("prompts", f"{prompt_version}.txt").read_text(encoding="utf-8")
    _, *parts = _SECTION.split(text)
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _lines(request: JudgeRequest) -> Iterator[str]:
    """Yields the lines before END: the known facts, then the call."""
    if request.user_instruction:
        yield f"The user set out to: {_quoted(request.user_instruction)}"
    if request.kind is JudgeKind.FAITHFULNESS:
        yield from _brief_lines(request.agent_brief or AgentBrief())
    yield from map(_line, request.transcript)


def _brief_lines(brief: AgentBrief) -> Iterator[str]:
    parts = {
        "The agent's role": brief.role,
        "Its instructions": brief.instructions,
        "Its tools": brief.tools,
        "Date and time of the call": brief.current_date_time,
    }
    yield from (f"{what}: {_quoted(text)}" for what, text in parts.items() if text)


def _line(item: TranscriptItem) -> str:
    if item.tool is None:
        return f"{item.turn} {item.kind} {_quoted(item.text)}"
    text = plain(item.text)
    return f"{item.turn} {item.kind} {_quoted(item.tool)} {text if _is_json(text) else _quoted(text)}"


def _quoted(text: str) -> str:
    return json.dumps(plain(text), ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _mark(request: JudgeRequest, call: str) -> str:
    """Returns a code that is derived from the prompt and does not occur in it."""
    attempt = 0
    while True:
        mark = hashlib.blake2b(f"{request.input_hash}{attempt}".encode(), digest_size=6).hexdigest()
        if mark not in call:
            return mark
        attempt += 1
