"""A limit stays as given on an idle machine, and grows with the other work that wants
to compute.
"""

import os
from pathlib import Path

import pytest

from tests.support import patience


@pytest.mark.parametrize(
    ("averaged", "now", "waits"),
    [(0.0, 1, 40), (2.0, 2, 40), (5.0, 1, 100), (0.5, 5, 100), (5.0, None, 100), (0.5, None, 40)],
)
def test_a_limit_grows_with_what_wants_to_compute_on_each_core(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, averaged: float, now: int | None, waits: float
) -> None:
    load = tmp_path / "loadavg"
    if now is not None:
        load.write_text(f"{averaged:.2f} 0.00 0.00 {now}/371 4242\n")
    monkeypatch.setattr(patience, "_LOAD", load)
    monkeypatch.setattr(os, "getloadavg", lambda: (averaged, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert patience.patient(40) == waits


def test_the_time_without_a_processor_is_the_kernel_s_and_unknown_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counted = tmp_path / "schedstat"
    monkeypatch.setattr(patience, "_UNSERVED", counted)
    assert patience.unserved_seconds() == 0.0
    counted.write_text("900000000 1500000000 12\n")
    assert patience.unserved_seconds() == 1.5
