"""How far one event travels in our code: files that it enters and stays in them, over the events of
the sample call.

A stay is a stretch of calls and returns within one file; going back to a file is another stay. The
trip begins where a record is folded and ends when its decision is in the outbox.

    python -m tests.benchmarks.event_trip
"""

import statistics
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import consumers
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import in_time_order, with_control_events
from tests.properties.evaluation import EveryCall
from tests.support.fakes.evaluator_fakes import partition_of
from tests.support.fakes.log_writer import LogWriter

OURS: Final = str(Path(consumers.__file__).parents[1])
FOLDERS: Final = tuple(f"{OURS}/{folder}/" for folder in ("consumers", "schemas"))
SAMPLE: Final = Path(OURS) / "streamer" / "recordings" / "sample" / "call.jsonl"


class Trip:
    """The files of ours that are entered, in order, while it is active."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def __enter__(self) -> Self:
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: Any) -> None:
        there: FrameType | None = (
            frame if event == "call" else frame.f_back if event == "return" else None
        )
        file = "" if there is None else there.f_code.co_filename
        if file.startswith(FOLDERS) and (not self.files or self.files[-1] != file):
            self.files.append(file)


def trips() -> tuple[list[int], list[int]]:
    """For each event of the sample call the number of files that it enters, and of
    stays in them.
    """
    (call,) = read_recordings(SAMPLE)
    limits = Limits()
    goals = ChosenGoals(EveryCall(), GoalRules(asks_judge=True))
    partition, _ = partition_of(PartitionEvaluator(limits, "trip", goals))
    log = LogWriter()
    files, stays = [], []
    for event in in_time_order(with_control_events(call, agent="desk")):
        record = log.event(event.source, call.conversation_id, event.value, event.time_ms)
        with Trip() as trip:
            partition.fold(record, event.time_ms)
        files.append(len(set(trip.files)))
        stays.append(len(trip.files))
    return files, stays


def main() -> None:
    files, stays = trips()
    medians = f"median {statistics.median(files):.0f} files, {statistics.median(stays):.0f} stays"
    print(f"{len(files)} events: {medians}; at most {max(files)}, {max(stays)}")


if __name__ == "__main__":
    main()
