"""Profiles of simulated calls, their incidents, and their sentences."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

# Profiles of simulated agents: how fast each step of an answer is, and how often something goes
# wrong.

ProfileName = Literal["healthy", "awkward"]
Range = tuple[int, int]
"""Shortest and longest duration in ms; each in between is as likely."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How an agent serves its callers. Probabilities are per call unless they say otherwise.

    Attributes:
        features: How often each awkward thing happens. Each takes one exchange to itself.
        endings: Weights of the ends: goodbye, timeout, inactivity of the caller, error.
        heard_ms: From the caller's last sound to the ruling that the turn is over.
        model_ms: From then to the decision of the model.
        again_ms: From the answer of a failed tool to the next decision.
        after_tool_ms: From the answer of a tool to the decision of the model.
        tool_ms: Run time of a tool.
        voice_ms: From the decision to the first sound.
        silence_ms: From the caller's last sound to the decision, in a turn with dead air.
        silent_turns: Probability per turn without a tool that it has dead air.
        late: Probability that an event arrives late.
        repeated: Probability that a record is sent twice.
        is_mute: Whether the agent never answers; callers ask twice whether anybody is there, then
            hang up.
        talks_over: Whether the agent starts before its caller has finished, wherever a text is long
            enough.
        tools_fail: Whether no tool works.
        is_confused: Whether the agent understands nothing and asks the caller to repeat everything.
        sends_audit: Whether the framework of the agent sends its audit log.
        fewest_exchanges: After how many exchanges callers have what they want at the earliest; the
            exchanges of an agent are the most.
        most_exchanges: After how many exchanges callers hang up at the latest, without a farewell;
            None for the whole call.
    """

    features: Mapping[str, float]
    endings: tuple[int, int, int, int]
    heard_ms: Range
    model_ms: Range
    again_ms: Range
    after_tool_ms: Range
    tool_ms: Range
    voice_ms: Range
    silence_ms: Range = (3300, 6500)
    silent_turns: float = 0.0
    late: float = 0.2
    repeated: float = 0.15
    is_mute: bool = False
    talks_over: bool = False
    tools_fail: bool = False
    is_confused: bool = False
    sends_audit: bool = True
    fewest_exchanges: int = 3
    most_exchanges: int | None = None


AWKWARD: Final = Profile(
    features={
        "user_barge_in": 0.35,
        "assistant_interruption": 0.2,
        "empty_session": 0.15,
        "missing_audio_end": 0.1,
        "late_audio_end": 0.1,
        "slow_tool": 0.3,
        "tool_error": 0.2,
        "dead_air": 0.2,
        "slow_answer": 0.3,
        "user_silence": 0.12,
    },
    endings=(80, 7, 7, 6),
    heard_ms=(250, 650),
    model_ms=(250, 700),
    again_ms=(250, 500),
    after_tool_ms=(300, 700),
    tool_ms=(80, 700),
    voice_ms=(150, 300),
)
"""Calls in which most things go wrong now and then, for tests. No real agent would be kept in use
like that.
"""

HEALTHY: Final = Profile(
    features={
        "user_barge_in": 0.15,
        "assistant_interruption": 0.03,
        "empty_session": 0.05,
        "missing_audio_end": 0.01,
        "late_audio_end": 0.01,
        "slow_tool": 0.03,
        "tool_error": 0.03,
        "dead_air": 0.01,
        "slow_answer": 0.05,
        "user_silence": 0.02,
    },
    endings=(97, 1, 1, 1),
    heard_ms=(240, 340),
    model_ms=(290, 440),
    again_ms=(100, 200),
    after_tool_ms=(100, 220),
    tool_ms=(40, 160),
    voice_ms=(150, 210),
    late=0.02,
    repeated=0.02,
)
"""An agent that meets the objectives of `deploy/slo.yaml`: 95 % of turns within 1.5 s, each stage
within its own, dead air in less than 1 %. It answers after 0.66 s at the earliest, because EVA's
simulated caller notices its own silence after 0.6 s, and until then an answer looks like an
interruption.
"""

USUAL: Final = replace(HEALTHY, fewest_exchanges=6, endings=(1, 0, 0, 0))
"""The same for callers who stay until they have all that they want, and say goodbye: a goal that is
missed is the fault of a trouble.
"""
PROFILES: Final[Mapping[ProfileName, Profile]] = {"healthy": USUAL, "awkward": AWKWARD}

ProfileOf = Callable[[str, int], Profile]
"""The profile of an agent at a time, by its name and epoch milliseconds."""


def always(profile: Profile) -> ProfileOf:
    """Returns the profile for every agent at any time."""
    return lambda _agent, _at_ms: profile


# Incidents: known troubles of agents, made on purpose, so that drills and people can see which
# alert reports them.
#
# An incident changes the profile of agents while it lasts, also in calls that have begun before it.

IncidentName = Literal[
    "llm_slow",
    "tts_slow",
    "stt_slow",
    "dead_air",
    "agent_mute",
    "talks_over",
    "tool_backend_fails",
    "callers_hang_up",
    "stall_after_deploy",
    "source_silent",
]

LLM_SLOW_MS: Final = 5_000
"""Delay of every answer by a model that is out of capacity."""
TTS_SLOW_MS: Final = 1_500
"""Delay by a voice without a warm cache: the answer is late, and not yet dead air."""
STT_SLOW_MS: Final = 1_500
"""Delay by a transcriber that falls behind."""
SILENT_TURNS: Final = 0.5
"""Share of the turns without a tool in which an answer hangs, a fifth to a quarter of all turns."""


def _later(bounds: Range, by_ms: int) -> Range:
    return bounds[0] + by_ms, bounds[1] + by_ms


_CHANGES: Final[Mapping[IncidentName, Callable[[Profile], Profile]]] = {
    "llm_slow": lambda usual: replace(usual, model_ms=_later(usual.model_ms, LLM_SLOW_MS)),
    "tts_slow": lambda usual: replace(usual, voice_ms=_later(usual.voice_ms, TTS_SLOW_MS)),
    "stt_slow": lambda usual: replace(usual, heard_ms=_later(usual.heard_ms, STT_SLOW_MS)),
    "dead_air": lambda usual: replace(usual, silent_turns=SILENT_TURNS, silence_ms=(4_000, 7_000)),
    "agent_mute": lambda usual: replace(usual, is_mute=True, features={}),
    "talks_over": lambda usual: replace(usual, talks_over=True),
    "tool_backend_fails": lambda usual: replace(usual, tools_fail=True),
    "callers_hang_up": lambda usual: replace(usual, most_exchanges=2),
    "stall_after_deploy": lambda usual: replace(usual, is_confused=True),
    "source_silent": lambda usual: replace(usual, sends_audit=False),
}


@dataclass(frozen=True, slots=True)
class Incident:
    """One trouble of one agent, or of all.

    Attributes:
        name: The kind of trouble.
        agent: The agent that has it; None for every agent.
        begins_ms: When it begins, in epoch ms.
        ends_ms: When it is over; None for never.
    """

    name: IncidentName
    agent: str | None = None
    begins_ms: int = 0
    ends_ms: int | None = None

    def concerns(self, agent: str, at_ms: int) -> bool:
        """Returns whether this agent has the trouble at this time."""
        is_on = self.begins_ms <= at_ms and (self.ends_ms is None or at_ms < self.ends_ms)
        return is_on and self.agent in (None, agent)


def with_incidents(usual: Profile, incidents: Sequence[Incident]) -> ProfileOf:
    """Returns the usual profile, changed by every incident that concerns an agent at a time."""

    def profile_of(agent: str, at_ms: int) -> Profile:
        profile = usual
        for incident in incidents:
            if incident.concerns(agent, at_ms):
                profile = _CHANGES[incident.name](profile)
        return profile

    return profile_of


# Texts of simulated calls: a few small domains with callers, assistants and their tools.


@dataclass(frozen=True, slots=True)
class ToolScript:
    """A tool that the assistant uses before it answers: its arguments and what it returns when it
    works.
    """

    name: str
    parameters: Mapping[str, Any]
    response: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A text of the user and the answer of the assistant, after the tool if there is one."""

    user: str
    assistant: str
    tool: ToolScript | None = None


@dataclass(frozen=True, slots=True)
class Domain:
    """One kind of call: the agent, its style, and the exchanges in a sensible order."""

    agent: str
    greeting: str
    exchanges: tuple[Exchange, ...]
    farewell: Exchange


_LONG_ANSWER_WORDS, _LONG_QUESTION_WORDS = 12, 9
"""From here a speech is long enough to be cut off by a barge-in, or for the assistant to start
before it is over.
"""


def can_happen(feature: str, exchange: Exchange, said_before: str) -> bool:
    """Returns whether an awkward thing can happen in this exchange, after this text of the
    assistant.
    """
    match feature:
        case "user_barge_in":
            return len(said_before.split()) >= _LONG_ANSWER_WORDS
        case "assistant_interruption":
            return exchange.tool is None and len(exchange.user.split()) >= _LONG_QUESTION_WORDS
        case "slow_tool" | "tool_error":
            return exchange.tool is not None
        case "slow_answer" | "dead_air":
            return exchange.tool is None
    return True


FILLERS: Final = (
    "One moment, I am looking that up for you.",
    "Let me check that, it takes a few seconds.",
    "Bear with me while I open your file.",
)
NUDGES: Final = (
    "Are you still there?",
    "Hello? I can still hear the line, please go on when you are ready.",
)
APOLOGY: Final = "I could not find it at the first try, so I searched again."
CONFUSED: Final = "I am sorry, I did not get that. Could you please say it once more?"
HELLO: Final = ("Hello? Can you hear me?", "Is anybody there? I cannot hear you.")
# a transcriber writes this for a cough; such an utterance does not count
NOISES: Final = ("...", ".", "?")

_AIRLINE = Domain(
    agent="airline-rebooking",
    greeting="Good morning, this is the rebooking desk of Larkwing Air. How can I help you today?",
    exchanges=(
        Exchange(
            "Hi, my connection in Denver was cancelled and I need another way to get to Portland "
            "tonight.",
            "I am sorry about that. Could you give me your booking code and the family name on the "
            "ticket?",
        ),
        Exchange(
            "Sure, it is Q seven T M two K, and the name is Abernathy.",
            "Thank you, I see your cancelled connection. You were in seat fourteen C with one "
            "checked bag. Shall I look for flights that still leave tonight?",
            ToolScript(
                "find_booking",
                {"booking_code": "Q7TM2K", "family_name": "Abernathy"},
                {"status": "success", "booking": {"code": "Q7TM2K", "seat": "14C", "bags": 1}},
            ),
        ),
        Exchange(
            "Yes please, and I would rather not change planes again if that is possible.",
            "There is one direct flight at nine twenty five in the evening, and one through Boise "
            "that lands a little earlier. The direct one has two seats left. Which of them would "
            "you like?",
            ToolScript(
                "search_flights",
                {"origin": "DEN", "destination": "PDX", "nonstop_first": True},
                {
                    "status": "success",
                    "flights": [{"id": "LW 2217", "seats": 2}, {"id": "LW 480", "seats": 9}],
                },
            ),
        ),
        Exchange(
            "The direct one sounds right. Does it cost me anything extra?",
            "No, because we cancelled your flight there is no charge at all. Should I go on and "
            "book it?",
        ),
        Exchange(
            "Please book it, and an aisle seat would be wonderful.",
            "Done. You are on flight twenty two seventeen tonight, seat nine D on the aisle, and "
            "your bag goes with you. The new boarding pass is in your mail.",
            ToolScript(
                "rebook",
                {"booking_code": "Q7TM2K", "flight": "LW 2217", "seat_wish": "aisle"},
                {"status": "success", "seat": "9D", "charge": 0},
            ),
        ),
        Exchange(
            "Do I get a meal voucher while I am waiting?",
            "Yes, I have added one for eighteen dollars. It works in every restaurant behind "
            "security.",
            ToolScript(
                "add_voucher",
                {"booking_code": "Q7TM2K", "kind": "meal"},
                {"status": "success", "amount": 18, "currency": "USD"},
            ),
        ),
    ),
    farewell=Exchange(
        "That is everything, thank you so much. Bye.",
        "You are welcome. Have a calm flight, goodbye.",
    ),
)

_PHARMACY = Domain(
    agent="pharmacy-refill",
    greeting="Hello, you have reached the Birchwood Pharmacy. What can I do for you?",
    exchanges=(
        Exchange(
            "I want to renew my prescription before I go on holiday.",
            "I can do that. Please tell me the number on the label and your date of birth.",
        ),
        Exchange(
            "The number is five five zero one nine, born on the third of June nineteen seventy "
            "nine.",
            "Thank you. That is the blood pressure tablet, thirty pieces, with two renewals left. "
            "When do you need to have it?",
            ToolScript(
                "find_prescription",
                {"label_number": "55019", "date_of_birth": "1979-06-03"},
                {"status": "success", "drug": "lisinopril 10 mg", "renewals_left": 2},
            ),
        ),
        Exchange(
            "By Friday noon, and could I get two months at once?",
            "Two months are allowed for this one. I am preparing sixty tablets, ready on Thursday "
            "after four.",
            ToolScript(
                "request_refill",
                {"label_number": "55019", "months": 2},
                {"status": "success", "ready_at": "Thursday 16:00"},
            ),
        ),
        Exchange(
            "How much will I have to pay for it?",
            "With your insurance it is eleven dollars and forty cents. You can pay when you pick "
            "it up.",
            ToolScript(
                "quote_price",
                {"label_number": "55019", "months": 2},
                {"status": "success", "amount": 11.4},
            ),
        ),
        Exchange(
            "One more question, can I take it together with ibuprofen?",
            "That is a question for our pharmacist, because the two can work against each other. "
            "Shall she call you back this afternoon?",
        ),
        Exchange(
            "Yes, after three would be good, on this number.",
            "I have noted it. She will call you between three and four.",
            ToolScript(
                "schedule_callback",
                {"after": "15:00"},
                {"status": "success", "window": "15:00-16:00"},
            ),
        ),
    ),
    farewell=Exchange(
        "Perfect, thanks for your help, goodbye.", "With pleasure. Enjoy your holiday, goodbye."
    ),
)

_INTERNET = Domain(
    agent="internet-outage",
    greeting="Welcome to Fjordnet support. Please tell me what is not working.",
    exchanges=(
        Exchange(
            "My internet has been gone since about seven this morning and I work from home.",
            "That must be annoying. Let me see whether your street is affected. What is your "
            "customer number?",
        ),
        Exchange(
            "Wait, I have to look. It is eight one four, double two, zero six.",
            "Thanks. I see no outage in your street, but your modem has been silent since six "
            "fifty two. Can you tell me which lights are on?",
            ToolScript(
                "check_line",
                {"customer_number": "8142206"},
                {"status": "success", "outage": False, "modem_last_seen": "06:52"},
            ),
        ),
        Exchange(
            "The power light is green and the one next to it is blinking orange.",
            "Blinking orange means that it cannot find our signal. Please unplug the grey cable at "
            "the wall, wait for ten seconds and plug it in again.",
        ),
        Exchange(
            "Okay, I did that, and it still blinks.",
            "Then I will send a fresh signal to your line. This takes a moment, please keep the "
            "modem on.",
            ToolScript(
                "reset_port",
                {"customer_number": "8142206"},
                {"status": "success", "signal_db": -21.5},
            ),
        ),
        Exchange(
            "Something is happening, now it is yellow.",
            "The signal is there but weak, which often is a worn cable outside. I would like to "
            "send a technician tomorrow between eight and ten. Does that suit you?",
        ),
        Exchange(
            "Tomorrow is fine, but can he call me before he comes?",
            "Of course, I put that on the order. You will also get ten euros back for the lost "
            "day.",
            ToolScript(
                "book_technician",
                {"customer_number": "8142206", "window": "08:00-10:00", "call_ahead": True},
                {"status": "success", "order": "T-90417", "refund": 10},
            ),
        ),
    ),
    farewell=Exchange("Alright, thank you, bye bye.", "Thank you for your patience. Goodbye."),
)

_LIBRARY = Domain(
    agent="library-desk",
    greeting="City library, good afternoon. What are you looking for?",
    exchanges=(
        Exchange(
            "Good afternoon, I have three books that are due today and I cannot come by.",
            "No problem, I can extend them. What is the number on your card?",
        ),
        Exchange(
            "Four zero zero, seven seven, one nine.",
            "I found your card. Two of the books can stay with you until the end of the month. The "
            "third one, the cookbook, is wanted by somebody else.",
            ToolScript(
                "list_loans",
                {"card": "4007719"},
                {"status": "success", "loans": [{"id": 1, "waiting": 0}, {"id": 2, "waiting": 1}]},
            ),
        ),
        Exchange(
            "Then please extend the two. Is there a late fee for the cookbook?",
            "They are extended. For the cookbook it is twenty cents a day, starting tomorrow.",
            ToolScript(
                "extend_loans",
                {"card": "4007719", "loans": [1, 2]},
                {"status": "success", "until": "30th"},
            ),
        ),
        Exchange(
            "Can somebody else bring it back for me?",
            "Yes, anyone can, they only need the book. The box next to the entrance is open all "
            "night.",
        ),
    ),
    farewell=Exchange("Great, that helps, thank you. Bye.", "Happy reading, goodbye."),
)

DOMAINS: Final = (_AIRLINE, _PHARMACY, _INTERNET, _LIBRARY)
AGENTS: Final = tuple(domain.agent for domain in DOMAINS)
