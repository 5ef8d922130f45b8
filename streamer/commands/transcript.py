"""The work of the command `transcript`: writes transcripts to files or prints them."""

import sys
from collections.abc import Callable
from pathlib import Path

from streamer.offline.scoring import RecordedScoring
from streamer.roles.transcripts.files import TranscriptFiles, TranscriptFolderError
from streamer.terminal import say


def write_transcript(scoring: RecordedScoring, write: Callable[[str, bytes], None]) -> None:
    """Writes the transcript of a call, or says why it has none."""
    conversation_id = scoring.call.conversation_id
    if scoring.transcript is None:
        say(f"Call {conversation_id}: it has no transcript, because it is empty or its transcript would be too large.")
    else:
        write(conversation_id, scoring.transcript)


def print_transcript(_conversation_id: str, value: bytes) -> None:
    """Prints a transcript as a line of JSON."""
    sys.stdout.write(value.decode() + "\n")


class FolderWriter:
    """Writes each transcript into a file of its own."""

    def __init__(self, folder: Path, *, packs: bool) -> None:
        self._files = TranscriptFiles(folder, packs=packs)
        if self._files.prepare():
            say(f"The folder {folder} can be looked into by every user of this machine; the files in it only by you.")
        self._written: set[Path] = set()

    def write(self, conversation_id: str, value: bytes) -> None:
        try:
            path = self._files.write(conversation_id, value)
        except OSError as error:
            raise TranscriptFolderError(
                f"Call {conversation_id}: its transcript could not be written to {self._files.path_of(conversation_id)} "
                f"({error.strerror or error}). It ends here; the files written before are whole. Make room, or choose another "
                "folder, and run it again."
            ) from error
        if path in self._written:
            say(f"Call {conversation_id}: its transcript replaces that of an earlier call of the same id, in {path}.")
        self._written.add(path)
