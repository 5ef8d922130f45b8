"""The work of the command `events`: reads a file of events, and shows its faults."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from consumers.runtime.process import OperatorError
from streamer.operations.event_check.check import UNNAMED, Findings, check_events
from streamer.report.drawing.numbers import counted
from streamer.sources.http.posted.cloudevents import LINES, UnreadableBodyError

MAX_FILE_BYTES: Final = 268_435_456
"""Largest file that is read."""
MAX_SHOWN_REFUSALS: Final = 20
"""Refused events that are shown one by one."""


class EventFileError(OperatorError):
    """A file of events cannot be read: choose another one, or repair it."""


def findings_in(path: Path) -> Findings:
    """Checks a file of events; `-` is standard input.

    Raises:
        EventFileError: It cannot be read, or is no file of events.
    """
    try:
        with sys.stdin.buffer if str(path) == "-" else path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise EventFileError(
            f"{path}: the file cannot be read ({error.strerror}). Check its name and its rights."
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise EventFileError(f"{path}: expected at most {MAX_FILE_BYTES:,} bytes. Check a part of it.")
    try:
        return check_events(content, min(LINES) if path.suffix in (".jsonl", ".ndjson") else "")
    except UnreadableBodyError as error:
        raise EventFileError(f"{path}: {error}. Nothing was checked.") from error


def findings_document(findings: Findings) -> dict[str, Any]:
    """The findings for a program: counts by name, places as line numbers."""
    return {
        "calls": len(findings.names_by_call),
        "read": dict(findings.read),
        "carried": dict(findings.carried),
        "not_understood": [
            {"events": count, "what": each.what, "what_to_do": each.what_to_do}
            for each, count in findings.not_understood.most_common()
        ],
        "refused": [
            {
                "line": each.place,
                "what": each.what,
                "expected_and_seen": each.expected_and_seen,
                "what_to_do": each.what_to_do,
            }
            for each in findings.refused
        ],
        "lines_in_seconds": findings.in_seconds,
        "without_conversation": findings.without_conversation,
        "results": [
            {"result": result.name, "calls_with_it": measured, "missing_events": sorted(lacking)}
            for result, measured, lacking in findings.missing()
        ],
    }


def finding_lines(findings: Findings) -> Iterator[str]:
    """The findings for a person, a line each."""
    total, not_understood = findings.read.total() + findings.carried.total(), findings.not_understood.total()
    calls = len(findings.names_by_call)
    yield (
        f"{counted(total, 'event')} of {counted(calls, 'call')} understood, {len(findings.refused)} refused"
        f"{f', {not_understood} not understood' if not_understood else ''}."
    )
    for title, counts in (
        ("Read", findings.read),
        ("Kept, and no rule reads them", findings.carried),
    ):
        if counts:
            yield f"{title}:"
            yield from (f"  {count:>7}  {name}" for name, count in sorted(counts.items()))
    if not_understood:
        yield "Not understood: kept and counted, and no rule reads them:"
    for each, count in findings.not_understood.most_common():
        yield f"  {count:>7}  {each.what}. {each.what_to_do}"
    yield from _faults(findings)
    if calls:
        yield "Results:"
        yield from _results(findings, calls)


def _faults(findings: Findings) -> Iterator[str]:
    if findings.refused:
        yield "Refused:"
    for refusal in findings.refused[:MAX_SHOWN_REFUSALS]:
        yield f"  line {refusal.place}: {refusal.what}. {refusal.expected_and_seen}. {refusal.what_to_do}"
    if len(findings.refused) > MAX_SHOWN_REFUSALS:
        yield f"  and {len(findings.refused) - MAX_SHOWN_REFUSALS} more"
    if findings.in_seconds:
        places = ", ".join(map(str, findings.in_seconds[:MAX_SHOWN_REFUSALS]))
        yield f"Times that look like seconds: `timestamp` is in milliseconds since 1970. Lines {places}."
    if findings.without_conversation:
        count = counted(findings.without_conversation, "event")
        yield (
            f"{count} without `conversation_id`, read as events of {UNNAMED!r}: POST /events needs it, on Kafka the key has it."
        )


def _results(findings: Findings, calls: int) -> Iterator[str]:
    for result, measured, lacking in findings.missing():
        if measured == calls:
            yield f"  yes  {result.name}"
            continue
        share = "no " if not measured else f"in {measured} of {counted(calls, 'call')}"
        yield f"  {share}  {result.name}: {result.otherwise}, for want of {' and '.join(sorted(lacking))}"
