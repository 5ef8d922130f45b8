"""How long a successor folds what is in the log of the calls that are open, until it is live: one
partition, no broker.

python -m tests.benchmarks.silent_fold CALLS
"""

import gc
import sys
import time
from typing import Final

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.evaluator.partition import Recovery
from schemas.owners import PartitionRow
from tests.benchmarks.traffic import START_MS, long_call
from tests.support.fakes.evaluator_fakes import partition_of
from tests.support.fakes.log_writer import LogWriter

MINUTES: Final = 1.5
"""Age of the calls when their owner is lost: ten turns."""
TICK_MS: Final = 500
DISTINCT_CALLS: Final = 40
LIMITS: Final = Limits(max_event_time_skew_ms=10**12)


def log_of(calls: int) -> LogWriter:
    """The log of so many calls that run beside each other."""
    distinct = [long_call(MINUTES, seed) for seed in range(min(calls, DISTINCT_CALLS))]
    events = sorted(
        (at_ms + number % TICK_MS, number, place, source, value)
        for number in range(calls)
        for place, (at_ms, source, value) in enumerate(distinct[number % DISTINCT_CALLS])
    )
    log, tick_ms = LogWriter(), START_MS
    for at_ms, number, _, source, value in events:
        if at_ms > tick_ms:
            log.tick(at_ms - 1)
            tick_ms = at_ms + TICK_MS
        log.event(source, f"call-{number}", value, at_ms)
    return log


def main() -> None:
    log = log_of(int(sys.argv[1]))
    version = sys.argv[2] if len(sys.argv) > 2 else "test"
    end = len(log.records)
    row = PartitionRow(
        place=end, first=0, first_known_ms=START_MS, known_ms=START_MS, version=version
    )
    evaluator = PartitionEvaluator(LIMITS, "bench", writes_transcripts=True)
    partition, _ = partition_of(evaluator, recovery=Recovery(row, 0, end))
    gc.collect()
    gc.freeze()
    began = time.process_time()
    for record in log.records:
        partition.fold(record, START_MS)
    seconds = time.process_time() - began
    assert not partition.is_recovering
    calls = len(evaluator.open_calls)
    print(
        f"{calls:,} open calls, {end:,} records: {seconds:.1f} s, {seconds / end * 1e6:.1f} us a "
        "record"
    )


if __name__ == "__main__":
    main()
