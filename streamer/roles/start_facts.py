"""The facts that `callgauge run` states at its start: goals, judge, transcripts and redaction, each as one phrase."""

from collections.abc import Collection
from pathlib import Path

from schemas.closed_sets import RoleName
from schemas.topics import GOALS_TOPIC, JUDGE_REQUESTS_TOPIC, TRANSCRIPTS_TOPIC
from streamer.settings.all_settings import Settings

_KEY_REMEDY = "set OPENAI_API_KEY or CALLGAUGE_JUDGE__API_KEY_FILE"


def start_facts(settings: Settings, roles: Collection[RoleName]) -> dict[str, str]:
    """A phrase for each subject that concerns one of the roles, by subject. It reads the files of goals."""
    facts = {}
    if "evaluator" in roles:
        facts["goals"] = _goals(settings)
    if "evaluator" in roles or "judge" in roles:
        facts["judge"] = _judge(settings, roles)
    if "evaluator" in roles:
        facts["transcripts"] = _transcripts(settings)
    facts["redaction"] = _redaction(settings)
    return facts


def _goals(settings: Settings) -> str:
    sources = []
    if (folder := settings.goals.folder) is not None:
        sources.append(f"{_counted_sets(folder)} in the folder {folder}")
    if settings.goals.reads_topic:
        sources.append(f"the topic {settings.kafka.topic(GOALS_TOPIC)}")
    return " and ".join(sources) or "none (set goals.folder or goals.reads_topic)"


def _counted_sets(folder: Path) -> str:
    from streamer.goals.files import GoalFolderError, goal_files_of, read_goal_file  # bring YAML, which few roles need

    try:
        files = [read_goal_file(path) for path in goal_files_of(folder)]
    except GoalFolderError:  # the evaluator, which reads it too, says why
        return "unreadable goal sets"
    sets, broken = (
        sum(len(file.sets) for file in files if not file.mistakes),
        sum(bool(file.mistakes) for file in files),
    )
    counted = "1 set" if sets == 1 else f"{sets} sets"
    return f"{counted} ({broken} broken, see `callgauge goals check {folder}`)" if broken else counted


def _judge(settings: Settings, roles: Collection[RoleName]) -> str:
    if "judge" not in roles:
        if settings.goals.asks_judge:
            return f"in another process: questions go to the topic {settings.kafka.topic(JUDGE_REQUESTS_TOPIC)}"
        return "off (no role judge in this process, and goals.asks_judge is false)"
    if not settings.judge.enabled:
        return "off (judge.enabled is false)"
    if settings.judge.api_key is None:
        return f"off (no key: {_KEY_REMEDY})"
    return f"on ({settings.judge.model} at {settings.judge.base_url})"


def _transcripts(settings: Settings) -> str:
    if not settings.transcripts.enabled:
        return "off (transcripts.enabled is false)"
    folder = settings.transcripts.folder
    files = "" if folder is None else f" and files in the folder {folder}"
    return f"on (the topic {settings.kafka.topic(TRANSCRIPTS_TOPIC)}{files})"


def _redaction(settings: Settings) -> str:
    if not settings.redaction.enabled:
        return "off (redaction.enabled is false): texts of calls are written as they are"
    found = [*settings.redaction.detectors, *(f"pattern {name}" for name in settings.redaction.patterns)]
    return f"on ({', '.join(found) or 'nothing is looked for'})"
