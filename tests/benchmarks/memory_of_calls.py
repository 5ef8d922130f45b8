"""The memory of an open call by number of turns, and which part of its state takes it.

The whole is what Python allocated. A part is all that one attribute of the call reaches and no part
before it, nor another evaluator. What objects take beside their own size is in the rest.
"""

import gc
import sys
import tracemalloc
import types
from collections.abc import Iterable
from functools import _lru_cache_wrapper
from statistics import linear_regression
from typing import Final

from msgspec import Struct, structs

from consumers.engine.evaluator import PartitionEvaluator
from schemas.closed_sets import InputSource
from tests.benchmarks.engine_cost import STAYS_OPEN, fold
from tests.benchmarks.figures import Figures, say
from tests.benchmarks.traffic import interleaved, long_call

TURNS: Final = 10
OPEN_CALLS: Final = 20
MINUTES: Final = (1, 2.2, 4)
"""Lengths of calls; the figures are those of the line through them."""
PARTS: Final = {
    "redactor": "redaction",
    "history": "EVA's machine and its history",
    "rows": "rows of turns and of the call",
    "live": "turns and moments",
    "_measures": "measures",
    "_judged": "goals",
    "_words": "words",
    "_repeats": "ids and hashes of events",
}
"""Attributes of an open call, in the order in which they take what several of them reach."""
_OF_THE_PROCESS: Final = (
    types.BuiltinFunctionType,
    types.CodeType,
    types.FunctionType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.ModuleType,
    types.WrapperDescriptorType,
    type,
)


def measure_memory(figures: Figures) -> None:
    """Measures calls among others in one evaluator, without parts that all calls share."""
    lengths = [[long_call(minutes, seed) for seed in range(OPEN_CALLS)] for minutes in MINUTES]
    fold(interleaved(lengths[0]))  # Python learns by many objects how small those of a class are
    wholes = [_whole(calls) for calls in lengths]
    turns = [number for number, _, _ in wholes]
    slope, fixed = linear_regression(turns, [whole for _, whole, _ in wholes])
    say(f"memory of an open call: {fixed / 1000:.1f} kB + {slope / 1000:.1f} kB per turn")
    whole = fixed + TURNS * slope
    what = f"an open call of {TURNS} turns"
    figures.add("bytes_per_open_call_10_turns", whole, what, "bytes", goal=60_000)
    told = 0.0
    for name, what in PARTS.items():
        slope, fixed = linear_regression(turns, [parts[name] for _, _, parts in wholes])
        told += fixed + TURNS * slope
        figure = f"bytes_per_open_call_of{'' if name.startswith('_') else '_'}{name}"
        figures.add(figure, fixed + TURNS * slope, f"  {what}", "bytes")
    figures.add("bytes_per_open_call_of_the_rest", whole - told, "  the rest", "bytes")


def _whole(
    calls: list[list[tuple[int, InputSource, bytes]]],
) -> tuple[float, float, dict[str, float]]:
    """Average turns and bytes of one of these calls, and bytes of its parts."""
    traffic = interleaved(calls)
    _empty_shared_caches()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    evaluator, _ = fold(traffic, STAYS_OPEN)
    _empty_shared_caches()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    parts = _parts(evaluator)
    contexts = [evaluator.context(f"call-{number}") for number in range(len(calls))]
    turns = sum(context.num_user_turns for context in contexts if context is not None)
    return turns / len(calls), used / len(calls), parts


def _parts(evaluator: PartitionEvaluator) -> dict[str, float]:
    """Average bytes of each part of one of its open calls."""
    another, _ = fold(interleaved([long_call(0.5, OPEN_CALLS)]), STAYS_OPEN)
    known = set(map(id, _reached([another], set())))
    calls = evaluator._calls.values()
    return {
        name: sum(map(sys.getsizeof, _reached([getattr(call, name) for call in calls], known)))
        / len(calls)
        for name in PARTS
    }


def _reached(roots: Iterable[object], known: set[int]) -> list[object]:
    """The objects that these lead to and that were not known; they are known then."""
    found, to_do = [], list(roots)
    while to_do:
        each = to_do.pop()
        if id(each) in known or isinstance(each, _OF_THE_PROCESS):
            continue
        known.add(id(each))
        found.append(each)
        if isinstance(each, Struct):  # the collector does not look into all of them
            to_do += structs.astuple(each)
        else:
            to_do += gc.get_referents(each)
    return found


def _empty_shared_caches() -> None:
    """Empties the bounded caches of the process: they keep words of the newest calls, but belong to
    no call.
    """
    gc.collect()
    for each in gc.get_objects():
        is_ours = isinstance(each, _lru_cache_wrapper) and each.__module__.startswith("consumers.")
        if is_ours and each.cache_parameters()["maxsize"] is not None:
            each.cache_clear()
