"""The command `call`: one call from the topics, as text."""

import asyncio
from typing import Annotated

import typer

from streamer.cli.options import (
    BootstrapOption,
    ConfigOption,
    JsonOption,
    PrefixOption,
    SinceADayOption,
    since_in_words,
)
from streamer.facts import LEAST_CHARS
from streamer.terminal import print_document, quiet_libraries

app = typer.Typer(add_completion=False)


@app.command()
def call(
    conversation: Annotated[
        str, typer.Argument(metavar="ID", help=f"Conversation id, or its last characters, {LEAST_CHARS} or more.")
    ],
    *,
    since: SinceADayOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until the call closes: print each line that is new.")
    ] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Shows one call of the topics: turns, tools, words.

    A turn has its wait and what is of note, the stages of the wait, and the arguments and answers of its tools. Texts are redacted
    by the settings.

    A whole id is looked for in its own partition. Without --since the last hour is searched first, then the last day; of a call
    that began in the last hour older ones with the same ending are not looked for. A call that is still on is shown as far as it
    has come. No consumer group is used.

    Exit code 1 when there is no such call, or several ids end in this way; it says which of the possible reasons is true.

    --json prints the newest revision of each score record, and the transcript.

    Examples:
        callgauge call 9f2c41
        callgauge call 9f2c41 --follow
        callgauge call sample-call-3fa9c1-1 --since 7d --bootstrap kafka:9092
    """
    from streamer.one_call import call_document, follow_call, print_call, the_call
    from streamer.settings.listing import settings_from
    from streamer.time_bounds import moment_given

    if follow and as_json:
        raise typer.BadParameter("--follow prints lines for a person: leave --json out, or read the topic scores.")
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    asked = conversation, None if since is None else moment_given(since), since_in_words(since)
    with quiet_libraries():
        if follow:
            asyncio.run(follow_call(settings, *asked))
            return
        found = asyncio.run(the_call(settings, *asked))
    if as_json:
        print_document(call_document(found), indent=2)
    else:
        print_call(found, set())
