"""The command `deploy-files`: alert rules, dashboards and what belongs to them, as files."""

from pathlib import Path
from typing import Annotated

import typer

from streamer.terminal import say

app = typer.Typer(add_completion=False)


@app.command()
def deploy_files(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made if it is missing.")],
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace files that you have changed.")
    ] = False,
) -> None:
    """Writes alert rules, dashboards, runbooks and the chart.

    They are those of this version: Prometheus' rules, Grafana's dashboards, Alertmanager's routes
    and templates, a runbook for each alert, and the Helm chart. A file that is there with another
    content stays, and nothing is written.

    Examples:
        callgauge deploy-files monitoring
        callgauge deploy-files monitoring --replace
    """
    from streamer.deploy_files import write_deploy_files

    written = write_deploy_files(folder, replaces=replace)
    say(f"{written} files written to {folder}. Files with this content already stay as they are.")
