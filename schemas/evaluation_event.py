"""The names of an evaluation result in OpenTelemetry's semantic conventions for generative AI, and ours beside them.

The conventions are in development, so these names exist here and nowhere else. The event is a log record.
"""

import re
from typing import Final

TRACE_CALL: Final = "trace-{}"
"""Conversation id of a call that spans tell, with the id of their trace in hexadecimal digits."""
_OF_A_TRACE: Final = re.compile(TRACE_CALL.format("([0-9a-f]{32})"))

EVENT_NAME: Final = "gen_ai.evaluation.result"
"""Name of the event."""

EVALUATION_NAME: Final = "gen_ai.evaluation.name"
SCORE_VALUE: Final = "gen_ai.evaluation.score.value"
SCORE_LABEL: Final = "gen_ai.evaluation.score.label"
ERROR_TYPE: Final = "error.type"
"""Reason why there is no score."""
CONVERSATION_ID: Final = "gen_ai.conversation.id"
AGENT_NAME: Final = "gen_ai.agent.name"

OURS: Final = "callgauge."
"""Prefix of attributes for which the conventions have no name."""
TURN: Final = f"{OURS}turn"
REVISION: Final = f"{OURS}revision"
RECORD_ID: Final = f"{OURS}record_id"
ANCHOR: Final = f"{OURS}anchor"
SUBGOAL_ID: Final = f"{OURS}subgoal.id"
TENANT: Final = f"{OURS}tenant"
ENVIRONMENT: Final = f"{OURS}environment"
CODE_VERSION: Final = f"{OURS}code_version"
NORMALIZED: Final = f"{OURS}score.normalized"


def trace_id_of(conversation_id: object) -> int | None:
    """Returns the id of the trace that a call was told by; None for a call that no spans told.

    Example:
        >>> trace_id_of("trace-0000000000000000000000000000002a"), trace_id_of("call-1")
        (42, None)
    """
    found = _OF_A_TRACE.fullmatch(conversation_id) if isinstance(conversation_id, str) else None
    return None if found is None else int(found[1], 16)
