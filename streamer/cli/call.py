"""The command `call`: one call from the topics, as text."""

import asyncio
from typing import Annotated

import typer

from streamer.cli.options import (
    BootstrapOption,
    ConfigOption,
    JsonOption,
    PrefixOption,
    ServedOption,
    SinceADayOption,
    since_in_words,
)
from streamer.facts import LEAST_CHARS
from streamer.terminal import print_document, quiet_libraries, say

app = typer.Typer(add_completion=False)


@app.command()
def call(
    conversation: Annotated[
        str,
        typer.Argument(
            metavar="ID", help=f"Conversation id, or its last characters, {LEAST_CHARS} or more."
        ),
    ],
    *,
    since: SinceADayOption = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on until the call closes: print each line that is new."),
    ] = False,
    label: Annotated[
        str | None,
        typer.Option(
            "--label", metavar="LABEL", help="Give the call a label, in place of showing it."
        ),
    ] = None,
    note: Annotated[
        str | None,
        typer.Option(
            "--note",
            metavar="TEXT",
            help="A note about the label, or alone; empty removes yours.",
        ),
    ] = None,
    unlabel: Annotated[
        str | None,
        typer.Option("--unlabel", metavar="LABEL", help="Remove your label, with its note."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", metavar="NAME", help="Who says it; otherwise the user of this machine."
        ),
    ] = None,
    as_json: JsonOption = False,
    folder: ServedOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Shows one call: its waits, turns, tools and words.

    Each turn has its wait with the stages, interruptions and dead air, and its tools with arguments
    and answers; goals and transcript follow. With --folder it is a call of `callgauge serve`. Texts
    are redacted by the settings.

    A whole id is looked for in its own partition. Without --since the last hour is searched first,
    then the last day; if a call of the last hour has this ending, older ones are not looked for. A
    running call is shown as far as it has come. No consumer group is used. Words need the
    right to read the topic `words`.

    Exit code 1 when there is no such call, or several ids have this ending; the message says which.

    A label is one word, as in false-alarm. It goes to the topic annotations, with who gave it and
    when: the call shows it from then on, and the role history keeps it. Of one person and label the
    last one counts. Notes are redacted as all texts are. With --folder it goes through the `serve`
    that runs there, or into the folder itself.

    --json prints the rows of the call, of its turns and of its words, its goals, and what people
    say of it.

    Examples:
        callgauge call 9f2c41
        callgauge call 9f2c41 --follow
        callgauge call 9f2c41 --label false-alarm --note "the caller was on hold"
        callgauge call sample-call-3fa9c1-1 --since 7d --bootstrap kafka:9092
    """
    from streamer.history.people import publish
    from streamer.history.said import annotation, this_user
    from streamer.one_call import call_document, follow_call, print_call, the_call
    from streamer.settings.listing import settings_from
    from streamer.time_bounds import moment_given

    if follow and as_json:
        raise typer.BadParameter(
            "--follow prints lines for a person: leave --json out, or read the topics scores and "
            "words."
        )
    says_something = not (label is None and note is None and unlabel is None)
    if says_something and (
        follow or as_json or (unlabel is not None and (label is not None or note is not None))
    ):
        raise typer.BadParameter(
            "Give --label, --note or both, or --unlabel; each without --follow and --json."
        )
    if by is not None and not says_something:
        raise typer.BadParameter("--by is who gives a --label or a --note.")
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    asked = conversation, None if since is None else moment_given(since), since_in_words(since)
    with quiet_libraries():
        if follow:
            asyncio.run(follow_call(settings, *asked, folder))
            return
        found = asyncio.run(the_call(settings, *asked, folder))
        if says_something:
            row = found.rows.call
            said = annotation(
                by or this_user(),
                label or unlabel,
                note,
                row.labels,
                found.redactor,
                withdraws=unlabel is not None,
            )
            record = row.conversation_id, said
            if folder is None:
                asyncio.run(publish(settings.kafka, [record]))
            else:
                from streamer.served_writes import say_in

                asyncio.run(say_in(settings, folder, [record]))
            what = "taken back" if said.is_withdrawn else said.words
            say(f"Call {row.conversation_id}: {what}, by {said.by}.")
            return
    if as_json:
        print_document(call_document(found), indent=2)
    else:
        print_call(found, set())
