"""A folder that `serve` keeps: whether it is one, where its history is, and the settings to read
it.
"""

from pathlib import Path

from consumers.history.settings import HistorySettings
from consumers.log.file import FILE_NAME
from consumers.runtime.process import OperatorError
from streamer.settings.all_settings import Settings


def data_folder() -> Path:
    """Where the system keeps data of this user, and `serve` its calls without `--folder`."""
    from platformdirs import user_data_path

    return user_data_path("callgauge", appauthor=False)


def hint_of_served() -> str:
    """Where to look where Kafka does not answer: most who have calls have them of `serve`."""
    folder = data_folder() if is_served(data_folder()) else "PATH"
    return f"Calls that `callgauge serve` keeps need no Kafka: add --folder {folder}."


def is_served(folder: Path) -> bool:
    """Whether a `serve` keeps calls in a folder, or did."""
    return (folder / FILE_NAME).exists()


def history_of(folder: Path, settings: Settings | None = None) -> Path:
    """The folder of history of a folder that `serve` keeps, with the settings that it has; any
    other folder is one of history itself.
    """
    if not is_served(folder):
        return folder
    return (None if settings is None else settings.history.folder) or folder / "history"


def history_in(folder: Path | None, settings: Settings) -> HistorySettings:
    """Where to read history: in a folder that a person gives, its own or that of `serve`; without
    one, where the settings say.
    """
    if folder is None:
        return settings.history
    there = history_of(folder, settings)
    return settings.history.model_copy(update={"folder": there, "clickhouse_url": None})


def served(settings: Settings, folder: Path) -> Settings:
    """The settings with the history of a folder that `serve` keeps, and without what is on Kafka.

    Raises:
        OperatorError: It is no such folder.
    """
    if not is_served(folder):
        raise OperatorError(
            f"{folder}: no `callgauge serve` has kept calls here: there is no {FILE_NAME}."
        )
    return settings.model_copy(
        update={
            "history": history_in(folder, settings),
            "goals": settings.goals.model_copy(update={"reads_topic": False}),
            "topic_prefix": "",
        }
    )
