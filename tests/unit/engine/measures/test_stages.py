"""The stages of a turn's latency: how they are read, their values, and how they come
out of a call.
"""

import itertools
import json
from typing import Any, Self

import pytest

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.engine.measures.stages import (
    MAX_VALUES_PER_TURN,
    Reported,
    StageLatencies,
    StageValues,
    TurnWindows,
    convai_seconds,
)
from consumers.engine.sources.facts import Measured
from consumers.engine.sources.findings import MAX_ITEMS, EventFindings
from consumers.engine.sources.rules import RULES
from consumers.engine.turns.bot import BotTurn, BotTurnMachine, TokenUsage
from consumers.engine.turns.eva import EvaHistory
from consumers.engine.turns.heard import HeardByTheBot
from consumers.engine.turns.timeline import ToolUses
from schemas.closed_sets import Anchor, InputSource
from schemas.events.codec import decode
from schemas.rows import STAGE_NEWS, Agreement, StageLatency, TurnRow
from schemas.scores.latency_stages import Stage, StageSource
from tests.support.calls import agent_calls
from tests.support.calls.pipecat_calls import recorded_calls
from tests.support.fakes.engine_feed import T0_MS, Feed

STT, LLM, TTS = "OneSTTService#0", "OneLLMService#0", "OneTTSService#0"


class Phone(Feed):
    """A call on a line: the bot says who speaks, and its services how long they took."""

    def exchange(self, at_ms: int, *, spoken: bool = True) -> Self:
        """The user speaks for a second; 1.1 s later the bot answers for two."""
        for kind, after_ms in (
            ("user_speech_started", 0),
            ("user_turn_started", 200),
            ("user_speech_stopped", 1000),
            ("user_turn_stopped", 1400),
        ):
            self.speech(kind, at_ms + after_ms)
        if spoken:
            self.speech("bot_speech_started", at_ms + 2100).speech(
                "bot_speech_stopped", at_ms + 4100
            )
        return self

    def greeting(self) -> Self:
        return self.speech("bot_speech_started", 0).speech("bot_speech_stopped", 500)

    def metric(
        self, processor: str, seconds: float, at_ms: int, kind: str = "TTFBMetricsData"
    ) -> Self:
        """A service reports its time until `at_ms`."""
        return self.send(
            "pipecat", {"type": kind, "processor": processor, "model": "m", "value": seconds}, at_ms
        )

    def observed(self, kind: str, data: Any, at_ms: int) -> Self:
        return self.send("pipecat", {"type": kind, "data": data}, at_ms)

    def leave(self, at_ms: int) -> Self:
        """The user begins another turn: the one before is left, and its known values
        are published.
        """
        return self.speech("user_speech_started", at_ms).speech("user_turn_started", at_ms + 200)

    def stages(self, turn: int) -> dict[Stage, float]:
        return {each.stage: each.latency_ms for each in self.turn(turn).stages}

    def stage(self, turn: int, stage: Stage) -> StageLatency:
        (found,) = [each for each in self.turn(turn).stages if each.stage is stage]
        return found

    def known(self, turn: int) -> list[list[Stage]]:
        """The stages that a row of the turn says to be known for the first time, row by row, where
        there are some.
        """
        return [found for row in self.turn_rows(turn) if (found := stages_in(row))]

    @property
    def measure(self) -> StageLatencies:
        return self.evaluator._calls["call"]._measures.stages


def stages_in(row: TurnRow) -> list[Stage]:
    """Those among its news."""
    return [
        Stage(name.removeprefix(STAGE_NEWS)) for name in row.news if name.startswith(STAGE_NEWS)
    ]


@pytest.fixture
def phone() -> Phone:
    return Phone().greeting()


def test_numbers_belong_to_the_turn_in_whose_time_they_began(phone: Phone) -> None:
    phone.metric(TTS, 0.1, 100)
    for turn, at_ms in enumerate((1000, 6000, 11_000), 1):
        (
            phone.metric(STT, 0.3 + turn / 100, at_ms + 1300)
            .metric(LLM, 0.4 + turn / 100, at_ms + 1800)
            .metric(TTS, 0.2 + turn / 100, at_ms + 2050)
            .exchange(at_ms)
        )
    phone.leave(16_000)
    for turn in (1, 2, 3):
        assert phone.stages(turn) == {
            Stage.ENDPOINTING: 400,
            Stage.STT_TRAILING: 300 + 10 * turn,
            Stage.LLM_FIRST_TOKEN: 400 + 10 * turn,
            Stage.TTS_FIRST_BYTE: 200 + 10 * turn,
        }
    assert phone.stages(0) == {Stage.TTS_FIRST_BYTE: 100}


def test_stages_are_published_when_the_turn_is_left_and_each_is_counted_once(phone: Phone) -> None:
    phone.exchange(1000, spoken=False).metric(LLM, 0.4, 2800).spoke("bot", 3100, 5100)
    assert phone.turn(1).stages == ()
    phone.leave(6000)
    first = phone.turn(1)
    assert ("turn" in first.news, stages_in(first)) == (
        True,
        [Stage.ENDPOINTING, Stage.LLM_FIRST_TOKEN],
    )
    phone.metric(LLM, 2.0, 5200, "ProcessingMetricsData")  # a number of the turn that is left
    assert phone.turn(1) == first
    (
        phone.leave(12_000)
        .speech("user_turn_stopped", 13_000)
        .speech("bot_speech_started", 14_000)
        .leave(16_000)
    )
    second = phone.turn(1)
    assert ("turn" in second.news, stages_in(second)) == (False, [Stage.LLM_LAST_SENTENCE])
    phone.send("audit", {"type": "call_ended"}, 17_000).advance(60_000)
    assert phone.turn(1).stages == second.stages
    assert phone.known(1) == [[Stage.ENDPOINTING, Stage.LLM_FIRST_TOKEN], [Stage.LLM_LAST_SENTENCE]]


def test_a_number_that_comes_after_its_turn_was_left_is_known_at_the_close_at_the_latest(
    phone: Phone,
) -> None:
    (
        phone.exchange(1000)
        .leave(6000)
        .metric(LLM, 0.4, 2800)
        .send("audit", {"type": "call_ended"}, 7000)
        .advance(60_000)
    )
    assert phone.known(1) == [[Stage.ENDPOINTING], [Stage.LLM_FIRST_TOKEN]]


def test_where_nobody_says_when_an_answer_ends_stages_are_published_when_the_turn_is_left() -> None:
    phone = (
        Phone()
        .bot_text("Hello", 100)
        .ruling("user_started_speaking", 1000)
        .ruling("user_stopped_speaking", 2000)
        .metric(LLM, 0.4, 2500)
        .bot_text("Yes.", 2600)
    )
    assert [row.stages for row in phone.turn_rows(1)] in ([], [()])
    phone.ruling("user_started_speaking", 5000)
    assert phone.stages(1) == {Stage.LLM_FIRST_TOKEN: 400}


def test_what_a_barge_in_cuts_off_belongs_to_the_answer_that_it_cuts_off(phone: Phone) -> None:
    (
        phone.exchange(1000, spoken=False)
        .speech("bot_speech_started", 3100)
        .speech("user_speech_started", 4000)
        .speech("user_turn_started", 4010)
        .speech("bot_speech_stopped", 4050)
        .metric(LLM, 2.0, 4300, "ProcessingMetricsData")  # asked for at 2300
        .leave(9000)
        .advance(900_000)
    )
    assert phone.stages(1)[Stage.LLM_LAST_SENTENCE] == 2000
    assert phone.stages(2) == {}


def test_numbers_move_when_their_turn_turns_out_to_be_two(phone: Phone) -> None:
    (
        phone.exchange(1000)
        .metric(LLM, 0.4, 2800)
        .metric(LLM, 0.5, 8800)
        .metric(LLM, 0.9, 9300, "ProcessingMetricsData")
        .leave(15_000)
    )
    assert phone.stages(1)[Stage.LLM_LAST_SENTENCE] == 900
    phone.exchange(7000)  # its events come late
    assert phone.stages(1) == {Stage.ENDPOINTING: 400, Stage.LLM_FIRST_TOKEN: 400}
    assert phone.stages(2) == {
        Stage.ENDPOINTING: 400,
        Stage.LLM_FIRST_TOKEN: 500,
        Stage.LLM_LAST_SENTENCE: 900,
    }


def test_a_turn_that_is_no_more_takes_its_stages_back(phone: Phone) -> None:
    """The first audio event says that the call is heard through a simulated caller, whose turns are
    others.
    """
    phone.exchange(1000).metric(LLM, 0.4, 2800).exchange(7000).leave(13_000)
    assert phone.stages(1) == {Stage.ENDPOINTING: 400, Stage.LLM_FIRST_TOKEN: 400}
    phone.assistant_audio(100, 500)
    for turn in (1, 2):
        withdrawn = phone.turn(turn)
        assert (withdrawn.status, withdrawn.stages, stages_in(withdrawn)) == ("withdrawn", (), [])


def test_of_several_numbers_of_a_turn_the_rule_of_the_stage_picks_one(phone: Phone) -> None:
    for at_ms, seconds in ((2300, 0.3), (2600, 0.35)):
        phone.metric(STT, seconds, at_ms)
    for at_ms, seconds in ((3000, 0.4), (3600, 0.5)):
        phone.metric(LLM, seconds, at_ms).metric(
            LLM, seconds + 0.05, at_ms + 50, "ProcessingMetricsData"
        )
    for at_ms in (4000, 4500):
        phone.metric(TTS, at_ms / 10_000, at_ms)
    phone.exchange(1000).leave(9000)
    found = phone.stages(1)
    assert found[Stage.STT_TRAILING] == 350, "the last wait was the one before the answer"
    assert found[Stage.LLM_FIRST_TOKEN] == 400
    assert found[Stage.LLM_LAST_SENTENCE] == 550, "the last inference is the one that was spoken"
    assert found[Stage.TTS_FIRST_BYTE] == 400


def test_the_first_sentence_is_the_first_token_of_its_inference_and_the_wait_for_the_sentence(
    phone: Phone,
) -> None:
    (
        phone.metric(LLM, 0.4, 2800)
        .metric(LLM, 0.3, 3400)
        .metric(TTS, 0.125, 3525, "TextAggregationMetricsData")
        .exchange(1000)
        .leave(9000)
    )
    assert phone.stages(1)[Stage.LLM_FIRST_SENTENCE] == 425
    assert phone.stages(1)[Stage.SENTENCE_AGGREGATION] == 125


def test_a_wait_that_is_told_when_its_answer_is_cut_off_is_of_the_moment_that_it_names(
    phone: Phone,
) -> None:
    """As LiveKit tells it, whose rulings are in no event."""
    for kind, at_ms in (
        ("user_speech_started", 1000),
        ("user_speech_stopped", 1400),
        ("bot_speech_started", 1830),
        ("user_speech_started", 2630),
    ):
        phone.speech(kind, at_ms)
    phone.observed(
        "user_bot_latency", {"latency_seconds": 0.432, "timestamp": (T0_MS + 1830) / 1000}, 2850
    )
    for kind, at_ms in (
        ("bot_speech_stopped", 2850),
        ("user_speech_stopped", 3030),
        ("bot_speech_started", 3460),
        ("bot_speech_stopped", 3700),
        ("user_speech_started", 4200),
    ):
        phone.speech(kind, at_ms)
    assert phone.stages(1)[Stage.VOICE_TO_VOICE] == 432


def test_sources_that_say_nearly_the_same_agree(phone: Phone) -> None:
    phone.exchange(1000).observed("user_bot_latency", {"latency_seconds": 1.2}, 3100).leave(9000)
    found = phone.stage(1, Stage.VOICE_TO_VOICE)
    assert (found.latency_ms, found.source, found.anchor) == (1200, StageSource.PIPECAT, Anchor.VAD)
    assert found.others_ms == {StageSource.SPEECH: 1100}
    assert not found.is_disputed


@pytest.mark.parametrize(
    ("seconds", "is_disputed"),
    [(1.3, False), (1.375, False), (1.376, True), (0.88, False), (0.875, True)],
)
def test_sources_that_are_further_apart_disagree(
    phone: Phone, seconds: float, *, is_disputed: bool
) -> None:
    """1.1 s were heard; 200 ms and a fifth of the larger number are allowed."""
    (
        phone.exchange(1000)
        .observed("user_bot_latency", {"latency_seconds": seconds}, 3100)
        .leave(9000)
    )
    assert phone.stage(1, Stage.VOICE_TO_VOICE).is_disputed is is_disputed


def test_a_wait_that_only_we_measured_has_its_own_score_and_is_no_stage(phone: Phone) -> None:
    phone.exchange(1000).leave(9000)
    assert phone.stages(1) == {Stage.ENDPOINTING: 400}
    assert phone.latencies()[1] == 1100


def test_tools_run_for_the_sum_of_their_runs_by_the_audit_log_and_by_pipecat(phone: Phone) -> None:
    phone.exchange(1000, spoken=False)
    for tool, at_ms in (("look", 2500), ("find", 2700)):
        phone.tool_call(tool, at_ms).tool_answer(tool, at_ms + 150)
        times = {
            "in_progress_at": (T0_MS + at_ms + 5) / 1000,
            "timestamp": (T0_MS + at_ms + 145) / 1000,
        }
        for _ in range(2):  # a producer that sends a record twice without an id
            data = {"kind": "function_call_completed", "function_name": tool, **times}
            phone.observed("function_call_event", data, at_ms + 145)
    phone.spoke("bot", 3100, 4100).leave(9000)
    found = phone.stage(1, Stage.TOOL_RUN)
    assert (found.latency_ms, found.source, found.others_ms) == (
        280,
        StageSource.PIPECAT,
        {StageSource.AUDIT: 300},
    )
    assert not found.is_disputed


def test_a_run_that_the_breakdown_begins_earlier_keeps_its_own_length(phone: Phone) -> None:
    """The breakdown counts from the request, so its report covers the run's own: one run told
    twice, and none of no length.
    """
    run = {"in_progress_at": (T0_MS + 2403) / 1000, "timestamp": (T0_MS + 2900) / 1000}
    told_again = {"function_name": "look", "start_time": (T0_MS + 2400) / 1000}
    phone.observed("function_call_event", {"kind": "function_call_completed", **run}, 2900)
    phone.observed(
        "latency_breakdown", {"function_calls": [{**told_again, "duration_secs": 0.5}]}, 3100
    )
    phone.exchange(1000).leave(9000)
    assert phone.stages(1)[Stage.TOOL_RUN] == 497


def test_a_breakdown_s_own_figures_stand_behind_those_of_the_services(phone: Phone) -> None:
    phone.metric(LLM, 0.4, 2800)
    part = {"processor": LLM, "start_time": (T0_MS + 2400) / 1000, "duration_secs": 0.44}
    phone.observed("latency_breakdown", {"ttfb": [part]}, 3100).exchange(1000).leave(9000)
    assert phone.stages(1)[Stage.LLM_FIRST_TOKEN] == 400


def test_the_model_is_named_where_the_service_names_it(phone: Phone) -> None:
    phone.metric(LLM, 0.4, 2800).exchange(1000).leave(9000)
    assert phone.stage(1, Stage.LLM_FIRST_TOKEN).model == "m"
    assert phone.stage(1, Stage.ENDPOINTING).model is None


def test_zeros_of_the_start_are_no_numbers() -> None:
    phone = Phone()
    for processor in (STT, LLM, TTS):
        phone.metric(processor, 0.0, 10)
    phone.greeting().exchange(1000)
    assert (phone.stages(0), phone.counts("callgauge_stage_values_unmapped_total")) == ({}, {})


def test_unknown_names_are_counted_by_source_and_kept_up_to_a_bound(phone: Phone) -> None:
    for number in range(50):
        phone.metric(f"Camera#{number}", 0.4, 2800)
    phone.send(
        "audit", {"message_type": "llm_call", "value": {"response": ""}, "latency_ms": "soon"}, 2900
    )
    assert phone.counts("callgauge_stage_values_unmapped_total") == {}
    phone.leave(3000)
    assert phone.counts("callgauge_stage_values_unmapped_total") == {
        ("pipecat",): 50,
        ("audit",): 1,
    }
    assert len(phone.measure.unknown_keys) == 32


def test_beyond_the_limit_numbers_do_not_count_and_that_is_said_once() -> None:
    phone = Phone(Limits(max_stage_values_per_call=3)).greeting().exchange(1000)
    for number in range(10):
        phone.metric(LLM, 0.4 + number / 100, 2800 + 10 * number).send(
            "audit",
            {"message_type": "llm_call", "value": "Yes", "usage": {"completion_tokens": 5}},
            2900 + number,
        )
    phone.leave(7000)
    assert phone.counts("callgauge_limits_hit_total") == {("stage_values",): 1}
    assert len(phone.measure._values) + len(phone.measure._used) == 3
    phone.exchange(7000).leave(13_000)
    assert phone.stages(2) == {Stage.ENDPOINTING: 400}, "the call goes on"


def test_only_so_many_numbers_of_a_turn_count(phone: Phone) -> None:
    """The earliest: a loop in a producer must not make every further event cost the whole call."""
    phone.exchange(1000)
    for number in range(MAX_VALUES_PER_TURN + 20):
        begun_s = (T0_MS + 2500 + 4 * number) / 1000
        run = {
            "kind": "function_call_completed",
            "in_progress_at": begun_s,
            "timestamp": begun_s + 0.002,
        }
        phone.observed("function_call_event", run, 2900)
    phone.leave(9000)
    assert phone.stages(1)[Stage.TOOL_RUN] == pytest.approx(MAX_VALUES_PER_TURN * 2, abs=1)


def test_transcripts_get_seconds_by_name_and_tokens_by_model(phone: Phone) -> None:
    phone.metric(STT, 0.3, 2300).metric(LLM, 0.4, 2800)
    tokens = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    for at_ms in (2900, 3000):
        phone.observed(
            "service_usage",
            {"kind": "llm", "model": "gpt", **tokens, "timestamp": (T0_MS + at_ms) / 1000},
            at_ms,
        ).send(
            "audit",
            {"message_type": "llm_call", "value": "Yes", "model": "other", "usage": tokens},
            at_ms,
        )
    phone.exchange(1000).exchange(7000)
    live = phone.evaluator._calls["call"].live
    heard = live.heard()
    said = phone.measure.turn_metrics(heard, live.record, 1)
    assert said.seconds == {
        "convai_turn_silence_before_initiation": 0.4,
        "convai_asr_trailing_service_latency": 0.3,
        "convai_llm_service_ttfb": 0.4,
        "convai_ttf_audio_since_silence": 1.1,
    }
    assert said.usage == {"gpt": TokenUsage(200, 0, 0, 20)}, "both count the same tokens"
    assert phone.measure.turn_metrics(heard, None, 2).usage == {}
    assert phone.measure.turn_metrics(heard, None, 9) == ({}, {})


def test_an_elevenlabs_record_gives_its_metrics_a_copy_only_where_the_original_is_missing(
    phone: Phone,
) -> None:
    phone.exchange(1000).exchange(7000)
    both = {
        "convai_turn_asr_latency": 0.35,
        "convai_asr_trailing_service_latency": 0.3,
        "convai_of_tomorrow": 1.0,
    }
    phone.measure.fold_convai(1, both)
    phone.measure.fold_convai(2, {"convai_turn_asr_latency": 0.35, "convai_llm_service_ttfb": -1.0})
    phone.measure.fold_convai(2, {"convai_turn_asr_latency": 0.35, "convai_llm_service_ttfb": -1.0})
    phone.leave(13_000)
    assert phone.stage(1, Stage.STT_TRAILING).latency_ms == 300
    assert phone.stage(1, Stage.STT_TRAILING).source is StageSource.ELEVENLABS
    assert phone.stages(2) == {Stage.ENDPOINTING: 400, Stage.STT_TRAILING: 350}
    assert phone.counts("callgauge_stage_values_unmapped_total") == {("elevenlabs",): 1}


def test_a_successor_counts_no_stage_again(phone: Phone) -> None:
    """Of a turn with two stages written, a third is known after the hand-over: only that one is
    new.
    """
    phone.metric(LLM, 0.4, 2800).exchange(1000).leave(7000)
    assert phone.known(1) == [[Stage.ENDPOINTING, Stage.LLM_FIRST_TOKEN]]
    (
        phone.hand_over(PartitionEvaluator(Limits(), "test"))
        .metric(TTS, 0.2, 3000)
        .exchange(7000)
        .leave(13_000)
    )
    assert stages_in(phone.turn(1)) == [Stage.TTS_FIRST_BYTE]
    phone.metric(TTS, 0.3, 2950).exchange(13_000).leave(19_000)
    assert phone.stage(1, Stage.TTS_FIRST_BYTE).latency_ms == 300, "the first one that began"
    assert phone.known(1) == [[Stage.ENDPOINTING, Stage.LLM_FIRST_TOKEN], [Stage.TTS_FIRST_BYTE]]


def test_the_call_says_how_often_sources_disagree(phone: Phone) -> None:
    for at_ms, seconds in ((1000, 1.1), (7000, 1.2), (13_000, 2.0)):
        phone.exchange(at_ms).observed(
            "user_bot_latency", {"latency_seconds": seconds}, at_ms + 2100
        )
    (
        phone.exchange(19_000)  # no other source measured it
        .send("audit", {"type": "call_ended"}, 25_000)
        .advance(60_000)
    )
    agreement = phone.call().stages
    assert agreement == {Stage.VOICE_TO_VOICE: Agreement(compared=3, disputed=1)}


def closed_with(latencies_ms: list[float]) -> Phone:
    """Two answered turns with waits of 1.1 s and one without an answer, and the run's values at the
    end.
    """
    return (
        Phone()
        .greeting()
        .exchange(1000)
        .exchange(7000)
        .exchange(13_000, spoken=False)
        .send("audit", {"type": "call_ended", "response_latencies_ms": latencies_ms}, 25_000)
        .advance(60_000)
    )


def test_the_run_s_own_latencies_stand_beside_those_from_the_times_of_speech() -> None:
    phone = closed_with([1150, 2100])
    alike, apart = phone.stage(1, Stage.VOICE_TO_VOICE), phone.stage(2, Stage.VOICE_TO_VOICE)
    assert (alike.latency_ms, alike.source, alike.anchor) == (1150, StageSource.RUN, Anchor.RECORD)
    assert alike.others_ms == apart.others_ms == {StageSource.SPEECH: 1100}
    assert (alike.is_disputed, apart.is_disputed) == (False, True)
    assert phone.call().stages == {Stage.VOICE_TO_VOICE: Agreement(compared=2, disputed=1)}
    # the measured score does not change
    assert (phone.latencies()[1], phone.latencies()[2]) == (1100, 1100)
    assert phone.counts("callgauge_stage_values_unmapped_total") == {}


@pytest.mark.parametrize(("heard_ms", "seconds"), [(1_966.0, 1.966), (-21_287.0, None)])
def test_a_transcript_has_the_wait_as_heard_and_not_as_the_run_measured_it(
    heard_ms: float, seconds: float | None
) -> None:
    found = convai_seconds(
        {Stage.VOICE_TO_VOICE: {StageSource.RUN: Reported(0, 5.1, "")}}, heard_ms
    )
    assert found.get("convai_ttf_audio_since_silence") == seconds


@pytest.mark.parametrize("latencies_ms", [[1150], [1150, 2100, 900]])
def test_latencies_of_the_run_that_cannot_be_filed_under_turns_are_counted(
    latencies_ms: list[float],
) -> None:
    phone = closed_with(latencies_ms)
    assert [Stage.VOICE_TO_VOICE in phone.stages(turn) for turn in (1, 2)] == [False, False]
    assert phone.call().stages == {}
    assert phone.counts("callgauge_stage_values_unmapped_total") == {("audit",): len(latencies_ms)}


def test_events_about_stages_are_no_part_of_eva_s_history() -> None:
    def context(*, with_metrics: bool) -> Any:
        phone = Phone().assistant_audio(100, 500).user_audio(1000, 2000)
        if with_metrics:
            phone.metric(LLM, 0.4, 2800).observed("latency_breakdown", {"total_secs": 1}, 2900)
        phone.assistant_audio(3000, 4000)
        if with_metrics:
            phone.metric(TTS, 0.4, 9000)
        return phone.evaluator._calls["call"].eva_context()

    assert context(with_metrics=True) == context(with_metrics=False)


AT_MS = 1_790_000_000_000
AT_S = AT_MS / 1000


def read(source: InputSource, event: dict[str, Any]) -> EventFindings:
    typed = decode(source, json.dumps({"timestamp": AT_MS} | event).encode())
    found = [fact for fact in RULES[type(typed)].facts(typed) if isinstance(fact, EventFindings)]
    return found[0] if found else EventFindings(source)


def pipecat(event: dict[str, Any]) -> EventFindings:
    return read(InputSource.PIPECAT, event)


def metric(
    value: Any, kind: str = "TTFBMetricsData", processor: str | None = "OneLLMService#0"
) -> dict[str, Any]:
    return {"type": kind, "processor": processor, "model": None, "value": value}


def observed(kind: str, data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data}


@pytest.mark.parametrize("value", [0, 0.0, -0.0])
def test_a_first_report_of_zero_is_no_value_and_nothing_unknown(value: float) -> None:
    found = pipecat(metric(value))
    assert (found.measured, found.unknown) == ([], [])


@pytest.mark.parametrize(
    ("event", "key"),
    [
        (metric(-0.1), "TTFBMetricsData of OneLLMService#0"),
        (metric(601), "TTFBMetricsData of OneLLMService#0"),
        (metric(10**400), "TTFBMetricsData of OneLLMService#0"),
        (metric("0.5"), "TTFBMetricsData of OneLLMService#0"),
        (metric(None), "TTFBMetricsData of OneLLMService#0"),
        (metric(True), "TTFBMetricsData of OneLLMService#0"),
        (metric({"value": 1}), "TTFBMetricsData of OneLLMService#0"),
        (metric(0.5, processor="OneVideoService#0"), "TTFBMetricsData of OneVideoService#0"),
        (metric(0.5, processor=None), "TTFBMetricsData of None"),
        (metric(0.5, "TurnMetricsData"), "TurnMetricsData of OneLLMService#0"),
        (
            metric({"e2e_processing_time_ms": 10**400}, "TurnMetricsData"),
            "TurnMetricsData of OneLLMService#0",
        ),
        (metric([], "LLMUsageMetricsData"), "LLMUsageMetricsData"),
        (metric(0.5, "LatencyMetric") | {"stage": "vad"}, "LatencyMetric vad"),
        (metric(0.5, "LatencyMetric"), "LatencyMetric None"),
        (observed("user_bot_latency", {"latency": 1}), "voice_to_voice"),
        (observed("first_bot_speech_latency", None), "first_speech"),
        (observed("service_latency", None), "service_latency NoneType of "),
        (
            observed("service_latency", {"kind": "ttfb", "processor": "OneLLMService#0"}),
            "service_latency ttfb of OneLLMService#0",
        ),
        (observed("service_latency", {"kind": ["x"], "seconds": 1}), "service_latency list of "),
        (
            observed("service_latency", {"kind": "ttlb", "processor": "XLLM#0", "seconds": 1}),
            "service_latency ttlb of XLLM#0",
        ),
        (
            observed(
                "latency_breakdown", {"contributions": [{"key": "thinking", "duration_secs": 1}]}
            ),
            "contribution thinking",
        ),
        (
            observed(
                "latency_breakdown", {"contributions": [{"key": "pipeline", "duration_secs": -1}]}
            ),
            "contribution pipeline",
        ),
        (
            observed(
                "latency_breakdown",
                {"contributions": [{"key": "pipeline", "duration_secs": 10**400}]},
            ),
            "contribution pipeline",
        ),
        (observed("latency_breakdown", {"contributions": [{"key": {}}]}), "contribution dict"),
        (
            observed("latency_breakdown", {"ttfb": [{"processor": "Other#0", "duration_secs": 1}]}),
            "ttfb of Other#0",
        ),
        (
            observed("latency_breakdown", {"measured_from": "user_silence", "total_secs": "1"}),
            "total_secs",
        ),
        (observed("latency_breakdown", {"user_turn_secs": -1}), "user_turn_secs"),
    ],
)
def test_what_no_table_has_is_named(event: dict[str, Any], key: str) -> None:
    found = pipecat(event)
    assert (found.measured, found.used, found.unknown) == ([], [], [key])


@pytest.mark.parametrize(
    "data",
    [
        None,
        1,
        "x",
        [],
        {},
        {"contributions": {}, "ttfb": 3, "function_calls": [4], "text_aggregation": 1},
    ],
)
def test_a_breakdown_of_another_shape_says_nothing(data: Any) -> None:
    found = pipecat(observed("latency_breakdown", data))
    assert (found.measured, found.unknown) == ([], [])


@pytest.mark.parametrize(
    "kind", ["startup_timing", "transport_timing", "turn_started", "user_message"]
)
def test_other_records_are_about_something_else(kind: str) -> None:
    event = decode(
        InputSource.PIPECAT,
        json.dumps({"timestamp": AT_MS, "type": kind, "data": {"seconds": 1}}).encode(),
    )
    assert not any(isinstance(fact, EventFindings) for fact in RULES[type(event)].facts(event))


def test_times_that_are_no_times_fall_back_to_the_event_s() -> None:
    for stamp in (10**400, "now", None, True):
        data = {"kind": "ttfb", "processor": "OneTTSService#0", "seconds": 0.5, "timestamp": stamp}
        (value,) = pipecat(observed("service_latency", data)).measured
        assert value.begin_s == AT_S - 0.5


def test_only_so_many_entries_of_a_list_are_read() -> None:
    parts = [{"key": "pipeline", "duration_secs": 0.01}] * (MAX_ITEMS + 10)
    (value,) = pipecat(observed("latency_breakdown", {"contributions": parts})).measured
    assert round(value.seconds, 6) == MAX_ITEMS / 100


def test_a_tool_s_run_is_known_when_it_has_answered() -> None:
    def event(kind: str, **fields: Any) -> EventFindings:
        times = {"timestamp": AT_S + 2, "in_progress_at": AT_S + 0.5}
        return pipecat(
            observed(
                "function_call_event", {"kind": kind, "function_name": "look", **times, **fields}
            )
        )

    expected = Measured(AT_S + 0.5, Stage.TOOL_RUN, StageSource.PIPECAT, 1.5)
    # a wait for a tool lasts until its deadline too
    for moment in ("completed", "failed", "timed_out"):
        assert event(f"function_call_{moment}").measured == [expected]
    assert event("function_call_cancelled").measured == []
    assert event("function_call_in_progress").measured == []
    assert event("function_call_completed", in_progress_at=None).measured == []


@pytest.mark.parametrize(
    ("response", "stage"),
    [("Certainly.", Stage.LLM_LAST_SENTENCE), ("", Stage.TOOL_REQUEST), (None, Stage.TOOL_REQUEST)],
)
def test_a_step_of_the_model_in_the_audit_log(response: str | None, stage: Stage) -> None:
    entry = {
        "message_type": "llm_call",
        "value": {"agent": "desk", "response": response},
        "latency_ms": 1643.0,
    }
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    found = read(InputSource.AUDIT, entry | {"model": "gpt", "usage": usage})
    assert found.measured == [Measured(AT_S - 1.643, stage, StageSource.AUDIT, 1.643, 0, "gpt")]
    assert [used.usage for used in found.used] == [TokenUsage(100, 0, 0, 20)]
    nothing = read(InputSource.AUDIT, entry | {"latency_ms": None})
    assert (nothing.measured, nothing.used, nothing.unknown) == ([], [], [])


@pytest.mark.parametrize("latency_ms", ["soon", {}, -5, 10**400])
def test_a_step_without_a_readable_latency(latency_ms: Any) -> None:
    found = read(
        InputSource.AUDIT, {"message_type": "llm_call", "value": "Yes", "latency_ms": latency_ms}
    )
    assert (found.measured, found.unknown) == ([], ["llm_call latency_ms"])


@pytest.mark.parametrize("count", [-1, 10**10, 10**400, "9", True])
def test_a_count_of_tokens_that_is_none_is_left_out(count: Any) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 7}
    (used,) = pipecat(metric(usage, "LLMUsageMetricsData")).used
    assert used.usage == TokenUsage(0, 0, 0, 7)
    assert pipecat(metric({"prompt_tokens": count}, "LLMUsageMetricsData")).used == []


EVER = (float("-inf"), float("inf"))


def value(
    seconds: float, *, begin_s: float = 5.0, stage: Stage = Stage.LLM_FIRST_TOKEN, model: str = ""
) -> Measured:
    return Measured(begin_s, stage, StageSource.PIPECAT, seconds, 0, model)


def test_of_values_that_begin_at_once_the_same_is_the_first_in_any_order() -> None:
    found = []
    for order in itertools.permutations(
        [value(0.5), value(0.25), value(0.25, model="m"), value(0.75)]
    ):
        values = StageValues()
        for each in order:
            assert values.add(each)
        assert not values.add(order[0]), "it is there"
        assert len(values) == 4
        found.append(values.reports(*EVER))
    assert found[0] == {Stage.LLM_FIRST_TOKEN: {StageSource.PIPECAT: Reported(0, 0.25, "")}}
    assert all(each == found[0] for each in found)


def heard(turns: dict[int, BotTurn]) -> HeardByTheBot:
    machine = BotTurnMachine()
    machine.turns = turns
    return HeardByTheBot(machine, EvaHistory(), ToolUses())


def starting(**starts_s: float) -> HeardByTheBot:
    """Turns by number, `t1=10.0`: the user starts to speak then."""
    return heard(
        {int(name[1:]): BotTurn(vad_starts=(start_s,)) for name, start_s in starts_s.items()}
    )


def test_a_turn_lasts_until_the_next_one_and_the_first_from_ever() -> None:
    windows = TurnWindows()
    assert windows.turn_at(0.0) is None
    windows.update(starting(t1=10.0, t2=20.0), {1, 2})
    assert (windows.window(1), windows.window(2)) == ((EVER[0], 20.0), (20.0, EVER[1]))
    assert [windows.turn_at(at_s) for at_s in (-5.0, 10.0, 19.9, 20.0, 99.0)] == [1, 1, 1, 2, 2]
    from_s, until_s = windows.window(7)
    assert from_s == until_s, "a turn without sound has no time"


def test_a_turn_that_moves_moves_its_neighbours_borders() -> None:
    windows = TurnWindows()
    assert windows.update(starting(t1=10.0, t2=20.0, t3=30.0), {1, 2, 3}) == {1, 2, 3}
    assert windows.update(starting(t1=10.0, t2=20.0, t3=30.0), {1, 2, 3}) == set()
    assert windows.update(starting(t1=10.0, t2=15.0, t3=30.0), {2}) == {1, 2, 3}
    assert windows.window(1)[1] == 15.0
    assert windows.update(starting(t1=10.0, t3=30.0), {2}) == {1, 2, 3}
    assert windows.window(1) == (EVER[0], 30.0)
    assert windows.update(starting(t1=10.0, t2=12.0, t3=30.0, t4=40.0), {4}) == {3, 4}
    assert windows.update(starting(t1=10.0, t2=12.0, t3=30.0, t4=40.0), {2}) == {1, 2, 3}


def test_a_turn_known_by_its_transcript_alone_begins_behind_the_bot_s_last_words() -> None:
    """The transcript is stamped when the user has spoken; its work began before."""
    turns = {0: BotTurn(bot_texts=(1.0, 2.0)), 1: BotTurn(transcripts=(8.0,), bot_texts=(9.0,))}
    windows = TurnWindows()
    windows.update(heard(turns), {0, 1})
    assert [windows.turn_at(at_s) for at_s in (1.5, 7.7, 8.5)] == [0, 1, 1]
    turns[0] = BotTurn(bot_texts=(1.0, 2.0, 4.0))
    assert windows.update(heard(turns), {0}) >= {1}
    assert windows.turn_at(3.0) == 0


# Values that the sounds of their turn contradict. `Phone.turn` has a wait of 1.1 s: from the user's
# last sound to the bot's first.

CONTRADICTED = "callgauge_stage_values_contradicted_total"


def closed(phone: Phone, at_ms: int = 60_000) -> Phone:
    """The call after its end."""
    return phone.send("audit", {"type": "call_ended"}, at_ms).advance(at_ms + 100_000)


def told(phone: Phone, kind: str, seconds: float, at_ms: int) -> None:
    """A source tells one value at `at_ms`, in the form of this kind."""
    end_s = (T0_MS + at_ms) / 1000
    match kind.split():
        case [processor, "ttfb"]:
            data = {"kind": "ttfb", "processor": processor, "seconds": seconds, "timestamp": end_s}
            phone.observed("service_latency", data, at_ms)
        case [processor, "metric"]:
            phone.metric(processor, seconds, at_ms)
        case ["contribution", key]:
            phone.observed(
                "latency_breakdown",
                {"contributions": [{"key": key, "duration_secs": seconds}]},
                at_ms,
            )
        case ["begun", key]:
            part = {"key": key, "duration_secs": seconds, "start_time": end_s - 0.3}
            phone.observed("latency_breakdown", {"contributions": [part]}, at_ms)
        case ["endpointing", "begun"]:
            phone.observed(
                "latency_breakdown",
                {"user_turn_secs": seconds, "user_turn_start_time": end_s - seconds},
                at_ms,
            )
        case ["endpointing"]:
            phone.observed("latency_breakdown", {"user_turn_secs": seconds}, at_ms)
        case ["wait"]:
            phone.observed("user_bot_latency", {"latency_seconds": seconds}, at_ms)
        case ["step"]:
            phone.send(
                "audit",
                {"message_type": "llm_call", "value": "Yes", "latency_ms": seconds * 1000},
                at_ms,
            )
        case ["response"]:
            phone.send(
                "pipecat", {"type": "LatencyMetric", "stage": "stt", "value": seconds}, at_ms
            )


FORMS = {
    f"{STT} ttfb": Stage.STT_TRAILING,
    f"{LLM} ttfb": Stage.LLM_FIRST_TOKEN,
    f"{TTS} metric": Stage.TTS_FIRST_BYTE,
    "contribution llm_inference": Stage.LLM_INFERENCE,
    "begun speech_synthesis": Stage.SPEECH_SYNTHESIS,
    "begun function_handler": Stage.FUNCTION_HANDLER,
    "endpointing begun": Stage.ENDPOINTING,
    "endpointing": Stage.ENDPOINTING,
    "wait": Stage.VOICE_TO_VOICE,
    "step": Stage.LLM_LAST_SENTENCE,
    "response": Stage.STT_TRAILING,
}


@pytest.mark.parametrize("greets", [True, False])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("seconds", [203.0, 480.0])
@pytest.mark.parametrize("form", FORMS)
def test_no_stage_of_minutes_is_published_on_any_turn(
    form: str, seconds: float, place: int, *, greets: bool
) -> None:
    phone = Phone()
    if greets:
        phone.greeting()
    for at_ms in (1000, 7000):
        phone.exchange(at_ms)
    told(phone, form, seconds, (3050, 9050)[place])
    closed(phone)
    first = 0 if greets else 1
    assert [
        latency
        for turn in range(first, 3)
        for latency in phone.stages(turn).values()
        if latency > 1100
    ] == []
    source = "audit" if form == "step" else "pipecat"
    assert phone.counts(CONTRADICTED) == {(source, FORMS[form].value): 1}


@pytest.mark.parametrize(
    "form", [form for form, stage in FORMS.items() if stage not in (Stage.VOICE_TO_VOICE,)]
)
def test_a_stage_that_fits_into_its_wait_stays(form: str) -> None:
    phone = Phone().greeting().exchange(1000)
    told(phone, form, 0.3, 3050)
    closed(phone)
    assert phone.stages(1)[FORMS[form]] == 300
    assert phone.counts(CONTRADICTED) == {}


@pytest.mark.parametrize(
    ("seconds", "stays"), [(1.25, True), (1.375, True), (1.4, False), (5.0, False)]
)
def test_a_part_of_the_wait_may_be_longer_by_what_measuring_explains(
    phone: Phone, seconds: float, *, stays: bool
) -> None:
    phone.exchange(4000)
    told(phone, f"{LLM} ttfb", seconds, 6100)
    closed(phone)
    assert (Stage.LLM_FIRST_TOKEN in phone.stages(1)) is stays
    assert bool(phone.counts(CONTRADICTED)) is not stays


def test_what_is_no_part_of_the_wait_may_be_longer(phone: Phone) -> None:
    """Endpointing of a pause, an answer that is written while it is spoken, a tool that runs on,
    the wait of another anchor.
    """
    phone.exchange(1000, spoken=False)
    told(phone, "endpointing begun", 1.6, 2600)
    told(phone, "step", 3.0, 5500)
    told(phone, "wait", 1.6, 3100)
    times = {"in_progress_at": (T0_MS + 2500) / 1000, "timestamp": (T0_MS + 32_500) / 1000}
    (
        phone.observed(
            "function_call_event",
            {"kind": "function_call_completed", "function_name": "f", **times},
            32_500,
        )
        .spoke("bot", 3100, 6100)
        .exchange(8000)
    )
    closed(phone)
    assert phone.stages(1) == {
        Stage.ENDPOINTING: 1600,
        Stage.LLM_LAST_SENTENCE: 3000,
        Stage.TOOL_RUN: 30_000,
        Stage.VOICE_TO_VOICE: 1600,
    }
    assert phone.counts(CONTRADICTED) == {}


def test_a_model_that_answers_behind_a_bridging_sound_keeps_its_time(phone: Phone) -> None:
    phone.exchange(1000)
    told(phone, f"{LLM} ttfb", 1.9, 4200)  # asked 300 ms after the user's last sound
    closed(phone)
    assert phone.stages(1)[Stage.LLM_FIRST_TOKEN] == 1900


def test_where_the_wait_begins_with_a_ruling_hearing_may_begin_before_it() -> None:
    phone = (
        Phone()
        .greeting()
        .speech("user_turn_started", 1000)
        .speech("user_turn_stopped", 3000)
        .spoke("bot", 3400, 5000)
    )
    told(phone, f"{STT} ttfb", 0.9, 2990)
    told(phone, f"{LLM} ttfb", 0.9, 3300)
    closed(phone)
    assert phone.stages(1) == {Stage.STT_TRAILING: 900}
    assert phone.counts(CONTRADICTED) == {("pipecat", "llm_first_token"): 1}


def test_an_answer_that_began_before_the_user_had_ended_bounds_no_stage(phone: Phone) -> None:
    (
        phone.speech("user_speech_started", 1000)
        .speech("bot_speech_started", 2500)
        .speech("user_speech_stopped", 3000)
    )
    told(phone, f"{LLM} ttfb", 0.6, 2400)
    closed(phone)
    assert phone.stages(1)[Stage.LLM_FIRST_TOKEN] == 600


def test_sounds_that_come_later_take_a_value_back(phone: Phone) -> None:
    phone.spoke("user", 1000, 2000)
    told(phone, f"{LLM} ttfb", 2.0, 4400)
    phone.spoke("bot", 4500, 5500).leave(7000)
    assert phone.stages(1) == {Stage.LLM_FIRST_TOKEN: 2000}
    (
        phone.spoke("user", 3000, 4000)
        .speech("user_speech_stopped", 8000)
        .spoke("bot", 9000, 9500)
        .leave(12_000)
    )
    assert phone.stages(1) == {}


def test_a_record_s_stage_that_is_longer_than_its_wait_is_left_out() -> None:
    feed = Phone()
    events = [
        agent_calls.heard("Hello", 1000, 1),
        agent_calls.said("Yes?", 2000, 2),
        agent_calls.record(
            agent_calls.entry("user", "Hello", source_event_id=1),
            agent_calls.entry(
                "agent",
                "Yes?",
                source_event_id=2,
                **agent_calls.metrics(
                    ttf_audio_since_silence=1.1, llm_service_ttfb=203.0, tts_service_ttfb=0.2
                ),
            ),
        ),
    ]
    for event in events:
        feed.send("user_sim", event, 60_000, envelope=agent_calls.envelope_of(event))
    closed(feed)
    assert feed.stages(1) == {Stage.TTS_FIRST_BYTE: 200, Stage.VOICE_TO_VOICE: 1100}
    assert feed.counts(CONTRADICTED) == {("elevenlabs", "llm_first_token"): 1}


@pytest.mark.parametrize("name", sorted(recorded_calls()))
def test_no_figure_of_a_real_bot_is_contradicted(name: str) -> None:
    feed = Feed(Limits(max_event_time_skew_ms=10**12))
    for event in recorded_calls()[name].events:
        feed.send("pipecat", event, event["timestamp"] - T0_MS)
    feed.advance(10**9)
    assert feed.counts(CONTRADICTED) == {}
