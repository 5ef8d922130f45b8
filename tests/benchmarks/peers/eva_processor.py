"""EVA's processor on the record of a call: its files in, the context out. On the whole record, as EVA
uses it; and on beginnings of it, as one would have to while the call runs.

It runs in an environment of its own, beside a checkout of EVA. It prints the processor time of the
least disturbed round of both, as JSON.
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


def main() -> None:
    """Processes the record and its beginnings several times."""
    parser = argparse.ArgumentParser(prog="eva_processor.py")
    parser.add_argument("eva", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("rounds", type=int)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.eva / "src"))
    # The package of its metrics imports every metric and all that these need; the processor none.
    metrics: Any = ModuleType("eva.metrics")
    metrics.__path__ = [str(arguments.eva / "src" / "eva" / "metrics")]
    sys.modules["eva.metrics"] = metrics
    logging.disable()  # a line of each round would count
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for part in range(1, BEGINNINGS + 1):
            record = Path(folder) / str(part)
            write_beginning(arguments.record, record, part / BEGINNINGS)
            seconds.append(least_seconds(record, arguments.rounds))
    print(json.dumps({"processor_seconds": seconds[-1], "mean_seconds": sum(seconds) / BEGINNINGS}))


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
    processor = import_module("eva.metrics.processor").MetricsContextProcessor
    files = {name: str(record / file) for name, file in EVENTS.items()}
    told = json.loads((record / "result.json").read_text()) | {"output_dir": str(record)}
    result = import_module("eva.models.results").ConversationResult(**told | files)
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        context = processor().process_record(result, record)
        times.append(time.process_time() - begin)
        assert context is not None, f"EVA could not process {record.name} tenths of the record"
    return min(times)


if __name__ == "__main__":
    main()
