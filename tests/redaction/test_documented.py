"""Each example on the page about redaction leaves as the page says."""

import re

import pytest

from consumers.engine.redaction.redactor import Redactor
from schemas.redaction import RedactionRules
from tests.redaction.test_quality import PAGE, REGIONS

_FOUND = "| said | leaves as |"
_NOT_FOUND = "| stays as it was said | why |"


def _rows(head: str) -> list[list[str]]:
    """The cells of the table that begins with a line."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index(head) + 2
    end = next(at for at in range(begin, len(lines)) if not lines[at].startswith("|"))
    return [re.split(r" \| ", line.strip("| ")) for line in lines[begin:end]]


EXAMPLES = [(said.strip("`"), left.strip("`")) for said, left in _rows(_FOUND)]
EXAMPLES += [(said.strip("`"), said.strip("`")) for said, _ in _rows(_NOT_FOUND)]


def test_there_are_examples_of_both_kinds() -> None:
    assert min(len(_rows(_FOUND)), len(_rows(_NOT_FOUND))) >= 10


@pytest.mark.parametrize(("said", "left"), EXAMPLES)
def test_an_example_leaves_as_the_page_says(said: str, left: str) -> None:
    assert Redactor(RedactionRules(phone_regions=REGIONS)).redact(said) == left
