"""The command `call`: one call from the topics, as text."""

import asyncio
from typing import Annotated

import typer

from streamer.cli.options import SINCE_HELP, BootstrapOption, ConfigOption, JsonOption, PrefixOption
from streamer.facts import LEAST_CHARS
from streamer.terminal import print_document, print_line, quiet_libraries, say

app = typer.Typer(add_completion=False)


@app.command()
def call(
    conversation: Annotated[
        str, typer.Argument(metavar="ID", help=f"Conversation id, or its last characters, {LEAST_CHARS} or more.")
    ],
    *,
    since: Annotated[str, typer.Option(metavar="WHEN", help=SINCE_HELP)] = "1d",
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Shows one call from the topics: turns, goals, transcript.

    It reads the topics scores and transcripts from --since on, so a longer time takes longer. A call that is still on is
    shown as far as it has come. No consumer group is used. Texts are redacted as on the topic.

    Exit code 1 when there is no such call, or several ids end in this way.

    --json prints the newest revision of each score record, and the transcript.

    Examples:
        callgauge call 9f2c41
        callgauge call sample-call-3fa9c1-1 --since 7d --bootstrap kafka:9092
    """
    from streamer.one_call import call_document, call_lines, find_calls, only_call
    from streamer.settings.listing import settings_from
    from streamer.time_bounds import moment_given

    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    since_ms = moment_given(since)
    with quiet_libraries():
        found = asyncio.run(find_calls(settings.kafka, conversation, since_ms))
    if found.unreadable:
        say(f"{found.unreadable} records of a newer version, or of another program, were left out.")
    name = only_call(found, conversation, since)
    if as_json:
        print_document(call_document(name, found.records[name], found.transcripts.get(name)), indent=2)
        return
    for line in call_lines(name, found.records[name], found.transcripts.get(name)):
        print_line(line)
