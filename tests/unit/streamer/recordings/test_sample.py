"""The sample call: small, without personal data, understood by the engine, and with something to see."""

import json
from pathlib import Path

import pytest

from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import ToolOutcome
from schemas.scores.records import DeadAirFact, InterruptionFact, ProgressScore, Scored, ToolUseFact
from streamer.offline.scored_recordings import plan_from, score_all, scorings_of
from streamer.offline.scoring import RecordedScoring
from streamer.recordings.files import SAMPLE, RecordedPath, RecordingError
from streamer.recordings.reader import goals_for, read_recordings
from streamer.settings.all_settings import Settings

MOST_BYTES = 100_000


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_is_small_and_has_no_personal_data() -> None:
    path = RecordedPath(SAMPLE).path
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    texts: list[str] = []

    def collect(value: object) -> None:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                collect(each)

    collect(json.loads(text))
    redact = Redactor().redact
    assert len(texts) > 100
    assert [each for each in texts if redact(each) != each] == []


def test_it_has_goals_an_interruption_dead_air_and_a_failed_tool() -> None:
    settings = Settings()
    plan = plan_from(settings, asks_judge=False)
    scored: list[RecordedScoring] = []
    score_all(
        scorings_of([SAMPLE], plan, goals_for([SAMPLE], None), None), settings, scored.append, lambda: None,
        asks_judge=False,
    )  # fmt: skip
    (scoring,) = scored
    assert scoring.refused == []
    assert scoring.records[-1].labels.environment == "test", "its dead air wakes nobody where it is replayed"
    records = scoring.final_records()
    kinds = {type(record) for record in records}
    assert {DeadAirFact, InterruptionFact, ProgressScore} <= kinds
    assert ToolOutcome.ERROR in {record.outcome for record in records if isinstance(record, ToolUseFact)}
    progress = [record for record in records if isinstance(record, ProgressScore)]
    assert [record.reached for record in progress] == [1, 2, 3, 4, 5, 6, 6]
    assert all(isinstance(record.result, Scored) for record in progress)


def test_a_folder_of_this_name_is_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "sample").mkdir()
    with pytest.raises(RecordingError, match="there is no recorded call"):
        RecordedPath(SAMPLE)
    assert goals_for([SAMPLE], None) is None


def test_the_sample_brings_its_goals_only_where_nobody_names_others(tmp_path: Path) -> None:
    (call,) = read_recordings(SAMPLE)
    own = goals_for([SAMPLE], None)
    assert own is not None
    assert (found := own.of(call)) is not None
    assert found.id == "sample"
    assert goals_for([SAMPLE, tmp_path], None) is None
    (tmp_path / "other.yaml").write_text(
        "id: other\nsubgoals:\n  - {id: a, details: d, check: {kind: tool_called, tool: t}}\n"
    )
    other = goals_for([SAMPLE], tmp_path / "other.yaml")
    assert other is not None
    assert (found := other.of(call)) is not None
    assert found.id == "other"
