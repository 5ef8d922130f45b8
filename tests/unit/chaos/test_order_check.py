"""The checker finds what is wrong with an order: a call that closes elsewhere only, a record passed over, an owner that goes back."""

from collections import Counter
from collections.abc import Sequence

from schemas.closed_sets import InputSource
from schemas.order import OrderEncoder, OrderStart, order_value
from tests.chaos.verdict.checker import Findings
from tests.chaos.verdict.order_check import order_compared
from tests.chaos.verdict.topic_reader import ReadRecord
from tests.chaos.verdict.undisturbed import InputRecord

AUDIT, PIPECAT = InputSource.AUDIT, InputSource.PIPECAT
CALLS = Counter(["a", "b"])
MARK = ReadRecord(0, 0, 0, b"callgauge-owner", None)


def inputs_of(audit: int, pipecat: int) -> dict[InputSource, list[InputRecord]]:
    """So many records of two inputs."""
    return {
        source: [InputRecord(f"{source}.events", 0, offset, 0, b"a", b"{}") for offset in range(count)]
        for source, count in ((AUDIT, audit), (PIPECAT, pipecat))
    }


def owner(
    at: int,
    audit: Sequence[int],
    pipecat: Sequence[int] = (),
    closes: Sequence[str] = (),
    begins: Sequence[int] = (0, 0),
) -> ReadRecord:
    """A record of the order by a new owner that begins at these offsets of audit and pipecat."""
    positions = dict(zip((AUDIT, PIPECAT), begins, strict=True))
    order = OrderEncoder(positions, 0)
    start = OrderStart(version="1", positions=positions, time_ms=0)
    for source, offsets in ((AUDIT, audit), (PIPECAT, pipecat)):
        for offset in offsets:
            order.fold(source, offset)
    for each in closes:
        order.close(each)
    return ReadRecord(0, at, 0, None, order_value(order.take()), (start.header(),))


def zeros(findings: Findings) -> tuple[int, int, int]:
    return findings.missing, findings.duplicate, findings.wrong


def test_a_whole_order_is_clean() -> None:
    first, second = owner(2, [0, 1], [0], ["a"]), owner(6, [2], [], ["b"], begins=(2, 1))
    inputs = inputs_of(4, 1)
    assert zeros(order_compared([MARK, first, MARK._replace(offset=4), second], inputs, CALLS)) == (0, 0, 0)
    assert zeros(order_compared([MARK], inputs, Counter())) == (0, 0, 0)


def test_a_call_closes_as_often_as_in_scores() -> None:
    records = [MARK, owner(2, [0, 1], [0], ["a", "b", "b"])]
    findings = order_compared(records, inputs_of(2, 1), Counter(["a", "c", "b"]))
    assert zeros(findings) == (1, 0, 1)
    assert "c closes 1 times more in scores" in findings.examples[0]


def test_a_record_that_was_passed_over_is_missing_unless_it_may_be() -> None:
    records = [MARK, owner(2, [0, 2], [0], ["a", "b"])]
    assert zeros(order_compared(records, inputs_of(3, 1), CALLS)) == (1, 0, 0)
    assert zeros(order_compared(records, inputs_of(3, 1), CALLS, {("audit.events", 1)})) == (0, 0, 0)


def test_an_owner_that_did_not_read_to_the_end_is_wrong() -> None:
    records = [MARK, owner(2, [0, 1, 2], [0], ["a"]), owner(6, [1, 2], [], ["b"], begins=(1, 1))]
    findings = order_compared(records, inputs_of(3, 1), CALLS)
    assert zeros(findings) == (0, 0, 1)
    assert "before the end of the one before it" in findings.examples[0]


def test_of_an_order_that_lost_its_beginning_only_its_form_counts() -> None:
    assert zeros(order_compared([owner(9, [5], [], [], begins=(5, 0))], inputs_of(6, 6), CALLS)) == (0, 0, 0)
    damaged = ReadRecord(0, 9, 0, None, b"\x07", owner(9, []).headers)
    assert zeros(order_compared([damaged], inputs_of(0, 0), Counter())) == (0, 0, 1)
