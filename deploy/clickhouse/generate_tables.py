"""Writes tables.sql, the tables of past calls in ClickHouse, from the columns of
`schemas/columns.py`. Run it after a change.

What comes in goes through tables that keep nothing (`score_in` and so on), so that the tables are
the same whichever way it comes. Of a turn, and of a call, the newest row counts: ClickHouse drops
the others when it merges parts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from consumers.history.clickhouse import words_in
from consumers.history.sqlite import MAX_WORDS_CHARS
from schemas.columns import CALL_COLUMNS, OWN_COLUMNS, TURN_COLUMNS, Column, Shape

OUTPUT: Final = Path(__file__).with_name("tables.sql")
RETENTION_DAYS: Final = 30
_BY_MEASURE: Final = "(conversation_id, measure, ifNull(turn, toInt64(-2147483648)))"
"""A key of ClickHouse has no NULL: that number stands for the whole call."""

_TYPES: Final = {
    "text": "Nullable(String)",
    "integer": "Nullable(Int64)",
    "real": "Nullable(Float64)",
}
_KEYS: Final = {
    "conversation_id": "String",
    "measure": "String",
    "turn": "Int64",
    "revision": "UInt64",
    "known_ms": "Int64",
    "first_known_ms": "Int64",
}
_SQL: Final[dict[Shape, str]] = {
    "text": "JSONExtract(row, {path}, 'Nullable(String)')",
    "integer": "JSONExtract(row, {path}, 'Nullable(Int64)')",
    "flag": "JSONExtract(row, {path}, 'Nullable(Bool)')",
    "real": "JSONExtract(row, {path}, 'Nullable(Float64)')",
    "value": "JSONExtract(row, {path}, 'Nullable(Float64)')",
    "reason": "JSONExtract(row, {path}, 'reason', 'Nullable(String)')",
    "names": "nullIf(arrayStringConcat(JSONExtract(row, {path}, 'Array(String)'), ', '), '')",
    "numbers": (
        "nullIf(arrayStringConcat(arrayMap(each -> toString(each), JSONExtract(row, {path}, "
        "'Array(Int64)')), ', '), '')"
    ),
    "many": "JSONLength(row, {path})",
    "results": "nullIf(arrayStringConcat(arrayMap(each -> "
    "ifNull(toString(JSONExtract(each, {last}, "
    "'Nullable(Float64)')), '?'), "
    "JSONExtractArrayRaw(row, {parent})), ', '), '')",
    "json": "nullIf(JSONExtractRaw(row, {path}), '')",
    "stage": "JSONExtract(arrayFirst(each -> JSONExtractString(each, 'stage') = {last}, "
    "JSONExtractArrayRaw(row, 'stages')), "
    "'latency_ms', 'Nullable(Float64)')",
}
"""A column of a row in ClickHouse, which is NULL where the row does not have the field."""


def _type(column: Column, keys: Sequence[str]) -> str:
    return _KEYS[column.name] if column.name in keys else _TYPES[column.kind]


def _path(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _computed(column: Column, keys: Sequence[str]) -> str:
    """A field that is not on the wire has its default, as far as the part is there that has the
    field.
    """
    found = _SQL[column.shape].format(
        path=_path(column.path), parent=_path(column.path[:-1]), last=_path(column.path[-1:])
    )
    if column.default is not None:
        default = (
            f"'{column.default}'" if isinstance(column.default, str) else str(int(column.default))
        )
        found = f"ifNull({found}, {default})"
        if column.known_with:
            found = f"if(JSONHas(row, {_path(column.path[: column.known_with])}), {found}, NULL)"
    return f"CAST({found}, '{_type(column, keys)}')"


def _kept(moment: str, order: str) -> str:
    """By which moment rows are dropped, and by what they are found."""
    return (
        f"PARTITION BY toYYYYMMDD({moment})\nORDER BY {order}\n"
        f"TTL toDate({moment}) + INTERVAL {RETENTION_DAYS} DAY SETTINGS ttl_only_drop_parts = 1"
    )


def _moment(column: str) -> str:
    return f"fromUnixTimestamp64Milli({column}, 'UTC')"


def _rows(
    table: str,
    kind: str,
    columns: Sequence[Column],
    keys: Sequence[str],
    order: str,
    moment: str,
    source: str = "score_in",
) -> str:
    """A table with the newest row of each key, and what fills it."""
    fields = ",\n".join(
        f'    "{column.name}" {_type(column, keys)} COMMENT \''
        + column.meaning.replace("'", "''")
        + "'"
        for column in columns
    )
    computed = ",\n".join(f'    {_computed(column, keys)} AS "{column.name}"' for column in columns)
    return f"""\
CREATE TABLE {table}
(
{fields},
    row String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree(revision)
{_kept(_moment(moment), order)};

CREATE MATERIALIZED VIEW {table}_from_in TO {table} AS
SELECT
{computed},
    row
FROM (SELECT ifNull(value, '') AS row FROM {source})
WHERE JSONExtractString(row, 'row') = '{kind}';
"""  # noqa: S608  # our names


def tables() -> str:
    """The whole file."""
    said = (
        "substringUTF8(arrayStringConcat(arrayFilter(said -> said != '', arrayMap(entry -> "
        "JSONExtractString(entry, 'message'), "
        f"JSONExtractArrayRaw(value))), '\\n'), 1, {MAX_WORDS_CHARS})"
    )
    fields = "\n".join(
        f"    JSONExtractString(value, '{name}') AS {name},"
        for name in ("by", "label", "note", "agent", "tenant")
    )
    of_call = ("conversation_id", "revision", "known_ms", "first_known_ms")
    of_own = ("conversation_id", "measure", "revision", "known_ms")
    of_turn = ("conversation_id", "turn", "revision", "known_ms")
    return f"""\
-- Generated by deploy/clickhouse/generate_tables.py: change that. Past calls in ClickHouse (tried with 26.9), in the session's database.
-- docs/history.md says how rows come in, docs/tables.md what the columns mean. The number of days that calls are kept is in the lines with
-- INTERVAL {RETENTION_DAYS} DAY.

-- What comes in: the key and the value of a record of `scores`, `words`, `scores.own`, `transcripts` or `annotations`. These tables keep
-- nothing.

CREATE TABLE score_in (conversation_id String, value Nullable(String)) ENGINE = Null;
CREATE TABLE words_in (conversation_id String, value Nullable(String)) ENGINE = Null;
CREATE TABLE own_in (conversation_id String, value Nullable(String)) ENGINE = Null;
CREATE TABLE transcript_in (conversation_id String, value Nullable(String)) ENGINE = Null;
CREATE TABLE annotation_in (conversation_id String, value Nullable(String)) ENGINE = Null;

-- The newest row of each call, of each turn, and of the goal set of each call: as columns, and whole. Ask with FINAL.

{_rows("calls", "call", CALL_COLUMNS, of_call, "conversation_id", "first_known_ms")}
{_rows("turns", "turn", TURN_COLUMNS, of_turn, "(conversation_id, turn)", "known_ms")}
CREATE TABLE goal_sets (conversation_id String, at DateTime64(3), revision UInt64, row String CODEC(ZSTD(3)))
ENGINE = ReplacingMergeTree(revision)
{_kept("at", "conversation_id")};

CREATE MATERIALIZED VIEW goal_sets_from_in TO goal_sets AS
SELECT JSONExtractString(row, 'conversation_id') AS conversation_id, now64(3) AS at, JSONExtractUInt(row, 'revision') AS revision, row
FROM (SELECT ifNull(value, '') AS row FROM score_in)
WHERE JSONExtractString(row, 'row') = 'goals';

-- Values of measures of one's own.

{_rows("own", "own", OWN_COLUMNS, of_own, _BY_MEASURE, "known_ms", "own_in")}
-- What was said in each turn.

CREATE TABLE words (conversation_id String, turn Int64, revision UInt64, known_ms Int64, row String CODEC(ZSTD(3)))
ENGINE = ReplacingMergeTree(revision)
{_kept(_moment("known_ms"), "(conversation_id, turn)")};

CREATE MATERIALIZED VIEW words_from_in TO words AS
SELECT
    JSONExtractString(row, 'conversation_id') AS conversation_id,
    JSONExtractInt(row, 'turn') AS turn,
    JSONExtractUInt(row, 'revision') AS revision,
    JSONExtractInt(row, 'known_ms') AS known_ms,
    row
FROM (SELECT ifNull(value, '') AS row FROM words_in)
WHERE JSONExtractString(row, 'row') = 'words';

-- Transcripts, with their words for the search: without case and accents, each between two blanks.

CREATE TABLE transcript
(
    conversation_id String,
    at DateTime64(6),
    value String CODEC(ZSTD(3)),
    words String CODEC(ZSTD(3)),
    INDEX words_index words TYPE text(tokenizer = splitByNonAlpha)
)
ENGINE = ReplacingMergeTree(at)
{_kept("at", "conversation_id")};

CREATE MATERIALIZED VIEW transcript_from_in TO transcript AS
SELECT conversation_id, now64(6) AS at, value, {words_in(said)} AS words
FROM (SELECT conversation_id, ifNull(value, '') AS value FROM transcript_in)
WHERE isValidJSON(value);

-- What people said of calls, and which calls are forgotten: single ones, and those of a tenant that began before a moment.

CREATE TABLE annotation
(
    conversation_id String,
    by String,
    label String,
    note String,
    agent String,
    tenant String,
    at_ms Int64,
    is_withdrawn Bool
)
ENGINE = ReplacingMergeTree(at_ms)
ORDER BY (conversation_id, by, label);

CREATE MATERIALIZED VIEW annotation_from_in TO annotation AS
SELECT
    conversation_id,
{fields}
    JSONExtractInt(value, 'at_ms') AS at_ms,
    JSONExtractBool(value, 'is_withdrawn') AS is_withdrawn
FROM (SELECT conversation_id, ifNull(value, '') AS value FROM annotation_in)
WHERE JSONExtractString(value, 'kind') = 'annotation';

CREATE TABLE forgotten (conversation_id String) ENGINE = ReplacingMergeTree ORDER BY conversation_id;

CREATE MATERIALIZED VIEW forgotten_from_in TO forgotten AS SELECT conversation_id FROM annotation_in WHERE ifNull(value, '') = '';

CREATE TABLE forgotten_tenant (tenant String, at_ms SimpleAggregateFunction(max, Int64)) ENGINE = AggregatingMergeTree ORDER BY tenant;

CREATE MATERIALIZED VIEW forgotten_tenant_from_in TO forgotten_tenant AS
SELECT JSONExtractString(value, 'tenant') AS tenant, max(JSONExtractInt(value, 'at_ms')) AS at_ms
FROM (SELECT conversation_id, ifNull(value, '') AS value FROM annotation_in)
WHERE JSONExtractString(value, 'kind') = 'forgotten_tenant'
GROUP BY tenant;
"""  # noqa: S608


if __name__ == "__main__":
    OUTPUT.write_text(tables(), encoding="utf-8")
