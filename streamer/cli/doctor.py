"""The command `doctor`: faults of the settings, the sources, the broker or the folder, the topics and the groups, each with a remedy."""

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
    folder: ServedOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Checks settings, broker, topics and consumer groups.

    It checks what `callgauge run` would stumble over: the files of goals, a judge without a key, the port of /metrics; and
    whether records were refused in the last hour.

    It also checks how long topics keep records, the replicas, the clocks of this machine and the brokers, how far the
    sequencer has come, and the producers: which input has had no event for 10 minutes, and by records of the whole last
    hour, what is not understood. If an evaluator serves /metrics on this machine, it tells what that has refused since its
    start.

    If ingest and monitor are set up, it checks whether ingest could listen on this machine, whether ElevenLabs accepts the
    key of monitor, and whether both may write to the input topics.

    With the --folder of `callgauge serve` it asks the process that serves it, and looks at the folder itself: format, size and rights
    of its files, room on its disk, an address that nobody has any more, the newest event, and what was refused.

    Each line has a verdict (ok, warning, wrong or unknown), the finding and a remedy. Nothing is written.

    Exit code 1 when a verdict is wrong.

    Examples:
        callgauge doctor --bootstrap kafka:9092
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
        verdicts = asyncio.run(tell_all(findings_with(config, bootstrap, topic_prefix, folder), tell))
    if not as_json:
        console.print(summary(verdicts))
    if verdicts[Verdict.WRONG]:
        raise typer.Exit(1)
