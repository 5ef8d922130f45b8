"""The blocks of the pages about sources do what the pages say."""

import base64
import math
import random
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.closed_sets import IngestOutcome, WebhookOutcome
from schemas.rows import TurnRow
from streamer.settings.all_settings import IngestSettings, MonitorSettings, SenderSettings
from tests.integration.metrics_page import total
from tests.integration.processes import started, wait_for
from tests.integration.score_log import newest_rows, written_rows
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
    ended = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=patient(60)
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


AS_SHOWN = {"ingest__token": "change-me", "ingest__elevenlabs_secret": "wsec_test"}
"""The secrets that the pages show."""


@pytest.mark.service(ingest__port="0", limits__closing_grace_ms="1000", **AS_SHOWN)
async def test_the_programs_of_the_pages_make_measured_calls(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (of_http,), (of_elevenlabs,) = blocks("http.md", "python"), blocks("elevenlabs.md", "python")
    assert len([line for line in of_http.splitlines() if line.strip()]) <= 30
    with started(tmp_path / "run.log", "run", **environment) as process:
        ingest = listening(process)
        for program in (of_http, of_elevenlabs):
            local = program.replace("http://127.0.0.1:8070", ingest.address)
            printed = ran_program(local)
            assert "accepted" in printed
            assert '"refused_events":1' not in printed
        wait_for(
            "both calls to be closed",
            lambda: total(ingest.metrics, "callgauge_calls_ended_total") == 2,
            30,
        )
    turns = [
        row for row in newest_rows(await written_rows(environment)) if isinstance(row, TurnRow)
    ]
    measured = {turn.anchor for turn in turns if isinstance(turn.wait_ms, float)}
    assert {anchor.value for anchor in measured if anchor is not None} == {"vad", "record"}


SPEECH_MS = [(1_000, 2_000), (5_000, 6_000), (7_500, 8_200)]
"""When the caller of the stream speaks; the third time over the second answer."""
PART_MS = 100
"""How much sound one message of the agent has."""


def mu_law(sample: float) -> int:
    """G.711: sign, exponent and mantissa of a 16-bit sample, all bits turned."""
    size = min(int(abs(sample)) + 132, 32_635)
    exponent = size.bit_length() - 8
    return ~((128 if sample < 0 else 0) | exponent << 4 | (size >> (exponent + 3)) & 15) & 255


def frame_at(ms: int, noise: random.Random) -> str:
    """20 ms of a telephone line: its noise, and a voice of 140 Hz whose syllables rise and fall."""
    is_speech = any(begin <= ms < end for begin, end in SPEECH_MS)
    samples = [noise.gauss(0, 60) for _ in range(160)]
    for place in range(160 if is_speech else 0):
        at_s = ms / 1000 + place / 8000
        loud = 4_000 * (0.6 + 0.4 * math.sin(2 * math.pi * 4 * at_s))
        samples[place] += loud * sum(
            math.sin(2 * math.pi * 140 * tone * at_s) / tone for tone in (1, 2, 3, 5)
        )
    return base64.b64encode(bytes(map(mu_law, samples))).decode()


def twilio_stream() -> Iterator[tuple[str, dict[str, Any]]]:
    """The messages of a stream in both directions, in the shapes of Twilio's reference of media
    streams: whose it is, and the message.

    The answers begin 700, 900 and 1,000 ms after the caller's words. The second one is cleared; its
    mark comes late, behind the third.
    """
    part = {"payload": base64.b64encode(b"\xff" * 8 * PART_MS).decode()}
    begun, over = ({"name": name} for name in ("begun", "over"))
    others: dict[int, list[tuple[str, str, Any]]] = {}
    for answer_ms in (2_700, 6_900, 9_200):
        others[answer_ms - 60] = [
            ("sent", "media", part),
            ("sent", "mark", begun),
            *[("sent", "media", part)] * 3,
        ]
        others[answer_ms - 40] = [("sent", "media", part), ("sent", "mark", over)]
        others[answer_ms + PART_MS] = [("received", "mark", begun)]
    others |= {7_700: [("sent", "clear", None)], 9_180: [("received", "mark", over)]}
    others |= {at: [("received", "mark", over)] for at in (4_000, 10_000)}
    others[10_100] = [("received", "dtmf", {"track": "inbound_track", "digit": "1"})]
    yield "received", {"event": "connected", "protocol": "Call", "version": "1.0.0"}
    sound = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
    whose = {"accountSid": "AC00", "callSid": "CA01"}
    start = {
        **whose,
        "streamSid": "MZ02",
        "tracks": ["inbound"],
        "mediaFormat": sound,
        "customParameters": {},
    }
    yield "received", {"event": "start", "sequenceNumber": "1", "start": start, "streamSid": "MZ02"}
    noise = random.Random(1)  # noqa: S311 - of a telephone line
    for chunk, ms in enumerate(range(0, 10_500, 20), 1):
        for by, event, content in others.get(ms, []):
            numbered = {"sequenceNumber": str(chunk + 1)} if by == "received" else {}
            yield (
                by,
                {
                    "event": event,
                    **numbered,
                    "streamSid": "MZ02",
                    **({event: content} if content else {}),
                },
            )
        media = {
            "track": "inbound",
            "chunk": str(chunk),
            "timestamp": str(ms),
            "payload": frame_at(ms, noise),
        }
        yield (
            "received",
            {
                "event": "media",
                "sequenceNumber": str(chunk + 1),
                "media": media,
                "streamSid": "MZ02",
            },
        )
    yield "received", {"event": "stop", "sequenceNumber": "999", "stop": whose, "streamSid": "MZ02"}


@pytest.mark.service(ingest__port="0", limits__closing_grace_ms="1000", **AS_SHOWN)
async def test_the_program_of_twilio_measures_a_stream(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (program,) = blocks("twilio.md", "python")
    page: dict[str, Any] = {}
    exec(program, page)  # noqa: S102 - our own page
    page["time"] = SimpleNamespace(time=lambda: time.time() - 11)  # the stream lasted 10.5 s
    with started(tmp_path / "run.log", "run", **environment) as process:
        ingest = listening(process)
        twilio_call = page["TwilioCall"](
            agent="desk",
            url=f"{ingest.address}/events",
            token="change-me",  # noqa: S106
        )
        for by, message in twilio_stream():
            getattr(twilio_call, by)(message)
        assert await twilio_call.call.end()
        wait_for(
            "the call to be closed",
            lambda: total(ingest.metrics, "callgauge_calls_ended_total") == 1,
            30,
        )
    rows = newest_rows(await written_rows(environment))
    turns = [row for row in rows if isinstance(row, TurnRow) and row.turn]
    waits = [turn.wait_ms for turn in turns if isinstance(turn.wait_ms, float)]
    assert waits == pytest.approx([700, 900, 1_000], abs=20)
    assert {each.conversation_id for each in turns} == {"CA01"}
    assert [turn.turn for turn in turns if turn.interruptions] == [3]


def test_the_file_of_tenants_is_one() -> None:
    (text,) = blocks("http.md", "toml")
    for table in tomllib.loads(text).values():
        assert set(table) <= set(SenderSettings.model_fields)


def test_the_pages_name_every_outcome_and_setting_as_it_is() -> None:
    elevenlabs, http = ((PAGES / name).read_text() for name in ("elevenlabs.md", "http.md"))
    named = set(re.findall(r"`(\w+)`", elevenlabs[elevenlabs.index("| status |") :]))
    assert {outcome.value for outcome in WebhookOutcome} <= named
    assert len(IngestOutcome) == 11
    # a row for each status
    assert http.count("\n| 4") + http.count("\n| 5") + http.count("\n| 2") == 9
    settings = {"INGEST": IngestSettings.model_fields, "MONITOR": MonitorSettings.model_fields}
    for block, name in re.findall(r"CALLGAUGE_(INGEST|MONITOR)__(\w+)", elevenlabs + http):
        assert name.lower() in settings[block]
