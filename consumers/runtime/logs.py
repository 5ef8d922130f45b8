"""Sets up logging: lines with an event name and fields, for people on a terminal or as JSON for
machines.

A line about a record has the fields of `about_record`. Warnings and errors that libraries log
through the standard library are included, because the cause of a refused connection is often only
there. In JSON they have the event `library_message`.
"""

import logging
import re
import sys
from collections.abc import Callable
from io import StringIO
from typing import Any, Final, TextIO

import structlog

from consumers.runtime.settings import LogFormat, LogLevel
from consumers.runtime.visible import visible

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_KEPT_FIELDS: Final = frozenset({"conversation_id", "timestamp", "level", "logger"})
_MAX_KEY_CHARS: Final = 200
"""Characters kept of a record's key, which may be any text, so that the line stays short."""
_FREED_CONNECTION: Final = "Unclosed AIOKafkaConnection"
"""How a line of asyncio begins that no reader can act on: aiokafka forgets the connection of a
cancelled start. Freeing it closes it.
"""

MOST_OF_A_KIND: Final = 10
KIND_SECONDS: Final = 60.0
"""Lines of one kind that a library may write in so many seconds: each client of aiokafka repeats
itself 80 times a second while a broker is away, and hours of that fill a disk.
"""
_MAX_KINDS: Final = 1_000
_DIGITS: Final = re.compile(r"\d+")


class _FewOfAKind(logging.Filter):
    """Leaves out what a library repeats; the next line of its kind after that says how often.

    Lines are of a kind that differ in values and numbers alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == "asyncio" and record.getMessage().startswith(_FREED_CONNECTION):
            return False
        kind = (record.name, _DIGITS.sub("#", str(record.msg)[:200]))
        began, count = self._kinds.get(kind, (record.created, 0))
        if 0 <= record.created - began < KIND_SECONDS:
            self._kinds[kind] = (began, count + 1)
            return count < MOST_OF_A_KIND
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        self._kinds[kind] = (record.created, 1)
        if (left_out := count - MOST_OF_A_KIND) > 0:
            record.msg = f"{record.msg} ({left_out} more such lines were left out)"
        return True


def about_record(record: Any) -> dict[str, Any]:
    """Returns the fields of a line about a Kafka record: its conversation if it has one, and its
    coordinates.

    Args:
        record: A consumer's record with key, topic, partition and offset.
    """
    key = record.key
    return {
        "conversation_id": None if key is None else key.decode(errors="replace")[:_MAX_KEY_CHARS],
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }


def is_json(log_format: LogFormat, stream: TextIO | None = None) -> bool:
    """Whether the lines of this format are JSON on this stream, which is standard error
    by default.
    """
    if log_format == "auto":
        return not (stream if stream is not None else sys.stderr).isatty()
    return log_format == "json"


def configure_logging(
    log_format: LogFormat,
    level: LogLevel = "info",
    stream: TextIO | None = None,
    redact: Callable[[str], str] | None = None,
) -> None:
    """Sets up structlog and the standard library's root logger for this process.

    Args:
        log_format: `console` for people, `json` for one object a line; `auto` is `console` on a
            terminal, otherwise `json`.
        level: Lowest level of our own lines. Lines of libraries start at warning.
        stream: Target of the lines; standard error by default, because standard output is for
            results.
        redact: Removes personal data from a text. It is applied to every field and traceback:
            nothing of a call is logged on purpose, but an error may repeat its input. Ids of
            conversations stay, so that a line leads to its call.
    """
    output = stream if stream is not None else sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    foreign: list[structlog.typing.Processor] = [structlog.stdlib.add_logger_name]
    last: list[structlog.typing.Processor] = []
    if redact is not None:
        last.append(_each_text(lambda name, text: text if name in _KEPT_FIELDS else redact(text)))
    renderer: Any
    if is_json(log_format, output):
        shared.append(structlog.processors.format_exc_info)
        foreign.append(_name_foreign)
        renderer = structlog.processors.JSONRenderer(sort_keys=True)
    else:
        last.append(_each_text(lambda _, text: visible(text)))
        # The default formatter shows local variables: words of callers have no place in a log.
        renderer = structlog.dev.ConsoleRenderer(
            colors=output.isatty(), exception_formatter=_traceback(redact)
        )
    structlog.configure(
        processors=[*shared, *last, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=output),
        # a second call changes every logger, also those made before
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, *foreign, *last],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    handler.addFilter(_FewOfAKind())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(logging.WARNING, _LEVELS[level]))


def _each_text(change: Callable[[str, str], str]) -> structlog.typing.Processor:
    def go_over(
        _logger: Any, _method: str, line: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        return {
            name: change(name, value) if isinstance(value, str) else value
            for name, value in line.items()
        }

    return go_over


def _traceback(redact: Callable[[str], str] | None) -> structlog.typing.ExceptionRenderer:
    def write(output: TextIO, error: structlog.typing.ExcInfo) -> None:
        whole = StringIO()
        structlog.dev.plain_traceback(whole, error)
        text = whole.getvalue()
        output.write(visible(text if redact is None else redact(text), "\n"))

    return write


def _name_foreign(
    _logger: Any, _method: str, line: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    return {**line, "event": "library_message", "message": line["event"]}
