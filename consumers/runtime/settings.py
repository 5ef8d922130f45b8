"""Settings of the parts that every process has: its log, its metrics page. They load none of these parts."""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from consumers.runtime.http.secret_settings import HeaderSecret

LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

MAX_SERIES: Final = 20_000
"""Most series of one process, unless set otherwise: a page of some 4 MB. The caps of the labels alone allow a hundred times as
many. An agent in ordinary use has some 400, most of them of stages."""


class HttpSettings(BaseModel):
    """Address of the HTTP server, and the token for reading the metrics."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 shows the metrics to the whole network.")
    port: int = Field(9464, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    token: HeaderSecret | None = Field(
        None, description="What a reader of /metrics has to send as `Authorization: Bearer`; none means everybody may."
    )
