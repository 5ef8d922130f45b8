"""Opens history where the settings say that it is. ClickHouse's client is imported only for
ClickHouse.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from consumers.history.search import HistoryStore
from consumers.history.settings import HistorySettings
from consumers.history.sqlite import HistoryFolderError, SqliteHistory


@contextmanager
def opened(settings: HistorySettings, seconds: float | None = None) -> Iterator[HistoryStore]:
    """History to read: ClickHouse if it has an address, otherwise the folder.

    Args:
        settings: Where it is.
        seconds: How long questions may take from now on; None for as long as they need.

    Raises:
        HistoryFolderError: There is neither, or the folder cannot be read.
    """
    store: HistoryStore
    if settings.clickhouse_url is not None:
        from consumers.history.clickhouse import ClickHouseHistory

        store = ClickHouseHistory(settings, seconds)
    elif settings.folder is not None:
        store = SqliteHistory(settings.folder, seconds=seconds)
    else:
        raise HistoryFolderError(
            "History: there is no folder. Set history.folder to that of the role `history`, or "
            "history.clickhouse_url."
        )
    try:
        yield store
    finally:
        store.close()
