"""The command `transcript`: recorded calls through the live engine, and the transcript of each."""

import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from streamer.cli.options import AgentOption, ArrivalOption, ConfigOption, PathsArgument
from streamer.cli.settings_options import settings_from
from streamer.offline.scored_recordings import plan_from
from streamer.offline.scoring import RecordedScoring
from streamer.offline.screen import reading_progress, tell_refused
from streamer.recordings.reader import read_recordings
from streamer.roles.transcripts.files import TranscriptFiles, TranscriptFolderError
from streamer.sources.replay.playback import with_control_events
from streamer.terminal import say

app = typer.Typer(add_completion=False)


@app.command()
def transcript(
    paths: PathsArgument,
    *,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="One file per call there, named after its id, instead of standard output."),
    ] = None,
    packs: Annotated[bool, typer.Option("--gzip", help="Pack the files (.json.gz).")] = False,
    arrival: ArrivalOption = None,
    agent: AgentOption = None,
    config: ConfigOption = None,
) -> None:
    """Writes transcripts in ElevenLabs' format.

    They equal the transcripts that the evaluator writes of live calls to the topic `transcripts`. Each call gives one
    JSON array of turns: a line on standard output, or with --folder a file. No broker is needed.

    The message of the user is the text that the agent understood. The message of the agent is the text that was spoken;
    if the user interrupted, original_message is the text that the agent had written. Times are whole seconds from the
    start of the call. Tool calls are entries of their own; request_id joins a tool call and its result. The settings
    decide what is redacted.

    Examples:
        callgauge transcript records/1.1.2 | jq '.[].message'
        callgauge transcript calls.jsonl.gz --folder transcripts --gzip
    """
    if packs and folder is None:
        raise typer.BadParameter("it is about files: give --folder too, or pack standard output with `| gzip`.")
    settings = settings_from(config)
    plan = plan_from(settings, asks_judge=False, arrival_seed=arrival, writes_transcripts=True)
    write = _to_stdout if folder is None else _FolderWriter(folder, packs=packs).write
    with reading_progress() as progress:
        for path in paths:
            for recorded in read_recordings(path):
                scoring = RecordedScoring(with_control_events(recorded, agent=agent), plan, None)
                deque(scoring.run(progress.event), maxlen=0)  # nothing is asked
                progress.calls += 1
                _write(scoring, write)
                tell_refused(recorded.conversation_id, scoring.refused)
    if folder is None:
        sys.stdout.flush()


def _write(scoring: RecordedScoring, write: Callable[[str, bytes], None]) -> None:
    conversation_id = scoring.call.conversation_id
    if scoring.transcript is None:
        say(f"Call {conversation_id}: it has no transcript, because it is empty or its transcript would be too large.")
    else:
        write(conversation_id, scoring.transcript)


def _to_stdout(_conversation_id: str, value: bytes) -> None:
    sys.stdout.write(value.decode() + "\n")


class _FolderWriter:
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
