"""The command `transcript`: recorded calls through the live engine, and the transcript of each."""

from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from streamer.cli.options import AgentOption, ArrivalOption, ConfigOption, PathsArgument

app = typer.Typer(add_completion=False)


@app.command()
def transcript(
    paths: PathsArgument,
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="One file per call there, named after its id, instead of standard output.",
        ),
    ] = None,
    packs: Annotated[bool, typer.Option("--gzip", help="Pack the files (.json.gz).")] = False,
    arrival: ArrivalOption = None,
    agent: AgentOption = None,
    config: ConfigOption = None,
) -> None:
    """Writes transcripts in ElevenLabs' format.

    They equal the transcripts that the evaluator writes of live calls to the topic `transcripts`.
    Each call gives one JSON array of turns: a line on standard output, or with --folder a file. No
    broker is needed.

    The message of the user is the text that the agent understood. The message of the agent is the
    text that was spoken; if the user interrupted, original_message is the text that the agent had
    written. Times are whole seconds from the start of the call. Tool calls are entries of their
    own; request_id joins a tool call and its result. The settings decide what is redacted. A call
    that cannot be read is named and left out, and the exit code is 1.

    Examples:
        callgauge transcript records/1.1.2 | jq '.[].message'
        callgauge transcript calls.jsonl.gz --folder transcripts --gzip
    """
    from streamer.offline.call_work import each_call, found_calls, places_of, reading
    from streamer.offline.scoring import RecordedScoring, plan_from
    from streamer.recordings.eva_needs import miss_sentences
    from streamer.recordings.files import RecordedCall
    from streamer.roles.transcript_files import FolderWriter, print_transcript, write_transcript
    from streamer.settings.listing import settings_from
    from streamer.sources.replay import with_control_events

    if packs and folder is None:
        raise typer.BadParameter(
            "it is about files: give --folder too, or pack standard output with `| gzip`."
        )
    settings = settings_from(config)
    plan = plan_from(settings, None, agent, arrival_seed=arrival, writes_transcripts=True)
    places = places_of(found_calls(paths))
    write = print_transcript if folder is None else FolderWriter(folder, packs=packs).write
    with reading(stopped="the calls before have their transcripts") as read:

        def scored(recorded: RecordedCall) -> tuple[RecordedScoring, tuple[str, ...]]:
            # Not `scoring_of`: states and figures beside the events are in no transcript, so a
            # broken file of them must not cost it.
            call, lacks = (
                with_control_events(recorded, agent=agent),
                tuple(miss_sentences(recorded)),
            )
            scoring = RecordedScoring(call, plan, None, lacks=lacks)
            deque(scoring.run(), maxlen=0)  # nothing is asked
            return scoring, scoring.remarks

        for done in each_call(places, scored):
            if done.result is not None:
                write_transcript(done.result, write)
            read.add(done)
    read.require_all()
