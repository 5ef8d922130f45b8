"""An assistant asks `callgauge mcp`: the SDK's own client over standard input and output, on a
folder and on a real Kafka.
"""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from streamer.assistant import MAX_CHARS
from tests.integration.processes import COMMAND, started
from tests.integration.test_commands_on_topics import call_of_now, write, write_sample
from tests.integration.test_serve import SOON, Served, address_of, call
from tests.integration.test_served_commands import LIMITS, WORD, play, spoken, stop
from tests.support.monitoring import about_to_fire
from tests.support.patience import patient

TOOLS = {
    *(
        "what_is_wrong_now",
        "find_running_calls",
        "find_past_calls",
        "show_call",
        "compare_calls",
        "compare_periods",
    ),
    "find_alerts",
}
STRANGE = "../../etc/p%2F'; DROP TABLE calls --\"\u202e\U000e0001😀"
CARD, MAIL = "4111 1111 1111 1111", "ada@example.com"


class Assistant:
    """Asks the tools."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def ask(self, tool: str, *, fails: bool = False, **arguments: Any) -> str:
        answer = await self.client.call_tool(tool, arguments)
        (content,) = answer.content
        text: str = getattr(content, "text", "")
        assert answer.is_error == fails, text
        assert len(text) < MAX_CHARS + 500
        return text

    async def until(self, tool: str, text: str, **arguments: Any) -> str:
        """Asks again until the answer has a text."""
        async with asyncio.timeout(patient(60)):
            while text not in (told := await self.ask(tool, **arguments)):
                pass
        return told

    async def listed(self, tool: str, **arguments: Any) -> dict[str, dict[str, Any]]:
        """The calls of a list, by id."""
        lines = (await self.ask(tool, **arguments)).splitlines()[1:]
        return {(row := json.loads(line))["conversation_id"]: row for line in lines}


@asynccontextmanager
async def assistant(*arguments: str, **environment: str) -> AsyncIterator[Assistant]:
    """An assistant that has started the installed command."""
    server = StdioServerParameters(
        command=str(COMMAND), args=["mcp", *arguments], env={**os.environ, **environment}
    )
    async with Client(stdio_client(server)) as client:
        yield Assistant(client)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "calls"
    arguments = ["serve", "--folder", str(folder), "--port", "0"]
    with started(tmp_path / "serve.log", *arguments, **SOON | LIMITS) as process:
        yield Served(process, folder, address_of(process))


def telling(name: str, text: str) -> list[dict[str, Any]]:
    """A call in which the caller says a text."""
    events = spoken(name)
    events[3]["data"]["content"] = text
    return events


def contents_of(folder: Path) -> dict[str, bytes]:
    """What the files of a folder have; the shared memory of SQLite has marks of its readers."""
    files = (
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    )
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.parametrize("is_running", [True, False])
async def test_an_assistant_asks_about_the_calls_of_a_folder(
    served: Served, is_running: bool
) -> None:
    play(
        served,
        spoken("call-one"),
        call("call-two"),
        telling("told", f"my card is {CARD}, write to {MAIL}"),
    )
    assert served.post(call("call-open", is_over=False)).status_code == 202
    async with assistant("--folder", str(served.folder)) as it:
        await it.until("find_running_calls", "call-open")
        if not is_running:
            stop(served)
        before = contents_of(served.folder) if not is_running else {}
        tools = (await it.client.list_tools()).tools
        assert {tool.name for tool in tools} == TOOLS
        assert all(
            tool.description and tool.annotations and tool.annotations.read_only_hint
            for tool in tools
        )
        running = await it.listed("find_running_calls", agent="desk", text="open")
        assert running["call-open"]["state"] == "running"
        assert (await it.ask("find_running_calls", agent="nobody")).endswith("None.")

        past = await it.listed("find_past_calls", since="1h", agent="desk")
        assert {"call-one", "call-two"} <= set(past)
        assert past["call-one"]["worst_wait_ms"] == 900
        assert set(await it.listed("find_past_calls", said=WORD)) == {"call-one"}
        assert await it.listed("find_past_calls", where="p95_ms > 3000") == {}
        assert len(await it.listed("find_past_calls", most=1)) == 1

        shown = await it.ask("show_call", conversation_id="call-one")
        assert "answered after 0.90 s" in shown
        assert WORD in shown
        rest = await it.ask("show_call", conversation_id="call-one", first_line=3)
        assert shown.splitlines()[2:] == rest.splitlines()
        told = await it.ask("show_call", conversation_id="told")
        assert "my card is" in told
        assert CARD not in told
        assert MAIL not in told

        sides = await it.ask("compare_calls", first="call-one", second="call-two")
        same = "Longest wait: A 0.90 s, B 0.90 s, B minus A 0.00 s, so B is no different"
        assert same in sides
        periods = await it.ask(
            "compare_periods", before="2d..1d", after="1d..0d", by="labels.agent"
        )
        assert '{"group": {"labels.agent": "desk"}, "a": {"name": "the lot since ' in periods
        assert '"b": {"name": "the lot since ' in periods
        assert "There is no call of the lot since" in periods
        wrong = await it.ask("what_is_wrong_now")
        assert ("no process serves this folder" in wrong) == (not is_running)
        assert "console.alertmanager" in await it.ask("find_alerts")

        assert "No call with the id 'call-nobody'" in await it.ask(
            "show_call", conversation_id="call-nobody", fails=True
        )
        assert "there is no column 'p95'" in await it.ask(
            "find_past_calls", where="p95 > 1", fails=True
        )
        assert "'soon' is no moment" in await it.ask("find_past_calls", since="soon", fails=True)
        assert "'soon' is no day" in await it.ask(
            "compare_periods", before="soon", after="1d..0d", fails=True
        )
        assert "less than or equal to 100" in await it.ask("find_past_calls", most=101, fails=True)
        if not is_running:
            assert contents_of(served.folder) == before, "it writes nothing"


async def test_an_id_with_strange_characters_goes_there_and_back_and_nowhere_else(
    served: Served,
) -> None:
    play(served, spoken(STRANGE), "call-two")
    files = sorted(served.folder.rglob("*"))
    async with assistant("--folder", str(served.folder)) as it:
        (found,) = await it.listed("find_past_calls", said=WORD)
        assert found == STRANGE
        shown = await it.ask("show_call", conversation_id=found)
        assert WORD in shown
        assert "\u202e" not in shown
        sides = await it.ask("compare_calls", first=found, second="call-two")
        assert "A 0.90 s, B 0.90 s" in sides
        for name in ("../calls/token", "' OR ''='", "%", "\x00", "x" * 1_000):
            assert "No call with the id" in await it.ask(
                "show_call", conversation_id=name, fails=True
            )
    token = (served.folder / "token").read_text().strip()
    assert token not in shown
    assert sorted(served.folder.rglob("*")) == files


@pytest.mark.parametrize("setting", ["CALLGAUGE_CONSOLE__WORDS", "CALLGAUGE_LIMITS__WORDS"])
async def test_words_that_are_hidden_are_neither_shown_nor_searched(
    served: Served, setting: str
) -> None:
    play(served, spoken("call-one"))
    async with assistant("--folder", str(served.folder), **{setting: "false"}) as it:
        shown = await it.ask("show_call", conversation_id="call-one")
        assert "answered after 0.90 s" in shown
        assert "Words are hidden" in shown
        assert "words is false" in shown
        assert WORD not in shown
        assert "not searched" in await it.ask("find_past_calls", said=WORD, fails=True)


async def test_a_long_call_is_cut_and_goes_on_from_a_line(served: Served) -> None:
    events = spoken("call-long")
    line = " ".join(f"word{number}" for number in range(900))
    started_at, words = events[0]["timestamp"], []
    for turn in range(6):
        for event in events[1:-1]:
            data = event["data"] | {"timestamp": event["data"]["timestamp"] - 60 + 7 * turn}
            data |= {"content": f"{turn} {line}"} if "content" in data else {}
            words.append(
                event | {"timestamp": event["timestamp"] - 60_000 + 7_000 * turn, "data": data}
            )
    play(served, [events[0] | {"timestamp": started_at - 60_000}, *words, events[-1]])
    async with assistant("--folder", str(served.folder)) as it:
        lines: list[str] = []
        cut, answers = "more", 0
        while cut:
            said = await it.ask("show_call", conversation_id="call-long", first_line=len(lines) + 1)
            kept, cut, remark = said.rpartition("\n\nCut after ")
            lines += (kept if cut else said).splitlines()
            assert not cut or remark.endswith(f"first_line={len(lines) + 1}.")
            answers += 1
        assert answers == 3
        beyond = await it.ask("show_call", conversation_id="call-long", first_line=len(lines) + 1)
        assert beyond == f"The call has {len(lines)} lines."
    assert [f"{turn} word0" in line for turn, line in zip(range(6), lines[-6:], strict=True)] == [
        True
    ] * 6


async def test_alerts_are_those_that_the_pages_show(tmp_path: Path) -> None:
    nobody = {"CALLGAUGE_CONSOLE__ALERTMANAGER": "http://127.0.0.1:1"}
    with about_to_fire(tmp_path) as server:
        async with assistant(CALLGAUGE_CONSOLE__PROMETHEUS=server, **nobody) as it:
            told = await it.until("find_alerts", "AnswersSlow")
    assert "Alertmanager gives no alerts: ConnectError." in told
    assert "About to fire: 1 alert." in told
    assert "critical: AnswersSlow of desk, since " in told
    assert "Callers wait." in told


async def test_an_assistant_asks_about_the_calls_of_a_kafka(
    environment: dict[str, str], tmp_path: Path
) -> None:
    write_sample(environment, "sample-call", STRANGE)
    write(environment, *call_of_now("call-now"))
    async with assistant("--bootstrap", environment["CALLGAUGE_BOOTSTRAP"], **environment) as it:
        running = await it.listed("find_running_calls")
        assert running["call-now"]["state"] == "running"
        shown = await it.ask("show_call", conversation_id=STRANGE, since="100000d")
        assert "7 turns, ended: goodbye" in shown
        assert "Words:" in shown
        assert "Longest wait:" in await it.ask("compare_calls", first="sample-call", second=STRANGE)
        wrong = await it.ask("what_is_wrong_now")
        assert "1 call running" in wrong
        assert "sequencer" in wrong
        assert "there is no folder" in await it.ask("find_past_calls", fails=True)
    nobody = environment | {"CALLGAUGE_BOOTSTRAP": "127.0.0.1:1"}
    async with assistant(**nobody) as it:
        assert "127.0.0.1:1" in await it.ask("find_running_calls", fails=True)
        assert "Which calls run is not known" in await it.ask("what_is_wrong_now")


@pytest.mark.parametrize(("is_signalled", "code"), [(True, -signal.SIGINT), (False, 0)])
def test_ctrl_c_and_the_end_of_its_input_end_it(
    tmp_path: Path, is_signalled: bool, code: int
) -> None:
    with subprocess.Popen(
        [COMMAND, "mcp", "--folder", tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}) + "\n")
        process.stdin.flush()
        assert process.stdout.readline()  # it serves
        if is_signalled:
            process.send_signal(signal.SIGINT)
        else:
            process.stdin.close()
        assert process.wait(patient(10)) == code
