"""The metrics of the monitor role: the live calls that it follows, their messages, and its connections."""

from typing import Final

from schemas.closed_sets import MonitorOutcome
from schemas.metrics.definition import Label, Metric, words_of

_MESSAGE_OUTCOME = Label("outcome", "result of the message", words_of(MonitorOutcome))
_CONNECTION_OUTCOME = Label("outcome", "how the connection ended", ("ended", "lost", "refused"))

MONITOR_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "callgauge_monitor_calls", "gauge", "calls",
        "Live calls of ElevenLabs agents that are followed.",
        "monitor",
    ),
    Metric(
        "callgauge_monitor_messages_total", "counter", "messages",
        "Messages of ElevenLabs' monitor, each counted once, when it was acknowledged by Kafka or left out.",
        "monitor", (_MESSAGE_OUTCOME,),
    ),
    Metric(
        "callgauge_monitor_connections_total", "counter", "requests",
        "Connections to ElevenLabs' monitor that ended: with the call, in the middle of it, or before it was accepted.",
        "monitor", (_CONNECTION_OUTCOME,),
    ),
    Metric(
        "callgauge_monitor_look_failures_total", "counter", "requests",
        "Looks for live calls that ElevenLabs did not answer, or not with a list of calls; each is logged.",
        "monitor",
    ),
)  # fmt: skip
"""In the order in which they are listed."""
