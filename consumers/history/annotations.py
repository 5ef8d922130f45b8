"""Labels and notes of people, and which calls are forgotten: one SQLite file beside those of the
days.

It is a file of its own because a call may be labelled before its records are here, and because what
is forgotten must outlive the file of the call's day. All of it comes from the topic `annotations`,
of whose partitions the file has the places to read on from.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from consumers.history.search import MAX_ROWS
from consumers.store.rows import Place
from schemas.annotations import Annotation, ForgottenTenant

MAX_OF_A_CALL: Final = 100
"""Labels and notes of one call; further ones are refused. A call that more people argue about is no
label for a judge.
"""
MAX_ANNOTATIONS: Final = 500_000
"""Labels and notes of all calls; further ones are refused until a day is deleted. A hundred people
write so many in months.
"""
MAX_FORGOTTEN: Final = 2_000_000
"""Forgotten calls that are remembered, some 80 MB; then the oldest are not. Their records are gone
from the topics long before.
"""
MAX_TENANTS: Final = 10_000
"""Forgotten tenants that are remembered; then the oldest are not."""

FILE_NAME: Final = "annotations.sqlite"

TABLES: Final = (
    "CREATE TABLE annotation (conversation_id TEXT, by TEXT, label TEXT, at_ms INTEGER NOT NULL, "
    "note TEXT NOT NULL, is_withdrawn INTEGER NOT NULL, agent TEXT NOT NULL, tenant TEXT NOT NULL, "
    "PRIMARY KEY (conversation_id, by, label)) WITHOUT ROWID",
    "CREATE INDEX annotation_by_label ON annotation (label, at_ms)",
    "CREATE TABLE forgotten (call BLOB PRIMARY KEY)",
    "CREATE TABLE forgotten_tenant (tenant TEXT PRIMARY KEY, at_ms INTEGER NOT NULL)",
    "CREATE TABLE position (topic TEXT, partition INTEGER, next INTEGER NOT NULL, PRIMARY KEY "
    "(topic, partition)) WITHOUT ROWID",
)
_UPSERT: Final = (
    "INSERT INTO annotation VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET at_ms = "
    "excluded.at_ms, note = excluded.note, is_withdrawn = excluded.is_withdrawn, agent = "
    "excluded.agent, tenant = excluded.tenant WHERE excluded.at_ms >= at_ms"
)
_HAS: Final = "SELECT 1 FROM annotation WHERE conversation_id = ? AND by = ? AND label = ?"
_NEWEST: Final = (
    "SELECT conversation_id FROM annotation WHERE label = ? AND NOT is_withdrawn GROUP BY 1 ORDER "
    "BY max(at_ms) DESC LIMIT ?"
)
_LABELS: Final = (
    "SELECT label, conversation_id FROM annotation WHERE label != '' AND NOT is_withdrawn GROUP BY "
    "1, 2 ORDER BY max(at_ms) DESC LIMIT ?"
)
_OF_A_CALL: Final = (
    "SELECT by, label, at_ms, note, agent, tenant FROM annotation WHERE conversation_id = ? AND "
    "NOT is_withdrawn ORDER BY at_ms, by, label"
)


class FromPeople(NamedTuple):
    """Records of the topic `annotations`.

    Attributes:
        annotations: Labels and notes by conversation, in order.
        forgotten: Ids of calls that are to be forgotten.
        tenants: Tenants whose calls are to be forgotten.
        positions: By topic and partition, the offset after the last of them.
    """

    annotations: Sequence[tuple[str, Annotation]] = ()
    forgotten: Sequence[str] = ()
    tenants: Sequence[ForgottenTenant] = ()
    positions: Mapping[Place, int] = {}

    @property
    def forgets(self) -> bool:
        """Whether anything is to be forgotten, which may take long."""
        return bool(self.forgotten or self.tenants)


class Annotations:
    """The file, by an open connection. Its methods write within the transaction of their caller."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def tenants(self) -> dict[str, int]:
        """Tenants whose calls are forgotten, and up to which moment in epoch ms."""
        return dict(self.connection.execute("SELECT tenant, at_ms FROM forgotten_tenant"))

    def positions(self) -> Iterator[tuple[str, int, int]]:
        """The places to read on from: topic, partition, offset."""
        yield from self.connection.execute("SELECT topic, partition, next FROM position")

    # Writing.

    def annotate(self, annotations: Iterable[tuple[str, Annotation]]) -> int:
        """Takes labels and notes by conversation, in order; returns how many it refused because
        there are too many.

        Those of forgotten calls are passed over.
        """
        refused = 0
        tenants = self.tenants()
        (total,) = self.connection.execute("SELECT count(*) FROM annotation").fetchone()
        for conversation_id, said in annotations:
            if self.is_forgotten(conversation_id) or said.at_ms < tenants.get(said.tenant, 0):
                continue
            key = (conversation_id, said.by, said.label or "")
            if self.connection.execute(_HAS, key).fetchone() is None:
                of_call = "SELECT count(*) FROM annotation WHERE conversation_id = ?"
                (there,) = self.connection.execute(of_call, [conversation_id]).fetchone()
                if there >= MAX_OF_A_CALL or total >= MAX_ANNOTATIONS:
                    refused += 1
                    continue
                total += 1
            self.connection.execute(
                _UPSERT, (*key, said.at_ms, said.note, said.is_withdrawn, said.agent, said.tenant)
            )
        return refused

    def forget(self, conversation_ids: Collection[str]) -> None:
        """Deletes what people said of these calls, and remembers that they are forgotten by a hash
        of their ids alone.
        """
        self.connection.executemany(
            "DELETE FROM annotation WHERE conversation_id = ?",
            [(each,) for each in conversation_ids],
        )
        self.connection.executemany(
            "INSERT OR IGNORE INTO forgotten VALUES (?)",
            [(_hash_of(each),) for each in conversation_ids],
        )
        self._keep_newest("forgotten", MAX_FORGOTTEN)

    def forget_tenant(self, tenant: str, at_ms: int) -> None:
        """Remembers that calls of a tenant from before a moment are forgotten, and deletes what
        people said of them by then.
        """
        self.connection.execute(
            "DELETE FROM annotation WHERE tenant = ? AND at_ms < ?", [tenant, at_ms]
        )
        self.connection.execute(
            "INSERT INTO forgotten_tenant VALUES (?, ?) ON CONFLICT DO UPDATE SET at_ms = "
            "max(at_ms, excluded.at_ms)",
            [tenant, at_ms],
        )
        self._keep_newest("forgotten_tenant", MAX_TENANTS)

    def keep_positions(self, positions: Mapping[Place, int]) -> None:
        """Notes where to read on from."""
        self.connection.executemany(
            "INSERT INTO position VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET next = excluded.next",
            [(*place, offset) for place, offset in positions.items()],
        )

    def delete(self, conversation_ids: Iterable[str]) -> None:
        """Deletes what people said of calls that history does not keep any longer."""
        self.connection.executemany(
            "DELETE FROM annotation WHERE conversation_id = ?",
            [(each,) for each in conversation_ids],
        )

    def _keep_newest(self, table: str, most: int) -> None:
        self.connection.execute(
            # ours
            (
                f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} ORDER BY rowid "  # noqa: S608
                "DESC LIMIT -1 OFFSET ?)"
            ),
            [most],
        )

    # Reading.

    def is_forgotten(self, conversation_id: str) -> bool:
        """Whether records of this call are not to be kept."""
        found = self.connection.execute(
            "SELECT 1 FROM forgotten WHERE call = ?", [_hash_of(conversation_id)]
        )
        return found.fetchone() is not None

    def forgotten_calls(self) -> int:
        """How many calls are remembered as forgotten."""
        return int(self.connection.execute("SELECT count(*) FROM forgotten").fetchone()[0])

    def labelled(self, label: str) -> list[str]:
        """The calls with a label, the newest label first; at most `MAX_ROWS`."""
        return [name for (name,) in self.connection.execute(_NEWEST, [label, MAX_ROWS])]

    def labels(self) -> list[tuple[str, str]]:
        """The labels of calls, each with its call, the newest first; at most `MAX_ROWS`."""
        return self.connection.execute(_LABELS, [MAX_ROWS]).fetchall()

    def of(self, conversation_id: str) -> list[Annotation]:
        """The labels and notes of a call in the order of their times."""
        rows = self.connection.execute(_OF_A_CALL, [conversation_id])
        return [
            Annotation(
                by=by, label=label or None, at_ms=at_ms, note=note, agent=agent, tenant=tenant
            )
            for by, label, at_ms, note, agent, tenant in rows
        ]

    def all_calls(self) -> Iterator[tuple[str, int]]:
        """Every call with an annotation, and when the newest was made, in epoch ms."""
        yield from self.connection.execute(
            "SELECT conversation_id, max(at_ms) FROM annotation GROUP BY 1"
        )


def _hash_of(conversation_id: str) -> bytes:
    return blake2b(conversation_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
