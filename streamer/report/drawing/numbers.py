"""Times, durations and values as text: the same everywhere, and never a number for an unknown value."""

import re
from datetime import UTC, datetime
from typing import Final, assert_never

from schemas.closed_sets import Anchor
from schemas.scores.records import NotApplicable, Result, Scored, Unscored

MS_PER_SECOND: Final = 1_000
_MS_PER_MINUTE: Final = 60_000
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
    Anchor.TURN_RELEASE: "by the bot's turn ruling",
    Anchor.TRANSCRIPT: "by the time of the transcript",
    Anchor.ESTIMATED: "estimated from arrival times",
}
_ACRONYMS: Final = {
    "x": "X",
    "eva": "EVA",
    "stt": "STT",
    "tts": "TTS",
    "llm": "LLM",
    "wer": "WER",
    "cer": "CER",
    "ppt": "PPT",
    "auc": "AUC",
}


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
    digits = 2 if value < 10 else 1 if value < 100 else 0
    written = f"{value:.{digits}f}"
    sign = "\u2212" if length_ms < 0 and float(written) else ""
    return f"{sign}{written} s"


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


def outcome(name: str, result: Result) -> str:
    """A result as it is: the value, or that there is none and why."""
    match result:
        case Scored(value=value):
            return quantity(name, value)
        case Unscored(reason=reason):
            return f"Unscored: {in_words(reason)}"
        case NotApplicable(reason=why):
            return f"Not applicable: {why}"
        case _:
            assert_never(result)


def in_words(name: str) -> str:
    """A name of the wire as words.

    Example:
        >>> in_words("no_user_speech")
        'no user speech'
    """
    return name.replace("_", " ").strip()


def anchor_in_words(anchor: Anchor) -> str:
    """How the end of the user's speech is known.

    Example:
        >>> anchor_in_words(Anchor.RECORD)
        'from the conversation record'
    """
    return _ANCHORS[anchor]


def title(name: str) -> str:
    """The heading for a score: its name as words, without its unit.

    Example:
        >>> title("voice_to_voice_latency_ms"), title("stt_wer"), title("turn_taking.on_time_rate")
        ('Voice to voice latency', 'STT WER', 'Turn taking, on time rate')
    """
    bare = next((name.removesuffix(unit) for unit in _UNITS if name.endswith(unit)), name)
    words = [_ACRONYMS.get(word, word) for word in re.split(r"[_\s]+", bare.replace(".", ", ")) if word]
    text = " ".join(words)
    return text[:1].upper() + text[1:]


def counted(count: int, what: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "turn"), counted(2, "turn")
        ('1 turn', '2 turns')
    """
    return f"{count} {what}" if count == 1 else f"{count:,} {what}s"
