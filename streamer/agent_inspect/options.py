"""Options of agent-inspect's scorers, under its names."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from consumers.engine.agent_inspect import (
    K_VALUE,
    KEEPS_COMPLETIONS,
    KEEPS_VALIDATIONS,
    MAX_TURNS,
    NO_OF_TRIALS,
    RETRY_WAVES,
    STOPS_EARLY,
    TRIALS,
)
from schemas.judging import TemplateError, check_template
from streamer.recordings.files.json_files import kind_of, shape_error

KEEPS_PROMPTS: Final = "include_prompt_sent_to_llmj"
TEMPLATE: Final = "template_subgoal"
OPTIONS: Final = (
    TRIALS,
    STOPS_EARLY,
    RETRY_WAVES,
    MAX_TURNS,
    KEEPS_COMPLETIONS,
    KEEPS_VALIDATIONS,
    KEEPS_PROMPTS,
    TEMPLATE,
    K_VALUE,
    NO_OF_TRIALS,
)
"""Options that scorers read."""
_OTHER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {"include_entire_prompt_in_validation_result": KEEPS_PROMPTS, "templates_subgoal": TEMPLATE}
)
"""Names in agent-inspect's documentation, by which its code knows nothing."""


def option_in(text: str) -> tuple[str, Any]:
    """An option as a person types it: its name and a JSON value.

    Raises:
        ValueError: There is no such option, or the value is no JSON.

    Example:
        >>> option_in("max_turns=8"), option_in("optimize_judge_trials=true")
        (('max_turns', 8), ('optimize_judge_trials', True))
    """
    name, equals, value = text.partition("=")
    name = _OTHER_NAMES.get(name, name)
    if not equals or name not in OPTIONS:
        raise ValueError(f"expected NAME=VALUE with one of {', '.join(OPTIONS)}; seen {text!r}")
    if name == TEMPLATE:
        raise ValueError(f"a template has many lines: name its file in the setting goals.{TEMPLATE}_file")
    try:
        return name, json.loads(value)
    except ValueError as error:
        raise ValueError(f"expected a number, true, false or null for {name}; seen {value!r}") from error


def config_in(value: object, where: str) -> Mapping[str, Any]:
    """Reads the options of a trace.

    Raises:
        RecordingError: There is no such option, or the template cannot be used.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise shape_error(where, "an object with agent-inspect's options", kind_of(value))
    config = {_OTHER_NAMES.get(name, name): each for name, each in value.items()}
    unknown = next((name for name in config if name not in OPTIONS), None)
    if unknown is not None:
        raise shape_error(where, f"some of {', '.join(OPTIONS)}", repr(unknown))
    template = config.get(TEMPLATE)
    if template is not None:
        if not isinstance(template, str):
            raise shape_error(f"{where}.{TEMPLATE}", "a text", kind_of(template))
        try:
            check_template(template)
        except TemplateError as error:
            raise shape_error(
                f"{where}.{TEMPLATE}", f"a template that the judge can use: {error}", "another"
            ) from error
    return config
