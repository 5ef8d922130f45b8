"""Splits JSON into its elements without reading it, and reads an element after its parts were
counted. Pure.

So one odd element costs itself alone, whatever is odd in it, and nothing that is read keeps others
waiting: 4 MB of empty lists take seconds and 300 MB.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from consumers.engine.admission import parts_of

MAX_PARTS: Final = 400_000
"""Most commas and opening brackets of a document that is read at once: the record of three hours.
To read them takes 50 ms.
"""
MAX_ELEMENT_PARTS: Final = 25_000
"""Most commas and opening brackets of one element: to read and check so many values takes some 20
ms, in which no other task has a turn.
"""
MAX_LEAN_PARTS: Final = 50_000
"""The same of one that is read without what no rule reads of it: twice the entries of a call of two
hours with a turn in seven seconds.
"""
MAX_LEAN_MEMBERS: Final = 10_000
"""Most members of an object, or elements of an array, among which those are looked for that a rule
reads.
"""
MAX_ELEMENT_BYTES: Final = 2_097_152
"""Longest element: a record of Kafka has half as many bytes, but a sender may write each letter
beyond ASCII in six.
"""
MAX_ELEMENT_DIGITS: Final = 750_000
"""Most digits of one element: to write so many in numbers of thousands of digits takes 16 ms, and
each digit more takes longer.
"""
STEPS_A_TURN: Final = 50
"""Quiet stretches, brackets and commas that are looked at before others may have their turn: 8 ms
at most.
"""
BYTES_A_TURN: Final = 524_288
"""The same in bytes."""
_DIGITS: Final = b"0123456789"
_FLAT: Final = rb'(?:[^"\[\]{}]{1,500}+|"[^"]{0,500}+"){0,40}+'
_QUIET: Final = re.compile(rb'(?:[^"\[\]{},]{1,1000}+|"[^"]*+(?:"|\Z)){0,500}+')
_QUIET_INSIDE: Final = re.compile(
    rb'(?:[^"\[\]{}]{1,1000}+|"[^"]*+(?:"|\Z)|\[' + _FLAT + rb"\]|\{" + _FLAT + rb"\}){0,100}+"
)
"""Quiet stretches: what neither ends nor separates values, at the level of the search and inside of
a value. Inside, a list or an object without others in it is quiet too.
"""
_OPENED: Final = re.compile(rb"[\[{]{1,10000}+")
_BLANK: Final = re.compile(rb"\s*+")
_KEY: Final = re.compile(rb'\s*+"([^"]*+)"\s*+:\s*+')


class OverfullError(ValueError):
    """JSON with so many parts that reading it would keep others waiting."""


class UnsplitError(ValueError):
    """Bytes in which no elements can be told apart. The text says where."""


def value_of(text: bytes, most_parts: int = MAX_PARTS) -> Any:
    """The value that JSON has.

    Raises:
        OverfullError: It has more parts than that.
        ValueError: It is not JSON.
    """
    if (parts := parts_of(text)) > most_parts:
        raise OverfullError(f"expected at most {most_parts} commas and brackets, saw {parts}")
    return from_json(text, allow_inf_nan=False)


class TooManyError(UnsplitError):
    """More elements than there may be."""


def element_of(text: bytes, most_parts: int = MAX_ELEMENT_PARTS) -> Any:
    """The value of one element of a body, if it has at most so many parts.

    Raises:
        OverfullError: It is too long, or has too many digits or parts.
        ValueError: It is not JSON.
    """
    if len(text) > MAX_ELEMENT_BYTES:
        raise OverfullError(f"expected at most {MAX_ELEMENT_BYTES} bytes, saw {len(text)}")
    if (
        len(text) > MAX_ELEMENT_DIGITS
        and (digits := len(text) - len(text.translate(None, _DIGITS))) > MAX_ELEMENT_DIGITS
    ):
        raise OverfullError(f"expected at most {MAX_ELEMENT_DIGITS} digits, saw {digits}")
    return value_of(text, most_parts)


class JsonStretch(NamedTuple):
    """Where something stands in the text: from `begin` to before `end`."""

    begin: int
    end: int


class _Mark(NamedTuple):
    """A comma or a closing bracket that is inside no value after the beginning of a search; -1
    closes what is around it.
    """

    sign: bytes
    at: int
    depth: int


class JsonText:
    """Bytes that should be JSON. Only quotes, brackets and commas are looked at: everything else
    may be wrong.

    The searches yield None between their steps, so that others may have their turn.

    Attributes:
        place: Where all of it stands.
    """

    def __init__(self, body: bytes) -> None:
        self.place = JsonStretch(0, len(body))
        self._body = body
        # of objects that are looked into more than once
        self._members: dict[JsonStretch, Mapping[bytes, JsonStretch]] = {}
        # the body without escapes, so that a quote ends a text: made with the first search
        self._marked = b""

    def at(self, place: JsonStretch) -> bytes:
        """What stands there."""
        return self._body[place.begin : place.end]

    def _mark(self) -> Generator[None, None, None]:
        if self._marked:
            return
        if b"\\" not in self._body:
            self._marked = self._body
            return
        begin, pieces = 0, list[bytes]()
        while begin < len(self._body):
            piece = self._body[begin : begin + BYTES_A_TURN]
            # An escape is not cut in two.
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and begin + len(piece) < len(self._body):
                piece = piece[:-1]
            pieces.append(piece.replace(b"\\\\", b"__").replace(b'\\"', b"__"))
            begin += len(piece)
            yield None
        self._marked = b"".join(pieces)

    def whole(self) -> Generator[None, None, JsonStretch]:
        """The place of the object or array with which the text begins.

        Raises:
            UnsplitError: It begins with none, or that has no end.
        """
        yield from self._mark()
        blank = _BLANK.match(self._body)
        begin = 0 if blank is None else blank.end()
        if self._body[begin : begin + 1] not in (b"{", b"["):
            raise UnsplitError("it begins with no bracket")
        for mark in self._marks(begin):
            if mark is None:
                yield None
            else:
                return JsonStretch(begin, mark.at + 1)
        raise UnsplitError("its first bracket is never closed")

    def elements(
        self, of: JsonStretch, brackets: bytes, most: int
    ) -> Generator[None, None, list[JsonStretch]]:
        """The places of the elements of an array, or of the members of an object.

        Args:
            of: Where it stands, with blanks around it at most.
            brackets: `[]` or `{}`.
            most: Most elements.

        Raises:
            TooManyError: It has more.
            UnsplitError: It does not begin or end with these brackets.
        """
        yield from self._mark()
        places = list[JsonStretch]()
        blank = _BLANK.match(self._body, of.begin, of.end)
        first = of.begin if blank is None else blank.end()
        if self._body[first : first + 1] != brackets[:1]:
            raise UnsplitError(f"expected `{brackets[:1].decode()}` at byte {first + 1}")
        begin = first + 1
        for mark in self._marks(begin):
            if mark is None:
                yield None
                continue
            if mark.depth == 0 and mark.sign != b",":
                continue
            places.append(JsonStretch(begin, mark.at))
            if len(places) > most:
                raise TooManyError(f"expected at most {most} elements, saw more")
            if mark.depth < 0:
                if mark.sign != brackets[1:] or self._body[mark.at + 1 : of.end].strip():
                    break
                return [] if len(places) == 1 and not self.at(places[0]).strip() else places
            begin = mark.at + 1
        raise UnsplitError(
            f"expected `{brackets[1:].decode()}` at the end of what begins at byte {first + 1}"
        )

    def members(
        self, of: JsonStretch, most: int
    ) -> Generator[None, None, Mapping[bytes, JsonStretch]]:
        """The places of the values of an object, by their names as they are written. Of a name that
        comes twice, the last counts.

        Raises:
            TooManyError: It has more.
            UnsplitError: It is no object.
        """
        found = dict[bytes, JsonStretch]()
        for place in (yield from self.elements(of, b"{}", most)):
            if (key := _KEY.match(self._marked, place.begin, place.end)) is None:
                raise UnsplitError(f"expected a name at byte {place.begin + 1}")
            found[key[1]] = JsonStretch(key.end(), place.end)
        return found

    def only(self, of: JsonStretch, needed: Mapping[str, Any]) -> Generator[None, None, bytes]:
        """A value without the members that are not needed.

        Args:
            of: Where it stands.
            needed: Members of an object, or of the objects in an array, by name: None for one that
                is kept whole, or what is needed of it.

        Raises:
            UnsplitError: It has too many members or elements, or they cannot be told apart.
        """
        blank = _BLANK.match(self._body, of.begin, of.end)
        first = of.begin if blank is None else blank.end()
        sign = self._body[first : first + 1]
        kept = list[bytes]()
        if sign == b"[":
            for place in (yield from self.elements(of, b"[]", MAX_LEAN_MEMBERS)):
                yield None
                # An array inside of an array has nothing that is needed, however deep it goes.
                is_object = self.at(place).lstrip()[:1] == b"{"
                kept.append((yield from self.only(place, needed)) if is_object else b"null")
            return b"[" + b",".join(kept) + b"]"
        if sign != b"{":
            return self.at(of)
        members = self._members.get(of)
        if members is None:
            members = self._members[of] = yield from self.members(of, MAX_LEAN_MEMBERS)
        for name, inside in needed.items():
            member = members.get(name.encode())
            if member is not None:
                value = (
                    self.at(member) if inside is None else (yield from self.only(member, inside))
                )
                kept.append(b'"%s":%s' % (name.encode(), value))
        return b"{" + b",".join(kept) + b"}"

    def _marks(self, begin: int) -> Iterator[_Mark | None]:
        text, depth, at, steps, since = self._marked, 0, begin, 0, begin
        while True:
            steps += 1
            if steps % STEPS_A_TURN == 0 or at - since > BYTES_A_TURN:
                since = at
                yield None
            if found := (_QUIET_INSIDE if depth else _QUIET).match(text, at):
                at = found.end()
            sign = text[at : at + 1]
            if opened := _OPENED.match(text, at):
                depth += opened.end() - at
                at = opened.end()
                continue
            if sign in (b"]", b"}"):
                depth -= 1
                if depth <= 0:
                    yield _Mark(sign, at, depth)
            elif sign == b"," and depth == 0:
                yield _Mark(sign, at, depth)
            elif sign:
                continue  # the longest quiet stretch that is looked at in one step
            else:
                return
            at += 1
