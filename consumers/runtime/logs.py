"""Log lines: one event name each, with its facts as fields; for people on a terminal, or JSON for machines.

A line about a record has the fields of `about_record`. What libraries log through the standard library goes the same
way, from warnings up: the true cause of a refused connection is often only there. Their texts are no event names, so in
JSON they all have the event `library_message`.
"""

import logging
import sys
from collections.abc import Callable
from io import StringIO
from typing import Any, Final, Literal, TextIO

import structlog

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_KEPT_FIELDS: Final = frozenset({"conversation_id", "timestamp", "level", "logger"})
_MAX_KEY_CHARS: Final = 200
"""A key is whatever somebody wrote there, and a log line has to stay one."""


def about_record(record: Any) -> dict[str, Any]:
    """Fields of a line about a record of Kafka: its conversation, as far as it has one, and where to find it again.

    Args:
        record: A consumer's record: its key, topic, partition and offset are read.
    """
    key = record.key
    return {
        "conversation_id": None if key is None else key.decode(errors="replace")[:_MAX_KEY_CHARS],
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }


def configure_logging(
    log_format: LogFormat,
    level: LogLevel = "info",
    stream: TextIO | None = None,
    redact: Callable[[str], str] | None = None,
) -> None:
    """Sets up structlog and the standard library's root logger for this process.

    Args:
        log_format: `console` for people, `json` for one object a line.
        level: The least level of our own lines; libraries' lines start at warning.
        stream: Where lines go; standard error by default, since standard output belongs to results.
        redact: Takes personal data out of a text. It goes over every field and traceback: nothing of a call is logged on
            purpose, but an error may repeat what it failed on. Ids of conversations stay, or no line would lead to its call.
    """
    output = stream if stream is not None else sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    foreign: list[structlog.typing.Processor] = [structlog.stdlib.add_logger_name]
    renderer: Any
    if log_format == "json":
        shared.append(structlog.processors.format_exc_info)
        foreign.append(_name_foreign)
        renderer = structlog.processors.JSONRenderer(sort_keys=True)
    else:
        # The default formatter shows local variables: what callers say has no place in a log.
        renderer = structlog.dev.ConsoleRenderer(colors=output.isatty(), exception_formatter=_traceback(redact))
    last = [] if redact is None else [_redacted(redact)]
    structlog.configure(
        processors=[*shared, *last, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=output),
        cache_logger_on_first_use=False,  # a second call changes every logger, also those made before
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, *foreign, *last],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(logging.WARNING, _LEVELS[level]))


def _redacted(redact: Callable[[str], str]) -> structlog.typing.Processor:
    def go_over(_logger: Any, _method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {
            name: redact(value) if isinstance(value, str) and name not in _KEPT_FIELDS else value
            for name, value in line.items()
        }

    return go_over


def _traceback(redact: Callable[[str], str] | None) -> structlog.typing.ExceptionRenderer:
    if redact is None:
        return structlog.dev.plain_traceback

    def write(output: TextIO, error: structlog.typing.ExcInfo) -> None:
        whole = StringIO()
        structlog.dev.plain_traceback(whole, error)
        output.write(redact(whole.getvalue()))

    return write


def _name_foreign(_logger: Any, _method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {**line, "event": "library_message", "message": line["event"]}
