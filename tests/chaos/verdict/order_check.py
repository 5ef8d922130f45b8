"""Compares `order` with the inputs and with `scores`: a successor that follows it must come to what was published. Pure.

Every record of an input, as far as the order goes, is folded once; every call that closes in `scores` closes there as often.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from schemas.closed_sets import InputSource
from schemas.order import Closed, Fold, OrderDecoder, OrderError, start_in
from tests.chaos.verdict.checker import Findings
from tests.chaos.verdict.topic_reader import ReadRecord
from tests.chaos.verdict.undisturbed import InputRecord

ORDER = "order"
"""The name under which findings are counted."""


class _Order:
    """The order of one partition as it was read.

    Attributes:
        folded: By input, the offsets of the records that were folded.
        begins: By input, where the order begins.
        ends: By input, where it ends.
        closings: How often each call closes.
        fault: Why it cannot be read further; None if it can.
        is_whole: Whether it is there from its first record on.
    """

    def __init__(self, records: Iterable[ReadRecord]) -> None:
        self.folded: dict[InputSource, set[int]] = {source: set() for source in InputSource}
        self.begins: Mapping[InputSource, int] = {}
        self.ends: Mapping[InputSource, int] = {}
        self.closings: Counter[str] = Counter()
        self.fault: str | None = None
        self.is_whole = True
        self._decoder: OrderDecoder | None = None
        for place, record in enumerate(records):
            self.is_whole &= place > 0 or record.offset == 0
            if record.value is None:  # a new owner
                continue
            try:
                self._take(self._at(record), record.value)
            except OrderError as error:
                self.fault = f"order@{record.offset}: {error}"
                return

    def _at(self, record: ReadRecord) -> OrderDecoder:
        start = start_in(record.headers)
        if self._decoder is not None:
            if start is not None:
                self._decoder.begin(start)
            return self._decoder
        if start is None:
            raise OrderError("it begins without a start")
        self._decoder = OrderDecoder(start)
        self.begins = dict(self._decoder.positions)
        return self._decoder

    def _take(self, decoder: OrderDecoder, value: bytes) -> None:
        for step in decoder.steps(value):
            if isinstance(step, Fold):
                self.folded[step.source].add(step.offset)
            elif isinstance(step, Closed):
                self.closings[step.conversation_id] += 1
        self.ends = decoder.positions


def order_compared(
    records: Iterable[ReadRecord],
    inputs: Mapping[InputSource, Sequence[InputRecord]],
    closings: Counter[str],
    unread: AbstractSet[tuple[str, int]] = frozenset(),
) -> Findings:
    """Compares the order of one partition.

    Args:
        records: The records of `order` with their headers, in order.
        inputs: The records of the inputs.
        closings: How often each call closes in `scores`.
        unread: Topics and offsets of input records that may not have been folded.
    """
    findings = Findings()
    order = _Order(records)
    if order.fault is not None:
        findings.note("wrong", ORDER, order.fault)
        return findings
    if not order.is_whole:
        return findings
    for conversation, count in sorted((closings - order.closings).items()):
        findings.note("missing", ORDER, f"{conversation} closes {count} times more in scores than in the order")
    for conversation, count in sorted((order.closings - closings).items()):
        findings.note("wrong", ORDER, f"{conversation} closes {count} times more in the order than in scores")
    for source, sent in inputs.items():
        folded = order.folded[source]
        for record in sent:
            is_in_it = order.begins.get(source, 0) <= record.offset < order.ends.get(source, 0)
            if is_in_it and record.offset not in folded and (record.topic, record.offset) not in unread:
                what = f"{record.topic}[{record.partition}]@{record.offset} was passed over"
                findings.note("missing", ORDER, what)
    return findings
