"""Numbers, times, names and texts as people read them: the same on every page and terminal."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Protocol, assert_never

from schemas.closed_sets import Anchor, InterruptionCause
from schemas.goals.checks import (
    AllOf,
    AnyCheck,
    AnyOf,
    Between,
    Equals,
    Judge,
    Matcher,
    Matches,
    Not,
    OneOf,
    Present,
    Says,
    ToolCalled,
    ToolResult,
    Within,
)
from schemas.goals.goal_set import seen
from schemas.rows import ExpectedTool, NotApplicable, Note, ToolDifference, Unscored, Value
from schemas.scores.latency_stages import Stage
from schemas.units import MS_PER_SECOND

# Times, durations and values as text: the same everywhere, and never a number for an unknown value.

_MINUTES_PER_HOUR: Final = 60
_DECIMALS: Final = 4
"""EVA rounds scores so far."""
_LAST_YEAR_MS: Final = 253_402_300_799_999

_UNITS: Final = ("_ms", "_seconds", "_secs", "_records", "_bytes")
_IN_SECONDS: Final = frozenset({"eva_response_speed"})
"""EVA's metrics of which only the documentation says the unit."""
_ANCHORS: Final = {
    Anchor.AUDIO: "heard on the line",
    Anchor.RECORD: "from the conversation record",
    Anchor.VAD: "by voice detector",
    Anchor.TURN_RELEASE: "by the agent's turn ruling",
    Anchor.TRANSCRIPT: "by the time of the transcript",
    Anchor.ESTIMATED: "estimated from arrival times",
}
_SAID: Final = {"user": "caller", "assistant": "agent"}
"""Words of the wire that are others on screens."""
_TITLES: Final = {
    "eva_a_mean": "EVA accuracy, mean",
    "eva_a_pass": "EVA accuracy, passed",
    "eva_x_mean": "EVA experience, mean",
    "eva_x_pass": "EVA experience, passed",
    "success_final_turn": "All goals reached in the final turn",
}
"""Headings that do not follow from the name."""
_STAGE_WORDS: Final[Mapping[Stage, str]] = {
    Stage.STT_TRAILING: "transcription after speech",
    Stage.LLM_FIRST_TOKEN: "model, first token",
    Stage.LLM_FIRST_SENTENCE: "model, first sentence",
    Stage.LLM_LAST_SENTENCE: "model, last sentence",
    # its own time, and not that of the tool
    Stage.TOOL_REQUEST: "model, until its tool call",
    Stage.LLM_TOOL_CALL: "model, its tool call",
    Stage.LLM_INFERENCE: "model, inference",
    # the page has a wait of its own, from the sounds
    Stage.VOICE_TO_VOICE: "whole wait, as reported",
    Stage.TTS_FIRST_BYTE: "voice, first sound",
}
MOST_TITLES: Final = 1_000
"""Headings that are kept: the same measures stand in every turn, and own ones have any name."""
_ACRONYMS: Final = frozenset({"x", "eva", "stt", "tts", "llm", "wer", "cer", "ppt", "auc"})


def clock(offset_ms: float) -> str:
    """A moment of a call, counted from its start.

    Example:
        >>> clock(65_400), clock(3_600_000), clock(-1_500)
        ('1:05', '1:00:00', '-0:01')
    """
    seconds = int(abs(offset_ms)) // MS_PER_SECOND
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, _MINUTES_PER_HOUR)
    sign = "-" if offset_ms <= -MS_PER_SECOND else ""
    return f"{sign}{hours}:{minutes:02}:{seconds:02}" if hours else f"{sign}{minutes}:{seconds:02}"


def seconds(length_ms: float) -> str:
    """A length in seconds, with as many decimals as a person can use.

    Example:
        >>> seconds(640), seconds(17_572.5), seconds(-21_287.8), seconds(343_000)
        ('0.64 s', '17.6 s', '\u221221.3 s', '343 s')
    """
    value = abs(length_ms) / MS_PER_SECOND
    digits = (value < 10) + (value < 100)
    written = f"{value:.{digits}f}"
    sign = "\u2212" if length_ms < 0 and float(written) else ""
    return f"{sign}{written} s"


def seconds_if_known(length_ms: float | None) -> str:
    """The same, or that it is not known."""
    return "not known" if length_ms is None else seconds(length_ms)


def duration(length_ms: float) -> str:
    """A length of minutes or hours.

    Example:
        >>> duration(342_768), duration(59_600), duration(7_260_000)
        ('5 min 43 s', '1 min 0 s', '2 h 1 min')
    """
    whole = round(length_ms / MS_PER_SECOND)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < _MINUTES_PER_HOUR:
        return f"{minutes} min {rest} s"
    return f"{minutes // _MINUTES_PER_HOUR} h {minutes % _MINUTES_PER_HOUR} min"


def number(value: float) -> str:
    """A value without a unit, exact to four decimals.

    Example:
        >>> number(1.0), number(0.26957), number(-0.5), number(1e-9), number(12345.5)
        ('1', '0.2696', '\u22120.5', '0', '12345.5')
    """
    written = f"{abs(value):.{_DECIMALS}f}".rstrip("0").rstrip(".")
    return f"\u2212{written}" if value < 0 and written != "0" else written


def percent(share: float) -> str:
    """A share of 1.

    Example:
        >>> percent(0.5), percent(1 / 3), percent(1)
        ('50 %', '33 %', '100 %')
    """
    return f"{share * 100:.0f} %"


def day_and_time(time_ms: float) -> str:
    """A moment in UTC; a time that no calendar has is shown as the number it is.

    Example:
        >>> day_and_time(1_772_403_724_000), day_and_time(-5)
        ('2026-03-01 22:22:04 UTC', '-5 ms')
    """
    if not 0 <= time_ms <= _LAST_YEAR_MS:
        return f"{time_ms:.0f} ms"
    return f"{datetime.fromtimestamp(time_ms / MS_PER_SECOND, UTC):%Y-%m-%d %H:%M:%S} UTC"


def time_of_day(time_ms: float) -> str:
    """A moment in UTC without its day.

    Example:
        >>> time_of_day(1_772_403_724_000), time_of_day(-5)
        ('22:22:04', '-5 ms')
    """
    if not 0 <= time_ms <= _LAST_YEAR_MS:
        return f"{time_ms:.0f} ms"
    return f"{datetime.fromtimestamp(time_ms / MS_PER_SECOND, UTC):%H:%M:%S}"


def quantity(name: str, value: float) -> str:
    """A value, in the unit that the end of its name says.

    Example:
        >>> quantity("voice_to_voice_latency_ms", 1966.091), quantity("turn_taking", 0.2696)
        ('1.97 s', '0.2696')
    """
    if name.endswith("_ms"):
        return seconds(value)
    if name.endswith(("_seconds", "_secs")) or name in _IN_SECONDS:
        return seconds(value * MS_PER_SECOND)
    return number(value)


def outcome(name: str, value: Value) -> str:
    """A value as it is: the number, or that there is none and why.

    Example:
        >>> outcome("wait_ms", 640.0), outcome("progress", NotApplicable("no goals"))
        ('0.64 s', 'Not applicable: no goals')
    """
    match value:
        case Unscored(reason=reason):
            return f"Unscored: {in_words(reason)}"
        case NotApplicable(reason=why):
            return f"Not applicable: {why}"
    return quantity(name, value)


def expected_call(found: ExpectedTool) -> str:
    """An expected tool call, and whether it was made as expected or why not.

    Example:
        >>> expected_call(ExpectedTool(0, "pay", 0.0, turn=3, missed=("name",), called_in_turns=(4, 5)))
        'pay in turn 3: not called in that turn, but in turn 4, 5'
    """
    return f"{found.tool}{'' if found.turn is None else f' in turn {found.turn}'}: {made(found)}"


def made(found: ExpectedTool) -> str:
    """Whether an expected tool call was made as expected, or why not."""
    match found.result:
        case Unscored(reason=reason):
            return f"not known ({reason.value})"
        case NotApplicable(reason=why):
            return f"left out, because {why}"
    if found.result:
        return "made as expected"
    if found.differences:
        return "; ".join(map(_difference, found.differences))
    turns = ", ".join(map(str, found.called_in_turns))
    return f"not called in that turn{f', but in turn {turns}' if turns else ''}"


def _difference(found: ToolDifference) -> str:
    part = "the output" if found.parameter is None else found.parameter
    return f"{part} is {'missing' if found.seen is None else found.seen}, expected {found.expected}"


def not_judged(reasons: Mapping[str, str]) -> str:
    """The dimensions of a rating that were not judged, with the reasons.

    Example:
        >>> not_judged({"violating_policies": "the agent's instructions are not known"})
        "not judged: violating policies (the agent's instructions are not known)"
    """
    return "not judged: " + ", ".join(f"{in_words(name)} ({why})" for name, why in reasons.items())


_CAUSES: Final = {
    InterruptionCause.USER_SPEECH: "the caller began to speak",
    InterruptionCause.USER_TURN: "the caller's turn was over",
    InterruptionCause.PROGRAM: "the agent's own code did it",
    InterruptionCause.UNKNOWN: "for an unknown cause",
}


def note_in_words(note: Note) -> str:
    """Says what the agent's framework notes; it stands after the number of the turn."""
    match note.what:
        case "handoff":
            return (
                f"{note.from_agent or 'an agent'} handed the call to "
                f"{note.to_agent or 'another one'}"
            )
        case "false_interruption":
            went_on = {None: "", True: ": the agent went on", False: ": the agent did not go on"}[
                note.is_resumed
            ]
            return f"what looked like an interruption was none{went_on}"
    return f"the answer was cut off: {_CAUSES[note.cause or InterruptionCause.UNKNOWN]}"


def in_words(name: str) -> str:
    """A name of the wire as words.

    Example:
        >>> in_words("no_user_speech")
        'no caller speech'
    """
    return " ".join(_SAID.get(word, word) for word in name.replace("_", " ").strip().split(" "))


def stage_in_words(stage: Stage) -> str:
    """A stage of a wait.

    Example:
        >>> stage_in_words(Stage.TOOL_REQUEST), stage_in_words(Stage.WAITING_FOR_USER)
        ('model, until its tool call', 'waiting for caller')
    """
    return _STAGE_WORDS.get(stage) or in_words(stage)


def anchor_in_words(anchor: Anchor) -> str:
    """How the end of the user's speech is known.

    Example:
        >>> anchor_in_words(Anchor.RECORD)
        'from the conversation record'
    """
    return _ANCHORS[anchor]


@lru_cache(maxsize=MOST_TITLES)
def title(name: str) -> str:
    """The heading for a score: its name as words, without its unit.

    Example:
        >>> title("voice_to_voice_latency_ms"), title("stt_wer"), title("turn_taking.on_time_rate")
        ('Voice to voice latency', 'STT WER', 'Turn taking, on time rate')
    """
    if name in _TITLES:
        return _TITLES[name]
    bare = next((name.removesuffix(unit) for unit in _UNITS if name.endswith(unit)), name)
    words = [
        word.upper() if word in _ACRONYMS else _SAID.get(word.rstrip(","), word)
        for word in re.split(r"[_\s]+", bare.replace(".", ", "))
        if word
    ]
    text = " ".join(words)
    return text[:1].upper() + text[1:]


def counted(count: int, what: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "turn"), counted(2, "turn")
        ('1 turn', '2 turns')
    """
    return f"{count} {what}" if count == 1 else f"{count:,} {what}s"


# Texts of a call as a report shows them: redacted, then cut to a bound.

MOST_CHARS: Final = 4_000
"""Characters of one text that are shown; a spoken turn has a few hundred, the answer of a tool may
have megabytes.
"""


class Redacts(Protocol):
    """Redacts personal data in texts."""

    def redact(self, text: str) -> str:
        """The text with placeholders in place of personal data."""


def shortened(text: str, most: int = MOST_CHARS) -> str:
    """The beginning of a text that is too long, cut at the border of a word if there is one in its
    last third, and how much more there was.

    Example:
        >>> shortened("see two words", 9), shortened("abcdef", 4)
        ('see two … (6 more characters)', 'abcd … (2 more characters)')
    """
    if len(text) <= most:
        return text
    end = most if text[most].isspace() else text.rfind(" ", most * 2 // 3, most)
    shown = text[: most if end < 0 else end].rstrip()
    return f"{shown} … ({len(text) - len(shown):,} more characters)"


def json_text(text: str) -> str:
    """Writes what a tool was given or answered on indented lines. A text that is no JSON, because
    it was cut, stays as it is.

    Example:
        >>> json_text('{"a":1}').splitlines(), json_text('{"a":')
        (['{', '  "a": 1', '}'], '{"a":')
    """
    try:
        return shortened(json.dumps(json.loads(text), ensure_ascii=False, indent=2))
    except (ValueError, RecursionError):
        return text


# How subgoals are checked.


def check_in_words(check: AnyCheck) -> str:
    """How a subgoal is checked.

    Example:
        >>> thanks = Says(kind="says", speaker="user", pattern="thank(s| you)")
        >>> check_in_words(Within(kind="within", turns=3, check=Not(kind="not", check=thanks)))
        'within 3 turns: not (the user says /thank(s| you)/)'
    """
    match check:
        case Judge():
            return "a judge decides"
        case Says():
            return f"the {check.speaker} says /{check.pattern}/"
        case ToolCalled():
            return f"{check.tool} is called{_with(check.arguments)}"
        case ToolResult():
            how = f" {check.outcome}" if check.outcome else ""
            return f"{check.tool}{_with(check.arguments)} answers{how}{_with(check.result)}"
        case Within():
            limit = f"{check.turns} turns" if check.turns is not None else f"{check.seconds:g} s"
            return f"within {limit}: {check_in_words(check.check)}"
        case AllOf() | AnyOf():
            word = "all" if isinstance(check, AllOf) else "any"
            return f"{word} of ({'; '.join(map(check_in_words, check.checks))})"
        case Not():
            return f"not ({check_in_words(check.check)})"
        case _:
            assert_never(check)


def _with(matchers: Mapping[str, Matcher]) -> str:
    matched = ", ".join(_matcher_in_words(path, matcher) for path, matcher in matchers.items())
    return f" with {matched}" if matched else ""


def _matcher_in_words(path: str, matcher: Matcher) -> str:
    match matcher:
        case Equals():
            return f"{path} = {seen(matcher.equals)}"
        case OneOf():
            return f"{path} one of {', '.join(map(seen, matcher.one_of))}"
        case Matches():
            return f"{path} like /{matcher.matches}/"
        case Between(at_least=least, at_most=most):
            if least is not None and most is not None:
                return f"{path} from {least:g} to {most:g}"
            return f"{path} at most {most:g}" if most is not None else f"{path} at least {least:g}"
        case Present():
            return f"{path} {'present' if matcher.present else 'absent'}"
        case _:
            assert_never(matcher)
