"""Every role runs, callers say and tools hold personal data, and none of it is in anything that
callgauge writes or shows.

The three input topics are the operator's: there personal data stays as it was put there. Every
other place is searched: topics, files, pages, logs, output of commands, and the prompts that the
model got.
"""

import asyncio
import contextlib
import json
import re
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from schemas.closed_sets import InputSource
from schemas.events.envelope import AGENT_RECORD_TYPE, agent_event_type
from schemas.topics import (
    JUDGE_REQUESTS_TOPIC,
    JUDGE_VERDICTS_TOPIC,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    TOPIC_BY_SOURCE,
    TRANSCRIPTS_TOPIC,
)
from tests.chaos.verdict.topic_reader import to_the_end
from tests.integration.conftest import make_topics, variables
from tests.integration.metrics_page import page, total
from tests.integration.processes import Process, ran_here, started, wait_for
from tests.support.fakes.scripted_openai import Asked, Does, ScriptedOpenAI, scripted_openai
from tests.support.patience import patient

Json = dict[str, Any]

CALLS = ("heard-on-the-line", "heard-by-the-bot", "agent-of-elevenlabs")
POISONED = b"poisoned"
PARTITIONS = 2
PATIENCE_SECONDS = 60
WRITTEN = (
    SCORES_TOPIC,
    JUDGE_REQUESTS_TOPIC,
    JUDGE_VERDICTS_TOPIC,
    TRANSCRIPTS_TOPIC,
    QUARANTINE_TOPIC,
)
OURS = ("pipecat.events", "elevenlabs.events", "audit.events", "events")
"""Topics with the bytes that producers sent: the inputs, and the log of them."""

SAID = (
    "It's four five three nine, one four eight eight, oh three four three, six four six seven.",
    "My number is four one five, five five five, oh one four two, and I'm jane dot doe at example "
    "dot com.",
    "I was born on the fourteenth of march nineteen eighty five, my IBAN is DE89 3704 0044 0532 "
    "0130 00.",
    "The code is BK-483920. Or use 4539 1488 0343 6467, call +1 415 555 0142, mail "
    "jane.doe@example.com, born 14 March 1985.",
)
"""The callers' words, one turn after the other."""
ANSWERS = (
    "So four five three nine, one four eight eight, oh three four three, six four six seven.",
    "I have 415-555-0142 and jane.doe@example.com.",
    "Born 03/14/1985, account DE89370400440532013000.",
    "Thank you, BK-483920 is cancelled.",
)
HELD: Json = {
    "card": {"number": 4539148803436467, "holder": "Jane"},
    "phone": "4155550142",
    "contact": ["jane.doe@example.com", "DE89370400440532013000"],
    "date_of_birth": "1985-03-14",
    "note": "BK-483920",
    "jane.doe@example.com": True,
}
"""Arguments and answers of tools."""
PLANTED = (
    *("4539148803436467", "4539 1488", "1488 0343", "four five three nine", "one four eight eight"),
    *(
        "4155550142",
        "415 555",
        "415-555",
        "555 0142",
        "555-0142",
        "four one five",
        "oh one four two",
    ),
    *("jane.doe", "jane dot doe", "example.com", "example dot com"),
    *("37040044", "3704 0044", "DE89 3704"),
    *(
        "March 1985",
        "1985-03-14",
        "03/14",
        "nineteen eighty five",
        "fourteenth of march",
        "14 March",
    ),
    "BK-4839",
)
"""By any of these it would be recognised; each is too long to be in an id or a time by accident."""

GOALS: Json = {
    "id": "service",
    "user_instruction": "Cancel a booking.",
    "subgoals": [
        {
            "id": "identified",
            "details": "The caller gives a date of birth.",
            "check": {"kind": "judge"},
        },
        {"id": "cancelled", "details": "The booking is cancelled.", "check": {"kind": "judge"}},
        # Not the first words: once all inputs have come they are in turn 0, and goals begin with
        # turn 1.
        {
            "id": "birth-date-said",
            "details": "The caller says a date of birth.",
            "check": {
                "kind": "says",
                "speaker": "user",
                "pattern": "fourteenth of .{1,9} nineteen",
            },
        },
    ],
    # Every value that a tool was given is another one, so the record of the call tells what it was.
    "expected_tool_calls": [
        *(
            {
                "tool": "cancel",
                "turn": turn,
                "expected_parameters": [{"name": name, "value": "another"}],
            }
            for turn, name in enumerate(("card", "phone", "contact", "note"))
        ),
        {
            "tool": "cancel",
            "turn": 1,
            "expected_parameters": [{"name": "date_of_birth", "value": "another"}],
        },
        {"tool": "cancel", "turn": 2, "expected_output": {"value": "another"}},
    ],
    "max_turns": 8,
}


class Event(NamedTuple):
    """An event of a call, to be put on an input topic."""

    source: InputSource
    body: Json
    headers: tuple[tuple[str, bytes], ...] = ()


def call_heard_on_the_line(now_ms: int) -> list[Event]:
    """With a simulated caller, speech synthesis and an audit log."""
    events = [
        Event(
            InputSource.AUDIT,
            {"type": "call_started", "timestamp": now_ms, "agent": "desk", "goals": "service"},
        )
    ]
    for turn, (said, answer) in enumerate(zip(SAID, ANSWERS, strict=True)):
        at_ms = now_ms + 10_000 * turn
        for role, start_ms, text in (
            ("simulated_user", at_ms + 1_000, said),
            ("assistant", at_ms + 4_000, answer),
        ):
            for kind, sound_ms in (("audio_start", start_ms), ("audio_end", start_ms + 1_500)):
                sound = {
                    "event_type": kind,
                    "user": role,
                    "audio_timestamp": sound_ms / 1_000,
                    "timestamp": sound_ms,
                }
                events.append(Event(InputSource.ELEVENLABS, sound))
            kind = "user_speech" if role == "simulated_user" else "assistant_speech"
            speech = {"type": kind, "timestamp": start_ms + 100, "data": {"text": text}}
            events.append(Event(InputSource.ELEVENLABS, speech))
        events += [
            Event(
                InputSource.AUDIT,
                {"message_type": "user", "timestamp": at_ms + 2_600, "value": said},
            ),
            *used(at_ms + 3_000),
            Event(
                InputSource.PIPECAT,
                {"type": "turn_start", "timestamp": at_ms + 4_000, "data": {"frame": "turn_start"}},
            ),
            Event(
                InputSource.PIPECAT,
                {"type": "tts_text", "timestamp": at_ms + 4_000, "data": {"frame": answer}},
            ),
            Event(
                InputSource.AUDIT,
                {"message_type": "assistant", "timestamp": at_ms + 4_100, "value": answer},
            ),
        ]
    return [*events, ended(now_ms + 45_000)]


def call_heard_by_the_bot(now_ms: int) -> list[Event]:
    """Without a simulated caller: the reports of pipecat's own observers."""
    events = [
        Event(
            InputSource.PIPECAT,
            {"type": "call_started", "timestamp": now_ms, "agent": "desk", "goals": "service"},
        )
    ]
    for turn, (said, answer) in enumerate(zip(SAID, ANSWERS, strict=True)):
        at_ms = now_ms + 10_000 * turn
        for kind, moment_ms in (
            ("user_speech_started", at_ms + 1_000),
            ("user_speech_stopped", at_ms + 2_500),
            ("bot_speech_started", at_ms + 4_000),
            ("bot_speech_stopped", at_ms + 5_500),
        ):
            data = {"kind": kind, "timestamp": moment_ms / 1_000}
            events.append(
                Event(
                    InputSource.PIPECAT,
                    {"type": "speech_event", "timestamp": moment_ms, "data": data},
                )
            )
        for kind, text, moment_ms in (
            ("user", said, at_ms + 2_600),
            ("assistant", answer, at_ms + 5_600),
        ):
            data = {"content": text, "timestamp": moment_ms / 1_000}
            events.append(
                Event(
                    InputSource.PIPECAT,
                    {"type": f"{kind}_message", "timestamp": moment_ms, "data": data},
                )
            )
        events += used(at_ms + 3_000)
    return [*events, ended(now_ms + 45_000)]


def call_of_elevenlabs(now_ms: int) -> list[Event]:
    """Live events of an ElevenLabs agent, and its record of the conversation."""

    def live(kind: str, at_ms: int, **payload: Any) -> Event:
        body = {"type": kind, "timestamp": now_ms + at_ms, **payload}
        return Event(InputSource.ELEVENLABS, body, (("ce_type", agent_event_type(kind).encode()),))

    events = [
        Event(
            InputSource.AUDIT,
            {"type": "call_started", "timestamp": now_ms, "agent": "desk", "goals": "service"},
        )
    ]
    for turn, (said, answer) in enumerate(zip(SAID, ANSWERS, strict=True)):
        at_ms = 10_000 * turn
        events += [
            live(
                "user_transcript",
                at_ms + 2_500,
                user_transcription_event={"user_transcript": said, "event_id": 3 * turn},
            ),
            live(
                "agent_response",
                at_ms + 4_000,
                agent_response_event={"agent_response": answer, "event_id": 3 * turn + 1},
            ),
        ]
    entries: list[Json] = []
    for turn, (said, answer) in enumerate(zip(SAID, ANSWERS, strict=True)):
        use = {
            "request_id": f"r{turn}",
            "tool_name": "cancel",
            "type": "webhook",
            "tool_has_been_called": True,
        }
        entries += [
            {"role": "user", "message": said, "time_in_call_secs": 10 * turn + 2},
            {
                "role": "agent",
                "message": None,
                "time_in_call_secs": 10 * turn + 3,
                "tool_calls": [use | {"params_as_json": json.dumps(HELD)}],
            },
            {
                "role": "agent",
                "message": None,
                "time_in_call_secs": 10 * turn + 3,
                "tool_results": [use | {"result_value": json.dumps(HELD), "is_error": False}],
            },
            {
                "role": "agent",
                "message": answer,
                "original_message": f"{answer} {said}",
                "time_in_call_secs": 10 * turn + 4,
            },
        ]
    metadata = {
        "start_time_unix_secs": now_ms // 1_000,
        "call_duration_secs": 45,
        "termination_reason": SAID[3],
    }
    record = {
        "conversation_id": CALLS[2],
        "status": "done",
        "transcript": entries,
        "metadata": metadata,
    }
    body = {
        "type": "post_call_transcription",
        "event_timestamp": now_ms / 1_000 + 46,
        "data": record,
    }
    over = ended(now_ms + 45_000)
    return [
        *events,
        over,
        Event(InputSource.ELEVENLABS, body, (("ce_type", AGENT_RECORD_TYPE.encode()),)),
    ]


def used(at_ms: int) -> list[Event]:
    """A tool that is given and answers all of it."""
    called = {"tool": "cancel", "parameters": HELD}
    answered = {
        "tool": "cancel",
        "response": {"status": "success", "customer": HELD, "told": json.dumps(HELD)},
    }
    return [
        Event(
            InputSource.AUDIT, {"message_type": "tool_call", "timestamp": at_ms, "value": called}
        ),
        Event(
            InputSource.AUDIT,
            {"message_type": "tool_response", "timestamp": at_ms + 200, "value": answered},
        ),
    ]


def ended(at_ms: int) -> Event:
    """The reason, in the words of a person who sees the card."""
    return Event(
        InputSource.AUDIT,
        {"type": "call_ended", "timestamp": at_ms, "reason": f"declined: {SAID[3]}"},
    )


def poison(now_ms: int) -> list[Event]:
    """Records that are refused, each for another reason, with all of it in them."""
    everything = " ".join((*SAID, *ANSWERS, json.dumps(HELD)))
    sound = {"event_type": "audio_start", "timestamp": now_ms, "audio_timestamp": now_ms / 1_000}
    return [
        Event(
            InputSource.PIPECAT,
            {"type": "tts_text", "timestamp": everything, "data": {"frame": "x"}},
        ),
        Event(
            InputSource.PIPECAT, {"type": "tts_text", "timestamp": now_ms, "data": {"frame": HELD}}
        ),
        Event(
            InputSource.PIPECAT,
            {"type": "tts_text", "timestamp": now_ms, "data": {"frame": everything * 100}},
        ),
        Event(
            InputSource.AUDIT, {"message_type": "user", "timestamp": now_ms, "value": [everything]}
        ),
        Event(InputSource.AUDIT, {"message_type": "tool_call", "timestamp": now_ms, "value": HELD}),
        Event(
            InputSource.AUDIT,
            {"type": "call_started", "timestamp": now_ms, "pipeline_type": SAID[3]},
        ),
        Event(InputSource.ELEVENLABS, {**sound, "user": SAID[0]}),
        Event(
            InputSource.ELEVENLABS,
            {"type": "user_speech", "timestamp": 1, "data": {"text": everything}},
        ),
        Event(
            InputSource.JUDGE,
            {"type": "judge_verdict", "timestamp": now_ms, "request_id": [everything]},
        ),
    ]


def explains(_: Asked) -> Does:
    """A model that invents text it was not shown."""
    told = f"Turn 1: {SAID[0]} Call 415-555-0142, mail jane.doe@example.com, BK-483920."
    ratings = {
        **dict.fromkeys(
            ("fabricating_tool_parameters", "misrepresenting_tool_result", "violating_policies"), 3
        ),
        **dict.fromkeys(("failing_to_disambiguate", "hallucination"), 3),
    }
    return Does(
        text=json.dumps(
            {"explanation": told, "grade": "C", "rating": 1, "failure_modes": [], **ratings}
        )
    )


class Demo:
    """One run of everything, and all that came of it."""

    def __init__(self, bootstrap: str, prefix: str, folder: Path, *, redacts: bool) -> None:
        self.bootstrap, self.prefix, self.folder = bootstrap, prefix, folder
        self.found: dict[str, str] = {}
        self.counted: dict[str, float] = {}
        goals, self._files = folder / "goals", folder / "transcripts"
        goals.mkdir()
        (goals / "service.json").write_text(json.dumps(GOALS))
        self.environment = {
            **variables(bootstrap, prefix),
            "CALLGAUGE_LOG_LEVEL": "debug",
            "CALLGAUGE_LIMITS__CLOSING_GRACE_MS": "1000",
            "CALLGAUGE_GOALS__FOLDER": str(goals),
            "CALLGAUGE_GOALS__ASKS_JUDGE": "true",
            "CALLGAUGE_GOALS__TEXT_JUDGES": "conciseness,speakability,faithfulness",
            "CALLGAUGE_TRANSCRIPTS__FOLDER": str(self._files),
            "CALLGAUGE_REDACTION__ENABLED": str(redacts).lower(),
            "CALLGAUGE_REDACTION__PATTERNS": json.dumps({"BOOKING_CODE": r"\bBK-\d{6}\b"}),
            "OPENAI_API_KEY": "key",
        }

    def run(self) -> None:
        """From the topics to the last command."""
        asyncio.run(make_topics(self.environment, PARTITIONS))
        with scripted_openai(explains) as server:
            self.environment["CALLGAUGE_JUDGE__BASE_URL"] = server.url
            self._serve(server)
        self._read_topics()
        self._look_at_quarantine()
        self._read_recording()

    def _serve(self, server: ScriptedOpenAI) -> None:
        with ExitStack() as running:
            roles = {
                name: running.enter_context(
                    started(
                        self.folder / f"{name}.log",
                        "run",
                        "--roles",
                        name,
                        **{**self.environment, **more},
                    )
                )
                for name, more in (
                    ("sequencer", {}),
                    ("evaluator", {}),
                    ("exporter", {}),
                    ("judge", {"CALLGAUGE_LOG_FORMAT": "json"}),
                    ("console", {"CALLGAUGE_CONSOLE__PORT": "0"}),
                )
            }
            addresses = {name: self._address(process) for name, process in roles.items()}
            console = ConsolePages(roles["console"])
            self._put()
            self._counted(addresses["evaluator"], "callgauge_quarantined_total", len(poison(0)))
            self._counted(addresses["exporter"], "callgauge_calls_ended_total", len(CALLS))
            wait_for(
                "the files of transcripts",
                lambda: len(list(self._files.glob("*.json"))) == len(CALLS),
                PATIENCE_SECONDS,
            )
            self.found |= console.read()
            for name, address in addresses.items():
                self.found[f"/metrics of the {name}"] = page(
                    address, "application/openmetrics-text; version=1.0.0"
                )
                for metric in ("callgauge_redactions_total", "callgauge_judge_redactions_total"):
                    self.counted[metric] = self.counted.get(metric, 0) + total(address, metric)
            for name, process in roles.items():
                code, _ = process.signalled(signal.SIGTERM)
                assert code == 0, process.text
                self.found[f"log of the {name}"] = process.text
        self.found["prompts"] = "\n".join(f"{asked.system}\n{asked.user}" for asked in server.asked)
        for file in self._files.iterdir():
            self.found[f"file {file.name}"] = file.read_text()

    def _counted(self, address: str, metric: str, count: int) -> None:
        wait_for(f"{count} of {metric}", lambda: total(address, metric) == count, PATIENCE_SECONDS)

    def _address(self, process: Process) -> str:
        return process.metrics(PATIENCE_SECONDS)

    def _put(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "log_level": 0})
        now_ms = time.time_ns() // 1_000_000
        begin_ms = now_ms - 50_000
        calls = (
            call_heard_on_the_line(begin_ms),
            call_heard_by_the_bot(begin_ms),
            call_of_elevenlabs(begin_ms),
        )
        ends: list[tuple[Event, str, int]] = []
        for place, (name, events) in enumerate(zip(CALLS, calls, strict=True)):
            for event in sorted(events, key=lambda each: each.body.get("timestamp", now_ms)):
                if event.body.get("type") in {"call_ended", "post_call_transcription"}:
                    ends.append((event, name, place % PARTITIONS))
                else:
                    self._produce(producer, event, name, place % PARTITIONS)
        for event in poison(now_ms):
            self._produce(producer, event, POISONED.decode(), 0)
        assert producer.flush(patient(30)) == 0
        # On a busy machine one input may get its records a second before another one, and a call
        # is closed that long after its end: so the ends come when everything else is there.
        for event, name, partition in ends:
            self._produce(producer, event, name, partition)
        assert producer.flush(patient(30)) == 0

    def _produce(self, producer: Producer, event: Event, key: str, partition: int) -> None:
        topic = self.prefix + TOPIC_BY_SOURCE[event.source]
        headers: Any = list(event.headers)
        producer.produce(
            topic, json.dumps(event.body).encode(), key, partition=partition, headers=headers
        )

    def _read_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        topics = admin.list_topics(timeout=patient(10)).topics
        mine = {
            name.removeprefix(self.prefix): topic
            for name, topic in topics.items()
            if name.startswith(self.prefix)
        }
        assert {*WRITTEN, *OURS} <= set(mine)
        for name, topic in mine.items():
            if name not in OURS:
                values = [
                    (record.value or b"").decode(errors="replace")
                    for number in topic.partitions
                    for record in to_the_end(self.bootstrap, self.prefix + name, number)
                    # put there by this test
                    if (record.key, name) != (POISONED, JUDGE_VERDICTS_TOPIC)
                ]
                self.found[f"topic {name}"] = "\n".join(values)

    def _look_at_quarantine(self) -> None:
        listed = ran_here("quarantine", "list", "--json", **self.environment).out
        places = [json.loads(line)["record"] for line in listed.splitlines()]
        assert len(places) == len(poison(0)), listed
        self.found["quarantine list"] = listed + told("quarantine", "list", **self.environment)
        shown = [told("quarantine", "show", place, **self.environment) for place in places[:4]]
        self.found["quarantine show"] = "".join(shown)
        self.found["quarantine replay"] = told(
            "quarantine", "replay", "--all", "--dry-run", **self.environment
        )

    def _read_recording(self) -> None:
        """The commands that read recordings, on the first call and two refused events."""
        streams: dict[str, list[Json]] = {"audit": [], "pipecat": [], "user_sim": []}
        names = {
            InputSource.AUDIT: "audit",
            InputSource.PIPECAT: "pipecat",
            InputSource.ELEVENLABS: "user_sim",
        }
        begin_ms = 1_790_000_000_000
        for event in [*call_heard_on_the_line(begin_ms), *poison(begin_ms)[3:5]]:
            streams[names[event.source]].append(event.body)
        path, html = self.folder / "calls.jsonl", self.folder / "report.html"
        line = {
            "id": "recorded",
            "pipeline_type": "cascade",
            "conversation_ended_reason": SAID[3],
            **streams,
        }
        path.write_text(json.dumps(line) + "\n")
        self.found["score"] = told(
            "score", str(path), "--goals", str(self.folder / "goals"), "--all", **self.environment
        )
        self.found["transcript"] = told("transcript", str(path), **self.environment)
        self.found["report"] = told("report", str(path), "--output", str(html), **self.environment)
        self.found["page of the report"] = html.read_text()


class ConsolePages:
    """All that the console shows of the calls: its pages and its API, and its streams from before
    the first event on.
    """

    def __init__(self, process: Process) -> None:
        line = wait_for(
            "the console",
            lambda: re.search(r"console_listens.*?address=(\S+)/", process.text),
            PATIENCE_SECONDS,
        )
        self._address = line[1]
        self._streamed: dict[str, list[str]] = {"/live/now": [], "/api/v1/stream": []}
        self._following = [
            Thread(target=self._follow, args=(path,), daemon=True) for path in self._streamed
        ]
        for each in self._following:
            each.start()
        wait_for("the streams", lambda: all(self._streamed.values()), PATIENCE_SECONDS)

    def read(self) -> dict[str, str]:
        """By address what was answered, once each call is closed."""
        wait_for(
            "the end on the stream",
            lambda: "".join(self._streamed["/api/v1/stream"]).count('"state":"closed"') >= 3,
            PATIENCE_SECONDS,
        )
        paths = [
            "/",
            "/?text=cancel",
            "/calls/nobody",
            "/api/v1/calls",
            "/api/v1/fleet",
            "/api/v1/openapi.json",
        ]
        paths += [
            f"/{kind}/{name}"
            for name in CALLS
            for kind in ("calls", "parts/calls", "report", "api/v1/calls")
        ]
        pages = {
            path: httpx.get(self._address + path, timeout=patient(PATIENCE_SECONDS)).text
            for path in paths
        }
        for name in CALLS:
            assert name in pages[f"/calls/{name}"]
            assert "[CARD]" in pages[f"/api/v1/calls/{name}"] or "4539" in pages[f"/calls/{name}"]
        return pages | {path: "".join(pieces) for path, pieces in self._streamed.items()}

    def _follow(self, path: str) -> None:
        with (
            contextlib.suppress(httpx.HTTPError),  # the console ends it
            httpx.stream("GET", self._address + path, timeout=patient(PATIENCE_SECONDS)) as answer,
        ):
            for piece in answer.iter_text():
                self._streamed[path].append(piece)


def told(*arguments: str, **environment: str) -> str:
    """The output of a command, on both streams, with any end.

    It runs in this process: thirteen starts of Python were three quarters of a run, and nothing of
    it depends on them.
    """
    ended = ran_here(*arguments, **environment)
    assert "Traceback" not in ended.err, ended.err
    return ended.out + ended.err


def leaks(found: Mapping[str, str]) -> dict[str, list[str]]:
    """Planted values by the place where they were found."""
    seen = {
        place: [each for each in PLANTED if each.lower() in text.lower()]
        for place, text in found.items()
    }
    return {place: planted for place, planted in seen.items() if planted}


@pytest.fixture
def run_demo(bootstrap: str, topic_prefix: str, tmp_path: Path) -> Any:
    def run(*, redacts: bool) -> Demo:
        demo = Demo(bootstrap, topic_prefix, tmp_path, redacts=redacts)
        demo.run()
        return demo

    return run


def test_nothing_that_was_planted_is_in_anything_that_is_written_or_shown(run_demo: Any) -> None:
    demo = run_demo(redacts=True)
    assert leaks(demo.found) == {}
    for tag in ("[CARD]", "[PHONE]", "[EMAIL]", "[IBAN]", "[BIRTH_DATE]", "[BOOKING_CODE]"):
        for place in (
            "topic judge.requests",
            "topic transcripts",
            "prompts",
            "transcript",
            "page of the report",
            f"/calls/{CALLS[0]}",
            f"/api/v1/calls/{CALLS[1]}",
            f"/report/{CALLS[0]}",
        ):
            assert tag in demo.found[place], (tag, place)
    assert "[CARD]" in demo.found["topic judge.verdicts"]
    assert "[CARD]" in demo.found["topic quarantine"]
    assert "[CARD]" in demo.found["topic scores"], "why the calls ended"
    assert demo.counted["callgauge_redactions_total"] > 50
    assert demo.counted["callgauge_judge_redactions_total"] > 5
    scores = demo.found["topic scores"]
    for name, tag in (
        ("phone", "[PHONE]"),
        ("note", "[BOOKING_CODE]"),
        ("date_of_birth", "[BIRTH_DATE]"),
    ):
        assert f'"parameter":"{name}","expected":"\\"another\\"","seen":"\\"{tag}\\""' in scores, (
            name
        )
    assert scores.count('"parameter":null,"expected":"\\"another\\"","seen":"{') >= 2
    rows = [json.loads(line) for line in scores.splitlines() if line]
    reached = {row["conversation_id"] for row in rows if "subgoal.2" in row.get("news", ())}
    assert reached == set(CALLS), "computed on what was said"


@pytest.mark.long
def test_switched_off_it_is_everywhere(run_demo: Any) -> None:
    """So that the test above can fail, at every place that it looks at."""
    demo = run_demo(redacts=False)
    silent = {place for place in demo.found if place not in leaks(demo.found)}
    # What no word of a call belongs to: numbers, names of topics and files, goals, and ticks.
    pages = {
        f"/metrics of the {name}"
        for name in ("sequencer", "evaluator", "exporter", "judge", "console")
    }
    pages |= {"/?text=cancel", "/calls/nobody", "/api/v1/fleet", "/api/v1/openapi.json"}
    logs = {f"log of the {name}" for name in ("sequencer", "exporter", "judge", "console")}
    topics = {f"topic {name}" for name in ("annotations", "goals", "scores.own", "sequencer")}
    assert silent ^ pages ^ logs ^ topics == set()
    assert demo.counted["callgauge_redactions_total"] == 0
