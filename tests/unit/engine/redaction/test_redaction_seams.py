"""Every text that leaves is without personal data; scores are computed on the original words."""

import io
import json
import logging
from typing import Any

import pytest
import structlog
from pydantic import ValidationError

from consumers.engine.effects import RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.judge.prompts import read_answer
from consumers.runtime.logs import configure_logging
from consumers.runtime.settings import LogFormat
from schemas.closed_sets import InputSource, JudgeKind, TrialOutcome
from schemas.judging import MAX_EXPLANATION_CHARS, JudgeRequest, TranscriptItem
from schemas.quarantine import QuarantineRecord
from schemas.redaction import RedactionRules
from schemas.rows import GoalsRow, encode
from streamer.quarantine import MAX_VALUE_BYTES, shown_value
from streamer.settings.all_settings import RedactionSettings
from tests.support.calls.judge_questions import (
    ScriptedEndpoint,
    judge_settings,
    question,
    running_judge,
)
from tests.support.fakes.engine_feed import T0_MS, Feed, Json, transcripts_of
from tests.support.fakes.evaluator_fakes import NOW_MS, partition_of
from tests.support.fakes.log_writer import LogWriter
from tests.support.known import some
from tests.unit.engine.goals.test_progress import JUDGED, GoalFeed, OneSet, goal_set

CARD = "4111 1111 1111 1111"
SAID_CARD = "four one one one, one one one one, one one one one, one one one one"
PLANTED = (
    "4111",
    "1111 1111",
    "four one one",
    "555-0142",
    "4155550142",
    "jane@example",
    "jane dot doe",
    "DE89",
    "1985",
)
PAID: Json = {
    "id": "paid",
    "details": f"The caller pays with {CARD} and jane@example.com gets the receipt.",
    "check": {"kind": "says", "speaker": "user", "pattern": "four one one one, one"},
}
TOOL: Json = {
    "phone": 4155550142,
    "card": {"number": CARD, "born": "14 March 1985"},
    "iban": "DE89370400440532013000",
}


class PlantedFeed(GoalFeed):
    """A call with goals and text judges, in which everything that there are detectors for is said
    and used.
    """

    def __init__(self, redactor: Redactor | None = None, *, code_only: bool = False) -> None:
        Feed.__init__(self)
        subgoals = [PAID] if code_only else [PAID, JUDGED | {"details": PAID["details"]}]
        self.goals = goal_set(*subgoals, user_instruction="Call from 415-555-0142 and pay.")
        self.rules = GoalRules(
            asks_judge=True,
            text_judges=(JudgeKind.CONCISENESS, JudgeKind.FAITHFULNESS, JudgeKind.SPEAKABILITY),
        )
        self._redactor = redactor
        self.evaluator = self._fresh()
        self.at_ms = 0

    def _fresh(self) -> PartitionEvaluator:
        goals = ChosenGoals(OneSet(self.goals), self.rules)
        return PartitionEvaluator(
            Limits(), "test", goals, writes_transcripts=True, redactor=self._redactor
        )

    def run(self, *, hands_over: bool = False) -> "PlantedFeed":
        (
            self.send("audit", {"type": "call_started", "agent": "desk"}, 0)
            .greet()
            .exchange(
                f"It's {SAID_CARD}, I'm jane dot doe at example dot com.",
                answer="Thanks, I have +1 415 555 0142.",
            )
        )
        value = {"tool": "pay", "parameters": TOOL}
        self.send("audit", {"message_type": "tool_call", "value": value}, self.at_ms + 100)
        answer = {
            "tool": "pay",
            "response": {"status": "success", "customer": [TOOL], "jane@example.com": "known"},
        }
        self.send(
            "audit", {"message_type": "tool_response", "value": answer}, self.at_ms + 200
        ).exchange("Born 14 March 1985, yes.", answer=f"So {CARD}.")
        if hands_over:
            self.hand_over(self._fresh())
        self.exchange("Thanks.", answer="Bye.").send(
            "audit", {"type": "call_ended", "reason": f"card {CARD} declined"}, self.at_ms
        )
        while (due_ms := self.evaluator.next_wakeup()) is not None:  # no judge
            self.advance(due_ms - T0_MS)
        return self


def everything_written(feed: Feed) -> str:
    """Rows, requests and the transcript, as they go to topics."""
    parts = [encode(row).decode() for row in feed.rows() if not isinstance(row, GoalsRow)]
    parts += [
        effect.request.model_dump_json()
        for effect in feed.effects
        if isinstance(effect, RequestVerdict)
    ]
    parts += [transcript.decode() for transcript in transcripts_of(feed.effects)]
    return "\n".join(parts)


def test_nothing_that_was_planted_leaves_the_engine() -> None:
    feed = PlantedFeed().run()
    written = everything_written(feed)
    assert [planted for planted in PLANTED if planted in written] == []
    (transcript,) = transcripts_of(feed.effects)
    for tag in ("[CARD]", "[PHONE]", "[EMAIL]", "[IBAN]", "[BIRTH_DATE]"):
        assert tag in written
        assert tag in transcript.decode()
    kinds = {request.kind for request in feed.requests}
    assert kinds == {
        JudgeKind.SUBGOAL,
        JudgeKind.CONCISENESS,
        JudgeKind.FAITHFULNESS,
        JudgeKind.SPEAKABILITY,
    }
    counts = feed.counts("callgauge_redactions_total")
    assert {labels[0] for labels in counts} == {"card", "phone", "email", "iban", "birth_date"}


def test_switched_off_it_all_leaves() -> None:
    """So that the test above can fail."""
    written = everything_written(PlantedFeed(Redactor(RedactionRules(enabled=False))).run())
    assert [planted for planted in PLANTED if planted not in written] == []


def test_scores_are_those_of_what_was_said() -> None:
    """A check by code finds the caller's words, which no reader may see."""
    for redactor in (Redactor(), Redactor(RedactionRules(enabled=False))):
        goals = some(PlantedFeed(redactor, code_only=True).run().call().goals)
        assert [(each.result, each.reached_turn) for each in goals.subgoals] == [(1.0, 1)]


def test_what_is_asked_stays_the_same_question() -> None:
    """Another evaluator asks with the same ids, also after a hand-over: they follow from the
    redacted text alone.
    """
    first, second = PlantedFeed().run(), PlantedFeed().run(hands_over=True)
    assert [request.request_id for request in first.requests] == [
        request.request_id for request in second.requests
    ]
    other = PlantedFeed(Redactor(RedactionRules(enabled=False))).run()
    assert {request.request_id for request in first.requests} != {
        each.request_id for each in other.requests
    }


def test_tools_are_json_in_a_question_as_they_were() -> None:
    request: JudgeRequest = PlantedFeed().run().requests[-1]
    tools = [item for item in request.transcript if item.tool is not None]
    assert tools
    for item in tools:
        assert json.loads(item.text)["card" if item.kind == "tool_call" else "customer"]
    assert {
        "phone": "[PHONE]",
        "card": {"number": "[CARD]", "born": "[BIRTH_DATE]"},
        "iban": "[IBAN]",
    } in [json.loads(item.text) for item in tools]


def test_a_long_answer_is_cut_and_not_in_the_middle_of_a_number() -> None:
    feed = PlantedFeed()
    (
        feed.send("audit", {"type": "call_started", "agent": "desk"}, 0)
        .greet()
        .exchange("Hello", tool=None)
        .send(
            "audit",
            {"message_type": "tool_call", "value": {"tool": "list", "parameters": {}}},
            feed.at_ms,
        )
    )
    numbers = [f"{CARD} and so on" for _ in range(2_000)]
    answer = {"tool": "list", "response": {"status": "success", "numbers": numbers}}
    (
        feed.send("audit", {"message_type": "tool_response", "value": answer}, feed.at_ms + 50)
        .exchange("x" * 30_000 + f" {CARD}")
        .exchange("x" * 31_000)
    )
    assert "11" not in "".join(
        item.text for request in feed.requests for item in request.transcript
    )


def test_a_turn_longer_than_an_item_may_be_does_not_end_the_evaluator() -> None:
    feed = PlantedFeed()
    feed.send("audit", {"type": "call_started", "agent": "desk"}, 0).greet()
    for part in range(3):
        feed.heard(f"part {part} " + "word " * 5_000, feed.at_ms + 1_000 + part)
    feed.exchange("word " * 6_000).exchange("Thanks.")
    assert feed.requests


def test_why_a_call_ended_is_redacted_and_told_again_by_a_back_test() -> None:
    feed = PlantedFeed().run()
    ended_reason = feed.call().ended_reason
    assert ended_reason == "card [CARD] declined"
    assert Redactor().redact(ended_reason) == ended_reason


WRONG: list[tuple[InputSource, Json]] = [
    (
        InputSource.PIPECAT,
        {"type": "tts_text", "timestamp": f"{CARD} {SAID_CARD}", "data": {"frame": "x"}},
    ),
    (
        InputSource.PIPECAT,
        {"type": "tts_text", "timestamp": NOW_MS, "data": {"frame": {"phone": 4155550142}}},
    ),
    (
        InputSource.PIPECAT,
        {"type": "tts_text", "timestamp": NOW_MS, "data": {"frame": 4111111111111111}},
    ),
    (
        InputSource.AUDIT,
        {"message_type": "user", "timestamp": str(NOW_MS), "value": ["jane@example.com", CARD] * 9},
    ),
    (
        InputSource.AUDIT,
        {"message_type": "tool_call", "timestamp": str(NOW_MS), "value": {"phone": "4155550142"}},
    ),
    (
        InputSource.ELEVENLABS,
        {"event_type": "audio_start", "user": CARD, "timestamp": NOW_MS, "audio_timestamp": 1.0},
    ),
    (
        InputSource.JUDGE,
        {
            "type": "call_started",
            "timestamp": NOW_MS,
            "pipeline_type": f"jane@example.com {SAID_CARD}",
        },
    ),
]


@pytest.mark.parametrize(("source", "event"), WRONG)
def test_a_quarantine_record_and_its_log_line_repeat_nothing(
    source: InputSource, event: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    record = LogWriter().event(source, "c-1", json.dumps(event).encode(), NOW_MS)
    partition, registry = partition_of(PartitionEvaluator(Limits(), "test"))
    partition.fold(record, NOW_MS)
    partition.count_events()
    ((refused,),) = [decision.records for decision in partition.outbox.first()]
    assert isinstance(refused, QuarantineRecord)
    told = refused.model_dump_json() + capsys.readouterr().out
    assert "record_quarantined" in told
    assert [planted for planted in PLANTED if planted in told] == []
    assert "[" in refused.expected_and_seen
    labels = [{"type": each} for each in ("card", "phone", "email")]
    assert (
        sum(registry.get_sample_value("callgauge_redactions_total", each) or 0 for each in labels)
        > 0
    )


def test_the_rules_of_the_operator_hold_for_refused_records() -> None:
    source, event = WRONG[0]
    record = LogWriter().event(source, "c-1", json.dumps(event).encode(), NOW_MS)
    off = Redactor(RedactionRules(enabled=False))
    partition, _ = partition_of(PartitionEvaluator(Limits(), "test", redactor=off))
    partition.fold(record, NOW_MS)
    ((refused,),) = [decision.records for decision in partition.outbox.first()]
    assert isinstance(refused, QuarantineRecord)
    assert CARD in refused.expected_and_seen


@pytest.mark.parametrize("size", [MAX_VALUE_BYTES - 15, MAX_VALUE_BYTES, 10 * MAX_VALUE_BYTES])
def test_a_refused_record_is_shown_without_them(size: int) -> None:
    raw = (
        json.dumps({"phone": "4155550142", "text": CARD})[:-1] + "x" * size + CARD
    ).encode() + b"\xff"
    shown = shown_value(raw, Redactor())
    assert [planted for planted in PLANTED if planted in shown] == []
    assert shown.startswith('{"phone": "[PHONE]", "text": "[CARD]"')
    assert f"of {len(raw)} bytes" in shown
    assert shown_value(CARD.encode(), Redactor(RedactionRules(enabled=False))) == CARD


@pytest.mark.parametrize("form", ["structured", "grade"])
def test_what_a_model_explains_is_redacted_before_it_is_cut(form: Any) -> None:
    told = f"{'word ' * 97}The caller said {CARD}, and mail jane@example.com."
    text = (
        json.dumps({"explanation": told, "grade": "C"})
        if form == "structured"
        else f"{told}\nGRADE: C"
    )
    answer = some(read_answer(JudgeKind.SUBGOAL, form, text))
    assert "11" not in answer.explanation
    assert "41" not in answer.explanation
    assert len(answer.explanation) <= MAX_EXPLANATION_CHARS


async def test_a_verdict_repeats_nothing_and_counts_it() -> None:
    def explains(_: object) -> Any:
        from consumers.judge.reply import Reply

        explanation = f"It was {SAID_CARD} of jane dot doe at example dot com."
        return Reply(TrialOutcome.ANSWERED, json.dumps({"explanation": explanation, "grade": "C"}))

    async with running_judge(judge_settings(), ScriptedEndpoint(explains)) as (judge, instruments):
        verdict = await judge.ask(question())
        assert {answer.explanation for answer in verdict.answers} == {"It was [CARD] of [EMAIL]."}
        page = instruments.registry
        assert page.get_sample_value("callgauge_judge_redactions_total", {"type": "card"}) == len(
            verdict.answers
        )


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_log_line_repeats_nothing_not_even_in_a_traceback(log_format: LogFormat) -> None:
    output = io.StringIO()
    configure_logging(log_format, stream=output, redact=Redactor().redact)
    log = structlog.get_logger()
    log.warning(
        "record_refused",
        seen=f"saw {CARD}",
        offset=4111111111111111,
        conversation_id="call-4155550142",
    )
    logging.getLogger("library").warning("sent to %s", "jane@example.com")
    try:
        int(f"cannot book for {SAID_CARD}")
    except ValueError:
        log.exception("booking_failed")
        logging.getLogger("library").exception("failed for jane@example.com")
    text = output.getvalue()
    assert [
        planted for planted in ("1111 1111", "four one one", "jane@example") if planted in text
    ] == []
    assert text.count("[CARD]") >= 2
    assert text.count("[EMAIL]") >= 2
    assert "Traceback" in text
    assert "call-4155550142" in text


def test_errors_of_what_is_written_repeat_no_text() -> None:
    with pytest.raises(ValidationError) as caught:
        TranscriptItem(turn=1, kind="user", text=CARD * 9_000)
    assert "1111" not in str(caught.value)


def test_settings_are_rules() -> None:
    settings = RedactionSettings.model_validate(
        {"detectors": "card, email", "phone_regions": "GB,DE"}
    )
    assert (settings.detectors, settings.phone_regions) == (("card", "email"), ("GB", "DE"))
    assert RedactionSettings().model_dump() == RedactionRules().model_dump()
    with pytest.raises(ValidationError, match="'mail' is none of card, phone"):
        RedactionSettings.model_validate({"detectors": "mail"})
    with pytest.raises(ValidationError, match="no country with a telephone plan"):
        RedactionSettings.model_validate({"phone_regions": "US,XX"})
    with pytest.raises(ValidationError, match="Extra inputs"):
        RedactionSettings.model_validate({"enable": False})
