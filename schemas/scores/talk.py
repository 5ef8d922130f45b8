"""Speech times and differences between transcripts, as parts of the records of turns and calls."""

from typing import Literal

from schemas.scores.record import Result, ScoreModel


class SideSpeech(ScoreModel):
    """Speech of one side in a call.

    Attributes:
        speech_ms: Time in which it was heard, in ms.
        longest_monologue_ms: Its longest stretch of speech without a word of the other side and without a pause of 3 s, in ms.
        words_per_minute: Its pace in the turns with known words.
        repeated_questions: Number of questions that it had asked in an earlier turn in the same words.
        repeated_in_turns: The turns with repeated questions.
    """

    speech_ms: Result
    longest_monologue_ms: Result
    words_per_minute: Result
    repeated_questions: Result
    repeated_in_turns: tuple[int, ...] = ()


class SpeechScore(ScoreModel):
    """Speech of both sides in a call: `result` is the assistant's share of the speech time of both, from 0 to 1.

    Attributes:
        source: The stream of the speech events; None without speech events.
        user: Speech of the caller.
        assistant: Speech of the agent.
        overlap_ms: Time in which both were heard at once, in ms.
        dead_air_ms: Time in which the caller waited, with nobody speaking and no tool running, in ms. Only silences of 3 s or
            longer count, each with its whole length.
        first_word_ms: Time from the start of the call, or its first event, to the assistant's first sound, in ms.
    """

    result: Result
    source: Literal["elevenlabs", "pipecat"] | None
    user: SideSpeech
    assistant: SideSpeech
    overlap_ms: Result
    dead_air_ms: Result
    first_word_ms: Result


class WordErrorRate(ScoreModel):
    """EVA's `stt_wer`: word error rate of the agent's transcript against the text that a simulated caller meant to say.

    Both texts are brought to one spelling first. For a call, it is all errors divided by all reference words. Lower is better,
    and it can exceed 1.

    Attributes:
        substitutions: Words transcribed as other words.
        deletions: Words missing in the transcript.
        insertions: Words in the transcript that the caller did not mean to say.
        reference_words: Words that the caller meant to say, in turns with a transcript.
        turns: Number of those turns.
    """

    result: Result
    substitutions: int
    deletions: int
    insertions: int
    reference_words: int
    turns: int


class SideDisagreement(ScoreModel):
    """Differences between one side's intended words and the other side's transcript of them; lower is better.

    Attributes:
        result: `differences` divided by `words`; it can exceed 1.
        differences: Words that are different, missing or additional, after both texts are brought to one spelling.
        words: Words that the side meant to say.
        turns: Number of turns with both transcripts.
    """

    result: Result
    differences: int = 0
    words: int = 0
    turns: int = 0


class TranscriptDisagreement(ScoreModel):
    """Differences between the two transcripts of each side's speech; `result` covers both sides together.

    If the spoken words themselves are not known, this is the nearest value to a word error rate. It does not show which of the
    two transcripts is wrong.
    """

    result: Result
    user: SideDisagreement
    assistant: SideDisagreement


class SideTalk(ScoreModel):
    """Speech of one side in a turn.

    Attributes:
        speech_ms: Time in which it was heard, in ms. Sounds that have not ended do not count yet.
        words: Number of its words; None if its text is not known.
    """

    speech_ms: Result
    words: int | None = None


class TurnTalk(ScoreModel):
    """Speech time and words of both sides in a turn."""

    user: SideTalk
    assistant: SideTalk
