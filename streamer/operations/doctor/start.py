"""The checks of `callgauge doctor` for things that `run` would stumble over: goals, the judge, the address of /metrics, and quarantine."""

import http.client
import socket
from collections.abc import Iterator, Mapping
from typing import Final

from aiokafka import TopicPartition

from consumers.runtime.process import wall_clock_ms
from schemas.goals.goal_set import GoalSet
from streamer.cluster.facts import LogBounds
from streamer.goals.files import GoalFolderError, doubles_in, goal_files_of, read_goal_file
from streamer.operations.doctor.findings import Finding, Verdict, counted
from streamer.settings.all_settings import Settings

RECENT_MS: Final = 3_600_000
"""Refused records of the last hour are a fault that lasts, or one that somebody should know of."""
ANSWER_SECONDS: Final = 2.0
"""How long the program may take to answer that listens on the address of /metrics."""
_OURS: Final = b"callgauge_build_info"
_EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


def start_findings(settings: Settings) -> Iterator[Finding]:
    """Checks without Kafka. It reads the files of goals, and waits for the program that uses the port of /metrics."""
    sets, finding = _goal_sets(settings)
    yield finding
    yield judge_finding(settings, sets)
    yield metrics_finding(settings)


def _goal_sets(settings: Settings) -> tuple[list[GoalSet], Finding]:
    folder = settings.goals.folder
    if folder is None:
        source = "the topic goals is read" if settings.goals.reads_topic else "none, so no call has progress"
        return [], Finding("goals", Verdict.OK, source)
    try:
        files = [read_goal_file(path) for path in goal_files_of(folder)]
    except GoalFolderError as error:
        return [], Finding("goals", Verdict.WRONG, f"{error} The evaluator would not start", "Set goals.folder.")
    good = [file for file in files if not file.mistakes]
    sets = [placed.goals for file in good for placed in file.sets]
    broken = [str(file.path) for file in files if file.mistakes]
    seen = f"{counted(len(sets), 'goal set')} in {folder}"
    if broken or (doubles := [str(each) for each in doubles_in(good)]):
        fault = f"broken and not used: {', '.join(broken)}" if broken else "; ".join(doubles)
        return sets, Finding("goals", Verdict.WARNING, f"{seen}; {fault}", f"See `callgauge goals check {folder}`.")
    if not sets:
        return sets, Finding("goals", Verdict.WARNING, f"no goal file in {folder}", "Put goal files there.")
    return sets, Finding("goals", Verdict.OK, seen)


def judge_finding(settings: Settings, sets: list[GoalSet]) -> Finding:
    """Whether a model judges, and whether somebody waits for it.

    Args:
        settings: Of the roles.
        sets: The goals that are known here.
    """
    check, judge = "judge", settings.judge
    judged = sum(subgoal.is_judged for goals in sets for subgoal in goals.subgoals)
    if judge.is_on:
        return Finding(check, Verdict.OK, f"on: {judge.model} at {judge.base_url}")
    why = "it has no key" if judge.enabled else "judge.enabled is false"
    remedy = "Set OPENAI_API_KEY or judge.api_key_file." if judge.enabled else "Set judge.enabled=true."
    if settings.goals.asks_judge:
        return Finding(
            check, Verdict.WARNING, f"the evaluator asks a judge, and here {why}",
            f"{remedy} If the judge runs elsewhere with settings of its own, all is well.",
        )  # fmt: skip
    if judged:
        return Finding(
            check, Verdict.WARNING, f"{counted(judged, 'subgoal')} can only be judged by a model, and {why}", remedy
        )
    return Finding(check, Verdict.OK, f"off: {why}")


def metrics_finding(settings: Settings) -> Finding:
    """Whether /metrics could be served on this machine, or is served already."""
    check, host, port = "metrics address", settings.http_host, settings.http_port
    where = f"{host}:{port}"
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the listener does
            probe.bind((host, port))
    except OSError as error:
        if _is_ours(host, port):
            return Finding(check, Verdict.OK, f"callgauge serves /metrics on {where}")
        return Finding(
            check, Verdict.WARNING, f"`callgauge run` could not start here: {where}: {error.strerror or error}",
            "End the program that uses the port (`ss -ltnp` names it), or set http_port; nothing to do if callgauge runs "
            "on another machine.",
        )  # fmt: skip
    free = "is free on this machine" if port else "takes a free port at each start"
    return Finding(check, Verdict.OK, f"{where} {free}")


def quarantine_finding(
    bounds: Mapping[TopicPartition, LogBounds], recent: Mapping[TopicPartition, int | None]
) -> Finding:
    """Whether records were refused lately.

    Args:
        bounds: The partitions of the topic.
        recent: The first offset of the last `RECENT_MS` by partition; None without a record since then.
    """
    kept = sum(each.end - each.start for each in bounds.values())
    lately = sum(bounds[tp].end - offset for tp, offset in recent.items() if offset is not None)
    if lately:
        return Finding(
            "quarantine", Verdict.WARNING, f"{counted(lately, 'record')} refused in the last hour, {kept} kept in all",
            "See why: `callgauge quarantine list`.",
        )  # fmt: skip
    return Finding("quarantine", Verdict.OK, f"nothing refused in the last hour, {kept} kept in all")


def recent_since_ms() -> int:
    """The time from which refused records are recent, in epoch milliseconds."""
    return wall_clock_ms() - RECENT_MS


def _is_ours(host: str, port: int) -> bool:
    """Whether the program there shows metrics of callgauge, or wants a token for them as callgauge does."""
    connection = http.client.HTTPConnection(_EVERY_ADDRESS.get(host, host), port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        wants_token = answer.status == http.HTTPStatus.UNAUTHORIZED and "Bearer" in answer.getheader(
            "www-authenticate", ""
        )
        return wants_token or _OURS in answer.read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
