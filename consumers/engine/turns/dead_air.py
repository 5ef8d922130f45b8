"""Dead air: after the caller has finished, nobody speaks and no tool runs for longer than a
threshold.

Only the absence of events reveals it, so it is decided once and never withdrawn. Live time is the
broker's; the detector's delay, which the event itself shows, counts as silence already passed.
Whether a tool or an answer came in time depends on records of several topics. So each moment waits
here until broker time has passed it, and moments are applied in the broker's order: the order of
reading the topics does not matter.

A start of speech can be lost, so a silence must be provable. It is not where an end shows that
somebody has spoken, and not while words that went to speech synthesis may be heard: the decision
then waits until they would be over.
"""

from bisect import insort
from typing import Final, NamedTuple

from consumers.engine.turns.timeline import BrokerMoment, HeardBy, SilenceKind, SilenceMoment
from schemas.units import MS_PER_SECOND

MAX_WAITING_MOMENTS: Final = 1_000
"""Moments of a call that may wait for broker time: minutes of it. Beyond that the oldest is applied
early.
"""

SLOWEST_CHARS_PER_SECOND: Final = 8
"""Slowest pace of words that may be heard, half of the usual one: speech whose start is lost ends
before dead air is decided.
"""


_BEGINS_AGAIN: Final = frozenset({SilenceKind.TOOL_ANSWERED, SilenceKind.FUNCTION_SETTLED})
"""Moments at which a silence begins again."""


class DeadAir(NamedTuple):
    """A silence that became dead air: its start (event time), turn, number, the broker time at
    which it was known, and the end of the caller's speech before it (0 where only the log is
    known). The turn is the one in which that end was read; another topic can give it another
    number.
    """

    silent_since_ms: int
    turn: int
    number: int
    known_at_ms: int
    user_end_ms: int = 0


class DeadAirWatch:
    """Watches one call. Times ending in `_at_ms` and `broker_ms` are the broker's, others the
    call's own.

    Attributes:
        count: Number of silences that became dead air.
        wakeup_at_ms: When a silence may become dead air; None without one.
    """

    def __init__(self, threshold_ms: int, allowance_ms: int) -> None:
        self._threshold_ms = threshold_ms
        self._allowance_ms = allowance_ms
        self._waiting: list[SilenceMoment] = []
        self._latest_ms: dict[int, int] = {}
        self._place = 0
        self.wakeup_at_ms: int | None = None
        self._found: list[DeadAir] = []
        self._since_ms: int | None = None
        self._turn = 0
        self._due_at_ms: int | None = None
        # broker time at which the words since the silence began are over; 0 without any
        self._words_until_ms = 0
        self._is_line_down = False
        self._last_start_ms = 0
        self._running_tools = 0
        self._functions_gave_way = False
        self._heard_by = HeardBy.TRANSCRIPT
        self._tool_called_ms: int | None = None
        self._counted_since_ms: int | None = None
        self._user_end_ms = 0
        # latest answer of a tool: its time, and when the silence after it becomes dead air
        self._answered = (0, 0)
        self.count = 0

    def user_ended(
        self,
        end_ms: int,
        logged_ms: int,
        at: BrokerMoment,
        turn: int,
        heard_by: HeardBy = HeardBy.CALLER,
    ) -> None:
        """Begins a silence at `end_ms`; the user's end was noticed at `logged_ms`."""
        noticed_after_ms = min(max(0, logged_ms - end_ms), self._threshold_ms)
        silent_ms = self._threshold_ms - noticed_after_ms
        self._wait(SilenceKind.USER_ENDED, end_ms, at, silent_ms, turn, heard_by)

    def note(
        self, kind: SilenceKind, time_ms: int, at: BrokerMoment, heard_by: HeardBy = HeardBy.CALLER
    ) -> None:
        """Takes a moment of any other kind; `SilenceKind` says what each does."""
        self._wait(
            kind,
            time_ms,
            at,
            self._threshold_ms if kind in _BEGINS_AGAIN else None,
            heard_by=heard_by,
        )

    def words_came(
        self, time_ms: int, chars: int, at: BrokerMoment, heard_by: HeardBy = HeardBy.CALLER
    ) -> None:
        """Puts the decision off while words that went to speech synthesis may be heard."""
        spoken_ms = chars * MS_PER_SECOND // SLOWEST_CHARS_PER_SECOND
        self._wait(SilenceKind.WORDS_CAME, time_ms, at, spoken_ms, heard_by=heard_by)

    def is_heard(self, heard_by: HeardBy, at: BrokerMoment) -> None:
        """Notes that a source reports speech. If it is better than those so far, it drops their
        reports from behind this moment: they do not count, although they were read first.
        """
        if heard_by > self._heard_by:
            self._heard_by = heard_by
            after = (at.broker_ms, at.input_rank)
            self._waiting = [
                each for each in self._waiting if each.heard_by >= heard_by or each[:2] <= after
            ]

    def reached(self, now_ms: int) -> list[DeadAir]:
        """The dead air decided by broker time `now_ms`, up to which every input is known; oldest
        first.
        """
        waiting = self._waiting
        while True:
            due_at_ms = None if self._running_tools else self._due_at_ms
            head_ms = waiting[0].broker_ms if waiting else None
            if (
                due_at_ms is not None
                and due_at_ms <= now_ms
                and (head_ms is None or due_at_ms <= head_ms)
            ):
                self._due_at_ms = None
                self._declare(due_at_ms)
            elif head_ms is not None and head_ms < now_ms:
                self._apply(waiting.pop(0))
            else:
                break
        wakeups_ms = [moment.due_at_ms for moment in waiting if moment.due_at_ms]
        if due_at_ms is not None:
            wakeups_ms.append(due_at_ms)
        self.wakeup_at_ms = min(wakeups_ms, default=None)
        found, self._found = self._found, []
        return found

    def _wait(
        self,
        kind: SilenceKind,
        time_ms: int,
        at: BrokerMoment,
        silent_ms: int | None = None,
        turn: int = 0,
        heard_by: HeardBy = HeardBy.CALLER,
    ) -> None:
        if self._is_line_down:
            return
        rank = at.input_rank
        # A topic keeps its own order, whatever its times.
        broker_ms = self._latest_ms[rank] = max(at.broker_ms, self._latest_ms.get(rank, 0))
        due_at_ms = (
            0
            if silent_ms is None
            else max(broker_ms + silent_ms + self._allowance_ms, broker_ms + 1)
        )
        self._place += 1
        waiting = self._waiting
        insort(
            waiting,
            SilenceMoment(broker_ms, rank, self._place, kind, time_ms, due_at_ms, turn, heard_by),
        )
        if len(waiting) > MAX_WAITING_MOMENTS:
            self._apply(waiting.pop(0))
        # A moment that ends a silence needs no wake-up before that silence would have become dead
        # air.
        if due_at_ms and (self.wakeup_at_ms is None or due_at_ms < self.wakeup_at_ms):
            self.wakeup_at_ms = due_at_ms

    def _apply(self, moment: SilenceMoment) -> None:
        if self._is_line_down:
            return
        match moment.kind:
            case SilenceKind.USER_ENDED:
                self._on_user_ended(moment)
            case SilenceKind.SPEECH_STARTED | SilenceKind.USER_STARTED:
                self._on_speech_started(moment)
            case SilenceKind.SOMEONE_SPOKE:
                self._on_someone_spoke(moment)
            case SilenceKind.WORDS_CAME:
                self._on_words(moment)
            case SilenceKind.FUNCTION_CALLED | SilenceKind.FUNCTION_SETTLED if (
                self._functions_gave_way
            ):
                pass
            case SilenceKind.TOOL_CALLED | SilenceKind.FUNCTION_CALLED:
                self._on_tool_called(moment)
            case SilenceKind.TOOL_ANSWERED | SilenceKind.FUNCTION_SETTLED:
                self._on_tool_answered(moment)
            case SilenceKind.FUNCTIONS_GAVE_WAY:
                self._on_functions_gave_way()
            case SilenceKind.LINE_DOWN:
                self._hang_up()

    def _on_user_ended(self, moment: SilenceMoment) -> None:
        end_ms = moment.time_ms
        if self._last_start_ms > end_ms:
            return  # somebody has spoken since: this end came late
        self._since_ms = self._user_end_ms = end_ms
        self._words_until_ms = 0
        self._turn = moment.turn
        if self._tool_called_ms is not None and self._tool_called_ms < end_ms:
            # an unanswered tool of an earlier turn explains no waiting here
            self._running_tools = 0
        self._due_at_ms = moment.due_at_ms
        answered_ms, answered_due_ms = self._answered
        if answered_ms > end_ms:  # it came before this end, but happened later
            self._since_ms, self._due_at_ms = answered_ms, answered_due_ms

    def _on_speech_started(self, moment: SilenceMoment) -> None:
        start_ms = moment.time_ms
        self._last_start_ms = max(self._last_start_ms, start_ms)
        if self._since_ms is None or start_ms < self._since_ms:
            return
        is_proved = moment.kind is SilenceKind.SPEECH_STARTED or not self._words_until_ms
        if (
            is_proved
            and not self._running_tools
            and start_ms - self._since_ms >= self._threshold_ms
        ):
            self._declare(moment.broker_ms)
        self._since_ms = self._due_at_ms = None

    def _on_someone_spoke(self, moment: SilenceMoment) -> None:
        if self._since_ms is not None and moment.time_ms > self._since_ms:
            self._since_ms = self._due_at_ms = None

    def _on_words(self, moment: SilenceMoment) -> None:
        """One piece of words is heard after the other."""
        if self._since_ms is None or self._due_at_ms is None or moment.time_ms < self._since_ms:
            return
        spoken_ms = moment.due_at_ms - moment.broker_ms - self._allowance_ms
        self._words_until_ms = max(moment.broker_ms, self._words_until_ms) + spoken_ms
        self._due_at_ms = max(self._due_at_ms, self._words_until_ms + self._allowance_ms)

    def _on_functions_gave_way(self) -> None:
        if not self._functions_gave_way:
            self._functions_gave_way = True
            # they are all pipecat's: no other source has reported a tool before
            self._running_tools = 0

    def _on_tool_called(self, moment: SilenceMoment) -> None:
        if moment.time_ms < self._user_end_ms:
            return  # a call before the caller had finished explains no waiting now
        has_lasted = (
            self._since_ms is not None and moment.time_ms - self._since_ms >= self._threshold_ms
        )
        if has_lasted and not self._running_tools and not self._words_until_ms:
            self._declare(moment.broker_ms)
        self._running_tools += 1
        self._tool_called_ms = moment.time_ms

    def _on_tool_answered(self, moment: SilenceMoment) -> None:
        self._running_tools = max(0, self._running_tools - 1)
        if moment.time_ms > self._answered[0]:
            self._answered = (moment.time_ms, moment.due_at_ms)
        if self._since_ms is not None and moment.time_ms > self._since_ms:
            self._since_ms, self._due_at_ms = moment.time_ms, moment.due_at_ms

    def _hang_up(self) -> None:
        self._is_line_down = True
        self._since_ms = self._due_at_ms = self.wakeup_at_ms = None
        self._waiting.clear()

    def _declare(self, known_at_ms: int) -> None:
        since_ms = self._since_ms
        if since_ms is None or since_ms == self._counted_since_ms:
            return
        self._counted_since_ms = since_ms
        self.count += 1
        self._found.append(
            DeadAir(since_ms, self._turn, self.count, known_at_ms, self._user_end_ms)
        )
