"""YAML, JSON and JSON lines give the intended values, and the line of each value."""

from collections.abc import Callable
from typing import Any

import pytest

from streamer.goals.files import MAX_DEPTH, Document, DocumentError, read_json, read_json_lines, read_yaml


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5),
        ("-0.5", -0.5),
        ("1e3", 1000.0),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("'5'", "5"),
        ('"true"', "true"),
        ("2026-03-25", "2026-03-25"),
        ("09:25", "09:25"),
        ("12:30", "12:30"),
        ("0042", "0042"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("+5", "+5"),
        (".5", ".5"),
        ("yes", "yes"),
        ("on", "on"),
        (".nan", ".nan"),
        ("1e999", "1e999"),
        ("=", "="),
        ("<<", "<<"),
    ],
)
def test_a_yaml_value_without_quotes_is_what_json_makes_of_it_or_a_text(text: str, expected: object) -> None:
    value = read_yaml(f"a: {text}\n").value["a"]
    assert (type(value), value) == (type(expected), expected)


def test_names_of_fields_are_texts() -> None:
    assert read_yaml("5: a\ntrue: b\n'x y': c\n").value == {"5": "a", "true": "b", "x y": "c"}


YAML = """# goals
id: a
subgoals:
  - id: one
    details: |
      some
      lines
    check: {kind: judge,
            turn: 5}
  -
    id: two
"""


def test_lines_of_yaml() -> None:
    document = read_yaml(YAML)
    assert document.value["subgoals"][0]["details"] == "some\nlines\n"
    places: dict[tuple[str | int, ...], int] = {
        (): 2,
        ("id",): 2,
        ("subgoals",): 3,
        ("subgoals", 0): 4,
        ("subgoals", 0, "details"): 5,
        ("subgoals", 0, "check", "turn"): 9,
        ("subgoals", 1, "id"): 11,
        ("subgoals", 0, "check", "nothing", 3): 8,
        ("nothing",): 2,
    }
    assert {path: document.line_of(path) for path in places} == places


def test_several_yaml_documents_are_a_list() -> None:
    document = read_yaml("id: a\n---\nid: b\n")
    assert document.value == [{"id": "a"}, {"id": "b"}]
    assert document.line_of((1, "id")) == 3
    assert read_yaml("").value == read_yaml("# nothing\n").value == []


def test_lines_of_json() -> None:
    document = read_json('{"a": [1,\n 2.5, "x, {\\" \\n"],\r\n\n"b": {"c":\nnull}, "d": []}')
    assert document.value == {"a": [1, 2.5, 'x, {" \n'], "b": {"c": None}, "d": []}
    assert [document.line_of(path) for path in [("a",), ("a", 0), ("a", 2), ("b", "c"), ("d",)]] == [1, 1, 2, 4, 5]


def test_lines_of_json_lines() -> None:
    document = read_json_lines('{"id": "a"}\n\n{"id": "b"}\n')
    assert document.value == [{"id": "a"}, {"id": "b"}]
    assert document.line_of((1, "id")) == 3


Reader = Callable[[str], Document]


@pytest.mark.parametrize(
    ("reader", "text", "line", "told"),
    [
        (read_yaml, "a: 1\nb: &x 2\n", 2, "anchors and aliases (& and *) are not taken"),
        (read_yaml, "a: 1\nb: [*x]\n", 2, "anchors and aliases (& and *) are not taken"),
        (read_yaml, "a: !!python/object:os.system {}\n", 1, "tags such as tag:yaml.org,2002:python/object:os.system"),
        (read_yaml, "a: 1\nb: 2\n\na: 3\n", 4, "'a' is there twice, first on line 1"),
        (read_yaml, "? [1]\n: 2\n", 1, "a list or mapping cannot be the name of a field"),
        (read_yaml, "a:\n  - 1\n - 2\n", 3, "not YAML: did not find expected"),
        (read_yaml, "a:\n\t- 1\n", 2, "not YAML: a tab; indent with spaces"),
        (read_yaml, "a: @b\n", 1, "check indentation and quotes"),
        (read_yaml, "a: 'x\n", 2, "not YAML: found unexpected end of stream"),
        (read_yaml, "a: \x00", None, "not YAML: unacceptable character"),
        (read_yaml, "[" * 100_000, 1, f"values are nested deeper than {MAX_DEPTH}"),
        (read_yaml, '"\\ud800"', 1, ""),
        (read_json, '{"a": 1,\n "b"}', 2, "not JSON: Expecting ':' delimiter at column 5"),
        (read_json, '{"a": [\n1, ]}', 2, "not JSON: a comma too many before ] at column"),
        (read_json, '{"a": 1,}', 1, "not JSON: a comma too many before } at column"),
        (read_json, '{"a": ",}', 1, "not JSON: Unterminated string"),
        (read_json, "", 1, "not JSON: Expecting value"),
        (read_json, '{"a": 1,\n "a": 2}', 2, "'a' is there twice, first on line 1"),
        (read_json, '[1,\nNaN]', 2, "not a number that JSON has"),
        (read_json, "[1,\n1e999]", 2, "not a number that JSON has"),
        (read_json, "9" * 5_000, 1, "a number has thousands of digits"),
        (read_json, '["\\ud800"]', 1, "half a character"),
        (read_json, '{"\\udfff": 1}', 1, "half a character"),
        (read_json, "[" * 100_000, 1, f"values are nested deeper than {MAX_DEPTH}"),
        (read_json, "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), 1, f"values are nested deeper than {MAX_DEPTH}"),
        (read_json_lines, '{"a": 1}\n\n{"a":\n', 3, "not JSON: Expecting value"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_where(reader: Reader, text: str, line: int | None, told: str) -> None:
    with pytest.raises(DocumentError) as refused:
        reader(text)
    assert refused.value.line == line
    assert told in refused.value.text


def test_as_deep_as_is_allowed() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert read_json(text).value == read_yaml(text).value


def test_json_reads_the_same_as_yaml() -> None:
    text = '{"a": [1, -2.5e1, true, null, "x: y # z"], "b": {"c": "\\u00e9"}, "d": [[], {}]}'
    values: list[Any] = [read_json(text).value, read_yaml(text).value]
    assert values[0] == values[1]
