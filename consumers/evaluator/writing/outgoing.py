"""A record for the broker: its address, its bytes, and whether its group can be written without it."""

from typing import Final, NamedTuple

from consumers.evaluator.writing.outbox import Written
from consumers.runtime.kafka.connection import KafkaSettings
from schemas.judging import REPLY_PARTITION_HEADER, JudgeRequest
from schemas.order import OrderStart, order_value
from schemas.quarantine import QuarantineRecord
from schemas.topics import JUDGE_REQUESTS_TOPIC, ORDER_TOPIC, QUARANTINE_TOPIC, SCORES_TOPIC, TRANSCRIPTS_TOPIC
from schemas.transcript import Transcript

_WITHOUT_TRANSCRIPT: Final = "The call closes with all its scores and has no transcript."
_WITHOUT_QUESTION: Final = (
    "The judge is not asked; the subject of the question is unscored when its deadline has passed."
)
_WITHOUT_QUARANTINE: Final = "The refused record is not on the quarantine topic; its coordinates are in the log."


class LeftOut(NamedTuple):
    """Consequence of writing a group without one of its records.

    Attributes:
        limit: The value of the label `limit` under which it is counted.
        what_happens_now: Explanation for a person.
    """

    limit: str
    what_happens_now: str


class Outgoing(NamedTuple):
    """One record, ready to be sent.

    Attributes:
        topic: Name of the topic on this cluster.
        key: The conversation's id, or the own key of a refused record; None for a record of `order`.
        value: The bytes.
        partition: Partition number; None if the key decides.
        headers: Headers; None for none.
        kind: Kind of a score, for its count; None for other records.
        left_out: Consequence of leaving it out; None for a score or a record of `order`, which must not be left out.
    """

    topic: str
    key: bytes | None
    value: bytes
    partition: int | None
    headers: list[tuple[str, bytes]] | None
    kind: str | None
    left_out: LeftOut | None


class Addresses:
    """Addresses of the records of one partition number."""

    def __init__(self, number: int, kafka: KafkaSettings) -> None:
        self.scores = kafka.topic(SCORES_TOPIC)
        self.order = kafka.topic(ORDER_TOPIC)
        self.transcripts = kafka.topic(TRANSCRIPTS_TOPIC)
        self._quarantine = kafka.topic(QUARANTINE_TOPIC)
        self._requests = kafka.topic(JUDGE_REQUESTS_TOPIC)
        self._number = number
        # A verdict must come to the partition of its call, however the call's producer chose that.
        self._reply_to = [(REPLY_PARTITION_HEADER, str(number).encode())]

    def of(self, record: Written) -> Outgoing:
        """Returns the record with its address."""
        if isinstance(record, Transcript):
            key, left_out = record.conversation_id.encode(), LeftOut("transcript", _WITHOUT_TRANSCRIPT)
            return Outgoing(self.transcripts, key, record.value, None, None, None, left_out)
        value = record.model_dump_json().encode()
        if isinstance(record, QuarantineRecord):
            left_out = LeftOut("quarantine_record", _WITHOUT_QUARANTINE)
            return Outgoing(self._quarantine, record.key.encode(), value, None, None, None, left_out)
        key = record.conversation_id.encode()
        if isinstance(record, JudgeRequest):
            left_out = LeftOut("judge_request", _WITHOUT_QUESTION)
            return Outgoing(self._requests, key, value, None, self._reply_to, None, left_out)
        return Outgoing(self.scores, key, value, self._number, None, record.kind, None)

    def of_order(self, steps: bytes, start: OrderStart | None) -> Outgoing:
        """Returns the record of `order` with these steps, and with the start that it may have."""
        headers = None if start is None else [start.header()]
        return Outgoing(self.order, None, order_value(steps), self._number, headers, None, None)
