"""How the options of a command become settings."""

import os
from pathlib import Path
from typing import Any

from streamer.settings.all_settings import Settings, load_settings, near_misses
from streamer.terminal import say


def settings_from(config: Path | None, **options: Any) -> Settings:
    """The settings, with the options of the command line above all others.

    Prints a warning for each environment variable that looks like a misspelt setting.

    Args:
        config: A TOML file; None takes the one that CALLGAUGE_CONFIG names, if any.
        options: Values by the names of the settings; None means that the option was not given.

    Raises:
        SettingsError: At least one setting cannot be used.
    """
    for warning in near_misses(os.environ):
        say(f"Warning: {warning}")
    return load_settings(config, options)
