"""The command `call`: one call from the topics, as text."""

import asyncio
import json
from typing import Annotated

import typer

from consumers.runtime.errors import OperatorError
from streamer.cli.options import SINCE_HELP, BootstrapOption, ConfigOption, JsonOption, PrefixOption, moment_given
from streamer.cli.settings_options import settings_from
from streamer.operations.one_call.past import LEAST_CHARS, MAX_CALLS, FoundCalls, find_calls
from streamer.operations.one_call.text import call_document, call_lines
from streamer.quiet_libraries import quiet_libraries
from streamer.terminal import safe, say

app = typer.Typer(add_completion=False)


class CallNotFoundError(OperatorError):
    """No call has this id, or several end with it: the text says which, and where to look."""


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
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    since_ms = moment_given(since)
    with quiet_libraries():
        found = asyncio.run(find_calls(settings.kafka, conversation, since_ms))
    if found.unreadable:
        say(f"{found.unreadable} records of a newer version, or of another program, were left out.")
    name = _only(found, conversation, since)
    if as_json:
        typer.echo(json.dumps(call_document(name, found.records[name], found.transcripts.get(name)), indent=2))
        return
    for line in call_lines(name, found.records[name], found.transcripts.get(name)):
        typer.echo(safe(line))


def _only(found: FoundCalls, wanted: str, since: str) -> str:
    """The one call that was found.

    Raises:
        CallNotFoundError: There is none, or there are several.
    """
    names = [name for name, records in found.records.items() if records]
    if len(names) == 1:
        return names[0]
    if names:
        more = " or more" if len(names) == MAX_CALLS else ""
        listed = "".join(f"\n  {safe(name)}" for name in names)
        raise CallNotFoundError(f"{len(names)}{more} calls end with {wanted!r}; give more of the id:{listed}")
    raise CallNotFoundError(
        f"No call with the id {wanted!r} has a score since {since}. Look further back with --since 7d, or check the topic "
        "prefix; `callgauge doctor` checks whether anything arrives."
    )
