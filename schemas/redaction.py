"""The rules of redaction, as data: which personal data is removed from texts before they are stored
or shown.
"""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from schemas.closed_sets import REDACTION_TYPES, Detector
from schemas.goals.patterns import PatternError, PatternText, worst_steps

MAX_CUSTOM_PATTERNS: Final = 20
MAX_CUSTOM_STEPS: Final = 500
"""Most steps that a search for one custom pattern may take at each character. It is less than for
checks of goals, because every text that leaves the process is searched. `\\bBK-?\\d{6}\\b` takes
18.
"""
MAX_PHONE_REGIONS: Final = 10


_TAG_NAME: Final = re.compile(r"[A-Z][A-Z_]{1,39}")


def tag_of(name: str) -> str:
    """Returns the replacement of a finding in a text.

    Example:
        >>> tag_of(Detector.BIRTH_DATE)
        '[BIRTH_DATE]'
    """
    return f"[{name.upper()}]"


def _fit_for_a_tag(name: str) -> str:
    if not _TAG_NAME.fullmatch(name):
        raise ValueError(
            "a pattern's name is 2 to 40 capital letters and underscores, like BOOKING_CODE"
        )
    if name.lower() in REDACTION_TYPES:
        raise ValueError(f"{name} is what callgauge itself puts there; take another name")
    return name


def _cheap(pattern: str) -> str:
    steps = worst_steps(pattern)
    if steps > MAX_CUSTOM_STEPS:
        raise PatternError(
            f"a search may take {steps:,} steps at each character, and {MAX_CUSTOM_STEPS:,} are "
            "allowed, because every text that leaves is searched; use fewer or shorter repetitions"
        )
    return pattern


TagName = Annotated[str, AfterValidator(_fit_for_a_tag)]
"""Name of a custom pattern: 2 to 40 capital letters and underscores."""
CustomPattern = Annotated[PatternText, AfterValidator(_cheap)]
Region = Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}$")]
"""A country code of ISO 3166, two letters."""


class RedactionRules(BaseModel):
    """Rules of redaction: detectors, custom patterns, and defaults for phone numbers without a
    country and for dates.
    """

    model_config = ConfigDict(frozen=True)

    enabled: bool = Field(
        default=True,
        description="Whether anything is taken out. Without it what callers "
        "say leaves as it was said: in "
        "transcripts, "
        "questions to the judge, explanations, logs and pages.",
    )
    detectors: tuple[Detector, ...] = Field(
        tuple(Detector),
        description=f"What is looked for: {', '.join(Detector)}.",
        max_length=len(Detector),
    )
    phone_regions: tuple[Region, ...] = Field(
        ("US",),
        max_length=MAX_PHONE_REGIONS,
        description="Countries whose telephone numbers are known without their country code.",
    )
    latest_birth_year: int = Field(
        2009,
        ge=1900,
        le=2100,
        description=(
            "A full date up to the end of this year counts as a date of birth also where no text "
            "says that it is one."
        ),
    )
    patterns: dict[TagName, CustomPattern] = Field(
        default_factory=dict,
        max_length=MAX_CUSTOM_PATTERNS,
        description="Patterns of one's own by name; what they find is "
        "replaced by the name in brackets. "
        "Case is ignored, and "
        "every repetition needs a bound.",
    )
