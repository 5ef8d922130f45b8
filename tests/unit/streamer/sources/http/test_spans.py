"""What the spans of each framework tell: bytes of an export request in, turns, words, tools and
labels out.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple
from zlib import crc32

import pytest

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import Anchor, ToolOutcome
from schemas.events.envelope import Envelope
from schemas.rows import CallRow
from schemas.scores.latency_stages import Stage
from streamer.sources.http.body import Posted
from streamer.sources.http.traces import posted_spans
from tests.support.calls.rows_of_calls import call_of, tools_of, turns_of
from tests.support.fakes.engine_feed import T0_MS, Feed, closings_of, plain, rows_of, transcripts_of

TRACE = "ab" * 16
BATCH_MS = 5_000
"""A span is sent so long after its end at most."""
Attributes = dict[str, Any]


def span(name: str, begin_s: float, end_s: float, **more: Any) -> Attributes:
    """A span of OTLP's JSON; `more` has its attributes, with two underscores for a dot, and whether
    it `failed`.
    """
    failed = more.pop("failed", False)
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    attributes = [
        {
            "key": key.replace("__", "."),
            "value": {kinds[type(value)]: str(value) if type(value) is int else value},
        }
        for key, value in more.items()
    ]
    nanos = {
        key: str(T0_MS * 1_000_000 + round(at_s * 1e9))
        for key, at_s in (("start", begin_s), ("end", end_s))
    }
    return {
        "traceId": TRACE,
        "spanId": f"{crc32(f'{name} {begin_s} {end_s}'.encode()):016x}",
        "name": name,
        "startTimeUnixNano": nanos["start"],
        "endTimeUnixNano": nanos["end"],
        "attributes": attributes,
        "status": {"code": 2} if failed else {},
    }


def request(
    *spans: Attributes, service: str = "workers", language: str | None = None
) -> Attributes:
    """An export request."""
    known = {"service.name": service, "telemetry.sdk.language": language}
    resource = [
        {"key": key, "value": {"stringValue": value}}
        for key, value in known.items()
        if value is not None
    ]
    return {
        "resourceSpans": [
            {"resource": {"attributes": resource}, "scopeSpans": [{"spans": list(spans)}]}
        ]
    }


class Told(NamedTuple):
    """What became of requests."""

    feed: Feed
    posted: list[Posted]

    @property
    def turns(self) -> dict[int, Any]:
        """The newest row of each turn of the caller."""
        return {
            number: row for number, row in turns_of(rows_of(self.feed.effects)).items() if number
        }

    @property
    def waits(self) -> list[Any]:
        return [plain(turn.wait_ms) for turn in self.turns.values()]

    def stages(self, turn: int) -> dict[Stage, float]:
        return {each.stage: each.latency_ms for each in self.turns[turn].stages}

    @property
    def words(self) -> list[tuple[str, str]]:
        """The transcript: role and words."""
        (transcript,) = transcripts_of(self.feed.effects)
        entries = json.loads(transcript)
        return [(entry["role"], entry["message"]) for entry in entries if entry.get("message")]

    @property
    def tools(self) -> dict[str, ToolOutcome]:
        return {
            use.tool: use.outcome
            for use in tools_of(rows_of(self.feed.effects))
            if use.outcome is not None
        }

    @property
    def tokens(self) -> list[tuple[int, int, int]]:
        """By model: tokens of the input without the cache, of the cache, of the output."""
        uses = call_of(rows_of(self.feed.effects)).uses
        return [
            (use.input_tokens, use.cached_tokens, use.output_tokens)
            for use in uses
            if use.input_tokens
        ]

    @property
    def row(self) -> CallRow:
        """The newest row of the call."""
        return call_of(rows_of(self.feed.effects))

    @property
    def errors(self) -> tuple[int, str | None] | None:
        """How many errors the agent told, and the service of the newest."""
        told_errors = self.row.errors
        return None if told_errors is None else (told_errors.number, told_errors.component)

    @property
    def agents(self) -> list[str]:
        told = [row.labels.agent for row in rows_of(self.feed.effects) if isinstance(row, CallRow)]
        return list(dict.fromkeys(told))


def told(*requests: Attributes) -> Told:
    """The call that these requests tell, each posted when its last span is over, scored
    to its end.
    """
    feed = Feed()
    feed.evaluator = PartitionEvaluator(Limits(), "test", writes_transcripts=True)
    posted: list[Posted] = []
    broker_ms = 0
    for each in requests:
        found = [
            one
            for one in posted_spans(json.dumps(each).encode(), "application/json", {})
            if one is not None
        ]
        events = [one for one in found if isinstance(one.event, dict)]
        broker_ms = max([broker_ms, *(one.event["timestamp"] - T0_MS + BATCH_MS for one in events)])
        for one in events:
            send(feed, one.event, broker_ms, one.attributes or {})
        posted += found
    feed.advance(broker_ms + 3_600_000)
    feed.close_all()
    return Told(feed, posted)


def send(feed: Feed, event: Attributes, broker_ms: int, attributes: Any) -> None:
    envelope = Envelope(attributes["id"], attributes["source"], None, None) if attributes else None
    stream = "audit" if "message_type" in event else "pipecat"
    feed.send(
        stream,
        event,
        event["timestamp"] - T0_MS,
        broker_ms=broker_ms,
        key=f"trace-{TRACE}",
        envelope=envelope,
    )


# pipecat's.


def cascade(turn: int, *, is_final: bool | None = None) -> Iterable[Attributes]:
    """One turn of a bot of separate services: 0.31 s of transcription, 1.3 s of waiting."""
    at = 10.0 * turn
    known = {} if is_final is None else {"is_final": is_final}
    yield span("stt", at, at + 2.31, transcript=f"question {turn}", metrics__ttfb=0.31, **known)
    yield span("llm", at + 2.4, at + 3.6, output="So.", metrics__ttfb=0.6)
    yield span("tts", at + 3.1, at + 5, text=f"Answer {turn}.", metrics__ttfb=0.2)
    yield span("turn", at, at + 7, turn__user_bot_latency_seconds=1.3)


@pytest.mark.parametrize("is_final", [True, False, None])
def test_every_transcript_of_pipecat_is_final_whatever_its_recogniser_confirms(
    is_final: bool | None,
) -> None:
    spans = [each for turn in (1, 2, 3) for each in cascade(turn, is_final=is_final)]
    call = told(request(*spans, span("conversation", 9, 40)))
    assert [row.outcome for row in call.turns.values()] == ["answered"] * 3
    assert call.waits == pytest.approx([990] * 3, abs=2)
    assert [role for role, _ in call.words] == ["user", "agent"] * 3
    for number in call.turns:
        assert call.stages(number)[Stage.VOICE_TO_VOICE] == 1_300


def test_a_wait_from_the_transcript_does_not_dispute_one_from_the_end_of_speech() -> None:
    call = told(request(*cascade(1), span("conversation", 9, 20)))
    assert [stage.is_disputed for stage in call.turns[1].stages] == [False] * 4


def test_what_a_realtime_model_took_stands_in_its_transcript_too_and_is_no_stage_of_a_recogniser() -> (
    None
):
    known = {"gen_ai__provider__name": "openairealtimellmservice"}
    # Its span is open until the caller falls silent the next time.
    heard = span(
        "stt",
        13.4,
        22.0,
        transcript="Where is it?",
        metrics__ttfb=0.7,
        stt__incomplete=True,
        **known,
    )
    answer = span("llm_response", 15.0, 15.01, output="Here.", metrics__ttfb=0.7)
    call = told(request(heard, answer))
    assert call.words == [("user", "Where is it?"), ("agent", "Here.")]
    assert Stage.STT_TRAILING not in call.stages(1)
    assert call.stages(1)[Stage.LLM_FIRST_TOKEN] == 700


def test_a_realtime_bot_of_pipecat_has_its_words_tools_and_tokens() -> None:
    usage = {"gen_ai__usage__input_tokens": 210, "gen_ai__usage__output_tokens": 95}
    failure = {"tool__result": '{"error": "timeout"}', "tool__result_status": "error"}
    call = told(
        request(
            span("llm_setup", 0, 0.01, gen_ai__operation__name="llm_setup"),
            span("stt", 3.4, 3.41, transcript="Where is my parcel?"),
            span("llm_request", 3.42, 3.43, gen_ai__operation__name="llm_request"),
            span(
                "llm_tool_call",
                4.0,
                4.01,
                tool__function_name="track",
                tool__call_id="c1",
                tool__arguments='{"id": 7}',
            ),
            span(
                "llm_tool_result",
                4.9,
                4.91,
                tool__function_name="track",
                tool__call_id="c1",
                **failure,
            ),
            span(
                "llm_response", 6.5, 6.51, output="It comes tomorrow.", metrics__ttfb=0.72, **usage
            ),
            span("stt", 15.4, 15.41, transcript="And when?"),
            span("llm_response", 18.5, 18.51, output="At nine.", metrics__ttfb=0.72, **usage),
            span("conversation", 0, 25),
        )
    )
    assert [row.outcome for row in call.turns.values()] == ["answered"] * 2
    assert call.words == [
        ("user", "Where is my parcel?"),
        ("agent", "It comes tomorrow."),
        ("user", "And when?"),
        ("agent", "At nine."),
    ]
    assert (call.tools, call.tokens) == ({"track": ToolOutcome.ERROR}, [(420, 0, 190)])


def realtime_turn(at: float, wait_s: float, *words: str) -> Iterable[Attributes]:
    """A turn of a realtime bot, with pipecat's own wait."""
    for place, text in enumerate(words):
        yield span("stt", at + 2.4 + place, at + 2.41 + place, transcript=text)
    yield span("llm_response", at + 5.5, at + 5.51, output="At nine.", metrics__ttfb=0.72)
    yield span("turn", at, at + 8, turn__user_bot_latency_seconds=wait_s)


@pytest.mark.parametrize("is_backwards", [False, True])
def test_where_nothing_tells_when_the_answer_was_heard_pipecat_s_own_wait_counts(
    is_backwards: bool,
) -> None:
    spans = [
        *realtime_turn(1, 0.9, "Where is it?"),
        *realtime_turn(11, 1.4, "And", "when?"),
        *realtime_turn(21, 0.7, "Ah."),
    ]
    call = told(request(*(reversed(spans) if is_backwards else spans)))
    assert call.waits == [900, 1_400, 700]
    assert {row.anchor for row in call.turns.values()} == {Anchor.VAD}
    assert [row.outcome for row in call.turns.values()] == ["answered"] * 3
    assert [call.stages(number)[Stage.VOICE_TO_VOICE] for number in call.turns] == [900, 1_400, 700]


def test_a_transcript_may_have_the_time_of_the_first_sound_before_the_detector_was_sure() -> None:
    turn = span("turn", 11, 19, turn__user_bot_latency_seconds=1.4)
    heard = span(
        "stt", 10.8, 12, transcript="Where?", gen_ai__provider__name="geminilivellmservice"
    )
    assert told(request(heard, turn, span("llm_response", 15, 15.1, output="Here."))).waits == [
        1_400
    ]


def test_of_two_answers_in_one_turn_of_pipecat_s_its_wait_is_that_of_the_last() -> None:
    def answered(at: float) -> Iterable[Attributes]:
        yield span("stt", at, at + 0.01, transcript="Where?")
        yield span("llm_response", at + 2, at + 2.01, output="Here.")

    turn = span("turn", 1, 20, turn__user_bot_latency_seconds=0.8)
    assert told(request(*answered(3), *answered(8), turn)).waits == ["answered_in_text", 800]


def test_a_wait_is_not_that_of_a_turn_outside_of_its_span() -> None:
    early = span("turn", 0, 2, turn__user_bot_latency_seconds=0.9)
    call = told(
        request(
            early,
            span("stt", 3.4, 3.41, transcript="Where?"),
            span("llm_response", 5, 5.1, output="Here."),
        )
    )
    assert call.waits == ["answered_in_text"]


def test_a_tool_without_an_id_is_told_by_its_result_and_is_not_unanswered() -> None:
    call = told(
        request(
            span("stt", 3.4, 3.41, transcript="Where?"),
            span("llm_tool_call", 4.0, 4.01, tool__function_name="track", tool__arguments="{}"),
            span(
                "llm_tool_result",
                4.9,
                4.91,
                tool__function_name="track",
                tool__call_id="made-up",
                tool__result='{"at": 7}',
                tool__result_status="completed",
            ),
        )
    )
    assert call.tools == {"track": ToolOutcome.SUCCESS}


@pytest.mark.parametrize(
    "failure",
    [
        {"response__status": "failed"},
        {"failed": True},
        {"failed": True, "response__status": "failed"},
    ],
)
def test_a_response_that_failed_is_one_error_of_the_model(failure: dict[str, Any]) -> None:
    call = told(
        request(
            span("stt", 3.4, 3.41, transcript="Where?"), span("llm_response", 4, 4.01, **failure)
        )
    )
    assert call.errors == (1, "LLM")


def test_words_of_a_realtime_model_that_go_to_a_voice_are_those_of_the_voice() -> None:
    call = told(
        request(
            span("stt", 3, 3.1, transcript="Where?"),
            span("tts", 3.8, 4.8, text="Here."),
            span("llm_response", 4, 4.01, output="Here.", output_modality="TEXT"),
        )
    )
    assert call.words == [("user", "Where?"), ("agent", "Here.")]


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"tokens__prompt": 10, "tokens__completion": 3}, (10, 0, 3)),
        ({"gen_ai__usage__input_tokens": 10, "gen_ai__usage__output_tokens": 3}, (10, 0, 3)),
        ({"gen_ai__usage__prompt_tokens": 10, "gen_ai__usage__completion_tokens": 3}, (10, 0, 3)),
        (
            {"gen_ai__usage__input_tokens": 10, "gen_ai__usage__cache_read_input_tokens": 4},
            (10, 4, 0),
        ),
        (
            {"gen_ai__usage__input_tokens": 10, "gen_ai__usage__cache_read__input_tokens": 4},
            (10, 4, 0),
        ),
    ],
)
def test_tokens_of_pipecat_in_the_names_of_its_versions(
    usage: dict[str, int], tokens: tuple[int, int, int]
) -> None:
    call = told(request(span("stt", 3, 3.1, transcript="Where?"), span("llm", 4, 4.5, **usage)))
    assert call.tokens == [tokens]


# LiveKit's.


def livekit_turn(at: float, **waits: float) -> Iterable[Attributes]:
    """One turn: two seconds of speech, an answer after 1.3 s."""
    yield span("user_speaking", at, at + 2)
    yield span("user_turn", at, at + 2.65, lk__pii__user_transcript="I need help", **waits)
    yield span("agent_speaking", at + 3.3, at + 5)


DELAYS = ("lk__end_of_turn_delay", "lk__transcription_delay")


@pytest.mark.parametrize(
    ("language", "ruled", "heard", "stages"),
    [
        (None, 0.65, 0.31, (650, 310)),
        ("python", 0.65, 0.31, (650, 310)),
        ("nodejs", 650.0, 310.0, (650, 310)),
        (None, 650.0, 310.0, (650, 310)),
        (None, 650.0, 1.5, (650, 1.5)),  # one unit for both
        ("nodejs", 650.0, 1.5, (650, 1.5)),
        ("python", 203.4, 203.3, (None, None)),  # Python's, and longer than the turn
        ("nodejs", 0.65, 0.31, (None, None)),  # of which version?
        (None, 5_000.0, 310.0, (None, None)),  # too long in both
    ],
)
def test_the_unit_of_a_wait_follows_from_the_producer_and_from_the_length_of_the_turn(
    language: str | None, ruled: float, heard: float, stages: tuple[float | None, float | None]
) -> None:
    waits = dict(zip(DELAYS, (ruled, heard), strict=True))
    call = told(
        request(*livekit_turn(10.0, **waits), *livekit_turn(20.0, **waits), language=language)
    )
    for number in (1, 2):
        found = call.stages(number)
        assert (found.get(Stage.ENDPOINTING), found.get(Stage.STT_TRAILING)) == pytest.approx(
            stages
        )


def test_later_versions_for_node_have_their_waits_in_seconds_in_the_agent_s_turn() -> None:
    waits = dict(zip(DELAYS, (0.65, 0.31), strict=True))
    turn = span("agent_turn", 12.65, 15, lk__e2e_latency=1.3, **waits)
    call = told(request(*livekit_turn(10.0, **waits), turn, language="nodejs"))
    assert (call.stages(1)[Stage.ENDPOINTING], call.stages(1)[Stage.STT_TRAILING]) == (650, 310)
    old = span(
        "agent_turn",
        12.65,
        15,
        lk__e2e_latency=1.3,
        **dict(zip(DELAYS, (650.0, 310.0), strict=True)),
    )
    assert Stage.ENDPOINTING not in told(
        request(*livekit_turn(10.0), old, language="nodejs")
    ).stages(1)


def session(**more: Any) -> Attributes:
    return span("agent_session", 9, 40, **more)


@pytest.mark.parametrize("is_apart", [False, True])
def test_the_agent_s_name_is_taken_when_it_comes_and_stays(is_apart: bool) -> None:
    first, last = (*livekit_turn(10.0), *livekit_turn(20.0)), session(lk__agent_name="billing")
    requests = (request(*first), request(last)) if is_apart else (request(*first, last),)
    call = told(*requests, *requests)  # a sender that had no answer sends again
    assert (call.agents[0], call.agents[-1]) == ("workers", "billing")
    assert call.row.labels.agent == "billing"


def test_a_name_that_comes_first_with_the_job_is_not_lost_and_the_call_begins_with_its_session() -> (
    None
):
    job = span("job_entrypoint", 8, 9.5, lk__agent_name="billing")
    call = told(request(job), request(*livekit_turn(10.0)), request(session()))
    assert call.agents[-1] == "billing"
    assert call.row.began_ms == T0_MS + 9_000


def test_the_part_of_an_agent_that_speaks_is_not_its_name() -> None:
    call = told(
        request(
            *livekit_turn(10.0), span("agent_turn", 12.7, 15, gen_ai__agent__name="Desk"), session()
        )
    )
    assert set(call.agents) == {"workers"}


def test_the_words_that_were_heard_are_those_of_the_agent_s_turn() -> None:
    heard = "lk__pii__response__text"
    call = told(
        request(
            span(
                "agent_turn",
                10.5,
                12.6,
                **{heard: "Welcome to the museum.", "lk__interrupted": False},
            ),
            span("agent_speaking", 10.8, 12.5),
            span("user_speaking", 14, 16),
            span("user_turn", 14, 16.6, lk__pii__user_transcript="Which rooms are free?"),
            span(
                "llm_node",
                16.6,
                17.6,
                **{heard: "We have four rooms left. The red one has a desk."},
            ),
            span("agent_speaking", 17.2, 18.8),
            span("user_speaking", 18.5, 19.4),
            span(
                "agent_turn",
                16.6,
                18.9,
                lk__interruption__source="audio_activity",
                **{heard: "We have four", "lk__interrupted": True},
            ),
            span("user_turn", 18.5, 20, lk__pii__user_transcript="The red one."),
            span("agent_turn", 20, 22.1, **{heard: "It is yours."}),
            span("agent_speaking", 20.8, 22),
            session(lk__agent_name="museum"),
        )
    )
    assert [words for role, words in call.words if role == "agent"] == [
        "Welcome to the museum.",
        "We have four",
        "It is yours.",
    ]
    assert [row.outcome for row in call.turns.values()] == ["interrupted", "answered"]
    notes = call.row.notes
    assert [(note.what, note.cause) for note in notes] == [("interruption", "user_speech")]


def test_without_the_words_that_were_heard_those_of_the_model_stand() -> None:
    call = told(
        request(*livekit_turn(10.0), span("llm_node", 12.7, 13, lk__response__text="Of course."))
    )
    assert call.words == [("user", "I need help"), ("agent", "Of course.")]


def test_words_before_a_tool_are_not_lost_where_the_turn_has_the_last_ones_only() -> None:
    steps = {
        "lk__generation_count": 2,
        "lk__pii__response__text": "It is here.",
        "lk__interrupted": False,
    }
    call = told(
        request(
            *livekit_turn(10.0),
            span("llm_node", 12.7, 13, lk__pii__response__text="One moment."),
            span("llm_node", 13.5, 14, lk__pii__response__text="It is here."),
            span("agent_turn", 12.7, 15, **steps),
        )
    )
    assert call.words == [("user", "I need help"), ("agent", "One moment. It is here.")]


@pytest.mark.parametrize("queued", [{}, {"lk__speech__queue_wait": 1.5}])
def test_an_answer_that_was_begun_before_the_caller_finished_is_an_answer_to_that_turn(
    queued: dict[str, float],
) -> None:
    begun_s = 21.2 if queued else 22.7
    call = told(
        request(
            *livekit_turn(10.0),
            span("agent_turn", 12.7, 15, lk__pii__response__text="First."),
            *livekit_turn(20.0),
            span("agent_turn", begun_s, 25, lk__pii__response__text="Second.", **queued),
        )
    )
    assert [words for _, words in call.words] == ["I need help", "First.", "I need help", "Second."]


def test_livekit_s_own_wait_stands_beside_ours() -> None:
    call = told(request(*livekit_turn(10.0), span("agent_turn", 12.65, 15, lk__e2e_latency=1.301)))
    assert (call.waits, call.stages(1)[Stage.VOICE_TO_VOICE]) == ([1_300], 1_301)


@pytest.mark.parametrize(
    "name", ["realtime_inference", "realtime_metrics", "agent_turn", "agent_speaking"]
)
def test_what_a_realtime_model_of_livekit_used_is_read_from_the_span_that_has_it(name: str) -> None:
    usage = {
        "gen_ai__usage__input_tokens": 100,
        "gen_ai__usage__output_tokens": 7,
        "gen_ai__usage__input_cached_tokens": 40,
    }
    metrics = {"lk__realtime_model_metrics": '{"ttft": 0.35, "input_tokens": 100}'}
    call = told(request(*livekit_turn(10.0), span(name, 12.65, 15.2, **metrics, **usage)))
    assert call.tokens == [(60, 40, 7)]
    assert call.stages(1)[Stage.LLM_FIRST_TOKEN] == 350


@pytest.mark.parametrize(
    "failure",
    [{"failed": True}, {"lk__function_tool__is_error": True}, {"error__type": "tool_error"}],
)
def test_a_tool_that_failed_is_an_error_in_all_its_spellings(failure: dict[str, Any]) -> None:
    tool = span(
        "function_tool",
        13,
        13.5,
        gen_ai__tool__name="find",
        lk__function_tool__arguments='{"n": 1}',
        **failure,
    )
    assert told(request(*livekit_turn(10.0), tool)).tools == {"find": ToolOutcome.ERROR}


# Plain `gen_ai.*`.


def test_a_trace_of_plain_names_has_its_tools_its_tokens_and_its_agent() -> None:
    operation = "gen_ai__operation__name"
    call = told(
        request(
            span(
                "chat gpt-4o",
                10,
                11,
                gen_ai__agent__name="clerk",
                gen_ai__usage__input_tokens=12,
                gen_ai__usage__output_tokens=3,
                **{operation: "chat"},
            ),
            span(
                "execute_tool find",
                11,
                11.5,
                gen_ai__tool__name="find",
                gen_ai__tool__call__result='{"status": "error"}',
                **{operation: "execute_tool"},
            ),
        )
    )
    assert (call.tools, call.tokens, set(call.agents)) == (
        {"find": ToolOutcome.ERROR},
        [(12, 0, 3)],
        {"clerk"},
    )


def test_tokens_that_the_framework_and_its_model_s_library_both_tell_count_once() -> None:
    usage = {"gen_ai__usage__input_tokens": 12, "gen_ai__usage__output_tokens": 3}
    inner = span("chat gpt-4o", 12.8, 13.9, gen_ai__operation__name="chat", **usage)
    call = told(
        request(span("stt", 10, 12, transcript="Where?"), inner, span("llm", 12.7, 14, **usage))
    )
    assert call.tokens == [(12, 0, 3)]


# Traces without a call.


AROUND = (
    span("job_entrypoint", 0, 1, lk__agent_name="billing"),
    span("llm", 1, 2, failed=True, metrics__ttfb=0.3, gen_ai__usage__input_tokens=12),
    span("turn", 0, 3, turn__user_bot_latency_seconds=0.5),
)
"""Spans that say something about a call, and no speech, word or tool."""


def test_a_trace_without_speech_words_or_a_tool_is_no_call() -> None:
    call = told(request(*AROUND), request(span("agent_session", 0, 4, lk__agent_name="billing")))
    assert rows_of(call.feed.effects) == []


def test_nothing_that_came_before_the_first_words_of_a_call_is_lost() -> None:
    call = told(request(*AROUND), request(*cascade(1)))
    assert (set(call.agents), call.errors, call.tokens) == ({"billing"}, (1, "LLM"), [(12, 0, 0)])
    assert any(
        isinstance(row, CallRow) and "started" in row.news for row in rows_of(call.feed.effects)
    )


def test_a_call_that_begins_long_after_its_job_is_a_call() -> None:
    feed = Feed()
    for event, at_ms in (
        ({"type": "call_started", "is_told_later": True, "agent": "billing"}, 1_000),
        ({"type": "call_started", "is_told_later": True}, 1_001_000),
        ({"type": "user_message", "data": {"content": "Hello?"}}, 1_002_000),
        ({"type": "call_ended"}, 1_003_000),
    ):
        feed.advance(at_ms)
        feed.send("pipecat", event, at_ms)
    feed.advance(2_000_000)
    feed.close_all()
    assert len(closings_of(feed.effects)) == 1


def test_a_tool_alone_is_a_call() -> None:
    call = told(request(*AROUND, span("function_tool", 3, 4, lk__function_tool__name="find")))
    assert call.tools == {"find": ToolOutcome.UNKNOWN}


# What the agent was told.


def briefs(call: Told) -> list[Attributes]:
    """The fields of each event that tells it."""
    events = [posted.event for posted in call.posted if isinstance(posted.event, dict)]
    return [
        {name: event[name] for name in ("instructions", "tools") if name in event}
        for event in events
        if event.get("type") == "call_started"
        and not event.keys().isdisjoint({"instructions", "tools"})
    ]


@pytest.mark.parametrize(
    "instructions", ["Be short.", '[{"type": "text", "content": "Be short."}]']
)
def test_what_an_agent_was_told_is_told_once_until_it_changes(instructions: str) -> None:
    def asked(at: float, text: str) -> Attributes:
        return span("llm", at, at + 1, gen_ai__system_instructions=text, tools='[{"name": "find"}]')

    call = told(
        request(
            *cascade(1), asked(12, instructions), asked(22, instructions), asked(32, "Be long.")
        )
    )
    tools = [{"name": "find"}]
    assert briefs(call) == [
        {"instructions": "Be short.", "tools": tools},
        {"instructions": "Be long.", "tools": tools},
    ]


def test_the_beginning_of_instructions_is_not_taken_for_all_of_them() -> None:
    setup = span("llm_setup", 0, 1, gen_ai__system_instructions="x" * 500)
    assert briefs(told(request(setup, *cascade(1)))) == []


def test_a_request_of_a_helper_is_not_the_agent_s() -> None:
    node = span("llm_node", 12.7, 13.2, gen_ai__system_instructions="Be short.")
    helper = span(
        "llm_request",
        14,
        15,
        gen_ai__operation__name="chat",
        gen_ai__system_instructions="Sum up.",
        gen_ai__usage__input_tokens=1,
    )
    assert briefs(told(request(*livekit_turn(10.0), node, helper))) == [
        {"instructions": "Be short."}
    ]


def test_what_an_agent_was_told_is_no_call() -> None:
    call = told(request(span("llm_setup", 0, 1, gen_ai__system_instructions="Be short.")))
    assert not call.turns
