"""EVA's labels of who cut off whom, and the sentences that its rules compare with."""

ASSISTANT_INTERRUPTS = "[assistant interrupts]"
USER_INTERRUPTS = "[user interrupts]"
CUT_OFF_BY_USER = "[likely cut off by user]"
CUT_OFF_BY_ASSISTANT = "[likely cut off by assistant]"
CUT_ITSELF_OFF = "[speaker likely cut itself off]"
LIKELY_INTERRUPTION = "[likely interruption]"
PAUSE = "[pause]"

ALL_LABELS = (
    ASSISTANT_INTERRUPTS,
    USER_INTERRUPTS,
    CUT_OFF_BY_USER,
    CUT_OFF_BY_ASSISTANT,
    CUT_ITSELF_OFF,
    LIKELY_INTERRUPTION,
    PAUSE,
)

GENERIC_ERROR_SENTENCE = "I'm sorry, I encountered an error processing your request."
"""The pipeline's own apology. A text group that equals it enters the trace, although no reply of the model caused it."""

EMPTY_UTTERANCES = frozenset({"", "...", "......", ".", ",", "?", "!"})
"""Texts of a `user_speech` without words; `..` is not among them."""
