"""History in ClickHouse, over its HTTP interface. It only reads: ClickHouse takes the rows from
Kafka itself, and keeps the newest of each turn and call (`deploy/clickhouse/tables.sql`).
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import httpx2

from consumers.history.search import COLUMNS, KINDS, MAX_ROWS, CallSearch, found, sql_of
from consumers.history.settings import HistorySettings
from consumers.runtime.process import OperatorError
from consumers.store.rows import StoredCall
from schemas.annotations import Annotation
from schemas.columns import Flat
from schemas.rows import CallRow, GoalsRow, TurnRow, decode, decode_own, decode_words

CONNECT_SECONDS: Final = 5.0
"""How long connecting may take."""
ANSWER_SECONDS: Final = 60.0
"""Silence after which a question counts as failed: the longest one compares all calls of weeks."""
IDS_AT_ONCE: Final = 500
"""Ids of one question: ClickHouse takes 128 kB of a parameter."""
MAX_MESSAGE_CHARS: Final = 500
"""Longest error of ClickHouse that is shown."""

_PARAMETERS: Final = {"text": "String", "integer": "Float64", "real": "Float64"}
_NOT_FORGOTTEN: Final = (
    "conversation_id NOT IN (SELECT conversation_id FROM forgotten) AND first_known_ms >= "
    "transform(ifNull(\"labels.tenant\", ''), (SELECT groupArray(tenant) FROM tenants), (SELECT "
    "groupArray(at_ms) FROM tenants), toInt64(0))"
)
_AMONG: Final = "IN (SELECT unhex(arrayJoin(splitByChar(',', {%s:String}))))"
_ASKED: Final = _AMONG % "ids"
"""Ids travel as hexadecimal numbers, because a list of texts is quoted in no way that all versions
of ClickHouse agree on.
"""
_TENANTS: Final = (
    "WITH tenants AS (SELECT tenant, max(at_ms) AS at_ms FROM forgotten_tenant GROUP BY tenant)"
)


def words_in(text: str) -> str:
    """Returns the SQL of the words of a text, each between two blanks, without case and accents:
    what the index of SQLite makes of it.
    """
    plain = rf"lowerUTF8(replaceRegexpAll(normalizeUTF8NFD({text}), '\\p{{Mn}}', ''))"
    return rf"concat(' ', arrayStringConcat(extractAll({plain}, '[\\p{{L}}\\p{{N}}\\p{{Co}}]+'), ' '), ' ')"


class ClickHouseHistory:
    """Past calls in ClickHouse. One object is used by one thread at a time."""

    def __init__(self, settings: HistorySettings, seconds: float | None = None) -> None:
        """Nothing is connected before a question. The settings have `clickhouse_url`; an answer may
        take `seconds`.
        """
        self.place = settings.clickhouse_url or ""
        user = {"X-ClickHouse-User": settings.clickhouse_user} if settings.clickhouse_user else {}
        key = settings.clickhouse_password
        self._client = httpx2.Client(
            headers=user if key is None else user | {"X-ClickHouse-Key": key.get_secret_value()},
            timeout=httpx2.Timeout(seconds or ANSWER_SECONDS, connect=CONNECT_SECONDS),
        )

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()

    def find(
        self, question: CallSearch, columns: Collection[str] = COLUMNS
    ) -> list[dict[str, Flat]]:
        """Returns these columns of the calls that a question asks for, in its order."""
        return found(self, question, columns)

    def values(self, question: CallSearch, columns: Sequence[str]) -> Iterator[tuple[Flat, ...]]:
        """Yields these columns of the calls that a question asks for."""
        if question.ids is None:
            yield from self._values(question, columns, None)
            return
        ids = iter(dict.fromkeys(question.ids))
        while some := list(islice(ids, IDS_AT_ONCE)):
            yield from self._values(question, columns, some)

    def _values(
        self, question: CallSearch, columns: Sequence[str], ids: Sequence[str] | None
    ) -> Iterator[tuple[Flat, ...]]:
        where = [
            "first_known_ms >= {since:Int64}",
            "first_known_ms < {until:Int64}",
            _NOT_FORGOTTEN,
        ]
        values: dict[str, str | float] = {"since": question.since_ms, "until": question.until_ms}
        for place, (column, comparison, value) in enumerate(question.conditions):
            parameter, name = f"{{value{place}:{_PARAMETERS[KINDS[column]]}}}", sql_of(column)
            where.append(
                f"position({name}, {parameter}) > 0"
                if comparison == "~"
                else f"{name} {comparison} {parameter}"
            )
            values[f"value{place}"] = value if value is not None else ""
        if ids is not None:
            where.append(f"conversation_id {_ASKED}")
            values["ids"] = _hexadecimal(ids)
        if question.results is not None:
            where.append(f"{sql_of('subgoal_results')} {_AMONG % 'results'}")
            values["results"] = _hexadecimal([*question.results])
        if question.words:
            said = []
            for place, word in enumerate(question.words):
                words = words_in(f"{{word{place}:String}}")
                said.append(f"(hasAllTokens(words, {words}) AND position(words, {words}) > 0)")
                values[f"word{place}"] = word
            where.append(
                "conversation_id IN (SELECT conversation_id FROM transcript FINAL WHERE "  # noqa: S608
                f"{' AND '.join(said)})"
            )  # ours
        order, names = "", ", ".join(map(sql_of, columns))
        if question.counts:
            order = f"GROUP BY {', '.join(str(1 + place) for place in range(len(columns)))}"
            names += ", count()"
        elif question.most is not None:
            order = (
                f"ORDER BY {sql_of(question.order_by)} {question.order_sql}, conversation_id LIMIT "
                f"{int(question.most)}"
            )
        # our names
        sql = f"{_TENANTS} SELECT {names} FROM calls FINAL WHERE {' AND '.join(where)} {order}"  # noqa: S608
        kinds = [*(KINDS[name] for name in columns), *(["integer"] if question.counts else [])]
        for row in self._rows(sql, values):
            # Versions of ClickHouse differ in whether they write large integers as texts.
            yield tuple(
                int(value) if kind == "integer" and value is not None else value
                for kind, value in zip(kinds, row, strict=True)
            )

    def call(self, conversation_id: str, at_ms: int | None = None) -> StoredCall | None:
        """Returns the newest rows of a call; None if it is not here, or if at that moment it was
        another than it is now.
        """
        (call,) = (*self._of_call("calls", conversation_id), None)[:1]
        of_call = None if call is None else decode(call)
        if not isinstance(of_call, CallRow) or (at_ms is not None and at_ms < of_call.known_ms):
            return None
        if of_call.first_known_ms < self._forgotten_until_ms(of_call.labels.tenant):
            return None
        turns = [decode(row) for row in self._of_call("turns", conversation_id, "turn")]
        (*_, goals) = (None, *map(decode, self._of_call("goal_sets", conversation_id)))
        words = tuple(map(decode_words, self._of_call("words", conversation_id, "turn")))
        return StoredCall(
            of_call,
            tuple(row for row in turns if isinstance(row, TurnRow)),
            goals if isinstance(goals, GoalsRow) else None,
            words,
            tuple(
                map(decode_own, self._of_call("own", conversation_id, "measure, turn NULLS FIRST"))
            ),
        )

    def transcript(self, conversation_id: str) -> bytes | None:
        """Returns the transcript of a call; None without one."""
        if self.call(conversation_id) is None:  # that of a forgotten tenant is not shown either
            return None
        return next(iter(self._of_call("transcript", conversation_id, "at DESC", "value")), None)

    def _of_call(
        self, table: str, conversation_id: str, order: str = "conversation_id", column: str = "row"
    ) -> list[bytes]:
        where = (
            "conversation_id = {id:String} AND conversation_id NOT IN (SELECT conversation_id FROM "
            "forgotten)"
        )
        # ours
        sql = f"SELECT {column} FROM {table} FINAL WHERE {where} ORDER BY {order}"  # noqa: S608
        return [value.encode() for (value,) in self._rows(sql, {"id": conversation_id})]

    def _forgotten_until_ms(self, tenant: str) -> int:
        """The moment before which calls of a tenant are forgotten; 0 for none."""
        sql = "SELECT max(at_ms) FROM forgotten_tenant WHERE tenant = {tenant:String}"
        return max((int(at_ms) for (at_ms,) in self._rows(sql, {"tenant": tenant})), default=0)

    def is_forgotten(self, conversation_id: str) -> bool:
        """Whether a call was deleted on request."""
        return any(
            self._rows(
                "SELECT 1 FROM forgotten WHERE conversation_id = {id:String} LIMIT 1",
                {"id": conversation_id},
            )
        )

    def labelled(self, label: str) -> list[str]:
        """Returns the calls that people gave a label, the newest label first; at most
        `MAX_ROWS`.
        """
        sql = (
            "SELECT conversation_id FROM annotation FINAL WHERE label = {label:String} AND NOT "  # noqa: S608
            "is_withdrawn "
            "AND conversation_id NOT IN (SELECT conversation_id FROM forgotten) "
            f"GROUP BY conversation_id ORDER BY max(at_ms) DESC, conversation_id LIMIT {MAX_ROWS}"
        )
        return [name for (name,) in self._rows(sql, {"label": label})]

    def labels(self) -> list[tuple[str, str]]:
        """Returns the labels of calls, each with its call, the newest first; at most `MAX_ROWS`."""
        sql = (
            "SELECT label, conversation_id FROM annotation FINAL WHERE label != '' AND NOT "  # noqa: S608
            "is_withdrawn "
            "AND conversation_id NOT IN (SELECT conversation_id FROM forgotten) "
            f"GROUP BY label, conversation_id ORDER BY max(at_ms) DESC LIMIT {MAX_ROWS}"
        )
        return [(label, name) for label, name in self._rows(sql, {})]

    def annotations_of(self, conversation_ids: Collection[str]) -> Mapping[str, list[Annotation]]:
        """Returns what people said of these calls, by conversation; calls without any are
        left out.
        """
        sql = (
            "SELECT conversation_id, by, label, at_ms, note, agent, tenant FROM annotation FINAL "  # noqa: S608
            "WHERE NOT is_withdrawn "
            f"AND conversation_id {_ASKED} AND conversation_id NOT IN (SELECT conversation_id FROM "
            "forgotten) ORDER BY at_ms, by, label"
        )
        found: dict[str, list[Annotation]] = {}
        ids = iter(dict.fromkeys(conversation_ids))
        while some := list(islice(ids, IDS_AT_ONCE)):
            for name, by, label, at_ms, note, agent, tenant in self._rows(
                sql, {"ids": _hexadecimal(some)}
            ):
                said = Annotation(
                    by=by,
                    label=label or None,
                    at_ms=int(at_ms),
                    note=note,
                    agent=agent,
                    tenant=tenant,
                )
                found.setdefault(name, []).append(said)
        return found

    def _rows(self, sql: str, values: Mapping[str, str | float]) -> Iterator[list[Any]]:
        """Asks a question, whose values travel beside it and are no part of its text."""
        with (
            self._failures(),
            self._client.stream(
                "POST",
                httpx2.URL(self.place).copy_merge_params(
                    {f"param_{name}": _escaped(each) for name, each in values.items()}
                ),
                content=f"{sql} FORMAT JSONCompactEachRow".encode(),
            ) as answer,
        ):
            if answer.status_code != httpx2.codes.OK:
                reason = answer.read().decode("utf-8", "replace").strip()[:MAX_MESSAGE_CHARS]
                raise OperatorError(
                    f"History: ClickHouse at {self.place} refused a question with "
                    f"{answer.status_code}: {reason}. Nothing was found. See whether "
                    "history.clickhouse_url names the database with the tables of "
                    "deploy/clickhouse/tables.sql, and the user may read them."
                )
            rest = b""
            for part in answer.iter_bytes():
                # other characters that end a line are a part of texts
                *lines, rest = (rest + part).split(b"\n")
                yield from map(json.loads, lines)
            if rest:
                yield json.loads(rest)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise OperatorError(
                f"History: ClickHouse at {self.place} did not answer in full "
                f"({str(error) or type(error).__name__}). Expected its HTTP interface, for example "
                "http://clickhouse:8123/?database=callgauge. See history.clickhouse_url."
            ) from error


def _hexadecimal(texts: Sequence[str]) -> str:
    return ",".join(text.encode().hex() for text in texts)


def _escaped(value: str | float) -> str:
    r"""A value as ClickHouse reads parameters: a line of a table whose columns are between tabs.

    >>> _escaped("it's a\nb")
    "it's a\\nb"
    """
    text = str(value)
    for character, name in (
        ("\\", "\\\\"),
        ("\n", "\\n"),
        ("\t", "\\t"),
        ("\r", "\\r"),
        ("\0", "\\0"),
    ):
        text = text.replace(character, name)
    return text
