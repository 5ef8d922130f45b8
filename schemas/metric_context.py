"""EVA's `MetricContext`: the input of EVA's metrics for one call, in EVA's own field names and
encoding.
"""

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.closed_sets import PipelineType

AudioSegments = dict[int, list[tuple[float, float]] | None]
"""By turn: (start, end) of each stretch of sound in epoch seconds; None for a turn known only from
text.
"""


TurnsBy = Literal["eva", "bot"]
"""Whose turns a context has: those of EVA's batch processor, in a call that a simulated caller
hears; or the bot's own.
"""


class MetricContext(BaseModel):
    """A call as EVA's metrics read it.

    Of a call with a simulated caller it is the result of EVA's batch processor, with the facts that
    EVA's runner adds (unset if they are not supplied). Of any other call, `turns_by` is `bot`: the
    same fields from the turns that the bot heard, in the numbers of the scores. There `unknown` has
    the reason for each field that is left out or known in part.

    Turn 0 is the greeting; a turn id can be -1 (EVA's rule for an empty first session).
    `intended_*` is what a side meant to say, `transcribed_*` what the other side heard.
    `latency_assistant_turns` is in seconds, from the end of the user's last audio to the
    assistant's first audio of that turn, negative when they overlap.
    """

    model_config = ConfigDict(frozen=True)

    transcribed_assistant_turns: dict[int, str | None] = Field(default_factory=dict)
    transcribed_user_turns: dict[int, str] = Field(default_factory=dict)
    intended_assistant_turns: dict[int, str] = Field(default_factory=dict)
    intended_user_turns: dict[int, str] = Field(default_factory=dict)
    audio_timestamps_assistant_turns: AudioSegments = Field(default_factory=dict)
    audio_timestamps_user_turns: AudioSegments = Field(default_factory=dict)
    num_assistant_turns: int
    num_user_turns: int
    num_tool_calls: int
    tool_called: list[str]
    tool_params: list[dict[str, Any]]
    tool_responses: list[dict[str, Any]]
    conversation_trace: list[dict[str, Any]]
    assistant_interrupted_turns: frozenset[int] = Field(default_factory=frozenset)
    user_interrupted_turns: frozenset[int] = Field(default_factory=frozenset)
    fallback_turn_ids: frozenset[int] = Field(default_factory=frozenset)
    conversation_ended_reason: str | None = None
    pipeline_type: PipelineType
    latency_assistant_turns: dict[int, float]

    record_id: str | None = None
    user_goal: dict[str, Any] | str | None = None
    user_persona: str | None = None
    initial_scenario_db: dict[str, Any] | None = None
    initial_scenario_db_hash: str | None = None
    final_scenario_db: dict[str, Any] | None = None
    final_scenario_db_hash: str | None = None
    expected_scenario_db: dict[str, Any] | None = None
    agent_id: str | None = None
    agent_role: str | None = None
    agent_instructions: str | None = None
    agent_tools: list[dict[str, Any]] | None = None
    current_date_time: str | None = None
    language: str | None = None
    num_turns: int | None = None
    tools_called: list[str] | None = None
    conversation_finished: bool | None = None
    duration_seconds: float | None = None
    output_dir: str | None = None
    audio_assistant_path: str | None = None
    audio_user_path: str | None = None
    audio_mixed_path: str | None = None
    turns_by: TurnsBy = "eva"
    unknown: dict[str, str] = {}

    @property
    def is_s2s(self) -> bool:
        """Whether one model hears and speaks."""
        return self.pipeline_type is PipelineType.S2S

    @property
    def is_audio_native(self) -> bool:
        """Whether the model hears audio. Then `transcribed_user_turns` is not its input."""
        return self.pipeline_type is not PipelineType.CASCADE

    def to_dict(self, *, with_unset: bool = False) -> dict[str, Any]:
        """Returns plain JSON values: turn ids as string keys, sets as sorted lists, segments as
        lists.

        What is unknown and empty is left out. EVA's own encoding has neither `turns_by` nor
        `unknown`.

        Args:
            with_unset: Whether facts that were not supplied are there as null, and not left out.
        """
        is_evas = self.turns_by == "eva"
        unset = set() if with_unset else {name for name in _SUPPLIED if getattr(self, name) is None}
        unset |= (
            _NOT_EVAS if is_evas else {name for name in self.unknown if not getattr(self, name)}
        )
        plain = self.model_dump(mode="json", exclude=unset)
        for name in _SETS.intersection(plain):
            plain[name] = sorted(plain[name])
        plain["is_audio_native"] = self.is_audio_native
        return plain


_NOT_EVAS: Final = {"turns_by", "unknown"}
_SETS: Final = {"assistant_interrupted_turns", "user_interrupted_turns", "fallback_turn_ids"}
_SUPPLIED: Final = {
    name
    for name, info in MetricContext.model_fields.items()
    if not info.is_required() and info.default is None
} - {"conversation_ended_reason"}
"""Fields that EVA's processor does not make."""
