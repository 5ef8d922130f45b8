"""Writes tables.sql, the tables of past calls in ClickHouse, from the columns of `consumers/history/rows.py`. Run it after a change.

What comes in goes through tables that keep nothing (`score_in` and so on), so that the tables are the same whichever way it comes. Rows of
calls are computed by ClickHouse, every ten seconds, of the calls that began or were closed since.
"""

from pathlib import Path
from typing import Final, get_args

from consumers.history.clickhouse import words_in
from consumers.history.rows import CALL_COLUMNS, CallOnFile, Column
from consumers.history.sqlite import MAX_WORDS_CHARS
from schemas.closed_sets import FAILED_USES, UnscoredReason
from schemas.scores.records import AnyScoreRecord, CallLabels

OUTPUT: Final = Path(__file__).with_name("tables.sql")
RETENTION_DAYS: Final = 30
NO_TURN: Final = -(2**31)
"""The turn of a record that is of no turn: the key of a table has no unknown values."""
REFRESH_SECONDS: Final = 10
AGAIN_SECONDS: Final = 60
"""A call is computed again for so long, in case that its last records became visible after the one that says it is over."""
MOST_CALLS: Final = 100_000
"""Calls that are computed at once: a gigabyte of memory, when a backlog is read."""

_NAMES: Final = sorted(
    str(name) for record in get_args(AnyScoreRecord) for name in get_args(record.model_fields["name"].annotation)
)
_LABELS: Final = tuple(CallLabels.model_fields)
_TEXT: Final = "LowCardinality(Nullable(String))"
_TYPES: Final = {"text": _TEXT, "integer": "Nullable(Int64)", "real": "Nullable(Float64)"}
_KEYS: Final = {"conversation_id": "String", "started_ms": "Int64"}


def _listed(texts: object) -> str:
    return ", ".join(f"'{text}'" for text in texts)  # type: ignore[attr-defined]


def _text(*path: str) -> str:
    return f"JSONExtractString(record, {_listed(path)})"


def _number_of(name: str) -> str:
    return f"toInt64(countIf(name = '{name}' AND NOT is_gone AND turn != {NO_TURN}))"


def _last(name: str, order: str = "revision") -> str:
    return f"argMaxIf(record, {order}, name = '{name}' AND NOT is_gone)"


def gathered(wanted: str) -> str:
    """The query that gathers of each wanted call what the columns are computed from, as `CallOnFile` does in Python."""
    wait = "JSONExtract(record, 'voice_to_voice_ms', 'value', 'Nullable(Float64)')"
    labels = ", ".join(_text("labels", name) for name in _LABELS)
    version = _text("code_version")
    rank = "(name = 'call_started', if(name = 'call_started', toInt64(revision), caused_at_ms), record_labels)"
    failed = f"name = 'tool_call' AND NOT is_gone AND {_text('outcome')} IN ({_listed(sorted(FAILED_USES))})"
    return f"""\
    SELECT
        conversation_id,
        argMax(record_labels, {rank}) AS labels,
        argMaxIf({version}, (caused_at_ms, {version}), NOT is_gone) AS code_version,
        min(caused_at_ms) AS first_seen_ms,
        max(caused_at_ms) AS changed_ms,
        {_last("call_started")} AS started_record,
        {_last("closed")} AS closed_record,
        {_last("call")} AS values_record,
        {_last("goals")} AS goals_record,
        {_last("progress", "greatest(turn, 0)")} AS progress_record,
        maxOrNullIf(toInt64(turn), turn != {NO_TURN} AND NOT is_gone) AS newest_turn,
        arraySort(groupArrayIf(assumeNotNull({wait}), name = 'turn' AND NOT is_gone AND ifNull({wait}, -1) >= 0)) AS waits,
        {_number_of("dead_air")} AS dead_airs,
        {_number_of("interruption_by_user")} AS user_interruptions,
        {_number_of("interruption_by_assistant")} AS assistant_interruptions,
        {_number_of("tool_call")} AS tool_calls,
        toInt64(countIf(name = 'stall' AND NOT is_gone)) AS stalls,
        groupArrayIf({_text("tool")}, {failed}) AS failed
    FROM (
        SELECT
            *,
            multiIf(
                name = 'voice_to_voice_latency_ms', {_text("result", "outcome")} != 'scored',
                {_text("result", "outcome")} = 'unscored', {_text("result", "reason")} = '{UnscoredReason.WITHDRAWN}',
                JSONExtractBool(record, 'is_withdrawn')
            ) AS is_gone,
            CAST(({labels}), 'Tuple({", ".join(f"{name} String" for name in _LABELS)})') AS record_labels
        FROM score FINAL
        WHERE conversation_id IN ({wanted})
    )
    GROUP BY conversation_id"""  # noqa: S608


def _type(column: Column[CallOnFile]) -> str:
    return _KEYS.get(column.name, _TYPES[column.kind])


def _ttl(moment: str) -> str:
    return f"TTL toDate({moment}) + INTERVAL {RETENTION_DAYS} DAY SETTINGS ttl_only_drop_parts = 1"


def tables() -> str:
    """The whole file."""
    columns = ",\n".join(
        f"    {column.name} {_type(column)} COMMENT '" + column.meaning.replace("'", "''") + "'"
        for column in CALL_COLUMNS
    )
    computed = ",\n".join(f"    CAST({column.sql}, '{_type(column)}') AS {column.name}" for column in CALL_COLUMNS)
    said = (
        "substringUTF8(arrayStringConcat(arrayFilter(said -> said != '', arrayMap(entry -> JSONExtractString(entry, 'message'), "
        f"JSONExtractArrayRaw(value))), '\\n'), 1, {MAX_WORDS_CHARS})"
    )
    fields = "\n".join(
        f"    JSONExtractString(value, '{name}') AS {name}," for name in ("by", "label", "note", "agent", "tenant")
    )
    started = "fromUnixTimestamp64Milli(started_ms, 'UTC')"
    caused = "fromUnixTimestamp64Milli(caused_at_ms, 'UTC')"
    return f"""\
-- Generated by deploy/clickhouse/generate_tables.py: change that. Past calls in ClickHouse (tried with 26.9), in the session's database.
-- docs/history.md says how records come in. The number of days that calls are kept is in three lines: INTERVAL {RETENTION_DAYS} DAY.

-- What comes in: the key and the value of a record of `scores`, `transcripts` or `annotations`. These tables keep nothing.

CREATE TABLE score_in (conversation_id String, value Nullable(String)) ENGINE = Null;
CREATE TABLE transcript_in (conversation_id String, value Nullable(String)) ENGINE = Null;
CREATE TABLE annotation_in (conversation_id String, value Nullable(String)) ENGINE = Null;

-- The records of `scores`. The key is the subject alone, because a higher revision replaces a lower one of the same key, and of equal ones
-- the last that came: the agent and the time of a record change with its revision.

CREATE TABLE score
(
    conversation_id String,
    name LowCardinality(String),
    turn Int32,
    `index` UInt32,
    revision UInt64,
    caused_at_ms Int64,
    record String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree(revision)
PARTITION BY toYYYYMMDD({caused})
ORDER BY (conversation_id, name, turn, `index`)
{_ttl(caused)};

CREATE MATERIALIZED VIEW score_from_in TO score AS
SELECT
    {_text("conversation_id")} AS conversation_id,
    {_text("name")} AS name,
    ifNull(JSONExtract(record, 'turn', 'Nullable(Int32)'), {NO_TURN}) AS turn,
    JSONExtractUInt(record, 'index') AS `index`,
    JSONExtractUInt(record, 'revision') AS revision,
    JSONExtractInt(record, 'caused_at_ms') AS caused_at_ms,
    record
FROM (SELECT ifNull(value, '') AS record FROM score_in)
WHERE {_text("name")} IN ({_listed(_NAMES)});

-- One row a call, computed when the call begins and when it is closed. `changed` says of which calls, `computed` how far that has come.

CREATE TABLE changed (at DateTime64(3), conversation_id String) ENGINE = MergeTree ORDER BY at TTL toDate(at) + INTERVAL 7 DAY;

CREATE MATERIALIZED VIEW changed_from_in TO changed AS
SELECT now64(3) AS at, {_text("conversation_id")} AS conversation_id
FROM (SELECT ifNull(value, '') AS record FROM score_in)
WHERE {_text("name")} IN ('call_started', 'closed');

CREATE TABLE call
(
{columns},
    computed_at DateTime64(3)
)
ENGINE = ReplacingMergeTree(computed_at)
PARTITION BY toYYYYMMDD({started})
ORDER BY conversation_id
{_ttl(started)};

CREATE TABLE computed (through SimpleAggregateFunction(max, DateTime64(3))) ENGINE = AggregatingMergeTree ORDER BY tuple();

CREATE MATERIALIZED VIEW computed_from_call TO computed AS SELECT max(computed_at) AS through FROM call;

CREATE MATERIALIZED VIEW call_from_score REFRESH EVERY {REFRESH_SECONDS} SECOND APPEND TO call AS
WITH wanted AS
(
    SELECT at, conversation_id
    FROM changed
    WHERE at > least((SELECT max(through) FROM computed), now64(3) - INTERVAL {AGAIN_SECONDS} SECOND)
    ORDER BY at
    LIMIT {MOST_CALLS} WITH TIES
)
SELECT
{computed},
    (SELECT max(at) FROM wanted) AS computed_at
FROM
(
{gathered("SELECT conversation_id FROM wanted")}
);

-- Transcripts, with their words for the search: without case and accents, each between two blanks.

CREATE TABLE transcript
(
    conversation_id String,
    at DateTime64(6),
    value String CODEC(ZSTD(3)),
    words String CODEC(ZSTD(3)),
    INDEX words_in words TYPE text(tokenizer = splitByNonAlpha)
)
ENGINE = ReplacingMergeTree(at)
PARTITION BY toYYYYMMDD(at)
ORDER BY conversation_id
{_ttl("at")};

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
