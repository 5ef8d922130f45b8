"""The values that a person gave for settings, the place of each, and environment variables that nearly name a setting."""

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ENV_PREFIX: Final = "CALLGAUGE_"
CONFIG_VARIABLE: Final = "CALLGAUGE_CONFIG"
NESTING: Final = "__"
_NEARLY: Final = 0.85
"""Share of equal letters from which a name is a slip of another one: `GOAL_FOLDER`, but not `TEST_BOOTSTRAP`."""
_MOST_MEANT: Final = 3
"""Settings that are offered for one wrong name; more would be a list and no answer."""
_OF_KUBERNETES: Final = re.compile(
    r".*_SERVICE_(HOST|PORT|PORT_\w+)|(.*_)?PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
_ADDRESS_OF_KUBERNETES: Final = re.compile(r"(tcp|udp|sctp)://")

Names = tuple[str, ...]
"""A setting: its name, with the name of its block before it if it is in one."""


def variable_of(names: Names) -> str:
    """The environment variable of a setting: `CALLGAUGE_GOALS__FOLDER`."""
    return ENV_PREFIX + NESTING.join(names).upper()


@dataclass(frozen=True)
class Given:
    """The values of the command line, the environment and the settings file, before anybody has checked them.

    Attributes:
        options: Of the command line, by setting.
        environment: All variables of the process.
        in_file: Content of the settings file.
        path: The settings file, if there is one.
    """

    options: Mapping[str, Any]
    environment: Mapping[str, str]
    in_file: Mapping[str, Any]
    path: Path | None

    def place(self, names: Names) -> str:
        """The place to change a setting: `--http-port`, `CALLGAUGE_HTTP_PORT` or `http_port in callgauge.toml`."""
        if names[0] in self.options:
            return "--" + names[0].replace("_", "-")
        variable = variable_of(names)
        if variable in self._variables or variable_of(names[:1]) in self._variables:
            return variable
        if names[0] in self.in_file:
            return f"{'.'.join(names)} in {self.path} ({variable})"
        return variable

    def origin(self, names: Names) -> str | None:
        """The option, variable or file that a setting has its value from; None is the default."""
        variables, variable = self._variables, variable_of(names)
        if names[0] in self.options:
            return "--" + names[0].replace("_", "-")
        if variable in variables or any(name.startswith(variable + NESTING) for name in variables):
            return variable
        block = variable_of(names[:1])
        if len(names) > 1 and block in variables and names[1] in json.loads(variables[block]):
            return block
        inside = self.in_file.get(names[0]) if len(names) > 1 else self.in_file
        if isinstance(inside, Mapping) and names[-1] in inside:
            return str(self.path)
        if names[0] == "judge" and names[-1] in self.of_openai():
            return f"OPENAI_{names[-1].upper()}"
        return None

    def of_openai(self) -> dict[str, str]:
        """Key and endpoint from the variables of OpenAI's own client, for people who have set them already.

        The key is ignored if a key file of ours is set: our settings always win.
        """
        block = self.in_file.get("judge", {})
        has_key_file = variable_of(("judge", "api_key_file")) in self._variables or (
            isinstance(block, Mapping) and "api_key_file" in block
        )
        names = {"api_key": "OPENAI_API_KEY", "base_url": "OPENAI_BASE_URL"}
        found = {name: self.environment.get(variable, "") for name, variable in names.items()}
        return {name: value for name, value in found.items() if value and not (name == "api_key" and has_key_file)}

    @property
    def _variables(self) -> dict[str, str]:
        return {name.upper(): value for name, value in self.environment.items()}


def near_misses(environment: Mapping[str, str], settings: Collection[Names]) -> tuple[str, ...]:
    """Variables that look like a misspelt setting, each as a sentence.

    Others that begin with CALLGAUGE_ are left alone: Kubernetes sets some for every service of that name. Wrong names in
    a block that exists are left to the reading of settings, which refuses them.

    Args:
        environment: All variables of the process.
        settings: Every setting there is.
    """
    known = {variable_of(names) for names in settings} | {CONFIG_VARIABLE}
    blocks = tuple(variable_of(names[:1]) + NESTING for names in settings if len(names) > 1)
    whole = {variable_of(names[:1]) for names in settings}
    found = []
    for name in sorted(environment):
        upper = name.upper()
        if not name.startswith(ENV_PREFIX) or upper in known | whole or upper.startswith(blocks):
            continue
        if not _is_of_kubernetes(name, environment[name]) and (meant := _meant(upper, known)):
            told = f"{name} is set but is no setting and changes nothing"
            found.append(f"{told}; did you mean {' or '.join(meant)}?")
    return tuple(found)


def _is_of_kubernetes(name: str, value: str) -> bool:
    """Whether Kubernetes sets such a variable for a service whose name begins with `callgauge`."""
    rest = name.removeprefix(ENV_PREFIX)
    is_address = rest == "PORT" or rest.endswith("_PORT")
    return bool(_OF_KUBERNETES.fullmatch(rest)) or (is_address and bool(_ADDRESS_OF_KUBERNETES.match(value)))


def _meant(variable: str, known: Iterable[str]) -> list[str]:
    """The settings that a name may mean: without regard to underscores, by its last part, or by most of its letters."""
    rest = _plain(variable)
    by_plain_name = {_plain(name): name for name in known}
    if rest in by_plain_name:
        return [by_plain_name[rest]]
    ends = sorted(name for plain, name in by_plain_name.items() if plain.endswith(f"_{rest}"))
    if 0 < len(ends) <= _MOST_MEANT:
        return ends
    return [by_plain_name[name] for name in difflib.get_close_matches(rest, by_plain_name, n=1, cutoff=_NEARLY)]


def _plain(variable: str) -> str:
    return re.sub("_+", "_", variable.removeprefix(ENV_PREFIX))
