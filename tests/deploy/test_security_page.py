"""The rights that deploy/security.md tells people to give are those that callgauge asks for."""

import re
from pathlib import Path

from consumers.runtime.access import READ, WRITE, Needs
from consumers.runtime.security import SecuritySettings
from streamer.rights import TRAFFIC_NEEDS, needs_of
from streamer.settings import Settings

PAGE = (Path(__file__).parents[2] / "deploy" / "security.md").read_text()


def names(cell: str) -> frozenset[str]:
    return frozenset(re.findall(r"`([^`]+)`", cell))


def rows(first_header: str) -> dict[str, list[frozenset[str]]]:
    """By the first cell, the names in each of the others."""
    table = PAGE[PAGE.index(f"| {first_header} |") :].split("\n\n")[0].splitlines()[2:]
    split = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    return {first: [names(cell) for cell in others] for first, *others in split}


def told(needs: Needs) -> list[frozenset[str]]:
    """The row that tells people the same."""
    topics = [
        frozenset(name for name, operations in needs.operations.items() if operation in operations)
        for operation in (READ, WRITE)
    ]
    prefixes = frozenset(name.removesuffix("0") for name in needs.transactional_ids)
    return [*topics, frozenset(needs.groups), prefixes]


def test_the_page_tells_the_rights_that_are_asked_for() -> None:
    settings = Settings()
    table = rows("what runs")
    assert table["`run --roles evaluator`"] == told(needs_of(["evaluator"], settings))
    assert table["`run --roles exporter`"] == told(needs_of(["exporter"], settings))
    assert table["`run --roles judge`"] == told(needs_of(["judge"], settings))
    assert table["`replay`, `simulate`"] == told(TRAFFIC_NEEDS)
    assert len(table) == 4


def test_a_process_with_both_roles_needs_the_rights_of_both() -> None:
    settings = Settings()
    both = needs_of(["evaluator", "exporter"], settings)
    assert both.operations == needs_of(["evaluator"], settings).operations
    assert both.groups == ("callgauge-evaluator", "callgauge-exporter")


def test_every_setting_of_security_is_on_the_page() -> None:
    assert [name for name in SecuritySettings.model_fields if name not in PAGE] == []
    assert set(re.findall(r"`security\.(\w+)`", PAGE)) <= set(SecuritySettings.model_fields)
