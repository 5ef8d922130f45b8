"""Hypothesis strategies for wire-level calls and for the order in which their events arrive.

Every generated event is valid: it has the fields its type requires. A call is built from nested
lists of small drawn parts, nothing is filtered, so failing calls shrink by dropping parts. Both
kinds of call share one vocabulary.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]
Arrival = list[tuple[str, int]]

SOURCES = ("audit", "pipecat", "user_sim")
PIPELINE_TYPES = ("cascade", "audio_llm", "s2s")
REASONS = ("goodbye", None, "timeout", "error")
START_MS = 1_790_000_000_000
GENERIC_ERROR = "I'm sorry, I encountered an error processing your request."
OFFER = "One moment please, I am looking that booking up for you now."
REPLIES = (
    "Yes.",
    "Hello, what can I do?",
    OFFER,
    f"{OFFER} Is there anything else?",
    GENERIC_ERROR,
    "Your seat is 12A in row 4 [interrupted]",  # 19 and
    # 20 letters and digits are spoken: too few, just enough
    "Your seat is 12A in row 40 [interrupted]",
    "[background noise] I see",
    f"Sure.\n[likely cut\u2028off by user]\t{OFFER} \u00a0Is there more?",
)
REQUESTS = (
    "Hi",
    "I lost my badge.",
    "..",
    "Please move my flight, I need it to be earlier.",
    "[slow] no",
    "Hi there",
)
UNHEARD = ("", "...", " ? ")
TOOLS = (
    {"tool": "Get_Order", "parameters": {"order_id": "A17"}, "response": {"status": "success"}},
    {
        "tool": "rebook",
        "parameters": {},
        "response": {"status": "error", "error_type": "not_found"},
    },
    {"tool": "rebook", "parameters": None, "response": None},
)


def entry(kind: str, value: Any, **fields: Any) -> Json:
    return {"message_type": kind, "value": value, **fields}


def line(kind: str, frame: str, **data: Any) -> Json:
    return {"type": kind, "data": {"frame": frame, **data}}


def audio(kind: str, role: str, behind_ms: int = 0) -> Json:
    return {"event_type": kind, "user": role, "behind_ms": behind_ms}


def speech(kind: str, text: str) -> Json:
    return {
        "type": kind,
        "data": {"text": text, "source": "assistant" if kind == "assistant_speech" else "caller"},
    }


def state(name: str) -> Json:
    return {"type": "connection_state", "data": {"state": name, "details": {}}}


def tool_entries(tool: Json) -> tuple[Json, Json]:
    call = entry(
        "tool_call", {"tool": tool["tool"], "parameters": tool["parameters"]}, type="tool_call"
    )
    answer = {"tool": tool["tool"]} | (
        {} if tool["response"] is None else {"response": tool["response"]}
    )
    return call, entry("tool_response", answer)


# Single wire events without a time, the simplest first because choices shrink towards the front.
AUDIT_EVENTS = (
    *(entry("user", text, displayName="User") for text in (*REQUESTS, "")),
    *(entry("assistant", text) for text in (*REPLIES, REPLIES[3], "", "...")),
    *(event for tool in TOOLS for event in tool_entries(tool)),
    entry("turn_fallback", "[TURN-END FALLBACK after 12s]", llm_content="go on"),
    entry("turn_fallback", "[TURN-END FALLBACK after 12s]"),
    entry("llm_call", {"agent": "desk", "response": "Yes."}),
    entry("user", "[user audio]", turn_id=3),
    entry("note", "unknown to the processor"),
)
PIPECAT_EVENTS = (
    *(line("tts_text", word) for word in ("Yes.", "Hello,", "One", "moment", "")),
    *(
        line("tts_text", phrase)
        for phrase in (OFFER, "One moment", GENERIC_ERROR, OFFER, "Hello, ")
    ),
    line("turn_start", "UserStartedSpeakingFrame#2"),
    line("turn_end", "turn_end", was_interrupted=True),
    line("transcript", " my code is"),
    line("llm_context", "[]"),
    line("user_started_speaking", "UserStartedSpeakingFrame#2"),
    line("user_stopped_speaking", "UserStoppedSpeakingFrame#2"),
    line("s2s_transcript", "One mo [interrupted]"),
    line("error", "ErrorFrame#0"),
    line("tool_call", "tool_call", tool_name="rebook", arguments={}, result={}),
)
REPLY_EVENTS = tuple(line("llm_response", text) for text in (*REPLIES, " of course", ""))
NEW_ROLES = ("simulated_user", "assistant")
OLD_ROLES = ("elevenlabs_user", "framework_agent", "pipecat_agent")
AUDIO_EVENTS = tuple(
    audio(kind, role, behind_ms)
    for role in (*NEW_ROLES, *OLD_ROLES)
    for kind, behind_ms in (("audio_start", 0), ("audio_end", 0), ("audio_end", 600))
)
OTHER_SIMULATOR_EVENTS = (
    *(speech("user_speech", text) for text in (*REQUESTS, *UNHEARD)),
    *(speech("assistant_speech", text) for text in (*REPLIES[:3], "")),
    state("session_started"),
    state("session_ended"),
    {"type": "user_speech_correction", "data": {"original": "Hi there", "corrected": "Hi"}},
    {"type": "timeout", "data": {"duration": 90}},
    {"type": "tool_call", "data": {"name": "end_call", "arguments": {}}},
)


def spelled(phrase: str) -> list[Json]:
    return [line("tts_text", word) for word in phrase.split()]


# Runs of lines that belong together: a phrase and the words that it announces, in full, cut, or
# behind a marker.
PREVIEWS = tuple(
    run
    for phrase in ("One moment", OFFER)
    for run in (
        [line("tts_text", phrase), *spelled(phrase)],
        [line("tts_text", phrase), *spelled(phrase)[:-1]],
        [line("tts_text", phrase), line("turn_start", "turn_start"), *spelled(phrase)],
        [line("tts_text", phrase), line("llm_response", "Yes."), *spelled(phrase)],
    )
)


def timed(source: str, events: Iterable[tuple[int, Json]], *, sequence: bool) -> list[Json]:
    """Put log times into `events`, given as (ms, event) in file order; audio lies `behind_ms`
    before its log time.
    """
    stream = []
    for number, (time_ms, event) in enumerate(events, 1):
        event = {**event, "timestamp": str(time_ms) if source == "audit" else time_ms}
        if "behind_ms" in event:
            event["audio_timestamp"] = (time_ms - min(time_ms, event.pop("behind_ms"))) / 1000
        if sequence and source == "user_sim":
            event["sequence"] = number
        stream.append(event)
    return stream


def wire_call(
    kind: str, pipeline_type: str, reason: str | None, streams: dict[str, list[Json] | None]
) -> Json:
    return {
        "id": f"generated-{kind}",
        "pipeline_type": pipeline_type,
        "conversation_ended_reason": reason,
        **streams,
    }


# --- calls without structure
# -----------------------------------------------------------------------------------------

_offsets_ms = st.integers(0, 40)


def _stream(*pools: Iterable[list[Json]]) -> st.SearchStrategy[list[list[tuple[int, list[Json]]]]]:
    run = st.one_of([st.sampled_from(list(pool)) for pool in pools])
    return st.lists(st.lists(st.tuples(_offsets_ms, run), max_size=8), max_size=8)


def _single(events: Iterable[Json]) -> list[list[Json]]:
    return [[event] for event in events]


_UNSTRUCTURED = {
    "audit": _stream(_single(AUDIT_EVENTS)),
    "pipecat": _stream(_single(PIPECAT_EVENTS), PREVIEWS),
    "user_sim": _stream(_single(AUDIO_EVENTS), _single(OTHER_SIMULATOR_EVENTS)),
}
_ONLY_REPLIES = _stream(_single(REPLY_EVENTS), _single(PIPECAT_EVENTS[10:]))
_WITH_REPLIES = _stream(_single(PIPECAT_EVENTS), _single(REPLY_EVENTS), PREVIEWS)
_pipecat = st.sampled_from([_UNSTRUCTURED["pipecat"], _WITH_REPLIES, _ONLY_REPLIES]).flatmap(
    lambda stream: stream
)


_ABSENT: list[Json] = [
    *([{}] * 12),
    *({source: None} for source in SOURCES),
    *({source: []} for source in SOURCES),
    {"audit": None, "pipecat": None},
    {"audit": None, "user_sim": None},
]
_whole_call = st.tuples(
    st.sampled_from(PIPELINE_TYPES),
    st.sampled_from(REASONS),
    st.sampled_from([START_MS, 1000, 0]),  # at 0 an end of session counts as unknown
    st.booleans(),  # events in order of time
    st.booleans(),  # sequence numbers
    st.integers(0, 1),  # ms between the events of a run
    st.sampled_from(_ABSENT),
)


@st.composite
def unstructured_calls(draw: st.DrawFn) -> Json:
    """Any valid events in any order: a 40 ms range makes ties, roles and ends fit together only by
    chance.
    """
    pipeline_type, reason, start_ms, in_order, sequence, step_ms, absent = draw(_whole_call)
    streams: dict[str, list[Json] | None] = dict(absent)
    for source in SOURCES:
        if source in streams:
            continue
        drawn = draw(_pipecat if source == "pipecat" else _UNSTRUCTURED[source])
        events = [
            (start_ms + offset_ms + step_ms * place, event)
            for offset_ms, run in itertools.chain(*drawn)
            for place, event in enumerate(run)
        ]
        if in_order:
            events.sort(key=lambda timed_event: timed_event[0])
        streams[source] = timed(source, events, sequence=sequence)
    return wire_call("unstructured", pipeline_type, reason, streams)


# --- calls like real ones
# --------------------------------------------------------------------------------------------


_ENDS = ["ends", "ends", "ends", "late", "missing", "twice"]
_turns = st.fixed_dictionaries(  # one exchange; the first value of each choice is the ordinary case
    {
        "caller": st.sampled_from(
            ["speaks", "speaks", "interrupts", "empty", "empty twice", "silent"]
        ),
        "caller_end": st.sampled_from(_ENDS),
        "caller_text": st.sampled_from(["during", "before", "after", "twice", "two", "unheard"]),
        "request": st.sampled_from(REQUESTS),
        "reply": st.sampled_from(REPLIES),
        "assistant": st.sampled_from(
            ["answers", "answers", "interrupts", "silent", "in two parts"]
        ),
        "assistant_end": st.sampled_from(_ENDS),
        "assistant_text": st.sampled_from(["after", "late", "missing"]),
        "spoken_as": st.sampled_from(
            ["words", "preview ahead", "preview at once", "cut short", "phrases at once"]
        ),
        "tools": st.sampled_from([(), (), TOOLS[:1], TOOLS]),
        "audit_pieces": st.sampled_from([1, 1, 2, 0]),
        "nudge": st.sampled_from(["no", "no", "fallback and nudge", "fallback"]),
        "gap_ms": st.sampled_from([700, 0, 1, 30, 2500]),
    }
)
_call_facts = st.tuples(
    st.sampled_from(PIPELINE_TYPES),
    st.sampled_from(REASONS),
    st.sampled_from(["tts", "tts and replies", "replies", "absent"]),
    st.sampled_from([NEW_ROLES, OLD_ROLES[:2], ("elevenlabs_user", "pipecat_agent")]),
    st.booleans(),  # greeting
    st.booleans(),  # turn markers
    st.sampled_from(["ended", "ended twice", "open"]),
    st.booleans(),  # sequence numbers
    st.sampled_from([(), (), (), ("user_sim",), ("audit",)]),
)


class _Recorder:
    """Plays turns on one clock and keeps the log lines of each of the three writers, with their
    times.
    """

    def __init__(
        self, pipeline_type: str, texts: str, roles: tuple[str, str], *, markers: bool
    ) -> None:
        self.pipeline_type = pipeline_type
        self.texts = texts
        self.user, self.assistant = roles
        self.markers = markers
        self.now_ms = START_MS
        self.answering_ms = START_MS + 500  # a moment within the assistant's latest audio
        self.streams: dict[str, list[tuple[int, Json]]] = {source: [] for source in SOURCES}
        self.next_user_start: list[Json] = []  # logged just after the caller starts again

    def log(self, source: str, event: Json, after_ms: int = 0) -> None:
        self.streams[source].append((self.now_ms + after_ms, event))

    def greet(self) -> None:
        self.log("user_sim", audio("audio_start", self.assistant))
        self.say("Hello, what can I do?", "words")
        self.now_ms += 2000
        self.log("user_sim", audio("audio_end", self.assistant, 200))
        self.log("user_sim", speech("assistant_speech", "Hello, what can I do?"), 700)
        self.now_ms += 900

    def play(self, turn: Json) -> None:
        self.now_ms += turn["gap_ms"]
        if turn["caller"] == "interrupts":
            self.now_ms = self.answering_ms
        if turn["caller"].startswith("empty"):
            for _ in range(1 + turn["caller"].endswith("twice")):
                self.log("user_sim", audio("audio_start", self.user))
                self.log("user_sim", audio("audio_end", self.user), 300)
                self.now_ms += 400
        elif turn["caller"] != "silent":
            self.ask(turn)
        for tool in turn["tools"]:
            for event in tool_entries(tool):
                self.log("audit", event)
                self.now_ms += 10
        if turn["nudge"] != "no":
            self.log(
                "audit",
                entry("turn_fallback", "[TURN-END FALLBACK after 12s]", llm_content="go on"),
            )
        if turn["assistant"] != "silent":
            self.answer(turn)
        elif turn["nudge"] == "fallback and nudge":
            self.log("audit", entry("assistant", "Are you still there?"), 5)

    def ask(self, turn: Json) -> None:
        if turn["caller_text"] == "before":
            self.log("user_sim", speech("user_speech", turn["request"]), -15)
        self.log("user_sim", audio("audio_start", self.user))
        self.log("pipecat", line("user_started_speaking", "UserStartedSpeakingFrame#2"), 80)
        for late in self.next_user_start:
            self.log("user_sim", late, 30)
        self.next_user_start = []
        heard = {"during": [300], "twice": [300, 340], "after": [1900], "two": [300]}.get(
            turn["caller_text"], []
        )
        for after_ms in heard:
            self.log("user_sim", speech("user_speech", turn["request"]), after_ms)
        if turn["caller_text"] == "two":
            self.log("user_sim", speech("user_speech", "And one more thing."), 600)
        if turn["caller_text"] == "unheard":
            self.log("user_sim", speech("user_speech", "..."), 300)
        pieces = [turn["request"], "please"][: turn["audit_pieces"]]
        # speech-to-speech stamps heard words with the start of the speech
        for place, text in enumerate(pieces):
            if self.pipeline_type == "audio_llm":
                text = "[user audio]"
            self.log(
                "audit",
                entry("user", text),
                place + (0 if self.pipeline_type == "s2s" else 1400 + 250 * place),
            )
        self.now_ms += 900 if turn["assistant"] == "interrupts" else 1500
        self.end(self.user, turn["caller_end"], 800 if turn["assistant"] == "interrupts" else 0)

    def end(self, role: str, how: str, after_ms: int) -> None:
        if how != "missing":
            self.log(
                "user_sim", audio("audio_end", role, 600), after_ms + (4000 if how == "late" else 0)
            )
        if how == "twice":
            self.log("user_sim", audio("audio_end", role), after_ms + 90)

    def answer(self, turn: Json) -> None:
        self.now_ms += 200
        self.log("audit", entry("llm_call", {"agent": "desk", "response": turn["reply"]}))
        self.log(
            "audit",
            entry("assistant", turn["reply"]),
            600 if turn["assistant"] == "interrupts" else 1,
        )
        parts = [turn["reply"]]
        if turn["assistant"] == "in two parts":
            words = turn["reply"].split()
            parts = [" ".join(words[:-3]), " ".join(words[-3:])]
        for part in parts:
            self.log("user_sim", audio("audio_start", self.assistant), 40)
            self.say(part, turn["spoken_as"])
            self.answering_ms = self.now_ms + 500
            self.now_ms += 1200
            self.end(self.assistant, turn["assistant_end"], 0)
            self.now_ms += 20
        if turn["assistant_text"] == "after":
            self.log("user_sim", speech("assistant_speech", turn["reply"]), 700)
        elif turn["assistant_text"] == "late":
            self.next_user_start.append(speech("assistant_speech", turn["reply"]))

    def say(self, text: str, spoken_as: str) -> None:
        """Log the assistant's text the way its speech service does, from now on."""
        text = text.removesuffix(" [interrupted]")
        if self.markers:
            self.log("pipecat", line("turn_start", "turn_start"))
        if self.texts in ("replies", "tts and replies") or self.pipeline_type == "s2s":
            self.log("pipecat", line("llm_response", text))
        if self.texts in ("tts", "tts and replies"):
            words = spelled(text)
            if spoken_as.startswith("preview"):
                self.log(
                    "pipecat", line("tts_text", text), 50 if spoken_as.endswith("at once") else 49
                )
            elif spoken_as == "cut short":
                words = words[: len(words) * 2 // 3]
            elif spoken_as == "phrases at once":
                words = [line("tts_text", text), line("tts_text", "One moment")]
            step_ms = 0 if spoken_as.endswith("at once") else 60
            for place, word in enumerate(words):
                self.log("pipecat", word, 50 + step_ms * place)
        if self.markers:
            self.log(
                "pipecat",
                line("turn_end", "turn_end", was_interrupted=spoken_as == "cut short"),
                1000,
            )


@st.composite
def structured_calls(draw: st.DrawFn) -> Json:
    """1 to 8 turns on one clock as a real call has them, every stream sorted by its log time as
    recordings are.
    """
    pipeline_type, reason, texts, roles, greeting, markers, session, sequence, absent = draw(
        _call_facts
    )
    recorder = _Recorder(pipeline_type, texts, roles, markers=markers)
    recorder.log("user_sim", state("session_started"))
    if greeting:
        recorder.greet()
    for turn in draw(st.lists(_turns, min_size=1, max_size=8)):
        recorder.play(turn)
    recorder.now_ms += 3000
    for _ in range(("open", "ended", "ended twice").index(session)):
        recorder.log("user_sim", state("session_ended"))
        recorder.now_ms += 500
    streams: dict[str, list[Json] | None] = {}
    for source, events in recorder.streams.items():
        events.sort(key=lambda timed_event: timed_event[0])
        streams[source] = None if source in absent else timed(source, events, sequence=sequence)
    if texts == "absent":
        streams["pipecat"] = None
    return wire_call("structured", pipeline_type, reason, streams)


def calls() -> st.SearchStrategy[Json]:
    """Both kinds of call."""
    return st.one_of(structured_calls(), unstructured_calls())


# --- orders of arrival
# -----------------------------------------------------------------------------------------------

_bursts = st.lists(st.tuples(st.sampled_from(SOURCES), st.integers(1, 6)), max_size=12)


def _in_time(call: Json) -> Iterator[tuple[str, int]]:
    """The call's events by the time each source had reached, so that source order is kept."""
    keyed = []
    for source in SOURCES:
        reached_ms = 0
        for index, event in enumerate(call.get(source) or []):
            reached_ms = max(reached_ms, int(event["timestamp"]))
            keyed.append((reached_ms, source, index))
    return ((source, index) for _, source, index in sorted(keyed))


@st.composite
def arrivals(draw: st.DrawFn, call: Json) -> Arrival:
    """An interleaving of the call's streams as (source, index), source order kept; the simplest one
    is by time.

    The drawn bursts repeat until they deliver nothing more; a source that they do not name comes as
    a whole at the end.
    """
    bursts = draw(_bursts)
    if not bursts:
        return list(_in_time(call))
    left = {source: iter(range(len(call.get(source) or []))) for source in SOURCES}
    named = {source for source, _ in bursts}
    arrival: Arrival = []
    wanted = sum(len(call.get(source) or []) for source in named)
    for source, size in itertools.cycle(bursts):
        if len(arrival) == wanted:
            break
        arrival += [(source, index) for index in itertools.islice(left[source], size)]
    for source in SOURCES:
        arrival += [(source, index) for index in left[source]]
    return arrival


@st.composite
def with_repeats(draw: st.DrawFn, arrival: Arrival) -> Arrival:
    """The same arrival where the reader went back some events now and then, so that those come
    again.
    """
    rewinds = draw(
        st.lists(st.tuples(st.integers(0, len(arrival)), st.integers(1, 12)), max_size=6)
    )
    repeated = list(arrival)
    for place, count in sorted(rewinds, reverse=True):
        repeated[place:place] = arrival[max(0, place - count) : place]
    return repeated
