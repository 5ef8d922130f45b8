"""The stages of the wait in each turn: a drawing in sequence, and a table of all measurements.

pipecat's latency breakdown covers the whole wait without gaps, so it is drawn unchanged. Stages of other sources are drawn
in their order, and the rest of the wait as not measured. Stages that contain other stages are only in the table.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from schemas.scores.latency_stages import CONTRIBUTIONS, Stage
from schemas.scores.records import StageLatency, TurnValues
from streamer.report.call.reported_call import ReportedCall
from streamer.report.drawing.markup import Child, Markup, element, joined
from streamer.report.drawing.numbers import anchor_in_words, in_words, seconds

MOST_ROWS: Final = 500
"""Turns in the table."""

FAMILIES: Final[Mapping[str, str]] = {
    "listening": "End of the user's turn",
    "model": "Language model",
    "sentence": "Waiting for a sentence",
    "tools": "Tools",
    "voice": "Speech synthesis",
    "way": "Transport and pipeline",
    "rest": "Not measured",
}
"""The kinds of drawn stages in the order of the legend: class of the style sheet, and label."""

_FAMILY_OF: Final[Mapping[Stage, str]] = {
    Stage.ENDPOINTING: "listening", Stage.STT_TRAILING: "listening", Stage.ENDPOINTING_WAIT: "listening",
    Stage.TRANSCRIPTION: "listening", Stage.TURN_DETECTION: "listening", Stage.TURN_COMPLETION: "listening",
    Stage.WAITING_FOR_USER: "listening",
    Stage.TOOL_RUN: "tools", Stage.FUNCTION_HANDLER: "tools",
    Stage.TOOL_REQUEST: "model", Stage.LLM_TOOL_CALL: "model",  # the model writes the arguments of the tool
    Stage.LLM_FIRST_TOKEN: "model", Stage.LLM_LAST_SENTENCE: "model", Stage.LLM_INFERENCE: "model", Stage.FIRST_REQUEST: "model",
    Stage.LLM_FIRST_SENTENCE: "sentence", Stage.SENTENCE_AGGREGATION: "sentence", Stage.AWAITING_SPEAKABLE_TEXT: "sentence",
    Stage.TTS_FIRST_BYTE: "voice", Stage.SPEECH_SYNTHESIS: "voice",
    Stage.OUTPUT_TRANSPORT: "way", Stage.PIPELINE: "way",
}  # fmt: skip
ONLY_IN_THE_TABLE: Final = frozenset({Stage.TURN_ANALYZER, Stage.VOICE_TO_VOICE, Stage.FIRST_SPEECH})
"""Stages that are not drawn, because they contain others or are a part of one."""


class StagePart(NamedTuple):
    """One piece of the bar of a turn."""

    name: str
    family: str
    start_ms: float
    length_ms: float

    @property
    def end_ms(self) -> float:
        """Where it ends in the bar."""
        return self.start_ms + self.length_ms


def stage_parts(call: ReportedCall) -> dict[int, list[StagePart]]:
    """By turn: its bar, for turns of which a stage besides the whole is known."""
    waits_ms = call.waits_ms
    parts = {}
    for record in call.rows:
        turn = record.turn or 0
        bar = stacked(record.stages, waits_ms.get(turn))
        if bar:
            parts[turn] = bar
    return parts


def stacked(stages: Sequence[StageLatency], wait_ms: float | None) -> list[StagePart]:
    """The bar of one turn; `wait_ms` is all that it should cover, None when that is not known."""
    known = {each.stage: each.latency_ms for each in stages}
    lengths = [(stage, known[stage]) for stage in CONTRIBUTIONS.values() if stage in known] or _in_sequence(
        known, wait_ms
    )
    parts: list[StagePart] = []
    at_ms = 0.0
    for stage, length_ms in lengths:
        if length_ms > 0:
            parts.append(StagePart(in_words(stage), _FAMILY_OF[stage], at_ms, length_ms))
            at_ms += length_ms
    if parts and wait_ms is not None and wait_ms > at_ms:
        parts.append(StagePart("not measured", "rest", at_ms, wait_ms - at_ms))
    return parts


def _in_sequence(known: Mapping[Stage, float], wait_ms: float | None) -> list[tuple[Stage, float]]:
    """The stages in sequence; the part that a stage shares with the one before it is subtracted."""
    # The final transcript comes before the turn is ruled over, so the longer of the two contains the other.
    heard = [stage for stage in (Stage.ENDPOINTING, Stage.STT_TRAILING) if stage in known]
    lengths = [max(((stage, known[stage]) for stage in heard), key=lambda item: item[1])] if heard else []
    if Stage.TOOL_REQUEST in known:  # written from the first token on, so it contains the wait for that
        lengths.append((Stage.TOOL_REQUEST, known[Stage.TOOL_REQUEST]))
    else:
        token_ms = known.get(Stage.LLM_FIRST_TOKEN, 0)
        lengths.append((Stage.LLM_FIRST_TOKEN, token_ms))
        lengths.append((Stage.LLM_FIRST_SENTENCE, known.get(Stage.LLM_FIRST_SENTENCE, 0) - token_ms))
    lengths += [(stage, known[stage]) for stage in (Stage.TOOL_RUN, Stage.TTS_FIRST_BYTE) if stage in known]
    # A whole answer says more than was waited for, unless nobody spoke before it was there: then it fits into the wait.
    whole_ms = known.get(Stage.LLM_LAST_SENTENCE)
    has_more_exact = Stage.LLM_FIRST_TOKEN in known or Stage.LLM_FIRST_SENTENCE in known
    if whole_ms is not None and wait_ms is not None and not has_more_exact:
        before_voice = len(lengths) - (Stage.TTS_FIRST_BYTE in known)
        if sum(length_ms for _, length_ms in lengths) + whole_ms <= wait_ms:
            lengths.insert(before_voice, (Stage.LLM_LAST_SENTENCE, whole_ms))
    return lengths


def stages_table(call: ReportedCall) -> Markup | None:
    """Every stage of every turn in numbers, with its source and the values of other sources; None without stages."""
    records = [record for record in call.rows if record.stages]
    if not records:
        return None
    there = {each.stage for record in records for each in record.stages}
    columns = [stage for stage in Stage if stage in there]
    table = element(
        "table",
        element(
            "thead",
            element(
                "tr",
                element("th", "Turn", scope="col"),
                [element("th", in_words(stage), scope="col") for stage in columns],
            ),
        ),
        element("tbody", [_row(record, columns) for record in records[:MOST_ROWS]]),
    )
    box = element(
        "div", table, class_="scroll", tabindex=0, role="region", aria_label="Stages of each turn; scrolls sideways"
    )
    return element("details", element("summary", "All stages in numbers"), box)


def _row(record: TurnValues, columns: Sequence[Stage]) -> Markup:
    known = {each.stage: each for each in record.stages}
    return element(
        "tr",
        element("th", record.turn, scope="row"),
        [element("td", _cell(known[stage]) if stage in known else None) for stage in columns],
    )


def _cell(latency: StageLatency) -> Child:
    anchor = f", {anchor_in_words(latency.anchor)}" if latency.anchor else ""
    others = "".join(f"; {source} says {seconds(other_ms)}" for source, other_ms in latency.others_ms.items())
    return joined(
        element("span", seconds(latency.latency_ms), class_="value"),
        element("span", "disputed", class_="tag warning") if latency.is_disputed else None,
        element("small", f"{latency.source}{anchor}{others}"),
    )
