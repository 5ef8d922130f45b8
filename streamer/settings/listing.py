"""Where each setting comes from: options, variables, a file or its default."""

import json
import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from streamer.settings.all_settings import (
    BLOCKS,
    Given,
    Settings,
    given_values,
    is_secret,
    near_misses,
    setting_names,
    settings_of,
    variable_of,
)
from streamer.terminal import say

# Every setting with its default, its value and the origin of the value: for people, and as a
# settings file.

HIDDEN: Final = "(hidden)"
"""Shown in the place of a secret."""
BY_DEFAULT: Final = "default"
_FILE_COLUMNS: Final = 100

_HEAD: Final = """\
Settings of callgauge. `callgauge settings --toml` writes this file: a line that begins with # and a
name has a default. Use it with `callgauge run --config FILE`, or name it in CALLGAUGE_CONFIG.
Environment variables win over it: goals.folder is CALLGAUGE_GOALS__FOLDER there. Secrets belong
into files: "file:/run/secrets/token" is what stands in that file.
"""


@dataclass(frozen=True, slots=True)
class ListedSetting:
    """One setting as a person sees it.

    Attributes:
        block: Name of its block; empty if it is in none.
        name: Its name inside the block.
        variable: Its environment variable.
        value: Its value as JSON; `HIDDEN` instead of a secret.
        default: The value that it has if it is not set.
        origin: The option, variable, file or setting that the value is from; `BY_DEFAULT`
            otherwise.
        description: Its meaning.
        example: A value to be set, as text, if the default is none; otherwise None.
        is_secret: Whether its value is hidden.
    """

    block: str
    name: str
    variable: str
    value: Any
    default: Any
    origin: str
    description: str
    example: str | None
    is_secret: bool

    @property
    def full_name(self) -> str:
        """The name with that of the block: `goals.folder`."""
        return f"{self.block}.{self.name}" if self.block else self.name

    @property
    def is_set(self) -> bool:
        """Whether somebody has set it, even to its default."""
        return self.origin != BY_DEFAULT


def listed_settings(settings: Settings, given: Given) -> tuple[ListedSetting, ...]:
    """Every setting; those without a block come first.

    Args:
        settings: The settings of the given values.
        given: The values that somebody has set.
    """
    values, defaults = (
        settings.model_dump(mode="json"),
        Settings.model_construct().model_dump(mode="json"),
    )
    listed = []
    for names in setting_names():
        block, name = names if len(names) > 1 else ("", names[0])
        field = (BLOCKS[block] if block else Settings).model_fields[name]
        value, default = ((tree[block] if block else tree)[name] for tree in (values, defaults))
        origin = given.origin(names)
        hides = is_secret(field.annotation)
        if hides and value not in (None, {}):
            value = HIDDEN
        example = None if not field.examples else str(field.examples[0])
        listed.append(
            ListedSetting(
                block,
                name,
                variable_of(names),
                value,
                default,
                origin or BY_DEFAULT,
                (field.description or "").rstrip("."),
                example,
                hides,
            )
        )
    return tuple(listed)


def settings_file(listed: Sequence[ListedSetting]) -> str:
    """The settings as a file in TOML: those that are set as lines, defaults behind a `#`, and no
    secret.
    """
    lines = [*_commented(_HEAD, wraps=False)]
    block = ""
    for each in listed:
        if each.block != block:
            block = each.block
            about = Settings.model_fields[block].description or ""
            lines += ["", "", f"[{block}]", *_commented(_sentence(about))]
        lines += ["", *_lines_of(each)]
    return "\n".join(lines) + "\n"


def shown_value(value: Any) -> str:
    """A value as a person reads it: `-` for none, commas between several."""
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def _lines_of(setting: ListedSetting) -> Iterator[str]:
    yield from _commented(_sentence(setting.description))
    if setting.is_secret and setting.is_set:
        yield from _commented(f"It is set by {setting.origin}, and hidden here.")
    elif setting.is_set:
        default = "nothing" if setting.default is None else _toml(setting.default)
        yield from _commented(f"Set by {setting.origin}; the default is {default}.")
        yield f"{setting.name} = {_toml(setting.value)}"
    elif setting.default in (None, [], "") and setting.example is not None:
        yield from _commented("Not set by default. An example:")
        yield f"#{setting.name} = {json.dumps(setting.example)}"
    else:
        yield f"#{setting.name} = {_toml(setting.default)}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _commented(text: str, *, wraps: bool = True) -> Iterator[str]:
    for line in textwrap.wrap(text, _FILE_COLUMNS) if wraps else text.splitlines():
        yield f"# {line}"


def _toml(value: Any) -> str:
    """A JSON value in TOML; none is `default`, which the one setting with a default and without a
    value reads as none.
    """
    if value is None:
        return '"default"'
    if isinstance(value, dict):
        inside = ", ".join(f"{_toml(name)} = {_toml(each)}" for name, each in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON's strings are TOML's, but for one character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# The work of the command `settings`: a setting as a row and as JSON.


def setting_document(setting: ListedSetting) -> dict[str, object]:
    """A setting for a program."""
    return {
        "setting": setting.full_name,
        "value": setting.value,
        "default": setting.default,
        "from": setting.origin,
        "variable": setting.variable,
        "description": setting.description,
    }


def settings_table(listed: tuple[ListedSetting, ...]) -> Table:
    """A line for each setting; the values that somebody has set are bold, with their defaults
    beside them.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True)
    for column in ("value", "from", "default"):
        table.add_column(column, overflow="fold")
    for each in listed:
        cells = (each.full_name, shown_value(each.value), each.origin)
        if each.is_set:
            table.add_row(*cells, shown_value(each.default), style="bold")
        else:
            table.add_row(*cells)
    return table


# How the options of a command become settings.


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
    """The values that were given for settings, unchecked, after the same warnings. The arguments
    are the same.

    Raises:
        SettingsError: The settings file cannot be read.
    """
    for warning in near_misses(os.environ, setting_names()):
        say(f"Warning: {warning}")
    return given_values(config, options)
