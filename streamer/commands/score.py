"""The work of the command `score`: options of scorers, and the table of scores."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from consumers.engine.redaction.redactor import Redactor
from streamer.agent_inspect.options import option_in
from streamer.offline.scored_recordings import reported_call, score_all
from streamer.offline.scoring import RecordedScoring
from streamer.offline.screen import reading_progress, tell_refused
from streamer.settings.all_settings import Settings
from streamer.terminal import output_console, safe


def print_table(
    scorings: Iterator[RecordedScoring], settings: Settings, verdicts: Path | None, *, asks_judge: bool
) -> None:
    """Scores the calls, and prints a table of them in place of their records."""
    from streamer.report.summary import CallSummary, standout_lines, summary_of, summary_table  # brings the report

    redactor = Redactor(settings.redaction)
    calls: list[CallSummary] = []
    with reading_progress() as progress:

        def take(scoring: RecordedScoring) -> None:
            progress.calls += 1
            calls.append(summary_of(reported_call(scoring, "", redactor)))
            tell_refused(scoring.call.conversation_id, scoring.refused)

        score_all(scorings, settings, take, progress.event, asks_judge=asks_judge, verdicts=verdicts)
    output_console().print(summary_table(calls))
    typer.echo()
    for line in standout_lines(calls):
        typer.echo(safe(line))


def options_in(given: Sequence[str]) -> dict[str, object]:
    """The options of scorers, by name.

    Raises:
        BadParameter: One of them does not exist, or has no such value.
    """
    try:
        return dict(map(option_in, given))
    except ValueError as error:
        raise typer.BadParameter(f"--option: {error}.") from error
