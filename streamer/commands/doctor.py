"""The work of the command `doctor`: findings, and how they look."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

from rich.table import Table
from rich.text import Text

from streamer.commands.settings_options import settings_from
from streamer.operations.doctor.examination import examine
from streamer.operations.doctor.findings import Finding, Verdict
from streamer.settings.all_settings import SettingsError

_STYLES: Final = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.WRONG: "bold red",
    Verdict.UNKNOWN: "magenta",
}
_CHECK_CHARS: Final = 16


async def findings_with(
    config: Path | None, bootstrap: str | None, topic_prefix: str | None
) -> AsyncGenerator[Finding, None]:
    """The findings with these settings; mistakes in the settings are the only ones if there are any."""
    try:
        settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    except SettingsError as error:
        for mistake in error.mistakes:
            yield Finding("settings", Verdict.WRONG, mistake, "Fix it; nothing more was checked.")
        return
    async with aclosing(examine(settings)) as findings:
        async for finding in findings:
            yield finding


async def tell_all(findings: AsyncGenerator[Finding, None], tell: Callable[[Finding], None]) -> Counter[Verdict]:
    """Tells each finding as soon as it is there, and counts the verdicts."""
    verdicts: Counter[Verdict] = Counter()
    async with aclosing(findings):  # the reader of our output may go away in the middle of it
        async for finding in findings:
            tell(finding)
            verdicts[finding.verdict] += 1
    return verdicts


def finding_line(finding: Finding) -> Table:
    """A finding as a line of three columns: verdict, check, text."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(width=max(map(len, Verdict)), no_wrap=True, style=_STYLES[finding.verdict])
    table.add_column(width=_CHECK_CHARS, overflow="fold")
    table.add_column(overflow="fold")
    text = Text(finding.seen)
    if finding.what_to_do:
        text.append(f". {finding.what_to_do}" if not finding.seen.endswith(".") else f" {finding.what_to_do}")
    table.add_row(finding.verdict.value, finding.check, text)
    return table


def summary(verdicts: Counter[Verdict]) -> str:
    """The number of findings of each verdict, as a sentence."""
    if not verdicts.keys() - {Verdict.OK}:
        return "All is well."
    counted = [f"{verdicts[verdict]} {verdict.value}" for verdict in Verdict if verdicts[verdict]]
    return f"{', '.join(counted)}."
