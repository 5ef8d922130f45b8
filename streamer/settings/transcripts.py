"""Settings of transcripts: whether calls get a transcript, and whether transcripts become files too."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class TranscriptSettings(BaseModel):
    """The destinations of the transcript of a closed call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=True, description="whether a call that closes is written to the topic `transcripts`")
    folder: Path | None = Field(
        None,
        examples=["transcripts"],
        description="folder that gets a file of each transcript too, named after its conversation; nothing is deleted there",
    )
    gzip: bool = Field(default=False, description="whether the files are packed (.json.gz)")

    @field_validator("folder")
    @classmethod
    def _needs_transcripts(cls, folder: Path | None, info: ValidationInfo) -> Path | None:
        if folder is not None and info.data.get("enabled") is False:
            raise ValueError("there is nothing to put there while transcripts.enabled is false; leave one of them out")
        return folder
