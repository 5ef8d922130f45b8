"""Reads YAML, JSON and JSON lines into plain values, and keeps the line number of each value.

YAML is read with few surprises: a value without quotes is a number only if JSON would read it as one, `true`, `false` and
`null` in the usual spellings keep their meaning, and every other value is a text: dates, times of day, `yes`, `no`, `0042`.
Anchors and tags are refused, since a short file with them can expand to a huge one. Several YAML documents, and several
lines of JSON lines, are a list.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from schemas.goals.goal_set import DocumentPath

MAX_DEPTH: Final = 40
"""Values inside values; EVA's records have 12."""
MAX_SHOWN_CHARS: Final = 60
"""How much of a name of a field a message shows."""

_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,308})(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_WORDS: Final[Mapping[str, bool | None]] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\n')
# libyaml where the wheel has it: the parser in Python takes seconds for a data set.
_YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DocumentError(Exception):
    """A text that cannot be read at all.

    Attributes:
        line: Line number from 1; None for the whole text.
        text: The fault and the remedy, a sentence without a full stop.
    """

    def __init__(self, line: int | None, text: str) -> None:
        self.line = line
        self.text = text
        super().__init__(text if line is None else f"line {line}: {text}")


class Document:
    """A value as JSON has it, and the lines of its parts."""

    def __init__(self, value: Any, lines: Mapping[DocumentPath, int]) -> None:
        self.value = value
        self._lines = lines

    def line_of(self, path: DocumentPath) -> int:
        """The line of a part, counted from 1; of the nearest part around it that there is."""
        return next(self._lines[path[:length]] for length in range(len(path), -1, -1) if path[:length] in self._lines)


def read_yaml(text: str) -> Document:
    """Reads YAML.

    Raises:
        DocumentError: The text is not YAML, or uses anchors or tags.
    """
    builder = _Builder()
    documents = 0
    try:
        for event in yaml.parse(text, Loader=_YAML_LOADER):
            documents += isinstance(event, yaml.DocumentStartEvent)
            _take_event(builder, event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        raise DocumentError(line, f"not YAML: {_problem(error, text)}") from error
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise DocumentError(None, f"not YAML: {' '.join(str(error).split())}") from error
    return builder.document(is_list=documents != 1)


def _problem(error: yaml.MarkedYAMLError, text: str) -> str:
    """The fault, and what to do about it; a tab is the one fault that a person cannot see."""
    mark = error.problem_mark
    lines = text.split("\n")
    is_token = "cannot start any token" in (error.problem or "")
    if is_token and mark is not None and mark.line < len(lines) and "\t" in lines[mark.line]:
        return "a tab; indent with spaces"
    return f"{error.problem or error.context}; check indentation and quotes"


def read_json(text: str) -> Document:
    """Reads JSON.

    Raises:
        DocumentError: It is none.
    """
    builder = _Builder()
    _take_json(builder, text, 1)
    return builder.document(is_list=False)


def read_json_lines(text: str) -> Document:
    """Reads one JSON value a line; empty lines are left out.

    Raises:
        DocumentError: A line is none.
    """
    builder = _Builder()
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            _take_json(builder, line, number)
    return builder.document(is_list=True)


class _Builder:
    """Puts a value together from its parts as they come, and notes the line of each."""

    def __init__(self) -> None:
        self._documents: list[Any] = []
        self._lines: dict[DocumentPath, int] = {}
        self._open: list[tuple[dict[str, Any] | list[Any], DocumentPath]] = [(self._documents, ())]
        self._name: str | None = None

    @property
    def expects_name(self) -> bool:
        """Whether the next scalar is the name of a field."""
        return isinstance(self._open[-1][0], dict) and self._name is None

    def name(self, name: str, line: int) -> None:
        """The name of the field whose value comes next."""
        fields, path = self._open[-1]
        _require_unicode(name, line)
        if name in fields:
            first = self._lines[*path, name]
            raise DocumentError(
                line, f"{name[:MAX_SHOWN_CHARS]!r} is there twice, first on line {first}; leave one out"
            )
        self._lines[*path, name] = line
        self._name = name

    def value(self, value: Any, line: int) -> DocumentPath:
        """A value, in the place that is next; where that is."""
        if isinstance(value, str):
            _require_unicode(value, line)
        elif isinstance(value, float) and not math.isfinite(value):
            raise DocumentError(line, "not a number that JSON has; leave the field out or give a smaller one")
        holder, path = self._open[-1]
        if isinstance(holder, list):
            path = (*path, len(holder))
            holder.append(value)
        elif self._name is None:
            raise DocumentError(line, "a list or mapping cannot be the name of a field; use a text")
        else:
            path = (*path, self._name)
            holder[self._name] = value
            self._name = None
        self._lines.setdefault(path, line)
        return path

    def begin(self, holder: dict[str, Any] | list[Any], line: int) -> None:
        """A mapping or list whose parts come next."""
        if len(self._open) > MAX_DEPTH:
            raise DocumentError(line, f"values are nested deeper than {MAX_DEPTH}")
        self._open.append((holder, self.value(holder, line)))

    def end(self) -> None:
        """The mapping or list that was begun last is complete."""
        self._open.pop()

    def document(self, *, is_list: bool) -> Document:
        """The result: all documents as a list, or the only one."""
        if is_list or not self._documents:
            return Document(self._documents, {(): 1, **self._lines})
        return Document(self._documents[0], {path[1:]: line for path, line in self._lines.items()})


def _take_event(builder: _Builder, event: yaml.Event) -> None:
    line = 1 if event.start_mark is None else event.start_mark.line + 1
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
        raise DocumentError(line, "anchors and aliases (& and *) are not taken; write the value out")
    if (tag := getattr(event, "tag", None)) is not None:
        raise DocumentError(line, f"tags such as {tag} are not taken; put a text in quotes instead")
    match event:
        case yaml.ScalarEvent() if builder.expects_name:
            builder.name(event.value, line)
        case yaml.ScalarEvent():
            builder.value(event.value if event.style else _plain_scalar(event.value), line)
        case yaml.MappingStartEvent():
            builder.begin({}, line)
        case yaml.SequenceStartEvent():
            builder.begin([], line)
        case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
            builder.end()


def _plain_scalar(text: str) -> str | int | float | bool | None:
    """The value of a YAML scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    if not (number[2] or number[3]):
        return int(text)
    value = float(text)
    return value if math.isfinite(value) else text


def _take_json(builder: _Builder, text: str, first_line: int) -> None:
    """One JSON value: checked as a whole, then taken part by part, since the parser does not say where parts are."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise DocumentError(line, f"not JSON: {_json_problem(error)} at column {error.colno}") from error
    except RecursionError as error:
        raise DocumentError(first_line, f"values are nested deeper than {MAX_DEPTH}") from error
    except ValueError as error:
        raise DocumentError(first_line, "a number has thousands of digits; put it in quotes") from error
    line = first_line
    for found in _TOKEN.finditer(text):
        match found[0]:
            case "\n":
                line += 1
            case "{":
                builder.begin({}, line)
            case "[":
                builder.begin([], line)
            case "}" | "]":
                builder.end()
            case "," | ":":
                pass
            case scalar if builder.expects_name:
                builder.name(json.loads(scalar), line)
            case scalar:
                builder.value(json.loads(scalar), line)


def _json_problem(error: json.JSONDecodeError) -> str:
    """The fault; the parser of some versions of Python does not name a comma too many."""
    rest = error.doc[error.pos :].lstrip()
    is_comma = rest.startswith(",") or error.doc[: error.pos].rstrip().endswith(",")
    after = rest.removeprefix(",").lstrip()[:1]
    return f"a comma too many before {after}" if is_comma and after in {"}", "]"} else error.msg


def _require_unicode(text: str, line: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DocumentError(line, "half a character (a lone surrogate) in a text; write it whole") from error
