"""Files and folders of goals: values and mistakes with their lines, and a folder that changes while
it is in use.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from streamer.goals.files import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    Document,
    DocumentError,
    FileMistake,
    GoalFile,
    GoalFolderError,
    doubles_in,
    goal_files_of,
    read_goal_file,
    read_json,
    read_json_lines,
    read_yaml,
)
from streamer.goals.sources import GoalFolder
from tests.support.known import Logged


def goal_set(goals_id: str, agent: str = "", details: str = "d") -> str:
    agents = f"agents: [{agent}]\n" if agent else ""
    return (
        f"id: {goals_id}\n{agents}subgoals:\n  - id: one\n    details: {details}\n    check: "
        f"{{kind: judge}}\n"
    )


def told(file: GoalFile) -> list[str]:
    return [f"{mistake.line}: {mistake.text}" for mistake in file.mistakes]


def test_a_file_says_on_which_line_each_set_begins(tmp_path: Path) -> None:
    path = tmp_path / "goals.yaml"
    path.write_text(
        "- " + goal_set("a").replace("\n", "\n  ") + "\n- " + goal_set("b").replace("\n", "\n  ")
    )
    assert [(placed.line, placed.goals.id) for placed in read_goal_file(path).sets] == [
        (1, "a"),
        (7, "b"),
    ]


def test_every_mistake_has_its_line_and_they_come_in_order(tmp_path: Path) -> None:
    path = tmp_path / "goals.yaml"
    lines = (
        "max_turns: many",
        "id: a",
        "subgoals:",
        "  - id: one",
        "    detials: x",
        "    check:",
        "      kind: says",
        "      speaker: bot",
        "      pattern: ok",
    )
    path.write_text("\n".join(lines))
    assert told(read_goal_file(path)) == [
        '1: max_turns: expected a whole number, seen "many"',
        "4: subgoals[0]: details is missing; say in plain words what must be so",
        "5: subgoals[0].detials: there is no field 'detials' here; probably 'details' is meant",
        "8: subgoals[0].check.speaker: expected 'user' or 'assistant'; seen \"bot\"",
    ]
    assert str(read_goal_file(path).mistakes[0]).startswith(f"{path}:1: max_turns: ")


def test_what_is_no_goal_file(tmp_path: Path) -> None:
    latin, odd, large, bad = (
        tmp_path / name for name in ("latin.yaml", "goals.txt", "large.json", "bad.json")
    )
    latin.write_bytes(b"id: a\nuser_instruction: caf\xe9\n")
    odd.write_text("id: a")
    with large.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    bad.write_text('{"id": "a",\n"id"')
    assert told(read_goal_file(latin)) == ["2: not UTF-8; save it in that encoding"]
    assert told(read_goal_file(odd)) == [
        "None: its name ends with none of .yaml, .yml, .json, .jsonl, so its format is unknown it"
    ]
    assert told(read_goal_file(large)) == [
        f"None: has more than {MAX_FILE_BYTES} bytes; make several files of it"
    ]
    assert told(read_goal_file(bad)) == ["2: not JSON: Expecting ':' delimiter at column 5"]
    assert told(read_goal_file(tmp_path / "none.yaml")) == [
        "None: the file cannot be read (No such file or directory)"
    ]


def test_the_byte_order_mark_of_an_editor_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "goals.yaml"
    path.write_text(goal_set("a"), encoding="utf-8-sig")
    assert read_goal_file(path).mistakes == ()


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.JSON", ".hidden.yaml", "notes.md", "c.jsonl"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "nowhere.yaml")
    (tmp_path / "linked.yml").symlink_to(tmp_path / "b.yaml")
    assert [path.name for path in goal_files_of(tmp_path)] == [
        "a.JSON",
        "b.yaml",
        "c.jsonl",
        "linked.yml",
    ]


def test_what_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(
        GoalFolderError, match=r"nowhere: the folder of goals cannot be read \(No such file"
    ):
        goal_files_of(tmp_path / "nowhere")
    with pytest.raises(GoalFolderError):
        GoalFolder(tmp_path / "nowhere").load()


def test_ids_and_agents_of_two_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(goal_set("same", "desk"))
    second.write_text(goal_set("same", "desk"))
    assert list(doubles_in(map(read_goal_file, (first, second)))) == [
        FileMistake(
            second,
            1,
            f"goal set 'same' is in {first} too; the first file's is used. Give one of them "
            "another id",
        ),
        FileMistake(
            second,
            1,
            f"agent 'desk' is in {first} too; the first file's set is used. Leave it to one goal "
            "set",
        ),
    ]


class Changing:
    """A folder that is in use, with a log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = GoalFolder(path)
        self._writes = 0

    def write(self, name: str, text: str) -> Self:
        """Writes a file with a unique time of change, however coarse the clock of the disk is."""
        path = self.path / name
        path.write_text(text)
        self._writes += 1
        os.utime(path, ns=(self._writes, self._writes))
        return self

    def reload(self) -> list[str]:
        """Reloads the folder and returns the logged events."""
        with capture_logs() as lines:
            self.folder.reload()
        return [line["event"] for line in lines]

    def details(self, goals_id: str) -> str | None:
        goals = self.folder.index.named(goals_id)
        return None if goals is None else goals.subgoals[0].details


@pytest.fixture
def changing(tmp_path: Path) -> Changing:
    return Changing(tmp_path)


def test_a_file_that_changes_is_read_again_and_others_are_not(changing: Changing) -> None:
    changing.write("a.yaml", goal_set("a", "desk")).write("b.yaml", goal_set("b", "night"))
    assert (changing.reload(), changing.reload()) == (["goal_file_read"] * 2, [])
    changing.write("a.yaml", goal_set("a", "desk", details="new"))
    assert changing.reload() == ["goal_file_read"]
    assert (changing.details("a"), changing.details("b")) == ("new", "d")
    assert changing.folder.index.of_agent("night") == changing.folder.index.named("b")


def test_a_broken_file_keeps_what_it_held_and_says_so(changing: Changing, logged: Logged) -> None:
    changing.write("a.yaml", goal_set("a"))
    changing.reload()
    changing.write("a.yaml", "id: a\nsubgoals: {}\n")
    changing.folder.reload()
    (line,) = logged
    assert (line["event"], line["mistakes"]) == ("goal_file_broken", 1)
    assert line["first"] == f"{changing.path / 'a.yaml'}:2: subgoals: expected a list, seen {{}}."
    assert line["now"] == "its earlier content stays in use"
    assert changing.details("a") == "d"
    assert list(changing.folder.broken) == [changing.path / "a.yaml"]
    assert changing.reload() == []  # reported once
    changing.write("a.yaml", goal_set("a", details="mended"))
    assert changing.reload() == ["goal_file_read"]
    assert (changing.details("a"), changing.folder.broken) == ("mended", {})


def test_a_file_that_is_broken_from_the_start_gives_no_goals(
    changing: Changing, logged: Logged
) -> None:
    changing.write("a.yaml", "[").write("b.yaml", goal_set("b"))
    changing.folder.load()
    assert [line["now"] for line in logged if line["event"] == "goal_file_broken"] == [
        "no goals come from it"
    ]
    assert (len(changing.folder.index), changing.details("b")) == (1, "d")


def test_a_file_that_is_gone_takes_its_goals_with_it(changing: Changing) -> None:
    changing.write("a.yaml", goal_set("a"))
    changing.reload()
    (changing.path / "a.yaml").unlink()
    assert changing.reload() == ["goal_file_gone"]
    assert changing.details("a") is None


def test_the_first_file_by_name_has_the_id_whatever_was_written_last(changing: Changing) -> None:
    changing.write("b.yaml", goal_set("same", "desk", details="b"))
    changing.reload()
    changing.write("a.yaml", goal_set("same", "desk", details="a"))
    assert changing.reload() == ["goal_file_read", "goal_folder_problem", "goal_folder_problem"]
    assert changing.details("same") == "a"
    changing.write("b.yaml", goal_set("same", "desk", details="again"))
    assert changing.reload() == ["goal_file_read"]  # the problem is already reported
    assert changing.details("same") == "a"
    changing.write("b.yaml", goal_set("other"))
    assert changing.reload() == ["goal_file_read"]
    changing.write("b.yaml", goal_set("same", "desk"))
    # the problem is back
    assert changing.reload() == ["goal_file_read", "goal_folder_problem", "goal_folder_problem"]


def test_a_set_that_lost_its_id_is_not_found_by_its_agents(changing: Changing) -> None:
    changing.write("a.yaml", goal_set("same")).write("b.yaml", goal_set("same", "desk"))
    changing.reload()
    assert changing.folder.index.of_agent("desk") is None


def test_a_folder_that_goes_away_keeps_what_was_read(changing: Changing) -> None:
    changing.write("a.yaml", goal_set("a"))
    changing.reload()
    changing.path.rename(changing.path.with_name("elsewhere"))
    assert (changing.reload(), changing.reload()) == (["goal_folder_problem"], [])
    assert changing.details("a") == "d"
    changing.path.with_name("elsewhere").rename(changing.path)
    assert changing.reload() == []


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
def test_a_yaml_value_without_quotes_is_what_json_makes_of_it_or_a_text(
    text: str, expected: object
) -> None:
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
    assert (document.value, document.line_of((1, "id"))) == ([{"id": "a"}, {"id": "b"}], 3)
    assert read_yaml("").value == read_yaml("# nothing\n").value == []


def test_lines_of_json() -> None:
    document = read_json('{"a": [1,\n 2.5, "x, {\\" \\n"],\r\n\n"b": {"c":\nnull}, "d": []}')
    assert document.value == {"a": [1, 2.5, 'x, {" \n'], "b": {"c": None}, "d": []}
    assert [
        document.line_of(path) for path in [("a",), ("a", 0), ("a", 2), ("b", "c"), ("d",)]
    ] == [1, 1, 2, 4, 5]


def test_lines_of_json_lines() -> None:
    document = read_json_lines('{"id": "a"}\n\n{"id": "b"}\n')
    assert (document.value, document.line_of((1, "id"))) == ([{"id": "a"}, {"id": "b"}], 3)


Reader = Callable[[str], Document]


@pytest.mark.parametrize(
    ("reader", "text", "line", "told"),
    [
        (read_yaml, "a: 1\nb: &x 2\n", 2, "anchors and aliases (& and *) are not taken"),
        (read_yaml, "a: 1\nb: [*x]\n", 2, "anchors and aliases (& and *) are not taken"),
        (
            read_yaml,
            "a: !!python/object:os.system {}\n",
            1,
            "tags such as tag:yaml.org,2002:python/object:os.system",
        ),
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
        (read_json, "[1,\nNaN]", 2, "not a number that JSON has"),
        (read_json, "[1,\n1e999]", 2, "not a number that JSON has"),
        (read_json, "9" * 5_000, 1, "a number has thousands of digits"),
        (read_json, '["\\ud800"]', 1, "half a character"),
        (read_json, '{"\\udfff": 1}', 1, "half a character"),
        (read_json, "[" * 100_000, 1, f"values are nested deeper than {MAX_DEPTH}"),
        (
            read_json,
            "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
            1,
            f"values are nested deeper than {MAX_DEPTH}",
        ),
        (read_json_lines, '{"a": 1}\n\n{"a":\n', 3, "not JSON: Expecting value"),
    ],
)
def test_what_cannot_be_read_says_where(
    reader: Reader, text: str, line: int | None, told: str
) -> None:
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
