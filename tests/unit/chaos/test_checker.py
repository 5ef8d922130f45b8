"""The checker of the chaos run finds the faults planted in the rows of a real evaluation, and no
others.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import CloseReason, JudgeKind
from schemas.rows import CallRow, Labels, Row, TurnRow, encode, number
from streamer.sources.replay import renamed, shifted
from streamer.sources.simulator.traffic import SimulatedCall, simulate_call
from tests.chaos.evaluators import newer_version
from tests.chaos.load.call_pool import T0_SECONDS, CallTemplate, call_template, make_pool
from tests.chaos.verdict.beside_scores import Beside, beside_compared
from tests.chaos.verdict.checker import MOST_EXAMPLES, Findings, compared
from tests.chaos.verdict.log_check import Log
from tests.chaos.verdict.topic_reader import ReadRecord
from tests.chaos.verdict.undisturbed import Undisturbed, undisturbed
from tests.unit.chaos.appended import appended, inputs_of

LIMITS = Limits(closing_grace_ms=1_000)


def folded(pool: Sequence[CallTemplate], rules: GoalRules | None = None) -> Undisturbed:
    """What the log of these calls comes to."""
    return undisturbed(Log().read(appended(inputs_of(pool)), 0), LIMITS, rules)


@pytest.fixture(scope="module")
def peaceful() -> Undisturbed:
    return folded(make_pool(3, 8))


def written(rows: Sequence[Row]) -> list[bytes]:
    return [encode(row) for row in rows]


def zeros(findings: Findings) -> tuple[int, int, int]:
    return findings.missing, findings.duplicate, findings.wrong


def about(row: Row) -> tuple[str, str, int | None]:
    return row.conversation_id, type(row).__name__, row.turn if isinstance(row, TurnRow) else None


def changed(peaceful: Undisturbed, old: Row, *new: Row) -> Findings:
    """The findings when `new` comes in the place of one row."""
    at = next(at for at, row in enumerate(peaceful.rows) if row is old)
    return compared(peaceful.rows, written([*peaceful.rows[:at], *new, *peaceful.rows[at + 1 :]]))


def last_of(peaceful: Undisturbed, holds: Callable[[Any], bool]) -> Any:
    """A newest row of its subject, for which something is true; not of the last call, so that
    others come behind it.
    """
    newest = {about(row): row for row in peaceful.rows}
    return next(row for row in newest.values() if holds(row))


def a_turn(peaceful: Undisturbed) -> TurnRow:
    """The newest row of a turn with a wait and with news."""
    row: TurnRow = last_of(
        peaceful,
        lambda row: isinstance(row, TurnRow) and number(row.wait_ms) is not None and bool(row.news),
    )
    return row


def a_closed_call(peaceful: Undisturbed) -> CallRow:
    row: CallRow = last_of(peaceful, lambda row: isinstance(row, CallRow) and row.state == "closed")
    return row


def with_parts(row: Any, **parts: Any) -> Any:
    return structs.replace(row, **parts)


def test_equal_rows_are_clean(peaceful: Undisturbed) -> None:
    findings = compared(peaceful.rows, written(peaceful.rows))
    assert zeros(findings) == (0, 0, 0)
    assert findings.is_clean
    assert (findings.calls, findings.scores) == (8, len(peaceful.rows))
    assert (
        findings.finals
        == len({about(row) for row in peaceful.rows if getattr(row, "status", "") != "withdrawn"})
        > 30
    )
    news = {name.split(".")[0] for row in peaceful.rows for name in getattr(row, "news", ())}
    assert news >= {
        "dead_air",
        "tool",
        "wait",
        "turn",
        "stages",
        "interruption",
        "started",
        "closed",
    }


def test_rows_of_one_transaction_are_one_with_the_news_of_all(peaceful: Undisturbed) -> None:
    """As the writer makes them: the newest row of each subject in a transaction, in the place of
    its last.
    """
    for size in (2, 7, 50, len(peaceful.rows)):
        merged: list[Row] = []
        for start in range(0, len(peaceful.rows), size):
            newest: dict[Any, Any] = {}
            for row in peaceful.rows[start : start + size]:
                older = newest.pop(about(row), None)
                news = (*getattr(older, "news", ()), *getattr(row, "news", ()))
                newest[about(row)] = (
                    with_parts(row, news=tuple(dict.fromkeys(news))) if news else row
                )
            merged += newest.values()
        assert compared(peaceful.rows, written(merged)).is_clean, size
    assert len(merged) < len(peaceful.rows)


@pytest.mark.parametrize("choose", [a_turn, a_closed_call])
def test_the_last_row_of_something_that_is_not_there_is_found(
    peaceful: Undisturbed, choose: Any
) -> None:
    """What was said before it is not what is so, and its news are missing."""
    row = choose(peaceful)
    findings = changed(peaceful, row)
    assert (findings.missing, findings.duplicate, findings.wrong) == (len(row.news), 0, 1)


def test_something_of_which_there_is_no_row_is_missing(peaceful: Undisturbed) -> None:
    row = a_turn(peaceful)
    findings = compared(
        peaceful.rows, written([each for each in peaceful.rows if about(each) != about(row)])
    )
    assert zeros(findings) == (1, 0, 0)
    assert "is not there" in findings.examples[0]


def test_a_row_between_may_say_something_else_if_no_news_are_lost(peaceful: Undisturbed) -> None:
    last = a_turn(peaceful)
    before = with_parts(last, revision=last.revision - 1, wait_ms=1.0, news=())
    assert changed(peaceful, last, before, last).is_clean
    findings = changed(peaceful, last, last, with_parts(last, wait_ms=1.0, news=()))
    assert zeros(findings) == (0, 0, 1)


def test_another_value_is_wrong_and_the_example_says_what(peaceful: Undisturbed) -> None:
    last = a_turn(peaceful)
    findings = changed(peaceful, last, with_parts(last, wait_ms=1.0))
    assert zeros(findings) == (0, 0, 1)
    assert f"wait_ms is 1.0, expected {last.wait_ms}" in findings.examples[0]


@pytest.mark.parametrize(
    "parts",
    [
        {"revision": 2},
        {"known_ms": 5},
        {"labels": Labels("another")},
        {"last_place": 7},
        {"first_place": 7},
        {"turns": 99},
        {"began_ms": 1},
        {"partition": 3},
        {"ended_reason": "another"},
        {"close_reason": CloseReason.LIMIT_EVENTS},
        {"p50_ms": 1.0},
    ],
)
def test_everything_in_a_closed_row_follows_from_the_log(
    peaceful: Undisturbed, parts: dict[str, Any]
) -> None:
    closed = a_closed_call(peaceful)
    findings = changed(peaceful, closed, with_parts(closed, **parts))
    assert not findings.is_clean
    assert (findings.missing, findings.duplicate) == (0, 0)


def test_which_version_wrote_a_row_is_not_what_it_says(peaceful: Undisturbed) -> None:
    closed = a_closed_call(peaceful)
    assert changed(peaceful, closed, with_parts(closed, code_version="9")).is_clean


def test_so_does_a_silence(peaceful: Undisturbed) -> None:
    row = last_of(peaceful, lambda row: bool(getattr(row, "dead_air", ())))
    (first, *others) = row.dead_air
    later = structs.replace(first, since_ms=first.since_ms + 1)
    assert zeros(changed(peaceful, row, with_parts(row, dead_air=(later, *others)))) == (0, 0, 1)
    assert zeros(changed(peaceful, row, with_parts(row, dead_air=()))) == (0, 0, 1)


def test_revisions_of_a_call_never_fall(peaceful: Undisturbed) -> None:
    last = a_turn(peaceful)
    findings = changed(peaceful, last, last, with_parts(last, revision=last.revision - 4, news=()))
    assert findings.wrong == 2, "it comes after a newer one, and is the last"
    assert f"revision {last.revision - 4} comes after" in findings.examples[0]
    once = with_parts(last, wait_ms=1.0, news=())
    assert changed(peaceful, last, once, last).is_clean, (
        "one step may decide two, and the last counts"
    )


def test_a_row_read_twice_is_a_duplicate(peaceful: Undisturbed) -> None:
    first = peaceful.rows[0]
    assert zeros(changed(peaceful, first, first, first)) == (0, 1, 0)
    closed = a_closed_call(peaceful)
    assert zeros(changed(peaceful, closed, closed, closed, closed)) == (0, 2, 0)


def test_a_call_that_closes_again_is_found_whatever_version_closes_it(
    peaceful: Undisturbed,
) -> None:
    closed = a_closed_call(peaceful)
    again = with_parts(closed, revision=closed.revision + 1, news=())
    findings = changed(peaceful, closed, closed, again)
    assert zeros(findings) == (0, 1, 0)
    assert "a second closed row" in findings.examples[0]


def test_nothing_comes_after_the_end_of_a_call(peaceful: Undisturbed) -> None:
    closed = a_closed_call(peaceful)
    turn = last_of(
        peaceful,
        lambda row: isinstance(row, TurnRow) and row.conversation_id == closed.conversation_id,
    )
    late = with_parts(turn, revision=closed.revision + 2, news=())
    findings = compared(peaceful.rows, written([*peaceful.rows, late]))
    assert zeros(findings) == (0, 0, 1)
    assert "after the end" in findings.examples[0]
    running = with_parts(closed, state="running", news=(), revision=closed.revision + 1)
    assert zeros(changed(peaceful, closed, closed, running)) == (0, 0, 1)


def test_news_that_come_twice_are_a_duplicate(peaceful: Undisturbed) -> None:
    """Even in a row that says something new, and whoever says it."""
    last = a_turn(peaceful)
    for revision in (last.revision + 2, last.revision + 1):
        before = with_parts(last, news=last.news[:1])
        findings = changed(peaceful, last, before, with_parts(last, revision=revision))
        assert findings.duplicate == 1
        assert f"{last.news[0]} is news again" in "".join(findings.examples)


def test_news_that_are_missing_or_not_expected_are_found(peaceful: Undisturbed) -> None:
    last = a_turn(peaceful)
    findings = changed(peaceful, last, with_parts(last, news=last.news[1:]))
    assert zeros(findings) == (1, 0, 0)
    assert f"{last.news[0]} was never news" in findings.examples[0]
    findings = changed(peaceful, last, with_parts(last, news=(*last.news, "tool.77")))
    assert zeros(findings) == (0, 0, 1)
    assert "tool.77 is news, and is not expected" in findings.examples[0]


def test_a_wait_may_be_revised_often_and_not_unseen(peaceful: Undisturbed) -> None:
    last = a_turn(peaceful)
    revised = with_parts(last, news=("wait_revised",), revision=last.revision - 1)
    again = with_parts(last, news=(*last.news, "wait_revised"))
    assert zeros(changed(peaceful, last, revised, again)) == (0, 0, 1), "once is not expected"


def test_another_version_says_everything_again_with_an_odd_revision(peaceful: Undisturbed) -> None:
    last = a_turn(peaceful)
    step = [
        at
        for at, row in enumerate(peaceful.rows)
        if row.conversation_id == last.conversation_id and row.revision == last.revision
    ]

    def then(*new: Row) -> Findings:
        return compared(
            peaceful.rows,
            written([*peaceful.rows[: step[-1] + 1], *new, *peaceful.rows[step[-1] + 1 :]]),
        )

    again = with_parts(last, revision=last.revision + 1, news=())
    findings = then(again, again)
    assert (zeros(findings), findings.again) == ((0, 0, 0), 2), (
        "by two owners that ended in front of the same record"
    )
    other = with_parts(again, wait_ms=1.0)
    assert then(other, again).is_clean
    assert zeros(then(other)) == (0, 0, 1), "its value is another one in the end"
    assert zeros(then(with_parts(again, news=last.news))) == (0, len(last.news), 0), (
        "it counts nothing"
    )


def test_what_was_withdrawn_was_never_there(peaceful: Undisturbed) -> None:
    gone = with_parts(a_turn(peaceful), turn=77, revision=0, status="withdrawn", news=())
    assert compared(peaceful.rows, written([gone, *peaceful.rows])).is_clean
    assert compared([gone, *peaceful.rows], written(peaceful.rows)).is_clean
    there = with_parts(gone, status="settled")
    assert zeros(compared(peaceful.rows, written([there, *peaceful.rows]))) == (0, 0, 1)


def test_two_logs_of_the_same_inputs_have_other_places_and_nothing_else(
    peaceful: Undisturbed,
) -> None:
    def of_another_log(row: Any, **parts: Any) -> Findings:
        at = next(at for at, each in enumerate(peaceful.rows) if each is row)
        moved = [*peaceful.rows[:at], with_parts(row, **parts), *peaceful.rows[at + 1 :]]
        return compared(peaceful.rows, written(moved), is_one_log=False)

    closed = a_closed_call(peaceful)
    places = {"revision": 10**6, "first_place": 10**6, "last_place": 10**6, "known_ms": 10**6}
    assert of_another_log(closed, **places).is_clean
    assert zeros(of_another_log(closed, began_ms=1)) == (0, 0, 1)
    row = last_of(peaceful, lambda row: bool(getattr(row, "dead_air", ())))
    later = tuple(structs.replace(each, known_ms=each.known_ms + 1) for each in row.dead_air)
    assert of_another_log(row, dead_air=later).is_clean
    assert zeros(of_another_log(row, dead_air=later[1:])) == (0, 0, 1)


def test_a_row_that_nobody_expects_is_wrong(peaceful: Undisturbed) -> None:
    last = a_turn(peaceful)
    assert zeros(changed(peaceful, last, last, with_parts(last, turn=77, news=()))) == (0, 0, 1)
    assert zeros(compared([], written([last]))) == (0, 0, 1)


def test_what_is_no_row_is_wrong(peaceful: Undisturbed) -> None:
    junk = [
        b'{"row":',
        b'{"row":"call"}',
        b'{"row":"turn","conversation_id":1,"turn":1}',
        b'{"row":"another"}',
    ]
    assert zeros(compared(peaceful.rows, [*written(peaceful.rows), *junk])) == (0, 0, len(junk))


def test_a_row_of_the_newer_version_says_the_same(peaceful: Undisturbed) -> None:
    closed = last_of(
        peaceful,
        lambda row: (
            isinstance(row, CallRow)
            and row.close_reason in (CloseReason.ENDED, CloseReason.SESSION_ENDED)
        ),
    )
    value = encode(closed)
    newer = value
    for old, new in newer_version.RENAMED.items():
        newer = newer.replace(old, new)
    newer = newer.replace(b'"turns":', b'"closed_by":"a later version","turns":')
    assert (newer_version.is_newer(newer), newer_version.is_newer(value)) == (True, False)
    assert newer_version.as_this_version(value) == value
    at = next(at for at, row in enumerate(peaceful.rows) if row is closed)
    before, after = written(peaceful.rows[:at]), written(peaceful.rows[at + 1 :])
    assert zeros(compared(peaceful.rows, [*before, newer, *after])) == (0, 0, 0)
    wrong = newer.replace(b'"turns":', b'"turns":9')
    assert zeros(compared(peaceful.rows, [*before, wrong, *after])) == (0, 0, 1)
    for name, line, _ in newer_version.CHANGES:
        assert Path(str(import_module(name).__file__)).read_text().count(line) == 1


def test_the_newer_version_writes_its_own_field() -> None:
    """A field with a plain default would not be on the wire."""

    class Newer(msgspec.Struct, omit_defaults=True):
        close_reason: str | None = None
        closed_by: str = msgspec.field(default_factory=lambda: "a later version")

    assert (
        msgspec.json.encode(Newer("ended"))
        == b'{"close_reason":"ended","closed_by":"a later version"}'
    )
    (change,) = [new for name, _, new in newer_version.CHANGES if name == "schemas.rows"]
    assert "msgspec.field(default_factory=lambda:" in change


def test_findings_add_up_and_examples_of_one_kind_do_not_hide_the_others(
    peaceful: Undisturbed,
) -> None:
    held = compared(peaceful.rows, written(peaceful.rows)).finals
    findings = Findings()
    findings.add(compared(peaceful.rows, []))
    assert zeros(findings) == (held, 0, 0)
    findings.add(compared([], written(peaceful.rows)))
    assert zeros(findings) == (held, 0, held)
    assert len(findings.examples) <= MOST_EXAMPLES
    assert findings.by_name["missing", "call"] == findings.by_name["wrong", "call"] == 8
    assert {example.split(":")[0] for example in findings.examples} == {"missing", "wrong"}


def test_a_template_gives_the_bytes_that_playing_the_call_gives() -> None:
    seconds, name = 1_800_000_123, "another"
    for seed in range(12):
        simulated = simulate_call(seed, start_ms=T0_SECONDS * 1_000)
        moved = renamed(shifted(simulated.call, seconds - T0_SECONDS), name)
        played = list(SimulatedCall(moved, simulated.delivery, simulated.features).wire_events())
        template = call_template([seed], None)
        assert [event.rendered(seconds, name.encode()) for event in template.events] == [
            e.value for e in played
        ]
        assert [event.after_ms + seconds * 1_000 for event in template.events] == [
            e.arrival_ms for e in played
        ]


# The checker finds what is wrong beside scores: a transcript or a question that is missing, doubled
# or another one.


OTHER = b"another transcript"


@pytest.fixture(scope="module")
def judged() -> Undisturbed:
    rules = GoalRules(asks_judge=True, text_judges=(JudgeKind.CONCISENESS,))
    return folded(make_pool(3, 3), rules)


def transcripts_of(judged: Undisturbed) -> list[ReadRecord]:
    return [
        ReadRecord(0, at, 0, each.conversation_id.encode(), each.value)
        for at, each in enumerate(judged.transcripts)
    ]


def questions_of(judged: Undisturbed) -> list[ReadRecord]:
    return [
        ReadRecord(0, at, 0, each.conversation_id.encode(), each.model_dump_json().encode())
        for at, each in enumerate(judged.questions)
    ]


def test_transcripts_and_questions_are_there_once(judged: Undisturbed) -> None:
    expected = Beside.of(judged)
    transcripts, questions = transcripts_of(judged), questions_of(judged)
    assert len(transcripts) == 3
    assert len(questions) > 3
    assert beside_compared(expected, transcripts, questions).is_clean
    assert zeros(beside_compared(expected, transcripts[1:], questions)) == (1, 0, 0)
    assert zeros(beside_compared(expected, [*transcripts, transcripts[0]], questions)) == (0, 1, 0)
    another = transcripts[0]._replace(value=OTHER)
    assert zeros(beside_compared(expected, [another, *transcripts[1:]], questions)) == (1, 0, 1)
    assert zeros(beside_compared(expected, [another, *transcripts], questions)) == (0, 0, 1)
    assert zeros(beside_compared(expected, transcripts, questions[1:])) == (1, 0, 0)
    assert zeros(beside_compared(expected, transcripts, [*questions, questions[0]])) == (0, 1, 0)


def test_a_question_names_its_call(judged: Undisturbed) -> None:
    transcripts, (first, *others) = transcripts_of(judged), questions_of(judged)
    findings = beside_compared(
        Beside.of(judged), transcripts, [first._replace(key=b"another"), *others]
    )
    assert zeros(findings) == (0, 0, 1)


def test_what_partitions_hold_adds_up(judged: Undisturbed) -> None:
    expected = Beside.of(judged).and_of(Beside.of(judged))
    transcripts, questions = transcripts_of(judged), questions_of(judged)
    assert beside_compared(expected, transcripts * 2, questions * 2).is_clean
    assert not beside_compared(expected, transcripts, questions).is_clean
