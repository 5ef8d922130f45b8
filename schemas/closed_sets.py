"""The closed sets of words that labels of metrics share with records, or with the names of roles.
Each word is written here once.

This module imports nothing of ours and nothing from outside the standard library, so that the
metric catalogue stays plain data.
"""

from enum import StrEnum
from typing import Final, Literal, get_args

RoleName = Literal[
    "sequencer",
    "evaluator",
    "exporter",
    "judge",
    "history",
    "measures",
    "console",
    "ingest",
    "monitor",
]
ROLE_NAMES: Final[tuple[RoleName, ...]] = get_args(RoleName)
"""The roles that a process may run."""


class InputSource(StrEnum):
    """The stream from which a record came."""

    AUDIT = "audit"
    PIPECAT = "pipecat"
    ELEVENLABS = "elevenlabs"
    JUDGE = "judge"

    __hash__ = str.__hash__  # Enum's own is Python code, and this is a key of the hot path's tables


class Telling(StrEnum):
    """Subject of an event that its producer dropped. `unread` is a frame or event that the producer
    could not read or hand over.
    """

    METRICS = "metrics"
    WORDS = "words"
    SPEECH = "speech"
    TOOLS = "tools"
    CALL = "call"
    UNREAD = "unread"

    __hash__ = str.__hash__


class RefusalReason(StrEnum):
    """Why a record can never be processed."""

    UNDECODABLE = "undecodable"
    INVALID_EVENT = "invalid_event"
    UNKNOWN_ROLE = "unknown_role"
    TEXT_TOO_LONG = "text_too_long"
    EMPTY_KEY = "empty_key"
    RECORD_TOO_LARGE = "record_too_large"
    TIME_OUT_OF_BOUNDS = "time_out_of_bounds"


class MisreadReason(StrEnum):
    """Why a record is taken and does nothing, or not all that it could."""

    UNKNOWN_TYPE = "unknown_type"
    UNKNOWN_KIND = "unknown_kind"
    CLOUDEVENT_IN_BODY = "cloudevent_in_body"
    FIELD_LEFT_OUT = "field_left_out"
    TOOL_WITHOUT_ID = "tool_without_id"
    TOOL_WITHOUT_NAME = "tool_without_name"
    WORDS_WITHOUT_CONTENT = "words_without_content"
    FIELD_MISSPELT = "field_misspelt"


class InterruptionCause(StrEnum):
    """Why an answer was cut off, as the agent's framework tells it.

    - `user_speech`: the user began to speak
    - `user_turn`: the user's turn was ruled to be over
    - `program`: the agent's own code did it
    - `unknown`: a cause that this version does not know
    """

    USER_SPEECH = "user_speech"
    USER_TURN = "user_turn"
    PROGRAM = "program"
    UNKNOWN = "unknown"


class ClockSkew(StrEnum):
    """How an event's own time differs from the broker's timestamp of its record, more than a live
    producer's does.
    """

    AHEAD = "ahead"
    BEHIND = "behind"


class PipelineType(StrEnum):
    """How the agent is built; it decides which of EVA's rules apply."""

    CASCADE = "cascade"
    AUDIO_LLM = "audio_llm"
    S2S = "s2s"


class Speaker(StrEnum):
    """A side of the call."""

    USER = "user"
    ASSISTANT = "assistant"


class Anchor(StrEnum):
    """How the end of the user's speech is known, where a latency begins. The best come first.

    - `audio`: sound on the line
    - `record`: the agent provider's record of the conversation, which has the whole latency
    - `vad`: the bot's voice activity detector
    - `turn_release`: the bot's ruling that the turn is over
    - `transcript`: the time of the user's transcript
    - `estimated`: arrival times of events
    """

    AUDIO = "audio"
    RECORD = "record"
    VAD = "vad"
    TURN_RELEASE = "turn_release"
    TRANSCRIPT = "transcript"
    ESTIMATED = "estimated"


class ToolOutcome(StrEnum):
    """How a tool call ended; `unanswered` when the call closed without a response, `unknown` when
    it responded and its producer withholds the response: an error can be in it.
    """

    SUCCESS = "success"
    ERROR = "error"
    UNANSWERED = "unanswered"
    UNKNOWN = "unknown"


FAILED_USES: Final = frozenset({ToolOutcome.ERROR, ToolOutcome.UNANSWERED})
"""Outcomes of tool calls that failed for certain: what a producer withholds is not known to have
failed.
"""


class IngestOutcome(StrEnum):
    """Outcome of one request to the receiver of events.

    - `accepted`: Kafka acknowledged all of its events
    - `partly_refused`: Kafka acknowledged some, and the answer names the others
    - `refused`: none of its events can be read
    - `unreadable`: the body as a whole cannot be read
    - `unauthorized`: no token, or another one
    - `too_large`: the body is over its bound
    - `limited`: the sender is over its limit of events
    - `busy`: too many bodies are in memory, and this one made room for another
    - `too_slow`: the body did not arrive in time
    - `gone`: the sender went away before the end of its body
    - `unwritten`: Kafka or the disk did not acknowledge in time; the sender has to come again
    """

    ACCEPTED = "accepted"
    PARTLY_REFUSED = "partly_refused"
    REFUSED = "refused"
    UNREADABLE = "unreadable"
    UNAUTHORIZED = "unauthorized"
    TOO_LARGE = "too_large"
    LIMITED = "limited"
    BUSY = "busy"
    TOO_SLOW = "too_slow"
    GONE = "gone"
    UNWRITTEN = "unwritten"


class WebhookKind(StrEnum):
    """Content of a delivery of ElevenLabs' webhook; `unknown` where its signature does not hold,
    and for types of tomorrow.
    """

    TRANSCRIPTION = "transcription"
    AUDIO = "audio"
    INITIATION_FAILURE = "initiation_failure"
    UNKNOWN = "unknown"


class WebhookOutcome(StrEnum):
    """Outcome of one delivery of ElevenLabs' webhook.

    - `accepted`: the call is safe
    - `repeated`: the same delivery was accepted before
    - `ignored`: it holds no call
    - `quarantined`: it holds a call that cannot be read; the record is on its topic, and the
      evaluator quarantines it
    - `foreign`: it holds a call that another tenant began; nothing is written
    - `malformed`, `stale`, `ahead`, `forged`: its signature does not hold, or not now
    - `too_large`: its body is over its bound, and is not read
    - `too_large_to_keep`: its turns and figures are written, and its words are only those of the
      events: a record cannot carry all of it
    - `too_old`: the call began longer ago than an event may; nothing is written, because each event
      would be refused
    - `limited`, `busy`, `too_slow`, `gone`, `unwritten`: as in `IngestOutcome`
    """

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    IGNORED = "ignored"
    QUARANTINED = "quarantined"
    FOREIGN = "foreign"
    MALFORMED = "malformed"
    STALE = "stale"
    AHEAD = "ahead"
    FORGED = "forged"
    TOO_LARGE = "too_large"
    TOO_LARGE_TO_KEEP = "too_large_to_keep"
    TOO_OLD = "too_old"
    LIMITED = "limited"
    BUSY = "busy"
    TOO_SLOW = "too_slow"
    GONE = "gone"
    UNWRITTEN = "unwritten"


class MonitorOutcome(StrEnum):
    """Outcome of one message of ElevenLabs' monitor.

    - `sent`: handed to Kafka with the time of its arrival
    - `past`: handed to Kafka as something that happened before we joined, with a time that only
      gives the order
    - `repeated`: an earlier connection delivered it already
    - `left_out`: no rule reads its type, for example sound
    - `unreadable`: it is no JSON object with a type
    - `dropped`: too many messages of its call wait for Kafka, or it is too large
    """

    SENT = "sent"
    PAST = "past"
    REPEATED = "repeated"
    LEFT_OUT = "left_out"
    UNREADABLE = "unreadable"
    DROPPED = "dropped"


class CloseReason(StrEnum):
    """Why a call was closed."""

    ENDED = "ended"
    SESSION_ENDED = "session_ended"
    IDLE = "idle"
    LIMIT_DURATION = "limit_duration"
    LIMIT_EVENTS = "limit_events"
    LIMIT_TURNS = "limit_turns"
    LIMIT_KEPT_BYTES = "limit_kept_bytes"
    LIMIT_REPLAYS = "limit_replays"
    LIMIT_OPEN_CALLS = "limit_open_calls"


class CallOutcome(StrEnum):
    """How a call ended, the worst first.

    - `never_answered`: its caller got no answer at all
    - `hung_up`: while its caller waited for an answer
    - `failed`: right after an error of the agent, or with one as its reason
    - `events_stopped`: its caller waited for the first time in a turn, and nothing said that the
      call ended: how it did, nobody knows. One who speaks again in vain is known to wait. Also of
      a caller who waited when a limit of callgauge closed the call
    - `ended`: otherwise
    - `running`: it has not ended
    """

    NEVER_ANSWERED = "never_answered"
    HUNG_UP = "hung_up"
    FAILED = "failed"
    EVENTS_STOPPED = "events_stopped"
    ENDED = "ended"
    RUNNING = "running"


class Detector(StrEnum):
    """A kind of personal data that redaction finds. In texts it leaves the name in capitals and
    brackets.
    """

    CARD = "card"
    PHONE = "phone"
    EMAIL = "email"
    IBAN = "iban"
    BIRTH_DATE = "birth_date"


CUSTOM: Final = "custom"
"""Label value of findings of all custom patterns together: their names are the operator's, label
values are a closed set.
"""
REDACTION_TYPES: Final = (*(detector.value for detector in Detector), CUSTOM)
"""Every type of finding that is counted."""


class JudgeKind(StrEnum):
    """The subject of a verdict: a subgoal of the call, or one of EVA's metrics of text."""

    SUBGOAL = "subgoal"
    CONCISENESS = "conciseness"
    SPEAKABILITY = "speakability"
    FAITHFULNESS = "faithfulness"
    CONVERSATION_PROGRESSION = "conversation_progression"
    KEY_ENTITIES = "transcription_accuracy_key_entities"
    USER_FIDELITY = "user_behavioral_fidelity"


TURN_JUDGES: Final = (JudgeKind.CONCISENESS, JudgeKind.SPEAKABILITY, JudgeKind.KEY_ENTITIES)
CALL_JUDGES: Final = (
    JudgeKind.FAITHFULNESS,
    JudgeKind.CONVERSATION_PROGRESSION,
    JudgeKind.USER_FIDELITY,
)
TEXT_JUDGES: Final = tuple(kind for kind in JudgeKind if kind in (*TURN_JUDGES, *CALL_JUDGES))
"""EVA's metrics that a model judges from the text of a call: those of each turn, and those of the
whole call.
"""


class TrialOutcome(StrEnum):
    """Outcome of one request to the model.

    - `answered`: an answer in the form that was asked for
    - `unreadable`: text in another form
    - `truncated`: an answer cut off by the token limit
    - `refused`: the model refused to answer
    - `rate_limited`: too many requests, also after waiting
    - `rejected`: the endpoint does not accept such a request (key, model or parameters)
    - `unavailable`: an error of the endpoint or the network
    - `timed_out`: no answer in time
    """

    ANSWERED = "answered"
    UNREADABLE = "unreadable"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    RATE_LIMITED = "rate_limited"
    REJECTED = "rejected"
    UNAVAILABLE = "unavailable"
    TIMED_OUT = "timed_out"


class UnjudgedReason(StrEnum):
    """Why a question has no verdict. Unknown is not zero.

    The question was never put to the model:

    - `judge_disabled`: no key, or switched off
    - `not_sampled`: its call is not in the sample
    - `over_budget`: the money is spent
    - `queue_full`: too many questions wait
    - `too_long`: its transcript is too long
    - `unknown_prompt`: this judge does not have that version of the prompt

    Or it was, without a result:

    - `deadline`: the deadline passed
    - `superseded`: a newer turn came first
    - `invalid_answers`: too many replies were not answers
    - `refused`: the model refused
    - `unavailable`: the endpoint did not answer
    - `rejected`: the endpoint does not accept requests of ours
    - `circuit_open`: the endpoint failed so often that it was left alone
    """

    JUDGE_DISABLED = "judge_disabled"
    NOT_SAMPLED = "not_sampled"
    OVER_BUDGET = "over_budget"
    QUEUE_FULL = "queue_full"
    TOO_LONG = "too_long"
    UNKNOWN_PROMPT = "unknown_prompt"
    DEADLINE = "deadline"
    SUPERSEDED = "superseded"
    INVALID_ANSWERS = "invalid_answers"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    REJECTED = "rejected"
    CIRCUIT_OPEN = "circuit_open"


class UnscoredReason(StrEnum):
    """Why a value is not known. Unknown is not zero.

    From `no_subgoals` to `expected_turn_not_reached`, agent-inspect crashes or leaves something out
    without a word. `times_unknown`: when something happened is not known, so neither is whether it
    was in time or how long it took. `answered_in_text`: the assistant answered in words, and no
    event of the call shows that it speaks. `withheld`: it depends on the arguments or the answer of
    a tool, and their producer does not send them. `call_cut_off`: the call was closed at a limit
    before a verdict came. `no_price`: the price table lacks a model, or a kind of amount that it
    used. From `judge_disabled` on, the reasons are those of `UnjudgedReason`.
    """

    USER_STILL_SPEAKING = "user_still_speaking"
    NO_USER_SPEECH = "no_user_speech"
    NO_ASSISTANT_SPEECH = "no_assistant_speech"
    NO_SPEECH_EVENTS = "no_speech_events"
    ANSWERED_IN_TEXT = "answered_in_text"
    WITHDRAWN = "withdrawn"
    NO_SUBGOALS = "no_subgoals"
    NO_TURN_JUDGED = "no_turn_judged"
    ONE_TURN_HAS_NO_AREA = "one_turn_has_no_area"
    NO_TOOL_CALL_DUE = "no_tool_call_due"
    EXPECTED_TURN_NOT_REACHED = "expected_turn_not_reached"
    TIMES_UNKNOWN = "times_unknown"
    WITHHELD = "withheld"
    ASSISTANT_STILL_SPEAKING = "assistant_still_speaking"
    END_REASON_UNKNOWN = "end_reason_unknown"
    FINAL_STATE_UNKNOWN = "final_state_unknown"
    CALL_CUT_OFF = "call_cut_off"
    NO_PRICE = "no_price"
    JUDGE_DISABLED = "judge_disabled"
    NOT_SAMPLED = "not_sampled"
    OVER_BUDGET = "over_budget"
    QUEUE_FULL = "queue_full"
    TOO_LONG = "too_long"
    UNKNOWN_PROMPT = "unknown_prompt"
    DEADLINE = "deadline"
    SUPERSEDED = "superseded"
    INVALID_ANSWERS = "invalid_answers"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    REJECTED = "rejected"
    CIRCUIT_OPEN = "circuit_open"


LATENCY_REASONS: Final = frozenset(
    {
        UnscoredReason.USER_STILL_SPEAKING,
        UnscoredReason.NO_USER_SPEECH,
        UnscoredReason.NO_ASSISTANT_SPEECH,
        UnscoredReason.NO_SPEECH_EVENTS,
        UnscoredReason.ANSWERED_IN_TEXT,
        UnscoredReason.TIMES_UNKNOWN,
        UnscoredReason.WITHDRAWN,
    }
)
"""Why a latency can be unknown."""
GOAL_REASONS: Final = frozenset(
    {
        UnscoredReason.NO_SUBGOALS,
        UnscoredReason.NO_TURN_JUDGED,
        UnscoredReason.TIMES_UNKNOWN,
        UnscoredReason.WITHHELD,
        UnscoredReason.CALL_CUT_OFF,
        *(UnscoredReason(reason.value) for reason in UnjudgedReason),
    }
)
"""Why a subgoal, or the success of a call, can be unknown."""


SortKey = Literal["trouble", "quiet", "latency", "began", "agent"]
"""The orders of running calls: the worst first, the longest quiet, the slowest newest answer, the
oldest, by the agent's name.
"""

EvaMetricName = Literal[
    "eva_turn_taking",
    "eva_response_speed",
    "eva_tool_call_validity",
    "eva_tool_schema_validity",
    "eva_conversation_correctly_finished",
    "eva_conversation_completed_on_time",
    "eva_conversation_valid_end",
    "eva_authentication_success",
    "eva_task_completion",
    "eva_a_mean",
    "eva_a_pass",
    "eva_x_mean",
    "eva_x_pass",
]
"""Names of EVA's metrics with the prefix `eva_`. `eva_tool_schema_validity` is ours, for agents
whose tools do not name their errors as EVA's do.
"""
