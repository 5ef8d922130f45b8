"""Past calls as the pages of the console ask for them."""

from pathlib import Path

import pytest

from consumers.history.search import QuestionError
from consumers.history.settings import HistorySettings
from consumers.history.sqlite import SqliteHistory
from streamer.roles.past_calls import StoredCalls
from tests.unit.history.test_store import TRANSCRIPT, batch, call


def test_the_page_of_past_calls_finds_them_in_the_folder(tmp_path: Path) -> None:
    writer = SqliteHistory(tmp_path, writes=True)
    writer.write(batch(call("c"), c=TRANSCRIPT))
    writer.close()
    past = StoredCalls(HistorySettings(folder=tmp_path))
    rows, has_more = past.find("2000-01-01", "desk", "turns > 1", "")
    assert [row["conversation_id"] for row in rows] == ["c"]
    assert not has_more
    assert past.find("2000-01-01", "care", "", "") == ([], False)
    assert len(past.records_of("c")) == len(call("c"))
    assert past.transcript_of("c") == TRANSCRIPT
    for since in ("yesterday", "9" * 5_000, "9999-12-31T23:59:59-23:59x"):
        with pytest.raises(QuestionError, match=r"is no moment"):
            past.find(since, "", "", "")
    assert past.annotations_of("c") == ()
    writer = SqliteHistory(tmp_path, writes=True)
    writer.forget(["c"])
    writer.close()
    assert (past.annotations_of("c"), past.records_of("c")) == (None, [])
