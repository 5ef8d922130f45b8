"""A ClickHouse with the tables of `deploy/clickhouse`, for tests."""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from consumers.history.sqlite import Batch
from schemas.rows import OwnRow, Row, WordsRow, encode
from tests.support.environments import python_with
from tests.support.patience import patient

ROOT: Final = Path(__file__).parents[3]
TABLES: Final = ROOT / "deploy" / "clickhouse" / "tables.sql"
VERSION: Final = "4.4.0"
ENGINE: Final = "chdb-core==26.9.0"
"""ClickHouse 26.9. Its wheel is too large for `make test`: 180 MB, 560 MB when it is installed."""

_NOT_BY_ITSELF: Final = "Shutdown was called"


class ClickHouse:
    """A server, whose only database has all tables: with parameters, chDB asks the default one."""

    def __init__(self, port: int) -> None:
        """Makes the tables."""
        self.address = f"http://127.0.0.1:{port}/?database=default"
        self.run_file(TABLES)

    def empty(self) -> None:
        """Empties all tables."""
        for name in re.findall(r"^CREATE TABLE (\w+)", TABLES.read_text(), re.MULTILINE):
            if not name.endswith("_in"):
                self.run(f"TRUNCATE TABLE {name}")

    def run_file(self, file: Path, replaced: Mapping[str, str] | None = None) -> None:
        """Runs each statement of a file. Recorded calls are of any time, so nothing is too old.

        chDB makes tables that read Kafka, and says that it does not read them by itself.
        """
        text = file.read_text(encoding="utf-8").replace("INTERVAL 30 DAY", "INTERVAL 36500 DAY")
        for old, new in (replaced or {}).items():
            text = text.replace(old, new)
        for statement in text.split(";\n"):
            if any(line and not line.startswith("--") for line in statement.splitlines()):
                self.run(statement, allowed=_NOT_BY_ITSELF)

    def run(self, sql: str, allowed: str | None = None) -> str:
        """Runs a statement; returns what it answers, or the error that is allowed."""
        answer = httpx.post(self.address, content=sql.encode(), timeout=patient(60))
        is_allowed = allowed is not None and allowed in answer.text
        assert answer.status_code == 200 or is_allowed, f"{sql[:500]}\n{answer.text}"
        return answer.text

    def write(self, batch: Batch) -> None:
        """Writes what the topics have, as Kafka would."""
        for table, of in (("score_in", Row), ("words_in", WordsRow), ("own_in", OwnRow)):
            rows = (row for row in batch.rows if isinstance(row, of))
            self.insert(
                table, ({"conversation_id": "key", "value": encode(row).decode()} for row in rows)
            )
        said = (
            {"conversation_id": name, "value": value.decode()}
            for name, _, value in batch.transcripts
        )
        self.insert("transcript_in", said)
        people = batch.people
        notes: list[tuple[str, str | None]] = [
            (name, said.model_dump_json()) for name, said in people.annotations
        ]
        notes += [(each.tenant, each.model_dump_json()) for each in people.tenants]
        notes += [(name, None) for name in people.forgotten]
        self.insert(
            "annotation_in", ({"conversation_id": name, "value": value} for name, value in notes)
        )

    def query_of(self, view: str) -> str:
        """What a view inserts into its table."""
        return self.run(f"SELECT as_select FROM system.tables WHERE name = '{view}' FORMAT TSVRaw")  # noqa: S608

    def insert(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Inserts rows, if there are any."""
        if lines := [json.dumps(row) for row in rows]:
            self.run("\n".join([f"INSERT INTO {table} FORMAT JSONEachRow", *lines]))


@contextmanager
def running_clickhouse() -> Iterator[ClickHouse]:
    """A server until the end of the block; without chDB the test is skipped."""
    python = python_with("chdb", VERSION, ENGINE)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [str(python), str(Path(__file__).with_name("server.py")), folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
            try:
                assert process.stdout is not None
                yield ClickHouse(int(process.stdout.readline()))
            finally:
                process.kill()
