"""A call that somebody looks at: its events and scores as far as they were read, and the call as it was known at any moment.

Pure. The engine is a function of the events, so the call at an earlier moment is the fold of the events that the broker had by then.
"""

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Final

from pydantic import ValidationError

from consumers.console.page.calls import HeardCall, ReportedCall, Said, TurnHeard, heard_in
from consumers.engine.admission import Arrival, admit
from consumers.engine.call import Call
from consumers.engine.evaluator import folded
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.annotations import Annotation
from schemas.closed_sets import InputSource, PipelineType, Speaker
from schemas.log import Event, LogError, LogReader, LogRecord
from schemas.metric_context import MetricContext
from schemas.scores.live_view import newest_scores
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord, ClosedFact, TurnValues
from schemas.transcript import TranscriptTurn
from schemas.units import MS_PER_SECOND

MAX_EVENTS: Final = 100_000
"""Events kept of one call: more than the evaluator takes of one."""
MAX_SCORES: Final = 50_000
"""Score records kept of one call: a call of two hours has a tenth."""
MAX_NEW: Final = MAX_EVENTS + MAX_SCORES
"""Records kept of one call that are not folded yet: more than it may have."""
ANCHOR: Final = "call"
"""Beginning of the ids of the parts of a call's page."""


_NUMBERS: Final = itertools.count()


class WatchedCall:
    """One call, from its first record on.

    Two threads may use it: the event loop hands it records, which only keeps them, so that it never waits; and a thread that draws
    folds them before it looks (everything that looks does), one thread at a time. Folding and drawing a long call take seconds.

    Attributes:
        conversation_id: Its id.
        version: Grows with each record that is kept, and with what people say.
        number: Differs from that of every other watched call of this process, of the same conversation too.
        is_whole: Whether everything that was there when it was opened has been read.
        annotations: What people say of it, as known when it was opened last.
    """

    def __init__(self, conversation_id: str, limits: Limits, redactor: Redactor) -> None:
        self.conversation_id = conversation_id
        self.version = 0
        self.number = next(_NUMBERS)
        self.is_whole = False
        self.annotations: Sequence[Annotation] = ()
        self._limits = limits
        self._redactor = redactor
        self._new: deque[LogRecord | bytes] = deque()
        """Records that are not folded yet: those of the log, and values of `scores`."""
        self._looking = RLock()
        self._left_out = 0
        self._not_kept = 0
        self._log = LogReader()
        self._events = 0
        self._arrivals: list[Arrival] = []
        self._scores: list[AnyScoreRecord] = []
        self._call = self._empty()

    def take_event(self, record: LogRecord) -> None:
        """Keeps the next record of the log: one of this call, or the first tick of a term (`consumers.log.stretches.Terms`)."""
        self._keep(record)

    def take_score(self, value: bytes) -> None:
        """Keeps the next record of `scores`."""
        self._keep(value)

    def leave_out(self, records: int) -> None:
        """Notes that so many records of it are not kept."""
        self._not_kept += records

    @property
    def edition(self) -> tuple[int, int, bool]:
        """Names a state of the call: what is made of the same edition is the same."""
        return self.number, self.version, self.is_whole

    @property
    def left_out(self) -> int:
        """Records that were not taken in: the evaluator refuses them, or there are too many."""
        with self._looked():
            return self._left_out + self._not_kept

    @property
    def events(self) -> int:
        """How many events the log has of it, verdicts left out."""
        with self._looked():
            return self._events

    @property
    def scores(self) -> Sequence[AnyScoreRecord]:
        """Its score records in the order of the topic, all revisions."""
        with self._looked():
            return self._scores

    @property
    def closed(self) -> ClosedFact | None:
        """Its closing record; None while it is open."""
        return next((record for record in reversed(self.scores) if isinstance(record, ClosedFact)), None)

    @property
    def first_ms(self) -> int | None:
        """Broker time of its first record; None without any."""
        return min(self._times_ms(), default=None)

    @property
    def last_ms(self) -> int | None:
        """Broker time of its last record; None without any."""
        return max(self._times_ms(), default=None)

    def context(self, at_ms: int | None = None) -> MetricContext | None:
        """The context of the call as it was known at a moment of broker time, None is now; None while no event of it is known."""
        with self._looked():
            call, arrivals = self._folded(at_ms)
            return call.context() if arrivals else None

    def newest(self, at_ms: int | None = None) -> list[AnyScoreRecord]:
        """The scores that counted at a moment: the newest revision of each subject that is not withdrawn."""
        return list(newest_scores(self._known(at_ms)).values())

    def reported(self, at_ms: int | None = None, *, words: bool = True) -> ReportedCall:
        """The call as a page shows it, as it was known at a moment; None is now. Without `words` nothing that was said is in it."""
        with self._looked():
            call, arrivals = self._folded(at_ms)
            heard = heard_in(call, [each.event.timestamp for each in arrivals if each.event.timestamp is not None])
            known = self._known(at_ms)
        if not words:
            heard = heard._replace(turns=())
        shown = ReportedCall(
            self.conversation_id, heard, list(newest_scores(known).values()), ANCHOR, self._redactor, known
        )
        shown.annotations = self.annotations if words else ()
        return shown

    def transcript(self, at_ms: int | None = None) -> list[TranscriptTurn]:
        """What was said up to a moment, in ElevenLabs' format, redacted."""
        with self._looked():
            transcript = self._folded(at_ms)[0].transcript(self._redactor)
            return [] if transcript.is_too_large else [entry for entry in transcript if entry is not None]

    def _keep(self, record: LogRecord | bytes) -> None:
        if len(self._new) >= MAX_NEW:
            self._not_kept += 1
            return
        self._new.append(record)
        self.version += 1

    @contextmanager
    def _looked(self) -> Iterator[None]:
        """Everything that is kept is folded, and stays as it is until the block ends."""
        with self._looking:
            for _ in range(len(self._new)):  # not until there are none: records may come as fast as they are folded
                match self._new.popleft():
                    case bytes(value):
                        self._fold_score(value)
                    case record:
                        self._fold_record(record)
            yield

    def _fold_record(self, record: LogRecord) -> None:
        try:
            event = self._log.read(record)
        except LogError:
            self._left_out += 1
            return
        # Verdicts decide scores alone, and scores are read from their topic.
        if isinstance(event, Event) and event.source is not InputSource.JUDGE:
            self._events += 1
            self._fold_event(event)

    def _fold_event(self, event: Event) -> None:
        arrival = admit(event.source, event, self._limits, self._redactor)
        if not isinstance(arrival, Arrival) or len(self._arrivals) >= MAX_EVENTS:
            self._left_out += 1
            return
        self._arrivals.append(arrival)
        self._call.receive(arrival, [])

    def _fold_score(self, value: bytes) -> None:
        try:
            record = SCORE_RECORD.validate_json(value)
        except ValidationError:
            self._left_out += 1
            return
        if len(self._scores) >= MAX_SCORES:
            self._left_out += 1
            return
        self._scores.append(record)

    def _folded(self, at_ms: int | None) -> tuple[Call, list[Arrival]]:
        if at_ms is None:
            return self._call, self._arrivals
        known = [each for each in self._arrivals if each.broker_time_ms <= at_ms]
        return folded(known, PipelineType.CASCADE, None, self._limits), known

    def _known(self, at_ms: int | None) -> list[AnyScoreRecord]:
        with self._looked():
            return [record for record in self._scores if at_ms is None or record.caused_at_ms <= at_ms]

    def _times_ms(self) -> list[int]:
        with self._looked():
            times_ms = [each.broker_time_ms for each in self._arrivals]
            return times_ms + [record.caused_at_ms for record in self._scores]

    def _empty(self) -> Call:
        return folded((), PipelineType.CASCADE, None, self._limits)


def past_call(
    conversation_id: str,
    scores: Sequence[AnyScoreRecord],
    redactor: Redactor,
    transcript: Sequence[TranscriptTurn] | None,
) -> ReportedCall:
    """A call whose events are gone, from its scores and its transcript: without sound."""
    times_ms = [record.event_time_ms for record in scores if record.event_time_ms is not None]
    start_ms, end_ms = min(times_ms, default=0), max(times_ms, default=0)
    newest = list(newest_scores(scores).values())
    said = [entry for entry in transcript or () if entry.message]
    items: dict[int, list[Said]] = {}
    for entry, turn in zip(
        said, _turns_of(said, [each for each in newest if isinstance(each, TurnValues)]), strict=True
    ):
        speaker = Speaker.USER if entry.role == "user" else Speaker.ASSISTANT
        at_ms = start_ms + entry.time_in_call_secs * MS_PER_SECOND
        items.setdefault(turn, []).append(Said(speaker, entry.message or "", at_ms))
    turns = tuple(TurnHeard(number, tuple(items[number])) for number in sorted(items))
    heard = HeardCall(start_ms, end_ms, (), (), turns)
    return ReportedCall(conversation_id, heard, newest, ANCHOR, redactor, scores)


def _turns_of(said: Sequence[TranscriptTurn], rows: Iterable[TurnValues]) -> list[int]:
    """The turn of each text of a transcript, which has no numbers.

    A side has one text for each turn in which its words are known, and the rows say which turns these are. The record of an
    ElevenLabs agent can have several: there a turn begins where the user speaks after the agent.
    """
    talks = [(row.turn or 0, row.talk) for row in rows if row.talk is not None]
    sides = {
        "user": sorted(turn for turn, talk in talks if talk.user.words is not None),
        "agent": sorted(turn for turn, talk in talks if talk.assistant.words is not None),
    }
    texts = Counter[str](entry.role for entry in said)
    known = {role: iter(turns) for role, turns in sides.items() if len(turns) == texts[role]}
    turns, turn, is_users = [], 0, False
    for entry in said:
        if entry.role in known:
            turn = next(known[entry.role])
        elif entry.role == "user" and not is_users:
            turn += 1
        is_users = entry.role == "user"
        turns.append(turn)
    return turns
