"""The command `doctor`: faults of the settings, the sources, the broker or the folder, the topics
and the groups, each with a remedy.
"""

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from streamer.cli.options import BootstrapOption, ConfigOption, PrefixOption, ServedOption
from streamer.terminal import output_console, print_document, quiet_libraries

app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    roles_at: Annotated[
        list[str] | None,
        typer.Option(
            "--roles-at",
            metavar="HOST:PORT",
            help="Where roles serve /metrics; may be given several times.",
        ),
    ] = None,
    folder: ServedOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Checks settings, broker, topics and consumer groups.

    It asks the roles at the address of /metrics in the settings, or at each of --roles-at, what
    they know: what does not work, their version, settings that differ from those here, how far they
    are behind, and what they have refused or not understood since their start.

    It also checks the files of goals, a judge without a key, how long topics keep records, which
    input has had no event for 10 minutes, and the groups of the roles and their lag. Of the clocks
    of brokers and the rights of roles the roles tell.

    With the --folder of `callgauge serve` it asks the process that serves it, and looks at the
    folder itself: format and size of its log, who may look into it, room on its disk, damaged files
    of history, and the newest event.

    Each line has a verdict (ok, warning, wrong or unknown), the finding and a remedy. Nothing is
    written.

    Exit code 1 when a verdict is wrong.

    Examples:
        callgauge doctor --bootstrap kafka:9092
        callgauge doctor --roles-at sequencer:8080 --roles-at evaluator:8080
        callgauge doctor --folder calls
        callgauge doctor --json | jq 'select(.verdict == "wrong")'
    """
    from streamer.doctor.examination import finding_line, findings_with, summary, tell_all
    from streamer.doctor.findings import Finding, Verdict

    console = output_console()

    def tell(finding: Finding) -> None:
        if as_json:
            print_document(asdict(finding))
        else:
            console.print(finding_line(finding))

    with quiet_libraries():
        verdicts = asyncio.run(
            tell_all(findings_with(config, bootstrap, topic_prefix, folder, roles_at or ()), tell)
        )
    if not as_json:
        console.print(summary(verdicts))
    if verdicts[Verdict.WRONG]:
        raise typer.Exit(1)
