"""`make chaos`: compares `scores` after crashes, freezes and restarts with the records that it must
have.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

from tests.chaos.canaries.scripts import CANARIES
from tests.chaos.cluster import cluster as clusters
from tests.chaos.cluster.proxy import ProxyError
from tests.chaos.evaluators.fleet import PageError
from tests.chaos.faults.faults import ON_SEVERAL, USUAL, Fault
from tests.chaos.load.load import LoadError
from tests.chaos.load.poison import Kind
from tests.chaos.runs.canary_run import not_as_it_must_be
from tests.chaos.runs.chaos_run import Outcome, Plan, chaos
from tests.chaos.runs.measuring_runs import (
    fencing,
    leaders_killed,
    overload,
    recovery,
    recovery_after_stop,
)
from tests.chaos.stage import RunError
from tests.chaos.verdict.topic_reader import UnreadableError
from tests.support.brokers import kafka_broker

Run = Callable[[Plan, clusters.Cluster, Path, Callable[[str], None]], Outcome]

NOTHING_PROVEN: Final = 2  # exit codes
INTERRUPTED: Final = 130
RUNS: Final[dict[str, Run]] = {
    "leaders": leaders_killed,
    "recovery": recovery,
    "recovery_after_stop": recovery_after_stop,
    "overload": overload,
    "fencing": fencing,
}
"""By the option that asks for it."""
USUAL_CANARY: Final = "place"
_PROVES_NOTHING: Final = (
    kafka_broker.NoBrokerError,
    kafka_broker.BrokerStartError,
    RunError,
    LoadError,
    UnreadableError,
    PageError,
    ProxyError,
)


def main() -> int:
    """Runs the chosen run; the exit code is 0 when no score is missing, doubled or wrong."""
    usual = Plan()
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="under full load")
    parser.add_argument("--seed", type=int, default=usual.seed, help="decides calls and faults")
    parser.add_argument("--calls", type=int, default=usual.calls, help="at the same time")
    parser.add_argument(
        "--rate",
        type=float,
        default=usual.rate,
        help="how many times faster than real they are played",
    )
    parser.add_argument(
        "--evaluators", type=int, help="at least so many; 3, and 2 if the recovery is measured"
    )
    parser.add_argument("--partitions", type=int, default=usual.partitions)
    parser.add_argument(
        "--spacing",
        type=float,
        default=usual.spacing_seconds,
        help="mean seconds between two faults",
    )
    parser.add_argument(
        "--brokers",
        type=int,
        choices=(1, 3),
        default=1,
        help="3: their coordinators move, and they lose sight too",
    )
    parser.add_argument(
        "--leaders", action="store_true", help="of three brokers, kill the leader of each partition"
    )
    parser.add_argument(
        "--faults",
        nargs="+",
        type=Fault,
        choices=list(Fault),
        metavar="FAULT",
        help=f"only these: {', '.join(Fault)}",
    )
    parser.add_argument(
        "--poison",
        nargs="*",
        type=Kind,
        choices=list(Kind),
        metavar="KIND",
        help=f"only these: {', '.join(Kind)}",
    )
    parser.add_argument("--recovery", action="store_true", help="kill an evaluator and measure")
    parser.add_argument(
        "--recovery-after-stop", action="store_true", help="stop one in order and measure"
    )
    parser.add_argument(
        "--overload", action="store_true", help="more than one evaluator can hold, and measure"
    )
    parser.add_argument(
        "--canary",
        choices=(*CANARIES, "all"),
        help="only show that the checker finds what is broken, and nothing that is whole",
    )
    parser.add_argument(
        "--no-canary", action="store_true", help="leave out the short canary before the run"
    )
    parser.add_argument(
        "--fencing", action="store_true", help="with transactions and without, and measure"
    )
    parser.add_argument(
        "--keep", type=Path, help="a folder for the logs, which is kept; a temporary one by default"
    )
    arguments = parser.parse_args()
    measures_recovery = arguments.recovery or arguments.recovery_after_stop
    plan = Plan(
        seed=arguments.seed,
        seconds=arguments.seconds,
        calls=arguments.calls,
        rate=arguments.rate,
        evaluators=arguments.evaluators or (2 if measures_recovery else usual.evaluators),
        partitions=arguments.partitions,
        spacing_seconds=arguments.spacing,
        faults=arguments.faults or (USUAL if arguments.brokers == 1 else ON_SEVERAL),
        poison=tuple(Kind) if arguments.poison is None else arguments.poison,
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # on the way out everything that was started is ended
    brokers = 3 if arguments.leaders else arguments.brokers
    run: Run = next((run for name, run in RUNS.items() if getattr(arguments, name)), chaos)
    try:
        if kinds := _canaries(arguments, run):
            for complaint in (
                complaints := not_as_it_must_be(kinds, say, has_controls=bool(arguments.canary))
            ):
                say(f"chaos: {complaint}, so it proves nothing")
            if complaints:
                return NOTHING_PROVEN
        if arguments.canary:
            return 0
        with tempfile.TemporaryDirectory(
            prefix="callgauge-chaos-", ignore_cleanup_errors=True
        ) as name:
            folder = arguments.keep or Path(name)
            with clusters.running(
                folder, brokers, loses_sight=run is chaos and brokers > 1
            ) as cluster:
                outcome = run(plan, cluster, folder, say)
    except _PROVES_NOTHING as error:
        say(f"chaos: {error}")
        return NOTHING_PROVEN
    except KeyboardInterrupt:
        say("chaos: interrupted; everything that was started is ended")
        return INTERRUPTED
    for line in lines_of(outcome, plan.seed):
        say(line)
    return 0 if outcome.findings.is_clean else 1


def _leave(*_: object) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # once is enough: the way out must not be interrupted
    sys.exit(INTERRUPTED)


def _canaries(arguments: argparse.Namespace, run: Run) -> tuple[str, ...]:
    if arguments.canary == "all":
        return tuple(CANARIES)
    if arguments.canary:
        return (arguments.canary,)
    return (USUAL_CANARY,) if run is chaos and not arguments.no_canary else ()


def say(text: str) -> None:
    print(text, flush=True)


def lines_of(outcome: Outcome, seed: int) -> Iterator[str]:
    """The lines that are printed at the end; the last one has the three numbers."""
    findings = outcome.findings
    yield from findings.examples
    for (kind, name), count in sorted(findings.by_name.items()):
        yield f"{kind} {name}: {count}"
    yield from outcome.what
    yield (
        f"missing={findings.missing} duplicate={findings.duplicate} wrong={findings.wrong} "
        f"seed={seed} "
        f"calls={findings.calls} scores={findings.scores} faults={outcome.faults}"
    )


if __name__ == "__main__":
    sys.exit(main())
