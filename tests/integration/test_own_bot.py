"""A bot that someone wrote from docs/ alone: all its latencies are measured, and each of its
mistakes is reported at once.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from schemas.rows import TurnRow
from tests.integration.metrics_page import total
from tests.integration.processes import ran, started, wait_for
from tests.integration.score_log import newest_rows, written_rows
from tests.integration.test_ingest import listening
from tests.support.pages import blocks_of
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
(KAFKA_BOT,) = (
    block.text for block in blocks_of("docs/sources/kafka.md") if block.language == "python"
)
QUARANTINED: Final = ("record_quarantined", "callgauge_quarantined_total")
REFUSED: Final = ("record_quarantined", "callgauge_sequencer_refused_total")
"""Of a record whose bytes alone show that it is no event."""
KAFKA_MISTAKES: Final = {
    "kind": (
        '"user_speech_started"',
        '"user_began"',
        "Known kinds: user_speech_started",
        ("records_not_understood", "callgauge_misread_records_total"),
    ),
    "seconds": ("int(at * 1000)", "int(at)", "milliseconds", QUARANTINED),
    "milliseconds": (
        '"timestamp": at}',
        '"timestamp": at * 1000}',
        "this looks like milliseconds",
        QUARANTINED,
    ),
    "no key": ("key=call, ", "", "Set the Kafka key to the conversation id", REFUSED),
}
"""The same of the bot on Kafka; a word that the log must have, the name of the log line, and the
counter.
"""


def ran_bot(bot: str, *arguments: str) -> list[str]:
    """Runs a bot to its end; the lines that it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", bot, *arguments], capture_output=True, text=True, timeout=patient(60)
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.parametrize("bot", [BOT, KAFKA_BOT])
def test_the_bot_has_thirty_lines(bot: str) -> None:
    assert len([line for line in bot.splitlines() if line.strip()]) <= 30


async def measured_ms(environment: dict[str, str]) -> list[float]:
    """The latencies of all turns on the topic."""
    rows = newest_rows(await written_rows(environment))
    return [
        row.wait_ms
        for row in rows
        if isinstance(row, TurnRow) and row.turn and isinstance(row.wait_ms, float)
    ]


@pytest.mark.service(ingest__port="0", ingest__token=TOKEN, limits__closing_grace_ms="1000")
async def test_a_bot_of_thirty_lines_has_every_latency_and_hears_of_its_mistakes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with started(tmp_path / "run.log", "run", **environment) as process:
        ingest = listening(process)
        url = ingest.address + "/events"
        assert all('"refused_events":0' in answer for answer in ran_bot(BOT, url))
        wait_for(
            "the call to be closed",
            lambda: total(ingest.metrics, "callgauge_calls_ended_total") == 1,
            30,
        )
        assert await measured_ms(environment) == pytest.approx([800] * TURNS)
        for code, mistaken, word in MISTAKES.values():
            bot = BOT.replace(code, mistaken).replace(f"range({TURNS})", "range(1)")
            assert bot != BOT
            answers = ran_bot(bot, url)
            assert any(word in answer for answer in answers), answers


@pytest.mark.service(limits__closing_grace_ms="1000")
async def test_a_bot_of_thirty_lines_on_kafka_has_every_latency_and_its_mistakes_are_reported(
    environment: dict[str, str], tmp_path: Path
) -> None:
    topic = environment["CALLGAUGE_TOPIC_PREFIX"] + "pipecat.events"
    shown = KAFKA_BOT.replace("127.0.0.1:9092", environment["CALLGAUGE_BOOTSTRAP"]).replace(
        "pipecat.events", topic
    )
    with started(tmp_path / "run.log", "run", **environment) as process:
        metrics = process.metrics()
        assert ran_bot(shown)
        wait_for(
            "the call to be closed", lambda: total(metrics, "callgauge_calls_ended_total") == 1, 30
        )
        assert await measured_ms(environment) == pytest.approx([800] * TURNS)
        for code, mistaken, word, (line, counter) in KAFKA_MISTAKES.values():
            bot = shown.replace(code, mistaken).replace(f"range({TURNS})", "range(1)")
            assert code in shown
            counted, logged = total(metrics, counter), len(process.text)
            ran_bot(bot)
            wait_for(
                lambda: f"{word!r} in:\n{process.text[logged:]}",  # noqa: B023 - called before the next one begins
                lambda: word in process.text[logged:] and total(metrics, counter) > counted,  # noqa: B023
                10,
            )
            assert line in process.text[logged:]
        wait_for(  # the log and the counter come before the transaction is over
            "each reason in the quarantine",
            lambda: (
                {"empty_key", "time_out_of_bounds", "invalid_event"}
                <= {*ran("quarantine", "list", **environment).split()}
            ),
            20,
        )
