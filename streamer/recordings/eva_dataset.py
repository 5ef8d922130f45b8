"""Reads the record of EVA's data set from which a call was made, in the language of the run: the user's goal and persona, and the
state that the call should produce.

The texts of a data set have placeholders for the names of people; the record has these names for each language.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from streamer.recordings.files.json_files import RecordingError, read_document

_PLACEHOLDER: Final = re.compile(r"<([A-Z_]+)>")
_PLACE: Final = re.compile(r"<LOC:([^>]+)>")
_ENGLISH: Final = frozenset({"en", "english"})
_ROMANIZED: Final = "_ROMANIZED"


@dataclass(frozen=True, slots=True)
class DataRecord:
    """The facts of a record of the data set; None for each that it does not have.

    Attributes:
        user_goal: The goal of the user, with the opening words in the language of the run.
        user_persona: How the user speaks and behaves.
        current_date_time: Date and time at which the call plays, as text.
        expected_state: Expected state after the call.
        agent_instructions: Instructions that replace those of the agent.
    """

    user_goal: Mapping[str, Any] | str | None = None
    user_persona: str | None = None
    current_date_time: str | None = None
    expected_state: Mapping[str, Any] | None = None
    agent_instructions: str | None = None


def data_record(path: Path, language: str) -> DataRecord:
    """The record with the names of this language in place of placeholders. A placeholder without a name stays.

    Args:
        path: The record as a file; nothing is known where there is none.
        language: Language of the run.

    Raises:
        RecordingError: The file has another shape.
    """
    if not path.is_file():
        return DataRecord()
    data = read_document(path)
    names = _names(data, language)
    config, override = _mapping(data, "user_config"), _mapping(data, "agent_override")
    return DataRecord(
        user_goal=_goal(data, names, language),
        user_persona=_filled(_text(config, "user_persona"), names),
        current_date_time=_text(data, "current_date_time"),
        expected_state=_expected_state(data, names, path),
        agent_instructions=_text(override, "instructions") or None,
    )


def _expected_state(data: Mapping[str, Any], names: Mapping[str, str], path: Path) -> Mapping[str, Any] | None:
    expected = _mapping(data, "ground_truth").get("expected_scenario_db")
    if expected is None:
        return None
    if not isinstance(expected, dict):
        raise RecordingError(
            what="the record of the data set has another shape",
            where=str(path),
            expected='"ground_truth" with "expected_scenario_db" as an object',
            seen=type(expected).__name__,
            remedy="Compare with EVA's data sets, or take the file away: then the final state is not judged.",
        )
    filled: Mapping[str, Any] = _filled(expected, names)
    return filled


def _goal(data: Mapping[str, Any], names: Mapping[str, str], language: str) -> Mapping[str, Any] | str | None:
    """The goal as the simulated caller got it: EVA puts the opening words of the language into it."""
    goal = data.get("user_goal")
    if isinstance(goal, dict) and (opening := _text(_mapping(data, "starting_utterances"), language)) is not None:
        goal = {**goal, "starting_utterance": opening}
    if not isinstance(goal, dict | str):
        return None
    filled: Mapping[str, Any] | str = _filled(goal, names, is_english=language.lower() in _ENGLISH)
    return filled


def _names(data: Mapping[str, Any], language: str) -> dict[str, str]:
    """The texts of the placeholders in this language, by the placeholder without its brackets.

    Romanized names are for parts of addresses: EVA writes them in small letters, and takes the plain names where a language has
    no others.
    """
    plain = _mapping(_mapping(data, "culture_overrides"), language)
    romanized = _mapping(_mapping(data, "romanized_culture_overrides"), language) or plain
    in_small_letters = {name + _ROMANIZED: text.lower() for name, text in _texts(plain | romanized)}
    return dict(_texts(plain)) | in_small_letters


def _texts(values: Mapping[str, Any], of_whom: str = "") -> list[tuple[str, str]]:
    found = []
    for key, value in values.items():
        name = of_whom + key.upper()
        if isinstance(value, str):
            found.append((name, value))
        elif isinstance(value, dict) and not of_whom:  # a companion has names of their own
            found += _texts(value, name + "_")
    return found


def _filled(value: Any, names: Mapping[str, str], *, is_english: bool = False) -> Any:
    """The value with names for placeholders.

    Args:
        value: A JSON value.
        names: Texts by placeholder.
        is_english: Whether a place is called by the name in its placeholder. Other languages have names that only EVA's own
            files know.
    """
    if isinstance(value, dict):
        return {
            _filled(key, names, is_english=is_english): _filled(each, names, is_english=is_english)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_filled(each, names, is_english=is_english) for each in value]
    if isinstance(value, str):
        text = _PLACEHOLDER.sub(lambda found: names.get(found[1], found[0]), value)
        return _PLACE.sub(r"\1", text) if is_english else text
    return value


def _mapping(holder: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = holder.get(key)
    return value if isinstance(value, dict) else {}


def _text(holder: Mapping[str, Any], key: str) -> str | None:
    value = holder.get(key)
    return value if isinstance(value, str) else None
