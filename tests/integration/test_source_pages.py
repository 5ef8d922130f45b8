"""The blocks of the pages about sources do what the pages say."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from schemas.closed_sets import IngestOutcome, WebhookOutcome
from schemas.scores.records import Scored, TurnValues
from streamer.settings.all_settings import IngestSettings, MonitorSettings, SenderSettings
from tests.integration.metrics_page import total
from tests.integration.processes import started, wait_for
from tests.integration.score_log import newest_of, written_scores
from tests.integration.test_ingest import listening
from tests.support.patience import patient

PAGES = Path(__file__).parents[2] / "docs" / "sources"


def blocks(page: str, language: str) -> list[str]:
    """The code of a page, without the indentation of a list."""
    text = (PAGES / page).read_text()
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, code in found]


def ran_program(text: str) -> str:
    """Runs a program in a process of its own; returns its output."""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=patient(60))
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


AS_SHOWN = {"ingest__token": "change-me", "ingest__elevenlabs_secret": "wsec_test"}
"""The secrets that the pages show."""


@pytest.mark.service(ingest__port="0", limits__closing_grace_ms="1000", **AS_SHOWN)
async def test_the_programs_of_the_pages_make_measured_calls(environment: dict[str, str], tmp_path: Path) -> None:
    (of_http,), (of_elevenlabs,) = blocks("http.md", "python"), blocks("elevenlabs.md", "python")
    assert len([line for line in of_http.splitlines() if line.strip()]) <= 30
    with started(tmp_path / "run.log", "run", **environment) as process:
        ingest = listening(process)
        for program in (of_http, of_elevenlabs):
            local = program.replace("http://127.0.0.1:8090", ingest.address)
            printed = ran_program(local)
            assert "accepted" in printed
            assert '"refused_events":1' not in printed
        wait_for("both calls to be closed", lambda: total(ingest.metrics, "callgauge_calls_ended_total") == 2, 30)
    turns = [each for each in newest_of(await written_scores(environment)) if isinstance(each, TurnValues)]
    measured = {each.anchor for each in turns if isinstance(each.voice_to_voice_ms, Scored)}
    assert {anchor.value for anchor in measured if anchor is not None} == {"vad", "record"}


def test_the_file_of_tenants_is_one() -> None:
    (text,) = blocks("http.md", "toml")
    for table in tomllib.loads(text).values():
        assert set(table) <= set(SenderSettings.model_fields)


def test_the_pages_name_every_outcome_and_setting_as_it_is() -> None:
    elevenlabs, http = ((PAGES / name).read_text() for name in ("elevenlabs.md", "http.md"))
    named = set(re.findall(r"`(\w+)`", elevenlabs[elevenlabs.index("| status |") :]))
    assert {outcome.value for outcome in WebhookOutcome} <= named
    assert len(IngestOutcome) == 11
    assert http.count("\n| 4") + http.count("\n| 5") + http.count("\n| 2") == 9  # a row for each status
    settings = {"INGEST": IngestSettings.model_fields, "MONITOR": MonitorSettings.model_fields}
    for block, name in re.findall(r"CALLGAUGE_(INGEST|MONITOR)__(\w+)", elevenlabs + http):
        assert name.lower() in settings[block]
