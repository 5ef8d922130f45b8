"""Every bound of the engine: its default, its unit and its reason. Settings may change each."""

from pydantic import BaseModel, ConfigDict, Field

from schemas.topics import TopicNeeds


class Limits(BaseModel):
    """Bounds of one partition's evaluation."""

    model_config = ConfigDict(frozen=True)

    max_record_bytes: int = Field(
        1_048_576,
        gt=0,
        description="Largest input record in bytes. Kafka's own default; our largest events are prompts of some 100 kB.",
    )
    max_event_time_skew_ms: int = Field(
        24 * 3_600_000,
        ge=0,
        description="How far an event's time may lie from the broker's, in ms: a day forgives a wrong time zone; 0 = no check.",
    )
    max_events_per_call: int = Field(
        50_000, gt=0, description="Events of one call. An hour has about 9,000; more is a loop in the producer."
    )
    max_kept_bytes_per_call: int = Field(
        5 * 1_048_576,
        gt=0,
        description="Bytes of records whose texts or values one call keeps. Two talkative hours have 3.5 MB, 50,000 small tool events 4.4.",
    )
    max_replayed_elements_per_call: int = Field(
        1_000_000,
        gt=0,
        description="Elements one call may fold again because events came late: some seconds of work. A bad day has 50,000.",
    )
    max_turns_per_call: int = Field(1_000, gt=0, description="Turns of one call. Two hours have about 250.")
    max_call_duration_ms: int = Field(
        4 * 3_600_000,
        gt=0,
        description="Longest call in ms, by the broker's clock. It bounds how far a replay must go back.",
    )
    max_open_calls: int = Field(
        20_000,
        gt=0,
        description="Open calls per partition. At 40 kB each this is 800 MB; the quietest call is closed beyond it.",
    )
    max_closed_calls_remembered: int = Field(
        50_000, gt=0, description="Closed conversation ids kept to recognise what arrives after the end."
    )
    max_stage_values_per_call: int = Field(
        8_192,
        gt=0,
        description="Latencies and token counts of one call that are kept. Two hours have about 6,000; later ones do not count.",
    )
    max_remembered_ids: int = Field(
        4_096,
        gt=0,
        description="Event ids remembered per call and producer to recognise a repeat; reconnects repeat about 100.",
    )
    closing_grace_ms: int = Field(
        10_000,
        ge=0,
        description="From the end event to closing, in ms: transcripts arrive seconds after the last sound.",
    )
    agent_record_grace_ms: int = Field(
        120_000,
        ge=0,
        description="From the end of an ElevenLabs agent's call to closing while its record is not there, in ms: webhooks take a minute.",
    )
    idle_ms: int = Field(
        300_000,
        gt=0,
        description="Silence of all streams after which a call counts as over, in ms. Callers are put on hold for minutes.",
    )
    allowed_lateness_ms: int = Field(
        5_000,
        ge=0,
        description="How far every stream must be past a turn before it is settled, in ms: one slow transcription.",
    )
    dead_air_ms: int = Field(
        3_000,
        gt=0,
        description="Silence after the user's speech that counts as dead air, in ms. Callers doubt the line after about this long.",
    )
    delivery_allowance_ms: int = Field(
        500, ge=0, description="How long an event may be on its way before its absence counts as silence, in ms."
    )
    call_values_every_ms: int = Field(
        30_000,
        gt=0,
        description="How often the values of a long call are published while it runs, at most, in ms: at a turn that it leaves.",
    )


def needs_of(limits: Limits) -> TopicNeeds:
    """Returns the needs of these limits: topics must keep a call for long enough to be read again."""
    return TopicNeeds(
        longest_call_ms=limits.max_call_duration_ms, idle_ms=limits.idle_ms, max_record_bytes=limits.max_record_bytes
    )
