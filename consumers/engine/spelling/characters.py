"""Japanese, Chinese and Korean in one spelling, as EVA has it: numbers in digits, without fillers
and punctuation.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from unicodedata import normalize

_TAG: Final = re.compile(r"[<\[][^>\]]*[>\]]")
_PARENTHESIS: Final = re.compile(r"\([^)]+?\)")


def without_markup(text: str) -> str:
    """The text without what stands in brackets."""
    return _PARENTHESIS.sub("", _TAG.sub("", text))


class _Numerals(NamedTuple):
    """Characters that numbers are written with: of digits, of tens to thousands, and of ten
    thousands and more.
    """

    digits: dict[str, int]
    units: dict[str, int]
    groups: dict[str, int]

    def pattern(self) -> re.Pattern[str]:
        return re.compile(f"[{''.join([*self.digits, *self.units, *self.groups])}]+")

    def has_unit(self, numeral: str) -> bool:
        return any(each in self.units or each in self.groups for each in numeral)

    def amount(self, numeral: str) -> str:
        """The number in digits; without units, the digits that were said one by one."""
        if not self.has_unit(numeral):
            return "".join([str(self.digits[each]) for each in numeral])
        total = group = digit = 0
        for each in numeral:
            if each in self.digits:
                digit = self.digits[each]
            elif each in self.units:
                group += max(digit, 1) * self.units[each]
                digit = 0
            else:
                total += max(group + digit, 1) * self.groups[each]
                group = digit = 0
        return str(total + group + digit)


def _counted(characters: str) -> dict[str, int]:
    return {each: amount for amount, each in enumerate(characters)}


_JAPANESE: Final = _Numerals(
    _counted("零一二三四五六七八九") | {"\u3007": 0},
    {"十": 10, "百": 100, "千": 1_000},
    {"万": 10**4, "億": 10**8, "兆": 10**12},
)
_CHINESE: Final = _Numerals(
    _JAPANESE.digits | {"两": 2, "兩": 2},
    _JAPANESE.units,
    _JAPANESE.groups | {"亿": 10**8, "萬": 10**4},
)
_KOREAN: Final = _Numerals(
    _counted("영일이삼사오육칠팔구") | {"공": 0},
    {"십": 10, "백": 100, "천": 1_000},
    {"만": 10**4, "억": 10**8, "조": 10**12},
)
_KOREAN_ONES: Final = dict(
    zip(
        ["하나", "둘", "셋", "넷", "다섯", "여섯", "일곱", "여덟", "아홉"],
        range(1, 10),
        strict=True,
    )
)
_KOREAN_TENS: Final = dict(
    zip(
        ["열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔"],
        range(10, 100, 10),
        strict=True,
    )
)
_KOREAN_NATIVE: Final = re.compile(
    rf"({'|'.join(_KOREAN_TENS)})\s*({'|'.join(_KOREAN_ONES)})|{'|'.join(_KOREAN_TENS)}|{'|'.join(_KOREAN_ONES)}"
)

_JAPANESE_NUMBER: Final = _JAPANESE.pattern()
_CHINESE_NUMBER: Final = _CHINESE.pattern()
_KOREAN_NUMBER: Final = _KOREAN.pattern()

# EVA's lists. Fillers come off inside of words too, because nothing parts the words.
_JAPANESE_FILLER: Final = re.compile(
    "えーと|ええと|えー|あのー|あの|うーん|うん|ねー|ねえ|んーと|んー|んと|まあ|そうですね"
)
_CHINESE_FILLER: Final = re.compile("那个|那個|就是|然后|然後|[嗯啊哦呢哈唉]")
_KOREAN_FILLER: Final = re.compile("음+|어+|그러니까|그냥|뭐")
# The escapes are wide forms that look like marks of ASCII, and tortoise shell brackets.
_JAPANESE_MARK: Final = re.compile(
    "[。、・「」『』【】\u3014\u3015〈〉《》〜\uff5e\uff01\uff1f…—―]"
)
_CHINESE_MARK: Final = re.compile(
    "[。、…—「」『』【】《》〈〉·\uff0c\uff1b\uff1a\uff1f\uff01\uff5e]"
)
_KOREAN_MARK: Final = _CHINESE_MARK


def japanese(text: str) -> str:
    """Japanese, with letters and digits of one width."""
    from jaconv import normalize as japanese_widths  # a call in Japanese alone needs it

    text = japanese_widths(_JAPANESE_FILLER.sub("", without_markup(text)))
    return _finished(
        _JAPANESE_NUMBER.sub(lambda found: _JAPANESE.amount(found[0]), text), _JAPANESE_MARK
    )


def chinese(text: str) -> str:
    """Chinese, in simplified or traditional characters."""
    text = normalize("NFKC", _CHINESE_FILLER.sub("", without_markup(text)))
    return _finished(
        _CHINESE_NUMBER.sub(lambda found: _CHINESE.amount(found[0]), text), _CHINESE_MARK
    )


def korean(text: str) -> str:
    """Korean. A Chinese number counts with a unit only: "이" alone also means "this"."""
    text = _KOREAN_FILLER.sub("", without_markup(text))
    text = _KOREAN_NUMBER.sub(
        lambda found: _KOREAN.amount(found[0]) if _KOREAN.has_unit(found[0]) else found[0], text
    )
    return _finished(_KOREAN_NATIVE.sub(_korean_amount, text), _KOREAN_MARK)


def _korean_amount(found: re.Match[str]) -> str:
    if found[1]:
        return str(_KOREAN_TENS[found[1]] + _KOREAN_ONES[found[2]])
    return str(_KOREAN_TENS.get(found[0]) or _KOREAN_ONES[found[0]])


def _finished(text: str, marks: re.Pattern[str]) -> str:
    return " ".join(marks.sub(" ", text).lower().split())


SPELLINGS: Final[Mapping[str, Callable[[str], str]]] = {"ja": japanese, "zh": chinese, "ko": korean}
"""By language, how a text is brought to one spelling. What is counted in them is characters."""
