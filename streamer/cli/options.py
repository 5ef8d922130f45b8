"""Options that several commands share, and how they become settings."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from streamer.settings.all_settings import Settings, load_settings, near_misses
from streamer.terminal import say

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file (TOML); else the one CALLGAUGE_CONFIG names."),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option("--bootstrap", metavar="HOST:PORT", help="Kafka brokers (127.0.0.1:9092 unless set)."),
]
PrefixOption = Annotated[
    str | None, typer.Option("--topic-prefix", metavar="TEXT", help="Put before every topic name as it is.")
]
HttpPortOption = Annotated[
    int | None,
    typer.Option("--http-port", metavar="N", help="Port of /metrics (8080 unless set); 0 takes a free one."),
]
ArrivalOption = Annotated[
    int | None,
    typer.Option(
        "--arrival", metavar="SEED", help="Read the sources interleaved at random by this seed, each in its own order."
    ),
]
AgentOption = Annotated[str | None, typer.Option("--agent", help="Agent name for calls whose recording has none.")]
PathsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH",
        help="EVA record directories, wire-level .jsonl(.gz) files, and .json(.gz) records of ElevenLabs agents or folders of them.",
    ),
]


def settings_from(config: Path | None, **options: Any) -> Settings:
    """The settings with what was given on the command line on top; warns of variables that look like a slip.

    Raises:
        SettingsError: At least one of them cannot be used.
    """
    for warning in near_misses(os.environ):
        say(f"Warning: {warning}")
    return load_settings(config, options)


def with_example(text: str, *lines: str) -> str:
    """Help text that ends with examples, shown as they are typed."""
    return f"{text}\n\n\b\n" + "\n".join(
        ["Example:" if len(lines) == 1 else "Examples:", *(f"  {each}" for each in lines)]
    )
