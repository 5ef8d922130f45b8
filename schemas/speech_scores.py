"""How a call sounded, and how well one side's words are known to the other: running values while it is on, final at the end."""

from typing import Literal

from pydantic import Field

from schemas.score_record import CallRecord, Result, ScoreModel


class SideSpeech(ScoreModel):
    """What one side did in a call, as far as it is known.

    Attributes:
        speech_ms: How long it was heard, in ms.
        longest_monologue_ms: Its longest stretch of speech without a word of the other and without a pause of 3 s, in ms.
        words_per_minute: How fast it spoke, in the turns whose words are known.
        repeated_questions: How many times it asked what it had asked in an earlier turn, in the same words.
        repeated_in_turns: The turns in which it did.
    """

    speech_ms: Result
    longest_monologue_ms: Result
    words_per_minute: Result
    repeated_questions: Result
    repeated_in_turns: tuple[int, ...] = ()


class SpeechScore(CallRecord):
    """Who spoke how much: `result` is the assistant's share of the time both were heard, from 0 to 1.

    Attributes:
        through_turn: The last turn that counts.
        source: Whose speech events it is made of; None without any.
        user: The caller.
        assistant: The agent.
        overlap_ms: How long both were heard at once, in ms.
        dead_air_ms: How long the caller waited in silence, nobody speaking and no tool running, in ms; silences of 3 s or
            longer, each counted whole.
        first_word_ms: From the call's beginning, or its first event, to the assistant's first sound, in ms.
    """

    kind: Literal["score"] = "score"
    name: Literal["speech"] = "speech"
    result: Result
    through_turn: int
    source: Literal["elevenlabs", "pipecat"] | None
    user: SideSpeech
    assistant: SideSpeech
    overlap_ms: Result
    dead_air_ms: Result
    first_word_ms: Result


class WordErrorRate(CallRecord):
    """EVA's `stt_wer`: what the agent understood against what a simulated caller meant to say, in one spelling.

    All errors of the turns so far by all their reference words; lower is better, and it can exceed 1.

    Attributes:
        through_turn: The last turn that may count.
        substitutions: Words that were understood as others.
        deletions: Words that were not understood at all.
        insertions: Words that nobody said.
        reference_words: Words that the caller meant to say, in turns in which the agent understood any.
        turns: How many turns those are.
        by_turn: The rate of each turn that is new or another than before; of every turn in a final record.
    """

    kind: Literal["score"] = "score"
    name: Literal["stt_wer"] = "stt_wer"
    result: Result
    through_turn: int
    substitutions: int
    deletions: int
    insertions: int
    reference_words: int
    turns: int
    by_turn: dict[int, float] = Field(default_factory=dict)


class SideDisagreement(ScoreModel):
    """Of one side's speech: the share of its words by which the other's transcript differs, lower is better.

    Attributes:
        result: `differences` by `words`; it can exceed 1.
        differences: Words that are others, missing or too many, spelling apart.
        words: Words that the side meant to say.
        turns: The turns of which both transcripts are known.
    """

    result: Result
    differences: int = 0
    words: int = 0
    turns: int = 0


class TranscriptDisagreement(CallRecord):
    """How far what a side meant to say and what the other understood differ; `result` is that of both sides together.

    Where nobody knows what was really said, two transcripts that disagree are the nearest thing to a word error rate, but
    which of them is wrong is not known.
    """

    kind: Literal["score"] = "score"
    name: Literal["transcript_disagreement"] = "transcript_disagreement"
    result: Result
    through_turn: int
    user: SideDisagreement
    assistant: SideDisagreement
