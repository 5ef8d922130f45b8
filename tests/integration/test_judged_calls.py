"""Calls are judged while the judge and the evaluator are killed with -9: no score is lost, and
nothing is asked twice that was answered.

The same records are evaluated twice, in peace and with kills, by processes as an operator starts
them. The endpoint says the same whenever it is asked the same, so that only a mistake of ours can
make the final scores differ.
"""

import asyncio
import hashlib
import json
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from consumers.judge.prompts import question_of
from schemas.closed_sets import InputSource
from schemas.judging import JudgeRequest, JudgeVerdict
from schemas.rows import CallRow, Row, SubgoalResult, TurnRow
from schemas.topics import JUDGE_REQUESTS_TOPIC, JUDGE_VERDICTS_TOPIC, SCORES_TOPIC
from streamer.sources.simulator.traffic import simulate_call
from tests.chaos.verdict.checker import compared
from tests.chaos.verdict.topic_reader import Follower
from tests.integration.conftest import make_topics, variables
from tests.integration.processes import Process, started
from tests.integration.score_log import newest_rows, rows_in
from tests.support.brokers.backlog import Sent, put_backlog
from tests.support.fakes.scripted_openai import Asked, Does, ScriptedOpenAI, grades, scripted_openai
from tests.support.patience import patient

CALLS = 12
PARTITIONS = 2
JUDGED_SUBGOALS = 4
REQUESTS_PER_QUESTION = 3
"""Of five trials: the endpoint always says the same, so the first three are a majority."""
AT_ONCE = 6
ANSWER_SECONDS = 0.1
KILLS: tuple[tuple[float, tuple[str, ...]], ...] = (
    (0.1, ("judge",)),
    (0.1, ("evaluator",)),
    (0.3, ("evaluator",)),
    (0.5, ("judge", "evaluator")),
    (0.8, ("evaluator",)),
)
"""Who is killed when so much of all that is asked in peace was asked."""
CALL_AGO_MS = 200_000
"""The first call began so long ago: all of them are over when they are read, and wait for their
verdicts.
"""
CALLS_APART_MS = 1_000
PATIENCE_SECONDS = 90
ACKNOWLEDGED_SECONDS = 1.0
"""From the endpoint's answers to the broker's acknowledgement of the verdict at most, on a busy
machine.
"""
DRAIN_SECONDS = 0.5
"""The broker's records are read by then."""

_KINDS = ("cascade", "phone", "s2s")


def calls_with_goals(folder: Path, now_ms: int) -> list[Sent]:
    """The records of all calls as they came; each call names a goal set of its own, which is
    written into the folder.

    A set of its own makes every question another one, also where simulated callers say the same.
    """
    records = []
    for number in range(CALLS):
        name = f"goals-{number}"
        folder.joinpath(f"{name}.json").write_text(json.dumps(_goal_set(name)))
        start_ms = now_ms - CALL_AGO_MS + number * CALLS_APART_MS
        # the names are right
        call = simulate_call(number, start_ms=start_ms, kind=_KINDS[number % len(_KINDS)])  # type: ignore[arg-type]
        for event in call.wire_events():
            value = event.value
            if event.event_name == "call_started":
                value = json.dumps({**json.loads(value), "goals": name}).encode()
            records.append(
                Sent(
                    InputSource(event.source),
                    call.call.conversation_id,
                    value,
                    number % PARTITIONS,
                    event.arrival_ms,
                )
            )
    return sorted(records, key=lambda record: record.at_ms)


def _goal_set(name: str) -> dict[str, object]:
    judged = [
        {
            "id": f"judged-{place}",
            "details": f"Matter {place} of {name} is settled.",
            "check": {"kind": "judge"},
        }
        for place in range(JUDGED_SUBGOALS)
    ]
    by_code = [
        {
            "id": "answered",
            "details": "The assistant offers its help.",
            "check": {"kind": "says", "speaker": "assistant", "pattern": "I can|let me|of course"},
        },
        {
            "id": "thanked",
            "details": "The caller says thank you.",
            "check": {"kind": "says", "speaker": "user", "pattern": "thank"},
        },
    ]
    return {"id": name, "subgoals": [*judged, *by_code], "max_turns": 12}


def verdict_on(asked: Asked) -> Does:
    """Yes to one question in eight, always the same one."""
    drawn = hashlib.blake2b(asked.user.encode(), digest_size=1).digest()[0]
    return grades("C" if drawn % 8 == 0 else "I", delay_seconds=ANSWER_SECONDS)


class Role:
    """A role in a process of its own, and the next process after a kill."""

    def __init__(
        self, name: str, folder: Path, environment: dict[str, str], running: ExitStack
    ) -> None:
        self._name = name
        self._folder = folder
        self._environment = environment
        self._running = running
        self._starts = 0
        self.start()

    def start(self) -> None:
        self._starts += 1
        log = self._folder / f"{self._name}-{self._starts}.log"
        self._process: Process = self._running.enter_context(
            started(log, "run", "--roles", self._name, **self._environment)
        )

    def must_run(self) -> None:
        assert self._process.is_running, f"it ended by itself:\n{self._process.text}"

    def kill(self) -> None:
        code, _ = self._process.signalled(signal.SIGKILL)
        assert code == -signal.SIGKILL, f"it had ended before:\n{self._process.text}"

    def leave(self) -> None:
        """SIGTERM, so that no transaction stays open."""
        code, _ = self._process.signalled(signal.SIGTERM)
        assert code == 0, self._process.text


class Log:
    """A topic as a reader of committed records follows it."""

    def __init__(self, bootstrap: str, topic: str, running: ExitStack) -> None:
        self.values: list[bytes] = []
        self._follower = Follower(bootstrap, topic, PARTITIONS)
        running.callback(self._follower.close)

    def read(self, seconds: float) -> list[bytes]:
        """The records that come within so long."""
        new = [record.value for record in self._follower.new(seconds) if record.value is not None]
        self.values += new
        return new


@dataclass
class Evening:
    """One evaluation of all the calls, with topics, processes and an endpoint of its own.

    Attributes:
        asked: The prompts the endpoint got, in order.
        scores: The values of `scores`.
        lost: By prompt, the requests of judges that were killed before their question's verdict was
            on its topic.
        lost_late: Of these, how long before the kill in seconds, where that is more than an
            acknowledgement takes.
    """

    bootstrap: str
    prefix: str
    folder: Path
    goals: Path
    asked: list[str] = field(default_factory=list)
    scores: list[bytes] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    lost_late: list[float] = field(default_factory=list)

    def hold(self, records: Sequence[Sent], peaceful_requests: int | None) -> None:
        """Evaluates until all calls are closed; with kills, if it is known how much is asked
        without them.
        """
        self.folder.mkdir()
        with scripted_openai(verdict_on) as server, ExitStack() as running:
            environment = self._environment(server)
            asyncio.run(make_topics(environment, PARTITIONS))
            put_backlog(self.bootstrap, self.prefix, records)
            scores, self._requests, self._verdicts = (
                Log(self.bootstrap, self.prefix + topic, running)
                for topic in (SCORES_TOPIC, JUDGE_REQUESTS_TOPIC, JUDGE_VERDICTS_TOPIC)
            )
            roles = {
                name: Role(name, self.folder, environment, running)
                for name in ("sequencer", "judge", "evaluator")
            }
            kills = (
                []
                if peaceful_requests is None
                else [(at * peaceful_requests, names) for at, names in KILLS]
            )
            closed = 0
            deadline = time.monotonic() + patient(PATIENCE_SECONDS)
            while closed < CALLS:
                assert time.monotonic() < deadline, (
                    f"{closed} of {CALLS} calls are closed; see {self.folder}"
                )
                for role in roles.values():
                    role.must_run()
                closed += sum(
                    isinstance(row, CallRow) and row.state == "closed"
                    for row in rows_in(scores.read(0.05))
                )
                if kills and len(server.asked) >= kills[0][0]:
                    self._strike(kills.pop(0)[1], roles, server)
            assert not kills, f"all was judged before {kills}"
            roles["evaluator"].leave()
            for log in (scores, self._requests, self._verdicts):
                log.read(DRAIN_SECONDS)
            self.scores = scores.values
            self.asked = [each.user for each in server.asked]

    def questions(self) -> dict[str, JudgeRequest]:
        """By prompt, all that the evaluator asked."""
        found = [JudgeRequest.model_validate_json(value) for value in self._requests.values]
        return {question_of(request, "structured").user: request for request in found}

    def verdicts(self) -> list[JudgeVerdict]:
        """All records of their topic."""
        return [JudgeVerdict.model_validate_json(value) for value in self._verdicts.values]

    def _strike(
        self, names: Sequence[str], roles: Mapping[str, Role], server: ScriptedOpenAI
    ) -> None:
        """Kills these at once, and starts the next ones when the lost questions of a judge are
        known.
        """
        for name in names:
            roles[name].kill()
        killed_at = time.monotonic()
        if "judge" in names:
            self._requests.read(DRAIN_SECONDS)
            self._verdicts.read(DRAIN_SECONDS)
            answered = {verdict.request_id for verdict in self.verdicts()}
            request_ids = {
                prompt: request.request_id for prompt, request in self.questions().items()
            }
            new = server.asked[len(self.asked) :]
            lost = [each for each in new if request_ids[each.user] not in answered]
            self.lost.update(each.user for each in lost)
            ages = [killed_at - each.ended for each in lost if each.ended is not None]
            self.lost_late += [
                seconds for seconds in ages if seconds > patient(ACKNOWLEDGED_SECONDS)
            ]
            self.asked += [each.user for each in new]
        for name in names:
            roles[name].start()

    def _environment(self, server: ScriptedOpenAI) -> dict[str, str]:
        return {
            **variables(self.bootstrap, self.prefix),
            # so that the next one need not wait for the group
            "CALLGAUGE_EVALUATOR_INSTANCE": "the-only-one",
            "CALLGAUGE_GOALS__FOLDER": str(self.goals),
            "CALLGAUGE_GOALS__ASKS_JUDGE": "true",
            "CALLGAUGE_GOALS__VERDICT_DEADLINE_MS": str(
                PATIENCE_SECONDS * 1_000 + 10 * CALL_AGO_MS
            ),
            # When a call counts as stuck hangs on when verdicts come: it is not compared.
            "CALLGAUGE_GOALS__STALL_TURNS": "1000",
            "CALLGAUGE_GOALS__STALL_MS": "100000000",
            "CALLGAUGE_JUDGE__MAX_CONCURRENT_REQUESTS": str(AT_ONCE),
            "CALLGAUGE_JUDGE__MAX_REQUESTS_PER_MINUTE": "1000000",
            "CALLGAUGE_JUDGE__MAX_TOKENS_PER_MINUTE": "1000000000",
            "CALLGAUGE_JUDGE__BUDGET_PER_CALL": "1000",
            "CALLGAUGE_JUDGE__BUDGET_PER_AGENT_HOUR": "1000",
            "CALLGAUGE_JUDGE__BUDGET_PER_HOUR": "1000",
            "OPENAI_API_KEY": "key",
            "OPENAI_BASE_URL": server.url,
        }


@pytest.mark.long
def test_kills_during_judging_lose_no_score_and_ask_nothing_again(
    bootstrap: str, topic_prefix: str, tmp_path: Path
) -> None:
    goals = tmp_path / "goals"
    goals.mkdir()
    records = calls_with_goals(goals, time.time_ns() // 1_000_000)

    peace = Evening(bootstrap, f"{topic_prefix}peace.", tmp_path / "peace", goals)
    peace.hold(records, None)
    expected = rows_in(peace.scores)
    _require_substance(expected)

    storm = Evening(bootstrap, f"{topic_prefix}storm.", tmp_path / "storm", goals)
    storm.hold(records, len(peace.asked))
    findings = compared(expected, storm.scores, is_one_log=False)
    assert findings.is_clean, "\n".join(findings.examples)
    assert findings.calls == CALLS

    # Every question: as often as needed, and again if a killed judge had asked it without an
    # acknowledged verdict.
    asked = Counter(storm.asked)
    again = {
        prompt: count
        for prompt, count in asked.items()
        if count > REQUESTS_PER_QUESTION + storm.lost[prompt]
    }
    assert again == {}
    assert storm.lost.total() > 0, "no kill struck a question"
    assert storm.lost_late == []
    assert storm.questions().keys() == peace.questions().keys()
    assert len(storm.asked) <= len(peace.asked) + storm.lost.total()
    ids = Counter(verdict.request_id for verdict in storm.verdicts())
    assert set(ids.values()) == {1}, "a question has two verdicts"


def _require_substance(rows: Sequence[Row]) -> None:
    """The calls are such that there is something to lose: turns, subgoals of both kinds, reached
    and not reached.
    """
    finals = newest_rows(rows)
    assert sum(isinstance(row, TurnRow) and row.progress is not None for row in finals) > 2 * CALLS
    goals = [row.goals for row in finals if isinstance(row, CallRow) and row.goals is not None]
    subgoals = [each for of_call in goals for each in of_call.subgoals]
    assert len(subgoals) == CALLS * (JUDGED_SUBGOALS + 2)
    assert sum(each.by_judge for each in goals) == CALLS * JUDGED_SUBGOALS
    for is_judged in (True, False):
        reached = [
            each.reached_turn is not None for each in subgoals if _is_judged(each) == is_judged
        ]
        assert set(reached) == {True, False}, f"of those that a judge decides: {is_judged}"


def _is_judged(subgoal: SubgoalResult) -> bool:
    return bool(subgoal.votes_complete or subgoal.votes_incomplete)
