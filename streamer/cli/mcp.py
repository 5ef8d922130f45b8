"""The command `mcp`: an assistant asks about calls by the Model Context Protocol."""

import typer

from streamer.cli.options import BootstrapOption, ConfigOption, PrefixOption, ServedOption

app = typer.Typer(add_completion=False)


@app.command()
def mcp(
    *,
    folder: ServedOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Answers an assistant's questions about calls.

    An assistant (Claude Desktop, Cursor, VS Code and others) starts it and asks by the Model
    Context Protocol, over standard input and output: which calls run and which are in trouble, past
    calls, one call turn by turn, two calls or two days beside each other, what is wrong now, and
    the alerts that fire. docs/mcp.md has the lines for three of them.

    It reads what top, call, history and doctor read, of the topics or of the --folder of `callgauge
    serve`, which may run or not. Nothing is written. Answers are bounded, and say so where they are
    cut. Words are redacted as everywhere; they are hidden where console.words or limits.words is
    false.

    It needs the extra `mcp`: `pip install 'PATH_OF_THE_CHECKOUT[mcp]'`.

    Examples:
        callgauge mcp --folder calls
        callgauge mcp --bootstrap kafka:9092 --config callgauge.toml
    """
    from streamer.assistant import answer_assistant
    from streamer.settings.listing import settings_from

    answer_assistant(settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix), folder)
