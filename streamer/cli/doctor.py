"""The command `doctor`: faults of the settings, the sources, the broker, the topics and the groups, each with a remedy."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from streamer.cli.options import BootstrapOption, ConfigOption, PrefixOption
from streamer.cli.settings_options import settings_from
from streamer.operations.doctor.examination import examine
from streamer.operations.doctor.findings import Finding, Verdict
from streamer.quiet_libraries import quiet_libraries
from streamer.settings.all_settings import SettingsError
from streamer.terminal import output_console

_STYLES: Final = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.WRONG: "bold red",
    Verdict.UNKNOWN: "magenta",
}
_CHECK_CHARS: Final = 16

app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Checks settings, broker, topics and consumer groups.

    It checks what `callgauge run` would stumble over: the files of goals, a judge without a key, the port of /metrics; and
    whether records were refused in the last hour.

    It also checks how long topics keep records, the replicas, the clocks, and the partitioner of the producers; and, if
    they are set up, whether ingest could listen on this machine, whether ElevenLabs accepts the key of monitor, and whether
    both may write to the input topics. Each line has a verdict (ok, warning, wrong or unknown), the finding and a remedy.
    Nothing is written.

    Exit code 1 when a verdict is wrong.

    Examples:
        callgauge doctor --bootstrap kafka:9092
        callgauge doctor --json | jq 'select(.verdict == "wrong")'
    """
    console = output_console()

    def tell(finding: Finding) -> None:
        if as_json:
            typer.echo(json.dumps(asdict(finding)))
        else:
            console.print(_line(finding))

    with quiet_libraries():
        verdicts = asyncio.run(_tell_all(_findings(config, bootstrap, topic_prefix), tell))
    if not as_json:
        console.print(_summary(verdicts))
    if verdicts[Verdict.WRONG]:
        raise typer.Exit(1)


async def _findings(
    config: Path | None, bootstrap: str | None, topic_prefix: str | None
) -> AsyncGenerator[Finding, None]:
    try:
        settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    except SettingsError as error:
        for mistake in error.mistakes:
            yield Finding("settings", Verdict.WRONG, mistake, "Fix it; nothing more was checked.")
        return
    async with aclosing(examine(settings)) as findings:
        async for finding in findings:
            yield finding


async def _tell_all(findings: AsyncGenerator[Finding, None], tell: Callable[[Finding], None]) -> Counter[Verdict]:
    verdicts: Counter[Verdict] = Counter()
    async with aclosing(findings):  # the reader of our output may go away in the middle of it
        async for finding in findings:
            tell(finding)
            verdicts[finding.verdict] += 1
    return verdicts


def _line(finding: Finding) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(width=max(map(len, Verdict)), no_wrap=True, style=_STYLES[finding.verdict])
    table.add_column(width=_CHECK_CHARS, overflow="fold")
    table.add_column(overflow="fold")
    text = Text(finding.seen)
    if finding.what_to_do:
        text.append(f". {finding.what_to_do}" if not finding.seen.endswith(".") else f" {finding.what_to_do}")
    table.add_row(finding.verdict.value, finding.check, text)
    return table


def _summary(verdicts: Counter[Verdict]) -> str:
    if not verdicts.keys() - {Verdict.OK}:
        return "All is well."
    counted = [f"{verdicts[verdict]} {verdict.value}" for verdict in Verdict if verdicts[verdict]]
    return f"{', '.join(counted)}."
