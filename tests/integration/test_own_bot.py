"""A bot that someone wrote from docs/ alone: all its latencies are measured, and each of its mistakes is reported at once."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from schemas.scores.all_records import Scored, TurnValues
from tests.integration.metrics_page import total
from tests.integration.processes import started, wait_for
from tests.integration.score_log import newest_of, written_scores
from tests.integration.test_ingest import Ingest, listening
from tests.support.patience import patient

TOKEN: Final = "change-me"  # noqa: S105 - the one that the page shows
TURNS: Final = 10
BOT: Final = f"""
import json, sys, time, urllib.error, urllib.request, uuid

call = uuid.uuid4().hex


def send(*events):
    headers = {{"Authorization": "Bearer {TOKEN}", "Content-Type": "application/json"}}
    request = urllib.request.Request(sys.argv[1], json.dumps(events).encode(), headers)
    try:
        print(urllib.request.urlopen(request).read().decode())
    except urllib.error.HTTPError as error:
        print(error.read().decode())


def event(kind, at, **fields):
    return {{"conversation_id": call, "type": kind, "timestamp": int(at * 1000), **fields}}


def speech(kind, at):
    return event("speech_event", at, data={{"kind": kind, "timestamp": at}})


at = time.time() - 60
send(event("call_started", at, agent="desk"))
for turn in range({TURNS}):
    send(speech("user_speech_started", at + 1), speech("user_speech_stopped", at + 2))
    send(speech("bot_speech_started", at + 2.8), speech("bot_speech_stopped", at + 4))
    at += 5
send(event("call_ended", at, reason="goodbye"))
"""
MISTAKES: Final = {
    "kind": ('"user_speech_started"', '"user_speech_start"', "user_speech_start"),
    "unit": ("int(at * 1000)", "int(at)", "seconds"),
    "header": (f'"Authorization": "Bearer {TOKEN}", ', "", "Authorization"),
}
"""Some code of the bot, the same with a mistake, and a word that the answer must have."""


def ran(ingest: Ingest, bot: str) -> list[str]:
    """Runs a bot to its end; the answers to its requests."""
    ended = subprocess.run(
        [sys.executable, "-c", bot, ingest.address + "/events"], capture_output=True, text=True, timeout=patient(60)
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_the_bot_has_thirty_lines() -> None:
    assert len([line for line in BOT.splitlines() if line.strip()]) <= 30


@pytest.mark.service(ingest__port="0", ingest__token=TOKEN, limits__closing_grace_ms="1000")
async def test_a_bot_of_thirty_lines_has_every_latency_and_hears_of_its_mistakes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with started(tmp_path / "run.log", "run", **environment) as process:
        ingest = listening(process)
        assert all('"refused_events":0' in answer for answer in ran(ingest, BOT))
        wait_for("the call to be closed", lambda: total(ingest.metrics, "callgauge_calls_ended_total") == 1, 30)
        turns = [
            each for each in newest_of(await written_scores(environment)) if isinstance(each, TurnValues) and each.turn
        ]
        latencies_ms = [each.voice_to_voice_ms.value for each in turns if isinstance(each.voice_to_voice_ms, Scored)]
        assert latencies_ms == pytest.approx([800] * TURNS)
        for code, mistaken, word in MISTAKES.values():
            bot = BOT.replace(code, mistaken).replace(f"range({TURNS})", "range(1)")
            assert bot != BOT
            begin = time.monotonic()
            answers = ran(ingest, bot)
            assert time.monotonic() - begin <= patient(1)  # with the start of the bot
            assert any(word in answer for answer in answers), answers
