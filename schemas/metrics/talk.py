"""The exporter's metrics of speech times and of differences between transcripts, counted when a call closes."""

from typing import Final

from schemas.closed_sets import Speaker
from schemas.metrics.definition import Label, Metric, words_of

FIRST_WORD_EDGES_SECONDS: Final = (0.2, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 15.0)
"""Edges of the time to the first word: callers doubt the line after about a second, and hang up after some five."""

MONOLOGUE_EDGES_SECONDS: Final = (5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 180.0)
"""Edges of the longest monologue: two sentences take 10 s, and nobody remembers a text that takes longer than half a minute."""

PACE_EDGES: Final = (60.0, 80.0, 100.0, 120.0, 140.0, 160.0, 180.0, 200.0, 220.0, 250.0, 300.0)
"""Edges of words per minute: people talk at 120 to 180 on the telephone; above 200 a voice is hard to follow."""

_AGENT = Label("agent", "the voice agent, as `call_started` names it", cap=50)
_SPEAKER = Label("speaker", "whose speech it is", words_of(Speaker))
_WORD_ERROR = Label("kind", "what became of the word", ("substitution", "deletion", "insertion"))

SPEECH_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "callgauge_talk_seconds_total", "counter", "seconds",
        "How long a side was heard, overlapping speech of one side counted once; its share of both is the talk ratio.",
        "exporter", (_AGENT, _SPEAKER),
    ),
    Metric(
        "callgauge_overlap_seconds_total", "counter", "seconds",
        "How long both sides were heard at once.",
        "exporter", (_AGENT,),
    ),
    Metric(
        "callgauge_dead_air_seconds_total", "counter", "seconds",
        "How long callers waited in silences of 3 s or longer, each from its beginning to the next sound or tool.",
        "exporter", (_AGENT,),
    ),
    Metric(
        "callgauge_first_word_seconds", "histogram", "seconds",
        "From the beginning of a call, or its first event, to the assistant's first sound.",
        "exporter", (_AGENT,), FIRST_WORD_EDGES_SECONDS,
    ),
    Metric(
        "callgauge_longest_monologue_seconds", "histogram", "seconds",
        "A side's longest stretch of speech in a call, without a word of the other and without a pause of 3 s.",
        "exporter", (_AGENT, _SPEAKER), MONOLOGUE_EDGES_SECONDS,
    ),
    Metric(
        "callgauge_words_per_minute", "histogram", "words per minute",
        "How fast a side spoke in a call, over the turns whose words are known.",
        "exporter", (_AGENT, _SPEAKER), PACE_EDGES,
    ),
    Metric(
        "callgauge_repeated_questions_total", "counter", "questions",
        "Questions that a side asked in the same words as in an earlier turn of the call.",
        "exporter", (_AGENT, _SPEAKER),
    ),
    Metric(
        "callgauge_transcript_words_total", "counter", "words",
        "Words that a side meant to say in turns of which the other side's transcript is known too.",
        "exporter", (_AGENT, _SPEAKER),
    ),
    Metric(
        "callgauge_transcript_differences_total", "counter", "words",
        "Words by which the other side's transcript differs from what a side meant to say; which of them is wrong is not known.",
        "exporter", (_AGENT, _SPEAKER),
    ),
    Metric(
        "callgauge_stt_reference_words_total", "counter", "words",
        "Words that simulated callers meant to say, in turns for which a cascade's speech recognition understood any.",
        "exporter", (_AGENT,),
    ),
    Metric(
        "callgauge_stt_word_errors_total", "counter", "words",
        "Words that speech recognition got wrong, left out or put in; by the reference words it is the word error rate.",
        "exporter", (_AGENT, _WORD_ERROR),
    ),
)  # fmt: skip
"""In the order in which they are listed."""
