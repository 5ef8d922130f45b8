"""Latency by stage in a call: the turn of a number, the time of its record, and disagreement of sources."""

from typing import Any

import pytest

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.engine.measures.stages import MAX_VALUES_PER_TURN, Reported, StageLatencies, convai_seconds
from consumers.engine.turns.bot import TokenUsage
from schemas.closed_sets import Anchor
from schemas.scores.latency_stages import Stage, StageSource
from schemas.scores.records import STAGE_PREFIX, StageAgreement, StageLatency, TurnStatus, TurnValues
from tests.support.fakes.engine_feed import T0_MS, Feed

STT, LLM, TTS = "OneSTTService#0", "OneLLMService#0", "OneTTSService#0"


class Phone(Feed):
    """A call on a line: the bot says who speaks, and its services how long they took."""

    def turn(self, at_ms: int, *, spoken: bool = True) -> None:
        """The user speaks for a second; 1.1 s later the bot answers for two."""
        for kind, after_ms in (
            ("user_speech_started", 0),
            ("user_turn_started", 200),
            ("user_speech_stopped", 1000),
            ("user_turn_stopped", 1400),
        ):
            self.speech(kind, at_ms + after_ms)
        if spoken:
            self.speech("bot_speech_started", at_ms + 2100)
            self.speech("bot_speech_stopped", at_ms + 4100)

    def greeting(self) -> None:
        self.speech("bot_speech_started", 0)
        self.speech("bot_speech_stopped", 500)

    def metric(self, processor: str, seconds: float, at_ms: int, kind: str = "TTFBMetricsData") -> None:
        """A service reports its time until `at_ms`."""
        self.send("pipecat", {"type": kind, "processor": processor, "model": "m", "value": seconds}, at_ms)

    def observed(self, kind: str, data: Any, at_ms: int) -> None:
        self.send("pipecat", {"type": kind, "data": data}, at_ms)

    def leave(self, at_ms: int) -> None:
        """The user begins another turn: the one before is left, and its known values are published."""
        self.speech("user_speech_started", at_ms)
        self.speech("user_turn_started", at_ms + 200)

    def stages(self, turn: int) -> dict[Stage, float]:
        return {each.stage: each.latency_ms for each in self.turn_values(turn).stages}

    def stage(self, turn: int, stage: Stage) -> StageLatency:
        (found,) = [each for each in self.turn_values(turn).stages if each.stage is stage]
        return found

    def known(self, turn: int) -> list[list[Stage]]:
        """The stages that each record of the turn says to be known for the first time."""
        return [stages_in(record) for record in self.records("turn", turn)]

    @property
    def measure(self) -> StageLatencies:
        return self.evaluator._calls["call"]._measures.stages


def stages_in(record: TurnValues) -> list[Stage]:
    """Those in `first_known`."""
    names = [name for name in record.first_known if name.startswith(STAGE_PREFIX)]
    return [Stage(name.removeprefix(STAGE_PREFIX)) for name in names]


def test_numbers_belong_to_the_turn_in_whose_time_they_began() -> None:
    phone = Phone()
    phone.greeting()
    phone.metric(TTS, 0.1, 100)
    for turn, at_ms in enumerate((1000, 6000, 11_000), 1):
        phone.metric(STT, 0.3 + turn / 100, at_ms + 1300)
        phone.metric(LLM, 0.4 + turn / 100, at_ms + 1800)
        phone.metric(TTS, 0.2 + turn / 100, at_ms + 2050)
        phone.turn(at_ms)
    phone.leave(16_000)
    for turn in (1, 2, 3):
        assert phone.stages(turn) == {
            Stage.ENDPOINTING: 400,
            Stage.STT_TRAILING: 300 + 10 * turn,
            Stage.LLM_FIRST_TOKEN: 400 + 10 * turn,
            Stage.TTS_FIRST_BYTE: 200 + 10 * turn,
        }
    assert phone.stages(0) == {Stage.TTS_FIRST_BYTE: 100}


def test_stages_are_published_when_the_turn_is_left_and_each_is_counted_once() -> None:
    phone = Phone()
    phone.greeting()
    phone.turn(1000, spoken=False)
    phone.metric(LLM, 0.4, 2800)
    phone.speech("bot_speech_started", 3100)
    phone.speech("bot_speech_stopped", 5100)
    assert phone.records("turn", 1) == []
    phone.leave(6000)
    (first,) = phone.records("turn", 1)
    assert (first.revision, first.status, first.is_first) == (1, TurnStatus.PROVISIONAL, True)
    assert stages_in(first) == [Stage.ENDPOINTING, Stage.LLM_FIRST_TOKEN]
    phone.metric(LLM, 2.0, 5200, "ProcessingMetricsData")  # a number of the turn that is left
    assert phone.records("turn", 1) == [first]
    phone.leave(12_000)
    phone.speech("user_turn_stopped", 13_000)
    phone.speech("bot_speech_started", 14_000)
    phone.leave(16_000)
    second = phone.turn_values(1)
    assert (second.revision, second.is_first, stages_in(second)) == (2, False, [Stage.LLM_LAST_SENTENCE])
    phone.send("audit", {"type": "call_ended"}, 17_000)
    phone.advance(60_000)
    assert phone.turn_values(1) == second


def test_a_number_that_comes_after_its_turn_was_left_is_known_at_the_close_at_the_latest() -> None:
    phone = Phone()
    phone.greeting()
    phone.turn(1000)
    phone.leave(6000)
    phone.metric(LLM, 0.4, 2800)
    phone.send("audit", {"type": "call_ended"}, 7000)
    phone.advance(60_000)
    final = phone.turn_values(1)
    assert (final.revision, final.status) == (2, TurnStatus.FINAL)
    assert phone.known(1) == [[Stage.ENDPOINTING], [Stage.LLM_FIRST_TOKEN]]


def test_where_nobody_says_when_an_answer_ends_stages_are_published_when_the_turn_is_left() -> None:
    phone = Phone()
    phone.bot_text("Hello", 100)
    phone.ruling("user_started_speaking", 1000)
    phone.ruling("user_stopped_speaking", 2000)
    phone.metric(LLM, 0.4, 2500)
    phone.bot_text("Yes.", 2600)
    assert phone.records("turn", 1) == []
    phone.ruling("user_started_speaking", 5000)
    assert phone.stages(1) == {Stage.LLM_FIRST_TOKEN: 400}


def test_what_a_barge_in_cuts_off_belongs_to_the_answer_that_it_cuts_off() -> None:
    phone = Phone()
    phone.greeting()
    phone.turn(1000, spoken=False)
    phone.speech("bot_speech_started", 3100)
    phone.speech("user_speech_started", 4000)
    phone.speech("user_turn_started", 4010)
    phone.speech("bot_speech_stopped", 4050)
    phone.metric(LLM, 2.0, 4300, "ProcessingMetricsData")  # asked for at 2300
    phone.leave(9000)
    phone.advance(900_000)
    assert phone.stages(1)[Stage.LLM_LAST_SENTENCE] == 2000
    assert phone.stages(2) == {}


def test_numbers_move_when_their_turn_turns_out_to_be_two() -> None:
    phone = Phone()
    phone.greeting()
    phone.turn(1000)
    phone.metric(LLM, 0.4, 2800)
    phone.metric(LLM, 0.5, 8800)
    phone.metric(LLM, 0.9, 9300, "ProcessingMetricsData")
    phone.leave(15_000)
    assert phone.stages(1)[Stage.LLM_LAST_SENTENCE] == 900
    phone.turn(7000)  # its events come late
    assert phone.stages(1) == {Stage.ENDPOINTING: 400, Stage.LLM_FIRST_TOKEN: 400}
    assert phone.stages(2) == {Stage.ENDPOINTING: 400, Stage.LLM_FIRST_TOKEN: 500, Stage.LLM_LAST_SENTENCE: 900}


def test_a_turn_that_is_no_more_takes_its_stages_back() -> None:
    """The first audio event says that the call is heard through a simulated caller, whose turns are others."""
    phone = Phone()
    phone.greeting()
    phone.turn(1000)
    phone.metric(LLM, 0.4, 2800)
    phone.turn(7000)
    phone.leave(13_000)
    assert phone.stages(1) == {Stage.ENDPOINTING: 400, Stage.LLM_FIRST_TOKEN: 400}
    phone.assistant_audio(100, 500)
    for turn in (1, 2):
        withdrawn = phone.turn_values(turn)
        assert (withdrawn.is_withdrawn, withdrawn.stages, withdrawn.first_known) == (True, (), ())


def test_of_several_numbers_of_a_turn_the_rule_of_the_stage_picks_one() -> None:
    phone = Phone()
    phone.greeting()
    for at_ms, seconds in ((2300, 0.3), (2600, 0.35)):
        phone.metric(STT, seconds, at_ms)
    for at_ms, seconds in ((3000, 0.4), (3600, 0.5)):
        phone.metric(LLM, seconds, at_ms)
        phone.metric(LLM, seconds + 0.05, at_ms + 50, "ProcessingMetricsData")
    for at_ms in (4000, 4500):
        phone.metric(TTS, at_ms / 10_000, at_ms)
    phone.turn(1000)
    phone.leave(9000)
    found = phone.stages(1)
    assert found[Stage.STT_TRAILING] == 350, "the last wait was the one before the answer"
    assert found[Stage.LLM_FIRST_TOKEN] == 400
    assert found[Stage.LLM_LAST_SENTENCE] == 550, "the last inference is the one that was spoken"
    assert found[Stage.TTS_FIRST_BYTE] == 400


def test_the_first_sentence_is_the_first_token_of_its_inference_and_the_wait_for_the_sentence() -> None:
    phone = Phone()
    phone.greeting()
    phone.metric(LLM, 0.4, 2800)
    phone.metric(LLM, 0.3, 3400)
    phone.metric(TTS, 0.125, 3525, "TextAggregationMetricsData")
    phone.turn(1000)
    phone.leave(9000)
    assert phone.stages(1)[Stage.LLM_FIRST_SENTENCE] == 425
    assert phone.stages(1)[Stage.SENTENCE_AGGREGATION] == 125


def test_sources_that_say_nearly_the_same_agree() -> None:
    phone = Phone()
    phone.greeting()
    phone.turn(1000)
    phone.observed("user_bot_latency", {"latency_seconds": 1.2}, 3100)
    phone.leave(9000)
    found = phone.stage(1, Stage.VOICE_TO_VOICE)
    assert (found.latency_ms, found.source, found.anchor) == (1200, StageSource.PIPECAT, Anchor.VAD)
    assert found.others_ms == {StageSource.SPEECH: 1100}
    assert not found.is_disputed


@pytest.mark.parametrize(
    ("seconds", "is_disputed"), [(1.3, False), (1.375, False), (1.376, True), (0.88, False), (0.875, True)]
)
def test_sources_that_are_further_apart_disagree(seconds: float, *, is_disputed: bool) -> None:
    """1.1 s were heard; 200 ms and a fifth of the larger number are allowed."""
    phone = Phone()
    phone.greeting()
    phone.turn(1000)
    phone.observed("user_bot_latency", {"latency_seconds": seconds}, 3100)
    phone.leave(9000)
    assert phone.stage(1, Stage.VOICE_TO_VOICE).is_disputed is is_disputed


def test_a_wait_that_only_we_measured_has_its_own_score_and_is_no_stage() -> None:
    phone = Phone()
    phone.greeting()
    phone.turn(1000)
    phone.leave(9000)
    assert phone.stages(1) == {Stage.ENDPOINTING: 400}
    assert phone.latencies()[1] == 1100


def test_tools_run_for_the_sum_of_their_runs_by_the_audit_log_and_by_pipecat() -> None:
    phone = Phone()
    phone.greeting()
    phone.turn(1000, spoken=False)
    for tool, at_ms in (("look", 2500), ("find", 2700)):
        phone.tool_call(tool, at_ms)
        phone.tool_answer(tool, at_ms + 150)
        times = {"in_progress_at": (T0_MS + at_ms + 5) / 1000, "timestamp": (T0_MS + at_ms + 145) / 1000}
        for _ in range(2):  # a producer that sends a record twice without an id
            data = {"kind": "function_call_completed", "function_name": tool, **times}
            phone.observed("function_call_event", data, at_ms + 145)
    phone.speech("bot_speech_started", 3100)
    phone.speech("bot_speech_stopped", 4100)
    phone.leave(9000)
    found = phone.stage(1, Stage.TOOL_RUN)
    assert (found.latency_ms, found.source, found.others_ms) == (280, StageSource.PIPECAT, {StageSource.AUDIT: 300})
    assert not found.is_disputed


def test_a_breakdown_s_own_figures_stand_behind_those_of_the_services() -> None:
    phone = Phone()
    phone.greeting()
    phone.metric(LLM, 0.4, 2800)
    part = {"processor": LLM, "start_time": (T0_MS + 2400) / 1000, "duration_secs": 0.44}
    phone.observed("latency_breakdown", {"ttfb": [part]}, 3100)
    phone.turn(1000)
    phone.leave(9000)
    assert phone.stages(1)[Stage.LLM_FIRST_TOKEN] == 400


def test_the_model_is_named_where_the_service_names_it() -> None:
    phone = Phone()
    phone.greeting()
    phone.metric(LLM, 0.4, 2800)
    phone.turn(1000)
    phone.leave(9000)
    assert phone.stage(1, Stage.LLM_FIRST_TOKEN).model == "m"
    assert phone.stage(1, Stage.ENDPOINTING).model is None


def test_zeros_of_the_start_are_no_numbers() -> None:
    phone = Phone()
    for processor in (STT, LLM, TTS):
        phone.metric(processor, 0.0, 10)
    phone.greeting()
    phone.turn(1000)
    assert phone.stages(0) == {}
    assert phone.counts("callgauge_stage_values_unmapped_total") == {}


def test_unknown_names_are_counted_by_source_and_kept_up_to_a_bound() -> None:
    phone = Phone()
    phone.greeting()
    for number in range(50):
        phone.metric(f"Camera#{number}", 0.4, 2800)
    phone.send("audit", {"message_type": "llm_call", "value": {"response": ""}, "latency_ms": "soon"}, 2900)
    assert phone.counts("callgauge_stage_values_unmapped_total") == {}
    phone.leave(3000)
    assert phone.counts("callgauge_stage_values_unmapped_total") == {("pipecat",): 50, ("audit",): 1}
    assert len(phone.measure.unknown_keys) == 32


def test_beyond_the_limit_numbers_do_not_count_and_that_is_said_once() -> None:
    phone = Phone(Limits(max_stage_values_per_call=3))
    phone.greeting()
    phone.turn(1000)
    for number in range(10):
        phone.metric(LLM, 0.4 + number / 100, 2800 + 10 * number)
        phone.send(
            "audit", {"message_type": "llm_call", "value": "Yes", "usage": {"completion_tokens": 5}}, 2900 + number
        )
    phone.leave(7000)
    assert phone.counts("callgauge_limits_hit_total") == {("stage_values",): 1}
    assert len(phone.measure._values) + len(phone.measure._used) == 3
    phone.turn(7000)
    phone.leave(13_000)
    assert phone.stages(2) == {Stage.ENDPOINTING: 400}, "the call goes on"


def test_only_so_many_numbers_of_a_turn_count() -> None:
    """The earliest: a loop in a producer must not make every further event cost the whole call."""
    phone = Phone()
    phone.greeting()
    phone.turn(1000)
    for number in range(MAX_VALUES_PER_TURN + 20):
        begun_s = (T0_MS + 2500 + 4 * number) / 1000
        run = {"kind": "function_call_completed", "in_progress_at": begun_s, "timestamp": begun_s + 0.002}
        phone.observed("function_call_event", run, 2900)
    phone.leave(9000)
    assert phone.stages(1)[Stage.TOOL_RUN] == pytest.approx(MAX_VALUES_PER_TURN * 2, abs=1)


def test_transcripts_get_seconds_by_name_and_tokens_by_model() -> None:
    phone = Phone()
    phone.greeting()
    phone.metric(STT, 0.3, 2300)
    phone.metric(LLM, 0.4, 2800)
    tokens = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    for at_ms in (2900, 3000):
        phone.observed(
            "service_usage", {"kind": "llm", "model": "gpt", **tokens, "timestamp": (T0_MS + at_ms) / 1000}, at_ms
        )
        phone.send("audit", {"message_type": "llm_call", "value": "Yes", "model": "other", "usage": tokens}, at_ms)
    phone.turn(1000)
    phone.turn(7000)
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


def test_an_elevenlabs_record_gives_its_metrics_a_copy_only_where_the_original_is_missing() -> None:
    phone = Phone()
    phone.greeting()
    phone.turn(1000)
    phone.turn(7000)
    both = {"convai_turn_asr_latency": 0.35, "convai_asr_trailing_service_latency": 0.3, "convai_of_tomorrow": 1.0}
    phone.measure.fold_convai(1, both)
    phone.measure.fold_convai(2, {"convai_turn_asr_latency": 0.35, "convai_llm_service_ttfb": -1.0})
    phone.measure.fold_convai(2, {"convai_turn_asr_latency": 0.35, "convai_llm_service_ttfb": -1.0})
    phone.leave(13_000)
    assert phone.stage(1, Stage.STT_TRAILING).latency_ms == 300
    assert phone.stage(1, Stage.STT_TRAILING).source is StageSource.ELEVENLABS
    assert phone.stages(2) == {Stage.ENDPOINTING: 400, Stage.STT_TRAILING: 350}
    assert phone.counts("callgauge_stage_values_unmapped_total") == {("elevenlabs",): 1}


def test_a_successor_counts_no_stage_again() -> None:
    """Of a turn with two stages written, a third is known after the hand-over: only that one is new."""
    phone = Phone()
    phone.greeting()
    phone.metric(LLM, 0.4, 2800)
    phone.turn(1000)
    phone.leave(7000)
    assert phone.known(1) == [[Stage.ENDPOINTING, Stage.LLM_FIRST_TOKEN]]
    phone.hand_over(PartitionEvaluator(Limits(), "test"))
    phone.metric(TTS, 0.2, 3000)
    phone.turn(7000)
    phone.leave(13_000)
    assert stages_in(phone.turn_values(1)) == [Stage.TTS_FIRST_BYTE]
    assert phone.turn_values(1).revision == 2
    phone.metric(TTS, 0.3, 2950)
    phone.turn(13_000)
    phone.leave(19_000)
    assert phone.turn_values(1).revision == 3
    assert phone.known(1) == [[Stage.ENDPOINTING, Stage.LLM_FIRST_TOKEN], [Stage.TTS_FIRST_BYTE], []]


def test_the_call_says_how_often_sources_disagree() -> None:
    phone = Phone()
    phone.greeting()
    for at_ms, seconds in ((1000, 1.1), (7000, 1.2), (13_000, 2.0)):
        phone.turn(at_ms)
        phone.observed("user_bot_latency", {"latency_seconds": seconds}, at_ms + 2100)
    phone.turn(19_000)  # no other source measured it
    phone.send("audit", {"type": "call_ended"}, 25_000)
    phone.advance(60_000)
    agreement = phone.call_values().stages
    assert agreement == {Stage.VOICE_TO_VOICE: StageAgreement(compared=3, disputed=1)}


def closed_with(latencies_ms: list[float]) -> Phone:
    """Two answered turns with waits of 1.1 s and one without an answer, and the run's values at the end."""
    phone = Phone()
    phone.greeting()
    phone.turn(1000)
    phone.turn(7000)
    phone.turn(13_000, spoken=False)
    phone.send("audit", {"type": "call_ended", "response_latencies_ms": latencies_ms}, 25_000)
    phone.advance(60_000)
    return phone


def test_the_run_s_own_latencies_stand_beside_those_from_the_times_of_speech() -> None:
    phone = closed_with([1150, 2100])
    alike, apart = phone.stage(1, Stage.VOICE_TO_VOICE), phone.stage(2, Stage.VOICE_TO_VOICE)
    assert (alike.latency_ms, alike.source, alike.anchor) == (1150, StageSource.RUN, Anchor.RECORD)
    assert alike.others_ms == apart.others_ms == {StageSource.SPEECH: 1100}
    assert (alike.is_disputed, apart.is_disputed) == (False, True)
    assert phone.call_values().stages == {Stage.VOICE_TO_VOICE: StageAgreement(compared=2, disputed=1)}
    assert (phone.latencies()[1], phone.latencies()[2]) == (1100, 1100)  # the measured score does not change
    assert phone.counts("callgauge_stage_values_unmapped_total") == {}


@pytest.mark.parametrize(("heard_ms", "seconds"), [(1_966.0, 1.966), (-21_287.0, None)])
def test_a_transcript_has_the_wait_as_heard_and_not_as_the_run_measured_it(
    heard_ms: float, seconds: float | None
) -> None:
    found = convai_seconds({Stage.VOICE_TO_VOICE: {StageSource.RUN: Reported(0, 5.1, "")}}, heard_ms)
    assert found.get("convai_ttf_audio_since_silence") == seconds


@pytest.mark.parametrize("latencies_ms", [[1150], [1150, 2100, 900]])
def test_latencies_of_the_run_that_cannot_be_filed_under_turns_are_counted(latencies_ms: list[float]) -> None:
    phone = closed_with(latencies_ms)
    assert [Stage.VOICE_TO_VOICE in phone.stages(turn) for turn in (1, 2)] == [False, False]
    assert phone.call_values().stages == {}
    assert phone.counts("callgauge_stage_values_unmapped_total") == {("audit",): len(latencies_ms)}


def test_events_about_stages_are_no_part_of_eva_s_history() -> None:
    def context(*, with_metrics: bool) -> Any:
        phone = Phone()
        phone.assistant_audio(100, 500)
        phone.user_audio(1000, 2000)
        if with_metrics:
            phone.metric(LLM, 0.4, 2800)
            phone.observed("latency_breakdown", {"total_secs": 1}, 2900)
        phone.assistant_audio(3000, 4000)
        if with_metrics:
            phone.metric(TTS, 0.4, 9000)
        return phone.evaluator.context("call")

    assert context(with_metrics=True) == context(with_metrics=False)
