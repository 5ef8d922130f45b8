"""The canaries: each breaks something that is there, and has a script."""

import subprocess
import sys
from pathlib import Path

from tests.chaos.canaries.script import call, split
from tests.chaos.canaries.scripts import CANARIES
from tests.chaos.evaluators import stepped_clock
from tests.chaos.evaluators.broken import CIRCUMSTANCES, KINDS
from tests.chaos.evaluators.fleet import ROOT

BREAK_ALL = """
import os
os.environ["{variable}"] = "{folder}/clock"
from tests.chaos.evaluators.broken import CIRCUMSTANCES, KINDS
for each in (*CIRCUMSTANCES.values(), *KINDS.values()):
    each()
"""


def test_each_broken_part_has_a_script() -> None:
    assert set(KINDS) - set(CANARIES) == {"transactions"}, (
        "what is compared with fencing is no canary"
    )
    assert CANARIES.keys() <= KINDS.keys()
    assert CIRCUMSTANCES.keys() <= CANARIES.keys()
    assert all(canary.play.__doc__ for canary in CANARIES.values())


def test_what_is_broken_is_there(tmp_path: Path) -> None:
    code = BREAK_ALL.format(variable=stepped_clock.FILE, folder=tmp_path)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_call_is_split_before_its_end() -> None:
    template = call(1)
    for parts in (2, 3, 4):
        pieces = split(template, parts)
        assert len(pieces) == parts
        assert all(pieces)
        assert [event for piece in pieces for event in piece] == list(template.events)
        assert not any(event.is_end for piece in pieces[:-1] for event in piece)
    assert {event.source for event in template.events} == {"pipecat", "audit", "elevenlabs"}
