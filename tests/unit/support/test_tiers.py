"""`make test` runs what one process does, and short runs of each part; each name in its list is
that of a test.
"""

import ast
from pathlib import Path

import pytest

from tests.support import tiers

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", [*tiers._SHORT_RUNS, *tiers._OF_TIME])
def test_each_name_in_the_lists_is_that_of_a_test(name: str) -> None:
    path, _, test = name.partition("::")
    if not test:
        assert (ROOT / path).exists() or [*ROOT.glob(f"tests/**{path}")]
        return
    functions = {
        each.name
        for file in ([ROOT / path] if path else ROOT.glob("tests/unit/**/*.py"))
        for each in ast.walk(ast.parse(file.read_text()))
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert any(each.startswith(test.partition("[")[0]) for each in functions)


@pytest.mark.parametrize(
    ("nodeid", "is_short"),
    [
        ("tests/unit/engine/test_fast.py::test_a", True),
        ("tests/unit/engine/test_slow.py::test_a", False),
        ("tests/golden/test_golden.py::test_slow", True),
        ("tests/integration/test_ingest.py::test_a_webhook_becomes_a_measured_call", False),
        (
            "tests/integration/test_ingest.py::test_posted_events_become_a_measured_call_and_more",
            True,
        ),
        ("tests/unit/console/test_loop_held.py::test_a", False),
        ("schemas/rows.py::schemas.rows", True),
    ],
)
def test_a_test_is_short_if_it_is_fast_in_one_process_or_in_the_list(
    nodeid: str, is_short: bool
) -> None:
    seconds = {
        "tests/unit/engine/test_slow.py::test_a": 5.0,
        "tests/golden/test_golden.py::test_slow": 40.0,
    }
    assert tiers.is_short(nodeid, seconds) is is_short


def test_one_in_ten_reference_calls_is_compared() -> None:
    kept = sum(
        tiers.is_short(f"tests/conformance/test_contexts.py::test_a[{number}]", {})
        for number in range(1_000)
    )
    assert 50 < kept < 150
