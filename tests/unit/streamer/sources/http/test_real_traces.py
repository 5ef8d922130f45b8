"""Traces that real frameworks exported, without their longest attributes: the turns and the figures
that the frameworks had.
"""

import json
from pathlib import Path

import pytest

from schemas.closed_sets import Anchor
from schemas.rows import TurnRow
from schemas.scores.latency_stages import Stage
from streamer.notebook import ScoredCall, score

HERE = Path(__file__).parent
CLOSE_MS = 2.0


def scored(file: str) -> ScoredCall:
    (call,) = score(HERE / file)
    return call


def turns_of(call: ScoredCall) -> dict[int, TurnRow]:
    return {row.turn: row for row in call.turns}


def waits_ms(call: ScoredCall) -> list[float]:
    return [row.wait_ms for row in call.turns if isinstance(row.wait_ms, float)]


def stage_ms(call: ScoredCall, stage: Stage) -> dict[int, float]:
    return {
        n: each.latency_ms
        for n, turn in turns_of(call).items()
        for each in turn.stages
        if each.stage is stage
    }


def told_by(file: str, name: str) -> list[float]:
    """An attribute of the spans, a number, in the order of their starts."""
    spans = json.loads((HERE / file).read_text())["resourceSpans"][0]["scopeSpans"][0]["spans"]
    found = {
        int(span["startTimeUnixNano"]): each["value"]
        for span in spans
        for each in span["attributes"]
        if each["key"] == name
    }
    return [1_000 * found[start]["doubleValue"] for start in sorted(found)]


def words_of(call: ScoredCall) -> list[tuple[str, str]]:
    return [
        (entry.role, entry.message) for entry in call.transcript or () if entry.message is not None
    ]


def tools_of(call: ScoredCall) -> list[tuple[int, str, str | None]]:
    return [(row.turn, use.tool, use.outcome) for row in call.turns for use in row.tools]


def errors_of(call: ScoredCall) -> tuple[int, str | None] | None:
    errors = call.call.errors
    return None if errors is None else (errors.number, errors.component)


def test_a_session_of_livekit_s_node_package_has_its_own_latencies_tools_and_error() -> None:
    """`@livekit/agents` 1.9.0, by OpenTelemetry's exporter in JSON: delays of its user turns are in
    milliseconds, all else in seconds.
    """
    call = scored("livekit_node_trace.json")
    its_own = told_by("livekit_node_trace.json", "lk.e2e_latency")
    assert waits_ms(call) == pytest.approx(its_own, abs=CLOSE_MS)
    assert waits_ms(call) == pytest.approx([463, 842, 522, 410, 411, 408, 411], abs=CLOSE_MS)
    assert {turn.anchor for turn in turns_of(call).values()} == {Anchor.VAD}
    assert [turns_of(call)[n].outcome for n in (3, 4, 5)] == ["answered", "interrupted", "answered"]
    assert list(stage_ms(call, Stage.ENDPOINTING).values()) == pytest.approx([251] * 7, abs=15)
    assert tools_of(call) == [(2, "find_badge", "success"), (3, "open_drawer", "error")]
    assert call.call.interrupted_turns == (5,)
    assert errors_of(call) == (1, "LLM")
    assert ("user", "Question 6 . Question 7 .") in words_of(call)  # nobody answered the sixth


def test_a_bot_of_pipecat_with_separate_services_has_its_own_figures_from_transcripts_on() -> None:
    """pipecat 1.14.0, whose recogniser confirms no transcript."""
    call = scored("pipecat_trace.json")
    its_own = told_by("pipecat_trace.json", "turn.user_bot_latency_seconds")
    assert list(stage_ms(call, Stage.VOICE_TO_VOICE).values()) == pytest.approx(
        its_own, abs=CLOSE_MS
    )
    assert {turn.anchor for n, turn in turns_of(call).items() if n} == {Anchor.TRANSCRIPT}
    heard = list(stage_ms(call, Stage.STT_TRAILING).values())
    assert [w + h for w, h in zip(waits_ms(call), heard, strict=True)] == pytest.approx(
        its_own, abs=50
    )
    assert [role for role, _ in words_of(call)] == ["agent", *["user", "agent"] * 6]


def test_a_realtime_model_of_pipecat_has_its_own_latency_and_no_time_that_was_not_measured() -> (
    None
):
    """pipecat 1.14.0 with OpenAI's realtime model and a detector of its own. pipecat measures the
    model only where it asks it: each other span repeats the number of the last one.
    """
    call = scored("pipecat_realtime_trace.json")
    its_own = told_by("pipecat_realtime_trace.json", "turn.user_bot_latency_seconds")
    assert waits_ms(call) == pytest.approx(its_own, abs=CLOSE_MS)
    measured = stage_ms(call, Stage.LLM_FIRST_TOKEN)
    assert [measured[n] for n in (2, 3)] == pytest.approx([313.9, 304.8], abs=0.1)
    assert measured.keys() & {4, 5, 6} == set()
    assert errors_of(call) == (1, "LLM")
    assert ("agent", "I cannot cancel it.") in words_of(call)


def test_a_rounded_time_to_a_first_byte_may_be_the_same_twice() -> None:
    body = json.loads((HERE / "pipecat_trace.json").read_text())
    for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for each in span["attributes"]:
            if each["key"] == "metrics.ttfb":
                each["value"] = {"doubleValue": 0.25}
    (call,) = score([body])
    assert stage_ms(call, Stage.LLM_FIRST_TOKEN) == dict.fromkeys(turns_of(call), 250)
