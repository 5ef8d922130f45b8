"""How a call sounded, and how well one side's words are known to the other: parts of the records of turns and calls."""

from typing import Literal

from schemas.scores.record import Result, ScoreModel


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


class SpeechScore(ScoreModel):
    """Who spoke how much: `result` is the assistant's share of the time both were heard, from 0 to 1.

    Attributes:
        source: Whose speech events it is made of; None without any.
        user: The caller.
        assistant: The agent.
        overlap_ms: How long both were heard at once, in ms.
        dead_air_ms: How long the caller waited in silence, nobody speaking and no tool running, in ms; silences of 3 s or
            longer, each counted whole.
        first_word_ms: From the call's beginning, or its first event, to the assistant's first sound, in ms.
    """

    result: Result
    source: Literal["elevenlabs", "pipecat"] | None
    user: SideSpeech
    assistant: SideSpeech
    overlap_ms: Result
    dead_air_ms: Result
    first_word_ms: Result


class WordErrorRate(ScoreModel):
    """EVA's `stt_wer`: what the agent understood against what a simulated caller meant to say, in one spelling.

    Of one turn, or all errors of a call's turns by all their reference words; lower is better, and it can exceed 1.

    Attributes:
        substitutions: Words that were understood as others.
        deletions: Words that were not understood at all.
        insertions: Words that nobody said.
        reference_words: Words that the caller meant to say, in turns in which the agent understood any.
        turns: How many turns those are.
    """

    result: Result
    substitutions: int
    deletions: int
    insertions: int
    reference_words: int
    turns: int


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


class TranscriptDisagreement(ScoreModel):
    """How far what a side meant to say and what the other understood differ; `result` is that of both sides together.

    Where nobody knows what was really said, two transcripts that disagree are the nearest thing to a word error rate, but
    which of them is wrong is not known.
    """

    result: Result
    user: SideDisagreement
    assistant: SideDisagreement


class SideTalk(ScoreModel):
    """What one side did in a turn.

    Attributes:
        speech_ms: How long it was heard, in ms, as far as its sounds have ended.
        words: How many words it said; None where its text is not known.
    """

    speech_ms: Result
    words: int | None = None


class TurnTalk(ScoreModel):
    """Who spoke how long in a turn, and how much was said."""

    user: SideTalk
    assistant: SideTalk
