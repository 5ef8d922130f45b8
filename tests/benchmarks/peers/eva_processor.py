"""EVA's processor, in an environment of its own and beside a checkout of EVA.

`times`: on the record of a call, its files in, the context out. On the whole record, as EVA uses it;
and on beginnings of it, as one would have to while the call runs. It prints the processor time of
the least disturbed round of both, as JSON.

`contexts`: on calls that come as lines of JSON, each answered with its context, or null.
"""

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

EVENTS = {
    "pipecat_logs_path": "pipecat_logs.jsonl",
    "elevenlabs_logs_path": "elevenlabs_events.jsonl",
}
AUDIT = "audit_log.json"
BEGINNINGS = 10
TOLD = {
    "record_id": "call",
    "completed": True,
    "started_at": "2026-01-01T00:00:00",
    "ended_at": "2026-01-01T00:01:00",
    "duration_seconds": 60,
}
"""What EVA wants to know of a call and does not use for its context."""


def main() -> None:
    """Does what the first argument says."""
    parser = argparse.ArgumentParser(prog="eva_processor.py")
    parser.add_argument("eva", type=Path)
    jobs = parser.add_subparsers(dest="job", required=True)
    times = jobs.add_parser("times")
    times.add_argument("record", type=Path)
    times.add_argument("rounds", type=int)
    jobs.add_parser("contexts")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.eva / "src"))
    # The package of its metrics imports every metric and all that these need; the processor none.
    metrics: Any = ModuleType("eva.metrics")
    metrics.__path__ = [str(arguments.eva / "src" / "eva" / "metrics")]
    sys.modules["eva.metrics"] = metrics
    logging.disable()  # a line of each round would count
    if arguments.job == "contexts":
        answer_contexts()
    else:
        print(json.dumps(times_of(arguments.record, arguments.rounds)))


def times_of(whole: Path, rounds: int) -> dict[str, float]:
    """Seconds for the record, and on average for its beginnings."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for part in range(1, BEGINNINGS + 1):
            record = Path(folder) / str(part)
            write_beginning(whole, record, part / BEGINNINGS)
            seconds.append(least_seconds(record, rounds))
    return {"processor_seconds": seconds[-1], "mean_seconds": sum(seconds) / BEGINNINGS}


def write_beginning(record: Path, beginning: Path, share: float) -> None:
    """Writes the first part of each of the record's logs into another folder."""
    beginning.mkdir()
    shutil.copy(record / "result.json", beginning)
    audit = json.loads((record / AUDIT).read_text())
    entries = audit["transcript"]
    audit["transcript"] = entries[: round(share * len(entries))]
    (beginning / AUDIT).write_text(json.dumps(audit))
    for name in EVENTS.values():
        lines = (record / name).read_text().splitlines(keepends=True)
        (beginning / name).write_text("".join(lines[: round(share * len(lines))]))


def least_seconds(record: Path, rounds: int) -> float:
    """Processor time of the least disturbed of some rounds."""
    told = json.loads((record / "result.json").read_text())
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        context = context_of(record, told)
        times.append(time.process_time() - begin)
        assert context is not None, f"EVA could not process {record.name} tenths of the record"
    return min(times)


def context_of(record: Path, told: dict[str, Any], *pipeline: Any) -> Any:
    """The context of the logs in a folder; None where EVA fails."""
    processor = import_module("eva.metrics.processor").MetricsContextProcessor
    files = {name: str(record / file) for name, file in EVENTS.items() if (record / file).exists()}
    told = told | {"output_dir": str(record), **dict.fromkeys(EVENTS), **files}
    result = import_module("eva.models.results").ConversationResult(**told)
    return processor().process_record(result, record, *pipeline)


def answer_contexts() -> None:
    """Answers each call with the fields of its context that the conformance data have."""
    pipelines = import_module("eva.metrics.processor").PipelineType
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder)
        for line in sys.stdin:
            call = json.loads(line)
            (record / AUDIT).write_text(json.dumps({"transcript": call["audit"]}))
            for file, events in zip(EVENTS.values(), ("pipecat", "user_sim"), strict=True):
                (record / file).unlink(missing_ok=True)
                if call[events] is not None:
                    lines = (json.dumps(each) + "\n" for each in call[events])
                    (record / file).write_text("".join(lines))
            told = TOLD | {"conversation_ended_reason": call["conversation_ended_reason"]}
            context = context_of(record, told, pipelines(call["pipeline_type"]))
            fields = {name: getattr(context, name, None) for name in call["fields"]}
            print(json.dumps(context and fields, default=_plain), flush=True)


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else value.value


if __name__ == "__main__":
    main()
