"""The command `settings`: every setting, its default, its value, and where the value comes from."""

from typing import Annotated

import typer

from streamer.cli.options import BootstrapOption, ConfigOption, HttpPortOption, PrefixOption
from streamer.terminal import output_console, print_document, print_lines

app = typer.Typer(add_completion=False)


@app.command()
def settings(
    *,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that are set.")] = False,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="A settings file, with the meaning of each.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    http_port: HttpPortOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Lists every setting, its value and its origin.

    The command line wins over environment variables, these over the settings file, and that over
    the default. The variable of a setting is CALLGAUGE_ and its name: goals.folder is
    CALLGAUGE_GOALS__FOLDER, with two underscores.

    Secrets are hidden. With --toml the secrets are left out too, so that the file can be
    shared.

    Examples:
        callgauge settings --changed
        callgauge settings --toml > callgauge.toml
        callgauge settings --json | jq 'select(.setting == "goals.folder")'
    """
    from streamer.settings.all_settings import settings_of
    from streamer.settings.listing import (
        given_from,
        listed_settings,
        setting_document,
        settings_file,
        settings_table,
    )

    if as_toml and as_json:
        raise typer.BadParameter("--toml and --json exclude each other: give one of them.")
    given = given_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix, http_port=http_port)
    listed = listed_settings(settings_of(given), given)
    if changed:
        listed = tuple(each for each in listed if each.is_set)
    if as_toml:
        print_lines(settings_file(listed), ends=False)
    elif as_json:
        for each in listed:
            print_document(setting_document(each))
    else:
        output_console().print(settings_table(listed))
