"""Settings of the role `history`."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from consumers.runtime.settings import HeaderSecret

MAX_RETENTION_DAYS = 3_660


class HistorySettings(BaseModel):
    """Where past calls are kept, and for how long."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    folder: Path | None = Field(
        None,
        examples=["history"],
        description=(
            "folder that gets a file of the calls of each day; one process writes it, and commands "
            "read it"
        ),
    )
    retention_days: Annotated[int, Field(ge=1, le=MAX_RETENTION_DAYS)] = Field(
        30, description="days after which the file of a day is deleted"
    )
    words: bool = Field(
        default=True,
        description=(
            "whether transcripts are kept and can be searched, without personal data as everywhere"
        ),
    )

    clickhouse_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s@]+$",
        max_length=500,
        examples=["http://clickhouse:8123/?database=callgauge"],
        description=(
            "HTTP interface of a ClickHouse that keeps past calls, with its database; commands and "
            "pages read it, not the folder"
        ),
    )
    clickhouse_user: str | None = Field(
        None,
        pattern=r"^[!-~]{1,200}$",
        examples=["reader"],
        description="its user; without one it is ClickHouse's own default",
    )
    clickhouse_password: HeaderSecret | None = Field(
        None, examples=["file:/run/secrets/clickhouse"], description="the password of that user"
    )

    @property
    def is_read(self) -> bool:
        """Whether there are past calls to find."""
        return self.folder is not None or self.clickhouse_url is not None

    @property
    def is_on(self) -> bool:
        """Whether there is a folder to write."""
        return self.folder is not None
