"""How the options of a command become settings."""

import os
from pathlib import Path
from typing import Any

from streamer.settings.all_settings import Settings, given_values, setting_names, settings_of
from streamer.settings.variables import Given, near_misses
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
    return settings_of(given_from(config, **options))


def given_from(config: Path | None, **options: Any) -> Given:
    """The values that were given for settings, unchecked, after the same warnings. The arguments are the same.

    Raises:
        SettingsError: The settings file cannot be read.
    """
    for warning in near_misses(os.environ, setting_names()):
        say(f"Warning: {warning}")
    return given_values(config, options)
