"""`make bench` measures the cost of callgauge beside a bare baseline of the same run.

The baseline is the unavoidable work: reading the same bytes into the same pydantic models. Ratios
to it carry over to other machines, microseconds do not, so the goals are ratios. The parts that
need a broker start a real one.

    python -m tests.benchmarks --only peers backlog
    python -m tests.benchmarks --table
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from platform import machine
from typing import Final

from consumers.runtime.process import tune_python
from docs.figure_tables import RUN
from docs.generate_pages import write_pages
from tests.benchmarks.console_load import measure_console, measure_console_process
from tests.benchmarks.engine_cost import (
    measure_engine,
    measure_scaling,
)
from tests.benchmarks.evaluator_cost import measure_backlog, measure_start
from tests.benchmarks.figures import Figures, interpreter, say
from tests.benchmarks.ingest_cost import measure_ingest
from tests.benchmarks.live_cost import measure_live, measure_many_partitions
from tests.benchmarks.memory_of_calls import measure_memory
from tests.benchmarks.observer_cost import measure_observer
from tests.benchmarks.peer_cost import measure_batch_tools, measure_peers
from tests.benchmarks.recovery_time import measure_recovery
from tests.benchmarks.sequencer_cost import measure_sequencer
from tests.benchmarks.serve_load import measure_serve
from tests.benchmarks.whole_runs import measure_runs
from tests.support.brokers import kafka_broker

IN_PROCESS: Final[dict[str, Callable[[Figures], None]]] = {
    "engine": measure_engine,
    "memory": measure_memory,
    "scaling": measure_scaling,
    "batch": measure_batch_tools,
    "console": measure_console,
}
ON_KAFKA: Final[dict[str, Callable[[Figures, str, Path], None]]] = {
    "start": measure_start,
    "sequencer": measure_sequencer,
    "backlog": measure_backlog,
    "peers": measure_peers,
    "live": measure_live,
    "partitions": measure_many_partitions,
    "ingest": measure_ingest,
    "observer": measure_observer,
    "pages": measure_console_process,
}
ON_ITS_OWN: Final[dict[str, Callable[[Figures, Path], None]]] = {
    "runs": measure_runs,
    "serve": measure_serve,
    "recovery": measure_recovery,
}
"""Each has a folder of its own, and the last one a broker that it may break."""
ALL: Final = (*IN_PROCESS, *ON_KAFKA, *ON_ITS_OWN)


def main() -> None:
    """Measures everything, or the parts that are named."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ALL, help="measure these parts alone")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures by name into this file too"
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="keep the figures in docs/performance.json, and write the tables of the pages from it",
    )
    arguments = parser.parse_args()
    if arguments.table and arguments.only:
        parser.error("--table has the figures of one whole run: leave --only out")
    wanted = arguments.only or ALL
    figures = Figures()
    say(
        f"callgauge {version('callgauge')}, {interpreter()}, {machine()}; processor time, best of "
        "several runs"
    )
    tune_python()  # as the evaluator does
    try:
        _measure(figures, wanted)
    finally:  # half an hour is not for nothing if a part fails
        if arguments.json is not None:
            figures.write(arguments.json)
            say(f"written to {arguments.json}")
    if arguments.table:
        figures.write(RUN)
        write_pages()
        say(f"written to {RUN}, docs/performance.md and deploy/sizing.md")


def _measure(figures: Figures, wanted: Sequence[str]) -> None:
    for name, measure in IN_PROCESS.items():
        if name in wanted:
            measure(figures)
    if any(name in wanted for name in ON_KAFKA):
        with tempfile.TemporaryDirectory() as folder, kafka_broker.running() as bootstrap:
            for name, measure_on in ON_KAFKA.items():
                if name in wanted:
                    measure_on(figures, bootstrap, Path(folder))
    for name, measure_alone in ON_ITS_OWN.items():
        if name in wanted:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                measure_alone(figures, Path(folder))


if __name__ == "__main__":
    main()
