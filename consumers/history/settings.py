"""Settings of the role `history`."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_RETENTION_DAYS = 3_660


class HistorySettings(BaseModel):
    """Where past calls are kept, and for how long."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path | None = Field(
        None,
        examples=["history"],
        description="folder that gets a file of the calls of each day; one process writes it, and commands read it",
    )
    retention_days: Annotated[int, Field(ge=1, le=MAX_RETENTION_DAYS)] = Field(
        30, description="days after which the file of a day is deleted"
    )
    words: bool = Field(
        default=True,
        description="whether transcripts are kept and can be searched, without personal data as everywhere",
    )

    @property
    def is_on(self) -> bool:
        """Whether there is a folder to write."""
        return self.folder is not None
