"""Settings of redaction: the personal data that is removed from texts before they are written or shown."""

from typing import Annotated, Final

from pydantic import ConfigDict, Field, field_validator
from pydantic_settings import NoDecode

from schemas.closed_sets import Detector
from schemas.redaction import MAX_PHONE_REGIONS, RedactionRules, Region

_NAMES: Final = ", ".join(Detector)


class RedactionSettings(RedactionRules):
    """The engine's rules as settings. They are on unless somebody switches them off."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool = Field(
        default=True,
        description="whether personal data is taken out of transcripts, questions to the judge, explanations, logs and pages",
    )
    detectors: Annotated[tuple[Detector, ...], NoDecode] = Field(
        tuple(Detector), examples=["card,iban,email"], description=f"what is looked for, separated by commas: {_NAMES}"
    )
    phone_regions: Annotated[tuple[Region, ...], NoDecode] = Field(
        ("US",),
        max_length=MAX_PHONE_REGIONS,
        examples=["US,GB,DE"],
        description="countries whose telephone numbers are known without their country code, two letters each, separated by "
        "commas",
    )

    @field_validator("detectors", mode="before")
    @classmethod
    def _are_detectors(cls, value: object) -> object:
        names = _split(value)
        if isinstance(names, list) and (unknown := [name for name in names if name not in tuple(Detector)]):
            raise ValueError(f"{unknown[0]!r} is none of {_NAMES}")
        return names

    @field_validator("phone_regions", mode="before")
    @classmethod
    def _are_regions(cls, value: object) -> object:
        names = _split(value)
        if not isinstance(names, list) or not names:
            return names
        from phonenumbers import SUPPORTED_REGIONS  # brings tables of the world, which without a country nobody needs

        if unknown := [name for name in names if name not in SUPPORTED_REGIONS]:
            raise ValueError(f"{unknown[0]!r} is no country with a telephone plan, written like US or DE")
        return names


def _split(value: object) -> object:
    """A text with commas, as the environment gives it, or the names one by one."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
