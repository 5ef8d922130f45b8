"""The names of an evaluation result in OpenTelemetry's semantic conventions for generative AI, and
ours beside them.

The conventions are in development, so these names exist here and nowhere else. The event is a log
record.
"""

from typing import Final

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
ANCHOR: Final = f"{OURS}anchor"
SUBGOAL_ID: Final = f"{OURS}subgoal.id"
TENANT: Final = f"{OURS}tenant"
ENVIRONMENT: Final = f"{OURS}environment"
CODE_VERSION: Final = f"{OURS}code_version"
NORMALIZED: Final = f"{OURS}score.normalized"
