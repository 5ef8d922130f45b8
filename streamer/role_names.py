"""The roles that a process may run. Nothing is imported, so that `callgauge run --help` comes at once."""

from typing import Final, Literal, get_args

RoleName = Literal["evaluator", "exporter", "judge", "ingest", "monitor"]
ROLE_NAMES: Final[tuple[RoleName, ...]] = get_args(RoleName)
