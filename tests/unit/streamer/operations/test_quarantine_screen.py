"""The text of a producer is shown to a person, and neither steers the terminal nor fills it."""

import io

import pytest
from rich.console import Console, RenderableType

from consumers.engine.admission import admit
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource, RefusalReason
from streamer.quarantine import MAX_HEADERS, Entries, entry_details, listing, record_details, shown_bytes, summary
from streamer.terminal import safe
from tests.unit.streamer.operations.test_quarantine_log import entry
from tests.unit.streamer.operations.test_quarantine_put_back import record

HOSTILE = "\x1b[31m\x07\r\x9b2J\u202ered[bold]"


def text_of(shown: RenderableType, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(shown)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


@pytest.mark.parametrize("width", [60, 200])
def test_control_characters_are_written_out(width: int) -> None:
    hostile = entry(1, key=HOSTILE, what=HOSTILE, expected_and_seen=HOSTILE, what_to_do=HOSTILE)
    for shown in (listing([hostile], width), entry_details(hostile)):
        text = text_of(shown, width)
        assert all(character.isprintable() or character == "\n" for character in text)
        assert "[bold]" in text.replace("\n", "").replace(" ", "")


def test_an_entry_has_one_line_where_there_is_room() -> None:
    wide, narrow = text_of(listing([entry(1), entry(2)], 200), 200), text_of(listing([entry(1)], 80), 80)
    assert [line.split()[2] for line in wide.splitlines()[1:]] == ["x.pipecat.events[0]@1", "x.pipecat.events[0]@2"]
    assert "1970-01-01 00:00:01" in wide
    assert [line.startswith(" ") for line in narrow.splitlines()] == [False, True]
    for part in ("invalid_event", "x.pipecat.events[0]@1", "conversation c", "it is wrong", "saw wrong"):
        assert part in narrow


def test_the_most_frequent_reason_comes_first() -> None:
    found = Entries()
    found.by_reason.update({RefusalReason.EMPTY_KEY: 2, RefusalReason.UNDECODABLE: 30})
    assert [line.split() for line in text_of(summary(found)).splitlines()[1:]] == [
        ["30", "undecodable"],
        ["2", "empty_key"],
    ]


def test_a_preview_is_bounded() -> None:
    assert shown_bytes(b"abc\ndef", 10) == "abc\ndef"
    assert shown_bytes(b"x" * 12, 10) == "x" * 10 + "\n... 2 more bytes"
    assert shown_bytes(b"\xff\x1b", 10) == "\\xff\\x1b"
    assert safe("fine, ключ 😀") == "fine, ключ 😀"
    many = record(headers=[(f"h{number}", b"v" * 1_000) for number in range(MAX_HEADERS + 5)])
    shown = text_of(record_details(many, admit(InputSource.PIPECAT, many, Limits())))
    assert "... 5 more headers" in shown
    assert "... 800 more bytes" in shown
    assert len(shown) < 20_000


def test_a_record_says_whether_it_would_be_taken_today() -> None:
    good, bad = record(), record(event=b"{", key=None, headers=[("none", None)])
    assert "would be taken" in text_of(record_details(good, admit(InputSource.PIPECAT, good, Limits())))
    shown = text_of(record_details(bad, admit(InputSource.PIPECAT, bad, Limits())))
    assert "would be refused again: the record has no usable key" in shown
    assert "none: (none)" in shown
