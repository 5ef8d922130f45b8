"""Texts of simulated calls: a few small domains with callers, assistants and their tools."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ToolScript:
    """A tool that the assistant uses before it answers: its arguments and what it returns when it works."""

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
"""From here a speech is long enough to be cut off by a barge-in, or for the assistant to start before it is over."""


def can_happen(feature: str, exchange: Exchange, said_before: str) -> bool:
    """Returns whether an awkward thing can happen in this exchange, after this text of the assistant."""
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
NUDGES: Final = ("Are you still there?", "Hello? I can still hear the line, please go on when you are ready.")
APOLOGY: Final = "I could not find it at the first try, so I searched again."
CONFUSED: Final = "I am sorry, I did not get that. Could you please say it once more?"
HELLO: Final = ("Hello? Can you hear me?", "Is anybody there? I cannot hear you.")
NOISES: Final = ("...", ".", "?")  # a transcriber writes this for a cough; such an utterance does not count

_AIRLINE = Domain(
    agent="airline-rebooking",
    greeting="Good morning, this is the rebooking desk of Larkwing Air. How can I help you today?",
    exchanges=(
        Exchange(
            "Hi, my connection in Denver was cancelled and I need another way to get to Portland tonight.",
            "I am sorry about that. Could you give me your booking code and the family name on the ticket?",
        ),
        Exchange(
            "Sure, it is Q seven T M two K, and the name is Abernathy.",
            "Thank you, I see your cancelled connection. You were in seat fourteen C with one checked bag. "
            "Shall I look for flights that still leave tonight?",
            ToolScript(
                "find_booking",
                {"booking_code": "Q7TM2K", "family_name": "Abernathy"},
                {"status": "success", "booking": {"code": "Q7TM2K", "seat": "14C", "bags": 1}},
            ),
        ),
        Exchange(
            "Yes please, and I would rather not change planes again if that is possible.",
            "There is one direct flight at nine twenty five in the evening, and one through Boise that lands a little "
            "earlier. The direct one has two seats left. Which of them would you like?",
            ToolScript(
                "search_flights",
                {"origin": "DEN", "destination": "PDX", "nonstop_first": True},
                {"status": "success", "flights": [{"id": "LW 2217", "seats": 2}, {"id": "LW 480", "seats": 9}]},
            ),
        ),
        Exchange(
            "The direct one sounds right. Does it cost me anything extra?",
            "No, because we cancelled your flight there is no charge at all. Should I go on and book it?",
        ),
        Exchange(
            "Please book it, and an aisle seat would be wonderful.",
            "Done. You are on flight twenty two seventeen tonight, seat nine D on the aisle, and your bag goes with "
            "you. The new boarding pass is in your mail.",
            ToolScript(
                "rebook",
                {"booking_code": "Q7TM2K", "flight": "LW 2217", "seat_wish": "aisle"},
                {"status": "success", "seat": "9D", "charge": 0},
            ),
        ),
        Exchange(
            "Do I get a meal voucher while I am waiting?",
            "Yes, I have added one for eighteen dollars. It works in every restaurant behind security.",
            ToolScript(
                "add_voucher",
                {"booking_code": "Q7TM2K", "kind": "meal"},
                {"status": "success", "amount": 18, "currency": "USD"},
            ),
        ),
    ),
    farewell=Exchange("That is everything, thank you so much. Bye.", "You are welcome. Have a calm flight, goodbye."),
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
            "The number is five five zero one nine, born on the third of June nineteen seventy nine.",
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
            "Two months are allowed for this one. I am preparing sixty tablets, ready on Thursday after four.",
            ToolScript(
                "request_refill",
                {"label_number": "55019", "months": 2},
                {"status": "success", "ready_at": "Thursday 16:00"},
            ),
        ),
        Exchange(
            "How much will I have to pay for it?",
            "With your insurance it is eleven dollars and forty cents. You can pay when you pick it up.",
            ToolScript("quote_price", {"label_number": "55019", "months": 2}, {"status": "success", "amount": 11.4}),
        ),
        Exchange(
            "One more question, can I take it together with ibuprofen?",
            "That is a question for our pharmacist, because the two can work against each other. "
            "Shall she call you back this afternoon?",
        ),
        Exchange(
            "Yes, after three would be good, on this number.",
            "I have noted it. She will call you between three and four.",
            ToolScript("schedule_callback", {"after": "15:00"}, {"status": "success", "window": "15:00-16:00"}),
        ),
    ),
    farewell=Exchange("Perfect, thanks for your help, goodbye.", "With pleasure. Enjoy your holiday, goodbye."),
)

_INTERNET = Domain(
    agent="internet-outage",
    greeting="Welcome to Fjordnet support. Please tell me what is not working.",
    exchanges=(
        Exchange(
            "My internet has been gone since about seven this morning and I work from home.",
            "That must be annoying. Let me see whether your street is affected. What is your customer number?",
        ),
        Exchange(
            "Wait, I have to look. It is eight one four, double two, zero six.",
            "Thanks. I see no outage in your street, but your modem has been silent since six fifty two. "
            "Can you tell me which lights are on?",
            ToolScript(
                "check_line",
                {"customer_number": "8142206"},
                {"status": "success", "outage": False, "modem_last_seen": "06:52"},
            ),
        ),
        Exchange(
            "The power light is green and the one next to it is blinking orange.",
            "Blinking orange means that it cannot find our signal. Please unplug the grey cable at the wall, wait for "
            "ten seconds and plug it in again.",
        ),
        Exchange(
            "Okay, I did that, and it still blinks.",
            "Then I will send a fresh signal to your line. This takes a moment, please keep the modem on.",
            ToolScript("reset_port", {"customer_number": "8142206"}, {"status": "success", "signal_db": -21.5}),
        ),
        Exchange(
            "Something is happening, now it is yellow.",
            "The signal is there but weak, which often is a worn cable outside. "
            "I would like to send a technician tomorrow between eight and ten. Does that suit you?",
        ),
        Exchange(
            "Tomorrow is fine, but can he call me before he comes?",
            "Of course, I put that on the order. You will also get ten euros back for the lost day.",
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
            "I found your card. Two of the books can stay with you until the end of the month. The third one, the "
            "cookbook, is wanted by somebody else.",
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
                "extend_loans", {"card": "4007719", "loans": [1, 2]}, {"status": "success", "until": "30th"}
            ),
        ),
        Exchange(
            "Can somebody else bring it back for me?",
            "Yes, anyone can, they only need the book. The box next to the entrance is open all night.",
        ),
    ),
    farewell=Exchange("Great, that helps, thank you. Bye.", "Happy reading, goodbye."),
)  # fmt: skip

DOMAINS: Final = (_AIRLINE, _PHARMACY, _INTERNET, _LIBRARY)
AGENTS: Final = tuple(domain.agent for domain in DOMAINS)
