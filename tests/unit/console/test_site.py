"""The whole site over a real socket, with calls in memory: what each address answers,
and to whom.
"""

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urljoin

import httpx2 as httpx
import pytest
from markupsafe import escape
from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from consumers.console import access, api, pages, site, workshop
from consumers.console.fleet import Fleet, Runbook
from consumers.console.past import LotsQuery, PastFound, PastQuery, Usual, Versions
from consumers.console.settings import ConsoleSettings
from consumers.console.site import SECURITY, ConsoleSite
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import ConnectionBounds, HttpListener
from consumers.runtime.process import OperatorError, wall_clock_ms
from consumers.runtime.registry import Instruments
from consumers.store.rows import StoredCall
from schemas.annotations import Annotation
from schemas.rows import CallRow, GoalsRow, Labels, Row, TurnRow, WordsRow
from streamer.history.said import annotation
from tests.support.calls.console_calls import HeldCalls, call_row, simulated
from tests.support.patience import patient

TOKEN = "of-this-test-alone"  # noqa: S105
SECONDS = 20
BOUND = 300_000
"""More bytes than the buffers of a connection hold."""


@pytest.fixture(autouse=True)
def _always_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "NOW_SHARE", float("inf"))


class NoPast:
    """A history that has one call."""

    def __init__(self, conversation_id: str, rows: Sequence[Row | WordsRow] = ()) -> None:
        self.conversation_id = conversation_id
        self.calls = HeldCalls(*rows)

    def find(self, asked: PastQuery) -> PastFound:
        if asked.where:
            raise OperatorError(f"not understood: {asked.where}")
        return PastFound(
            [{"conversation_id": self.conversation_id, "labels.agent": asked.agent}], 1
        )

    def table(
        self, asked: PastQuery, site: pages.Site, redact: Callable[[str], str] | None
    ) -> bytes:
        if asked.where:
            raise OperatorError(f"not understood: {asked.where}")
        last_words = "" if redact is None else redact("jane@example.com")
        page = site.call_href(self.conversation_id)
        return f"conversation_id,page\n{self.conversation_id},{page},{last_words}\n".encode()

    def versions(self, asked: LotsQuery) -> Versions:
        if asked.a_since:
            raise OperatorError(f"not understood: {asked.a_since}")
        return Versions(None)

    def lots_table(self, asked: LotsQuery) -> bytes:
        return f"Agent\n{asked.agent}\n".encode()

    def usual(self, call: CallRow) -> Usual:
        return Usual(call.labels.agent, 7, {})

    def call(self, conversation_id: str, at_ms: int | None = None) -> StoredCall | None:
        return self.calls.call(conversation_id, at_ms)

    def annotations_of(self, conversation_id: str) -> Sequence[Annotation] | None:
        if conversation_id == "forgotten":
            return None
        return [Annotation(by="anna", at_ms=0, label="false-alarm", note="<b> jane@example.com")]


NAME = "a/b <c>"


class Serving:
    """The site and what it serves."""

    def __init__(self, *, past: NoPast | None = None, **settings: object) -> None:
        self.registry = CollectorRegistry()
        instruments = Instruments(self.registry, ["console"])
        self.fleet = Fleet()
        self.rows = simulated(name=NAME)
        self.calls = HeldCalls(*self.rows)
        given = ConsoleSettings.model_validate({"port": 0} | settings)
        self.site = ConsoleSite(
            given, self.fleet, self.calls, self.annotate, past, Redactor(), instruments, "1.2.3"
        )
        bounds = ConnectionBounds(answer_seconds=patient(SECONDS), unread_seconds=0.2)
        self.listener = HttpListener(
            "127.0.0.1", 0, self.site.routes(), lambda _: None, bounds=bounds, without_it="Nothing"
        )

    async def annotate(
        self,
        _id: str,
        by: str,
        label: str | None,
        note: str | None,
        labels: Labels,
        *,
        withdraws: bool,
    ) -> Annotation:
        """Writes as commands do, to no topic."""
        return annotation(by, label, note, labels, Redactor(), withdraws=withdraws)

    async def turn(self) -> None:
        """Lets the server do what it has to."""
        await self.get("/static/page.css")

    def client(self, **options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.listener.address, timeout=patient(SECONDS), **options
        )

    async def get(self, path: str, **options: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.get(path, **options)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Serving]:
    made = Serving(**settings)
    await made.listener.start()
    try:
        yield made
    finally:
        made.site.streams.close()
        await made.site.close(patient(SECONDS))
        await made.listener.stop()


CALL = "a%2Fb%20%3Cc%3E"
PLACES = (
    "",
    "calls/" + CALL,
    "past",
    "past.csv",
    "versions",
    "versions.csv",
    "bad-times",
    "parts/calls/" + CALL,
    "live/now",
    "live/calls/" + CALL,
)
API = ("calls", f"calls/{CALL}", "fleet", "stream", "openapi.json")


class Events:
    """The events of a stream that is read piece by piece."""

    def __init__(self, answer: httpx.Response) -> None:
        self._pieces = answer.aiter_text()
        self._text = ""

    async def until(self, text: str) -> str:
        """All that came since the last time, up to the end of the event with this text."""
        while text not in self._text or not self._text.endswith("\n\n"):
            try:
                self._text += await anext(self._pieces)
            except StopAsyncIteration:
                raise AssertionError(
                    f"the stream ended without {text!r}: {self._text[-500:]}"
                ) from None
        read, self._text = self._text, ""
        return read


@asynccontextmanager
async def following(made: Serving, path: str, **headers: str) -> AsyncIterator[Events]:
    async with made.client() as client, client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Events(answer)


def id_in(text: str) -> str:
    return text.rpartition("id: ")[2].partition("\n")[0]


def parts_in(text: str) -> dict[str, str]:
    parts: dict[str, str] = json.loads(text.rpartition("\ndata: ")[2])["parts"]
    return parts


async def test_each_page_and_each_answer_is_there_with_what_keeps_foreign_text_from_running() -> (
    None
):
    async with serving(past=NoPast("p")) as made:
        made.fleet.put_row(call_row(NAME))
        for path in [f"/{place}" for place in PLACES if "live" not in place] + [
            f"{api.PREFIX}/{each}" for each in API if each != "stream"
        ]:
            answer = await made.get(path)
            assert answer.status_code == 200, (path, answer.text)
            assert answer.headers["cache-control"] == "no-store"
            for name, value in SECURITY:
                assert answer.headers[name] == value
        page = await made.get(f"/calls/{CALL}")
        assert "<title>Call a/b &lt;c&gt;, callgauge</title>" in page.text
        assert f'data-stream="../live/calls/{CALL}"' in page.text


async def test_assets_are_where_pages_say_whatever_the_depth() -> None:
    async with serving(token=TOKEN) as made:
        made.calls.add(*simulated(name="x/y/z"))
        signed = {"authorization": f"Bearer {TOKEN}"}
        for path in ("/", "/calls/x/y/z", f"/calls/{CALL}", "/past", "/calls/none/at/all"):
            page = await made.get(path, headers=signed if path != "/past" else {})
            sources = re.findall(r'(?:src|href)="([^"#]*static/[^"]*)"', page.text)
            assert len(sources) >= 2
            for source in sources:
                asset = await made.get(urljoin(f"{made.listener.address}{path}", source))
                assert asset.status_code == 200, (path, source)
                assert "immutable" in asset.headers["cache-control"]


async def test_who_has_no_token_gets_a_form_or_a_problem_and_nothing_of_a_call() -> None:
    async with serving(token=TOKEN, past=NoPast("p")) as made:
        for place in PLACES:
            answer = await made.get(f"/{place}")
            assert answer.status_code == 401
            assert ("<form" in answer.text) == ("live" not in place)
        for each in API:
            answer = await made.get(f"{api.PREFIX}/{each}")
            assert answer.status_code == 401
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.json()["status"] == 401
        assert (
            await made.get(f"{api.PREFIX}/calls", headers={"authorization": f"Bearer {TOKEN}"})
        ).status_code == 200


async def test_the_form_leads_where_a_person_wanted_to_go_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(site, "LOGIN_PAUSE_SECONDS", 0.0)
    async with serving(token=TOKEN) as made, made.client() as client:
        for to, expected in (
            ("./calls/a", "./calls/a"),
            ("https://evil.example", "./"),
            ("//evil.example", "./"),
            ("", "./"),
        ):
            answer = await client.post("/login", data={"token": TOKEN, "to": to})
            assert (answer.status_code, answer.headers["location"]) == (303, expected)
        assert "Log out" in (page := await client.get("/")).text
        assert page.status_code == 200, "the cookie is kept"
        ours = {"origin": made.listener.address}
        for headers in (
            {},
            {"origin": "https://evil.example"},
            ours | {"sec-fetch-site": "cross-site"},
        ):
            assert (await client.post("/logout", headers=headers)).status_code == 403
            assert (await client.get("/")).status_code == 200, "another page logs nobody out"
        assert (await client.post("/logout", headers=ours)).headers["location"] == "./"
        assert (await client.get("/")).status_code == 401
        client.cookies.clear()
        for scheme, is_secure in (("https, http", True), ("http", False)):
            headers = {"x-forwarded-proto": scheme}
            answer = await client.post("/login", data={"token": TOKEN}, headers=headers)
            assert ("secure" in answer.headers["set-cookie"].lower()) is is_secure
        client.cookies.clear()
        with capture_logs() as logs:
            assert (await client.post("/login", data={"token": "no"})).status_code == 401
        assert [each["event"] for each in logs] == ["wrong_token"]
        assert (await client.post("/login", content=b"token=" + b"x" * 10_000)).status_code == 413
        assert (await client.post("/login", content=b"\xff=%ff&" * 20)).status_code == 400
        assert (await client.post("/login", content=b"\xff=%ff&token=%ff")).status_code == 401
        assert (await client.get("/")).status_code == 401


async def test_a_strange_host_is_refused_on_this_machine() -> None:
    async with serving() as made:
        for path in ("/", f"{api.PREFIX}/calls", f"/live/calls/{CALL}"):
            assert (await made.get(path, headers={"host": "evil.example"})).status_code == 421


async def test_a_proxys_user_is_in_the_log_with_the_call_that_he_opened() -> None:
    async with serving(user_header="X-User") as made:
        assert (await made.get("/")).status_code == 403
        with capture_logs() as logs:
            for _ in range(3):
                await made.get(f"/calls/{CALL}", headers={"x-user": "ada"})
            for user, path in (
                ("bob", f"{api.PREFIX}/calls"),
                ("eve", "/report"),
                ("joe", "/parts/calls"),
            ):
                await made.get(f"{path}/{CALL}", headers={"x-user": user})
        opened = [
            (each["user"], each["conversation_id"])
            for each in logs
            if each["event"] == "call_opened"
        ]
        assert opened == [(user, "a/b <c>") for user in ("ada", "bob", "eve", "joe")]


async def test_who_searched_and_compared_is_in_the_log_without_personal_data() -> None:
    async with serving(user_header="X-User", past=NoPast("p")) as made:
        with capture_logs() as logs:
            await made.get("/past", params={"text": "bob@example.com"}, headers={"x-user": "ada"})
            await made.get(f"/compare?id={CALL}&id=q", headers={"x-user": "ada"})
        told = [
            (each["event"], each["user"], each.get("text", each.get("conversation_id")))
            for each in logs
        ]
        assert told == [
            ("calls_searched", "ada", "[EMAIL]"),
            ("call_opened", "ada", NAME),
            ("call_opened", "ada", "q"),
        ]


async def test_calls_that_are_marked_beyond_two_are_named() -> None:
    async with serving(past=NoPast("p", simulated(name="p"))) as made:
        two = await made.get(f"/compare?id=p&id={CALL}&id=p&id=")
        assert (two.status_code, "Left out" in two.text) == (200, False)
        assert (
            "3 calls were marked, and two can be side by side. Left out: x."
            in (await made.get(f"/compare?id={CALL}&id=p&id=x")).text
        )
        one = await made.get("/compare?id=p")
        assert "7 other calls of the day before" in one.text
        unknown = await made.get("/compare?id=p&id=none")
        assert (unknown.status_code, "the id none" in unknown.text) == (404, True)
        assert (await made.get("/compare?id=")).status_code == 422


async def test_a_moment_is_counted_by_one_clock() -> None:
    """That of the broker, an hour before that of the events."""
    async with serving() as made:
        made.calls.add(*simulated(name="late", late_ms=3_600_000))
        first_ms = (await made.get(f"{api.PREFIX}/calls/late")).json()["call"]["first_known_ms"]
        for path in ("parts/calls", "report"):
            answer = await made.get(f"/{path}/late?at_ms={first_ms + 5_000}")
            assert "As it was known 5 s after its first event." in answer.text


async def test_turns_from_before_the_console_read_are_said_to_be_missing() -> None:
    async with serving() as made:
        calls = [row for row in made.rows if isinstance(row, CallRow)]
        late = [row for row in made.rows if not isinstance(row, TurnRow) or row.turn > 2]
        for row in late:
            row.conversation_id = "long"
        made.calls.add(*late)
        said = "2 turns of it, up to turn 2, cannot be shown"
        assert said not in (await made.get("/calls/long")).text
        made.calls.since_ms = calls[0].first_known_ms + 1
        made.calls.note(late[:1])
        assert said in (await made.get("/calls/long")).text
        assert said not in (await made.get(f"/calls/{CALL}")).text


async def test_a_call_that_only_history_has_is_shown_as_any_other() -> None:
    async with serving(past=NoPast("p", simulated(name="p"))) as made:
        ours, past = [(await made.get(f"/calls/{name}")).text for name in (CALL, "p")]
        assert re.sub("a/b &lt;c&gt;|a%2Fb%20%3Cc%3E", "p", ours) == past
        rows = [row for row in simulated(name="p") if isinstance(row, CallRow)]
        then = (
            await made.get(f"{api.PREFIX}/calls/p?at_ms={rows[len(rows) // 2].known_ms}")
        ).json()
        assert then["call"].get("state", "running") == "running"
        async with following(made, "/live/calls/p") as events:
            assert parts_in(await events.until('"last_ms"'))


async def test_what_people_say_is_on_the_page_and_a_forgotten_call_is_gone() -> None:
    async with serving(past=NoPast("p", simulated(name="p"))) as made:
        for name in (CALL, "p"):
            assert "false-alarm: &lt;b&gt; [EMAIL]" in (await made.get(f"/calls/{name}")).text
        for path in ("/calls", "/parts/calls", "/live/calls", "/report", f"{api.PREFIX}/calls"):
            answer = await made.get(f"{path}/forgotten")
            assert (answer.status_code, "deleted on request" in answer.text) == (410, True), path
    async with serving(past=NoPast("p", simulated(name="p")), words=False) as made:
        assert "false-alarm" not in (await made.get(f"/calls/{CALL}")).text


async def test_a_person_labels_a_call_and_takes_it_back() -> None:
    """It is on the page and on open pages at once, and in the log with who wrote it; the note has
    no personal data.
    """
    page = f"/calls/{CALL}"
    async with serving(past=NoPast("p", simulated(name="p")), user_header="X-User") as made:
        ada = {"x-user": "ada", "origin": made.listener.address}
        assert "with your name, ada" in (await made.get(page, headers=ada)).text
        async with (
            following(made, f"/live{page}", **ada) as events,
            made.client(headers=ada) as client,
        ):
            await events.until('"parts"')
            with capture_logs() as logs:
                answer = await client.post(
                    page, data={"label": "qa", "note": "call <i>bob@example.com", "by": "eve"}
                )
            assert (answer.status_code, answer.headers["location"]) == (
                303,
                f"./{CALL}#call-top",
            )
            (told,) = [each for each in logs if each["event"] == "call_annotated"]
            assert (told["user"], told["by"], told["label"], told["conversation_id"]) == (
                "ada",
                "ada",
                "qa",
                "a/b <c>",
            )
            assert "qa: call &lt;i&gt;[EMAIL]" in (await client.get(page)).text
            assert (
                "qa: call &lt;i&gt;[EMAIL]"
                in parts_in(await events.until("qa: call"))["call-labels"]
            )
            assert (await client.post("/calls/p", data={"note": "of the past"})).status_code == 303
            assert "of the past" in (await client.get("/calls/p")).text
            assert (
                await client.post(page, data={"label": "qa", "take_back": "1"})
            ).status_code == 303
            text = (await client.get(page)).text
            assert ("false-alarm" in text, "qa: " in text) == (True, False)


@pytest.mark.parametrize(
    ("given", "form", "headers", "status"),
    [
        ({}, {"label": "qa", "by": "ada"}, {}, 303),
        ({}, {"label": "qa", "by": "ada"}, {"origin": "https://evil.example"}, 403),
        ({}, {"label": "qa", "by": "ada"}, {"origin": "null"}, 403),
        (
            {},
            {"label": "qa", "by": "ada"},
            {"origin": "null", "sec-fetch-site": "same-origin"},
            303,
        ),
        (
            {},
            {"label": "qa", "by": "ada"},
            {"origin": "https://calls.example", "x-forwarded-host": "calls.example"},
            303,
        ),
        ({}, {"label": "Two words", "by": "ada"}, {}, 422),
        ({}, {"label": "qa"}, {}, 422),
        ({}, {"by": "ada"}, {}, 422),
        ({}, {"note": "x" * 40_000, "by": "ada"}, {}, 413),
        ({"host": "0.0.0.0", "is_public": True}, {"label": "qa", "by": "ada"}, {}, 403),  # noqa: S104
        ({"words": False}, {"label": "qa", "by": "ada"}, {}, 403),
        ({"token": TOKEN}, {"label": "qa", "by": "ada"}, {}, 401),
        ({"token": TOKEN}, {"label": "qa", "by": "ada"}, {"authorization": f"Bearer {TOKEN}"}, 303),
    ],
)
async def test_who_may_label_and_what(
    given: dict[str, Any], form: dict[str, str], headers: dict[str, str], status: int
) -> None:
    async with (
        serving(**given) as made,
        made.client(headers={"origin": made.listener.address} | headers) as client,
    ):
        answer = await client.post(f"/calls/{CALL}", data=form)
        assert answer.status_code == status
        if status != 401:
            may_write = given.get("words", True) and "host" not in given
            page = await client.get(f"/calls/{CALL}", headers={"origin": made.listener.address})
            assert ('name="note"' in page.text) is may_write


async def test_an_unknown_call_is_not_found_anywhere() -> None:
    async with serving(past=NoPast("p", simulated(name="p"))) as made:
        for path in (
            "/calls/none",
            "/parts/calls/none",
            "/live/calls/none",
            f"{api.PREFIX}/calls/none",
            f"{api.PREFIX}/calls/none/scores",
            "/nothing",
            "/api/v2",
            f"{api.PREFIX}/calls/",
            "/static/../site.py",
            "/past/",
        ):
            answer = await made.get(path)
            assert answer.status_code == 404, path
        assert (await made.get("/calls/p")).status_code == 200
        assert (await made.get(f"/calls/{'x' * 2_000}")).status_code == 414


async def test_what_is_asked_wrongly_is_told() -> None:
    async with serving(past=NoPast("p")) as made:
        for query in (
            "sort=none",
            "limit=0",
            "limit=x",
            "text=" + "x" * 501,
            "nonsense=1",
            "bad=yes",
            "text=a&text=b",
            "limit=1001",
        ):
            answer = await made.get(f"{api.PREFIX}/calls?{query}")
            assert answer.status_code == 422, query
            assert answer.json()["detail"]
        for query in ("at_ms=-1", "at_ms=x", "at_ms=1e400", "at_ms=9007199254740992", "at=1"):
            assert (await made.get(f"{api.PREFIX}/calls/{CALL}?{query}")).status_code == 422
        for query in (
            "page=0",
            "page=201",
            "page=x",
            "nonsense=1",
            "text=" + "x" * 501,
            "text=a&text=b",
        ):
            assert (await made.get(f"/past?{query}")).status_code == 422, query
        assert "not understood: x y" in (await made.get("/past?where=x+y")).text
        assert "not understood: x y" in (await made.get("/versions?a_since=x+y")).text
        assert (await made.get("/past.csv?where=x+y")).status_code == 503
        table = (await made.get("/past.csv")).text
        assert table.endswith(f",{made.listener.address}/calls/p,[EMAIL]\n")
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            async with made.client() as client:
                for path in ("/", f"{api.PREFIX}/calls", f"{api.PREFIX}/stream", "/live/now"):
                    answer = await client.request(method, path)
                    assert answer.status_code == 405
                    assert "GET" in answer.headers["allow"]


RECORDED = "https://rec.example:8443/c.wav?sig=%2B1'&to=+4915112345678"
ORIGINS = "https://other.example,https://REC.example:8443"


def with_recording(rows: Sequence[Row | WordsRow], url: str, **more: Any) -> CallRow:
    """The next row of a call, which says where its sound is kept."""
    last = next(row for row in reversed(rows) if isinstance(row, CallRow))
    return structs.replace(last, revision=last.revision + 2, recording_url=url, **more)


async def test_the_recording_of_a_call_is_played_from_an_allowed_origin() -> None:
    async with serving(recording_origins=ORIGINS) as made:
        before = await made.get(f"/calls/{CALL}")
        assert "<audio" not in before.text
        assert 'id="sound"></div>' in before.text
        async with following(made, f"/live/calls/{CALL}") as events:
            assert '"recording"' not in await events.until('"parts"')
            made.calls.add(with_recording(made.rows, RECORDED, recording_starts_ms=1_790_000))
            live = await events.until('"parts"')
            while "recording" not in parts_in(live):
                live = await events.until('"parts"')
        page = await made.get(f"/calls/{CALL}")
        assert page.headers["content-security-policy"] == (
            f"{dict(SECURITY)['content-security-policy']}; "
            "media-src https://other.example https://rec.example:8443"
        )
        (player,) = re.findall(r"<audio [^>]*>", page.text)
        assert 'controls preload="none"' in player
        assert 'src="https://rec.example:8443/c.wav?sig=%2B1&#39;&amp;to=+4915112345678"' in player
        assert 'data-starts="1790000"' in player
        assert "<audio" in parts_in(live)["recording"]
        assert RECORDED not in (await made.get(f"/report/{CALL}")).text, "a file is passed on"
        now, then = [
            (await made.get(f"/parts/calls/{CALL}{query}")).json()
            for query in ("", "?at_ms=9999999999999")
        ]
        assert now["order"]["sound"] == ["recording"]
        assert "sound" not in then["order"], "looking back stops no sound"
        detail = (await made.get(f"{api.PREFIX}/calls/{CALL}")).json()
        assert detail["call"]["recording_url"] == RECORDED


@pytest.mark.parametrize(
    ("origins", "url"),
    [
        ("", RECORDED),
        (ORIGINS, "https://rec.example/c.wav"),
        (ORIGINS, "http://rec.example:8443/c.wav"),
        (ORIGINS, "https://rec.example:8443.evil.example/c.wav"),
        (ORIGINS, "https://a.rec.example:8443/c.wav"),
        # of no sender: who can write to the topic can write any row
        (ORIGINS, "javascript:alert(1)//https://rec.example:8443/"),
        (ORIGINS, "https://rec.example:8443@evil.example/c.wav"),
        (ORIGINS, "\"><script src=https://rec.example:8443/></script><p a='"),
    ],
)
async def test_from_another_origin_the_address_is_a_text_and_nothing_else(
    origins: str, url: str
) -> None:
    async with serving(recording_origins=origins) as made:
        made.calls.add(with_recording(made.rows, url))
        page = await made.get(f"/calls/{CALL}")
        assert "<audio" not in page.text
        assert f'<pre tabindex="0">{escape(url)}</pre>' in page.text
        assert "console.recording_origins" in page.text
        assert not re.findall(r"<\w+ [^>]*(?:src|href)=[^>]*rec\.example", page.text)
        assert ("media-src" in page.headers["content-security-policy"]) == (origins != "")


async def test_a_quote_in_an_address_of_an_allowed_origin_ends_no_attribute() -> None:
    url = 'https://rec.example:8443/"onplay="alert(1)'
    async with serving(recording_origins=ORIGINS) as made:
        made.calls.add(with_recording(made.rows, url))
        text = (await made.get(f"/calls/{CALL}")).text
        assert f'src="{escape(url)}"' in text
        assert "onplay=&#34;alert" in text


async def test_where_words_are_hidden_there_is_no_recording() -> None:
    async with serving(recording_origins=ORIGINS, words=False) as made:
        made.calls.add(with_recording(made.rows, RECORDED))
        for path in ("calls", "parts/calls", "report"):
            assert "rec.example" not in (await made.get(f"/{path}/{CALL}")).text


async def test_too_many_pages_are_asked_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "MAX_PAGES", 1)
    async with serving() as made, following(made, "/live/now") as events:
        await events.until('"parts"')
        # before the call is drawn
        for path in ("/live/now", f"{api.PREFIX}/stream", f"/live/calls/{CALL}"):
            refused = await made.get(path)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "5"
        assert 'reason="pages"} 3.0' in generate_latest(made.registry).decode()


async def test_running_calls_are_followed_and_gone_on_with() -> None:
    async with serving() as made:
        async with following(made, "/live/now") as events:
            assert "No call runs now." in await events.until('"parts"')
        made.fleet.put_row(call_row("c-123456"))
        async with following(made, "/live/now?text=123456") as events:
            assert "123456" in await events.until('"parts"')
        async with following(made, "/live/now?text=nothing") as events:
            assert "123456" not in await events.until('"parts"')
        async with following(made, "/live/now") as events:
            last = id_in(await events.until('"parts"'))
            for name in ("by-query", "by-header"):
                is_query = name == "by-query"
                path, headers = (
                    (f"/live/now?since={last}", {})
                    if is_query
                    else ("/live/now", {"last-event-id": last})
                )
                async with following(made, path, **headers) as news:
                    await news.until("event: clock")
                    made.fleet.put_row(call_row(name, known_ms=wall_clock_ms()))
                    assert await made.site.tick() > 0.0
                    text = await news.until('"parts"')
                    assert name in text
                    assert "123456" not in text, "it has that row"
                    last = id_in(text)


async def test_a_call_is_followed_while_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "LOOK_SECONDS", 1e6)  # rows alone have it drawn
    monkeypatch.setattr(site, "RENDER_SECONDS", 0.0)
    async with serving() as made, following(made, f"/live/calls/{CALL}") as events:
        text = await events.until('"last_ms"')
        assert parts_in(text)
        made.calls.note(made.rows[:1])
        more = await events.until('"last_ms"')
        assert (
            id_in(more)
            == f"{id_in(text).rpartition('.')[0]}.{int(id_in(text).rpartition('.')[2]) + 1}"
        )
        assert parts_in(more) == {}, "nothing of it has changed"
        made.calls.add(WordsRow(conversation_id=NAME, turn=1, revision=10**9, user="a last word"))
        assert "a last word" in parts_in(await events.until('"last_ms"'))["call-transcript"]


async def test_records_are_streamed_and_resumed() -> None:
    async with serving() as made:
        async with following(made, f"{api.PREFIX}/stream") as events:
            await events.until("retry: ")
            await asyncio.sleep(0)
            made.site.ring.put([b'{"n":1}'], wall_clock_ms())
            last = id_in(await events.until('{"n":1}'))
        made.site.ring.put([b'{"n":2}'], wall_clock_ms())
        async with following(made, f"{api.PREFIX}/stream", **{"last-event-id": last}) as events:
            again = await events.until('{"n":2}')
            assert '{"n":1}' not in again
            assert "gap" not in again
        async with following(made, f"{api.PREFIX}/stream", **{"last-event-id": "x.1"}) as events:
            await events.until("event: gap")


async def test_a_table_has_a_file_name_that_says_what_it_has() -> None:
    async with serving(past=NoPast("p")) as made:
        calls = await made.get("/past.csv?day=yesterday&agent=front+desk/1")
        assert calls.headers["content-disposition"].endswith("calls-yesterday-front-desk-1.csv")
        lots = await made.get("/versions.csv?by=tenant&agent=desk")
        assert lots.headers["content-disposition"].endswith("filename=tenant-desk.csv")
        assert lots.text == "Agent\ndesk\n"


async def test_a_runbook_is_a_page_for_who_may_read() -> None:
    async with serving(token=TOKEN) as made:
        made.fleet.runbooks = {
            "Slow": Runbook(
                "voice",
                ["Look."],
                "# Slow\n\nIt is\nslow.\n\n## What to do\n\n1. <Look> at\n   `it`.\n2. Wait.\n"
                "3. See `Other`.\n",
                "#voice",
            ),
            "Other": Runbook("voice", [], "# Other\n"),
        }
        assert (await made.get("/runbooks/Slow")).status_code == 401
        page = (await made.get("/runbooks/Slow", headers={"authorization": f"Bearer {TOKEN}"})).text
        assert "<h1>Slow</h1>" in page
        assert "the team <strong>voice</strong> (#voice)." in page
        steps = (
            '<p class="runbook">1. &lt;Look&gt; at <code>it</code>.</p><p class="runbook">2. Wait.'
        )
        assert steps in page
        assert '3. See <a href="Other">Other</a>.' in page
        assert page.index("What to do") < page.index("It is slow."), "what to do is first"
        missing = await made.get("/runbooks/Fast", headers={"authorization": f"Bearer {TOKEN}"})
        assert missing.status_code == 404


async def test_words_are_hidden_where_the_setting_says_so() -> None:
    async with serving(words=False, past=NoPast("p")) as made:
        searched = (await made.get("/past?text=creditcard")).text
        assert "Words are hidden" in searched
        assert "creditcard" not in searched
        assert (await made.get("/past.csv")).text.endswith("/calls/p,\n")
        said = "I would like to move it"
        detail = (await made.get(f"{api.PREFIX}/calls/{CALL}")).json()
        assert (detail["words"], detail["annotations"]) == (None, [])
        for path in (
            f"/calls/{CALL}",
            f"/parts/calls/{CALL}",
            f"/report/{CALL}",
            f"{api.PREFIX}/calls/{CALL}",
        ):
            assert said not in (await made.get(path)).text, path
    async with serving() as made:
        shown = (await made.get(f"{api.PREFIX}/calls/{CALL}")).json()["words"]
        assert {entry["user"] for entry in shown} == {said}
        assert said in (await made.get(f"/calls/{CALL}")).text


async def test_a_moment_is_the_past() -> None:
    async with serving() as made:
        calls = [row for row in made.rows if isinstance(row, CallRow)]
        first_ms, last_ms = calls[0].known_ms, calls[-1].known_ms
        for at_ms in (first_ms - 1, first_ms, (first_ms + last_ms) // 2, last_ms):
            answer = await made.get(f"{api.PREFIX}/calls/{CALL}?at_ms={at_ms}")
            assert answer.status_code == (404 if at_ms < first_ms else 200)
            if at_ms >= first_ms:
                known = {
                    row.turn: row.revision
                    for row in made.rows
                    if isinstance(row, TurnRow) and row.known_ms <= at_ms
                }
                turns = answer.json()["turns"]
                assert {each["turn"]: each["revision"] for each in turns} == known
            parts = (await made.get(f"/parts/calls/{CALL}?at_ms={at_ms}")).json()
            assert list(parts["order"]) == ["about", "call"]
        goals = [row for row in made.rows if isinstance(row, GoalsRow)]
        assert (await made.get(f"{api.PREFIX}/calls/{CALL}")).json()["goals"]["digest"] == goals[
            0
        ].digest


async def test_a_reader_who_stops_reading_is_cut_off() -> None:
    async with serving() as made:
        host, port = made.listener.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=4_096)
        writer.write(f"GET {api.PREFIX}/stream HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode())
        async with asyncio.timeout(patient(SECONDS)):
            await reader.readuntil(b"retry: ")
            while len(made.site.streams):
                made.site.ring.put([b"x" * BOUND], wall_clock_ms())
                await made.turn()
        writer.close()


async def test_all_streams_end_before_the_server_does() -> None:
    async with (
        serving() as made,
        made.client(limits=httpx.Limits(max_connections=None)) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(20):
            group.create_task(_read_to_the_end(client))
        async with asyncio.timeout(patient(SECONDS)):
            while len(made.site.streams) < 20:
                await made.turn()
        # the group waits for the readers, whose patience ends in an error
        made.site.streams.close()


async def _read_to_the_end(client: httpx.AsyncClient) -> None:
    async with client.stream("GET", "/live/now") as stream:
        async for _ in stream.aiter_bytes():
            pass


async def test_a_look_back_at_a_long_call_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    folding, goes_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    waited: list[bool] = []

    def slowly(*_: Any) -> Any:
        loop.call_soon_threadsafe(folding.set)
        waited.append(goes_on.wait(patient(SECONDS)))
        return None

    async with serving() as made:
        monkeypatch.setattr(made.calls, "call", slowly)
        async with made.client() as client:
            looks = asyncio.create_task(client.get(f"/parts/calls/{CALL}?at_ms=1"))
            await asyncio.wait_for(folding.wait(), patient(SECONDS))
            assert (await client.get("/")).status_code == 200
            goes_on.set()
            await looks
    assert waited == [True], "another page was answered while the call was read"


async def test_a_record_with_line_breaks_is_one_event_of_the_stream() -> None:
    ring = site._Ring()
    ring.put([b"0", b'{"a":\n\r\nevent: gap\n1}'], 0)
    events = ring.events(f"{ring.name}.1")
    assert (await anext(events)).split(b"\ndata: ")[1] == b'{"a":  event: gap 1}\n\n'


OF_ANOTHER_SITE = [
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
    {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    {"sec-fetch-site": "cross-site"},
]
OF_A_PERSON = [
    {},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
]


async def test_a_page_of_another_site_has_nothing_made_and_a_link_leads_here() -> None:
    async with serving(past=NoPast("p")) as made:
        paths = [f"/{place}" for place in (*PLACES, f"report/{CALL}")] + [
            f"{api.PREFIX}/{each}" for each in API
        ]
        for headers in OF_ANOTHER_SITE:
            for path in paths:
                answer = await made.get(path, headers=headers)
                assert answer.status_code == 403, (path, headers)
                assert answer.headers["content-security-policy"]
            assert (await made.get("/static/page.css", headers=headers)).status_code == 200
        for headers in OF_A_PERSON:
            assert (await made.get(f"/calls/{CALL}", headers=headers)).status_code == 200
        async with made.client() as client:
            link = OF_A_PERSON[1]
            assert (
                await client.post("/login", headers=link, data={"token": TOKEN})
            ).status_code == 403
        assert 'reason="other_site"' in generate_latest(made.registry).decode()


async def test_wrong_tokens_take_a_while_and_have_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def slept(seconds: float) -> None:
        if seconds == site.LOGIN_PAUSE_SECONDS:
            pauses.append(seconds)
        await sleep(0)

    async with serving(token=TOKEN) as made, made.client() as client:
        monkeypatch.setattr("consumers.console.access.asyncio.sleep", slept)
        wrong = {"authorization": "Bearer no-token-of-ours"}
        with capture_logs() as logs:
            for path in ("/", f"{api.PREFIX}/calls", f"/live/calls/{CALL}", f"{api.PREFIX}/stream"):
                assert (await client.get(path, headers=wrong)).status_code == 401
            assert (await client.post("/login", data={"token": "no"})).status_code == 401
            assert len(pauses) == 5
            assert (await client.get("/")).status_code == 401
            assert (await client.get("/", headers={"cookie": "callgauge=1.old"})).status_code == 401
            assert len(pauses) == 5, "who has no token yet, or an old cookie, guesses nothing"
        told = [each for each in logs if each["event"] == "wrong_token"]
        assert [(each["address"], each["times"]) for each in told] == [("127.0.0.1", 1)]
        assert "no-token-of-ours" not in str(logs)
        assert (
            await client.get("/", headers={"authorization": f"Bearer {TOKEN}"})
        ).status_code == 200
        assert 'reason="token"} 5.0' in generate_latest(made.registry).decode()


async def test_a_flood_of_wrong_tokens_keeps_few_connections_and_lets_the_right_one_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(site, "LOGIN_PAUSE_SECONDS", patient(SECONDS))
    monkeypatch.setattr(access, "MAX_PAUSING", 2)
    async with serving(token=TOKEN) as made, made.client() as client:
        wrong = {"authorization": "Bearer no-token-of-ours"}
        waiting = [asyncio.create_task(client.get("/", headers=wrong)) for _ in range(2)]
        async with asyncio.timeout(patient(SECONDS)):
            while made.site._wrong._pausing < 2:
                await made.turn()
        for path in ("/", f"{api.PREFIX}/calls"):
            refused = await client.get(path, headers=wrong)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        assert (
            await client.get("/", headers={"authorization": f"Bearer {TOKEN}"})
        ).status_code == 200
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


class HeldPast(NoPast):
    """A history whose answers to some questions wait until they may come."""

    def __init__(self, conversation_id: str, held: str) -> None:
        super().__init__(conversation_id)
        self.goes_on = threading.Event()
        self.asked = 0
        self._held = held

    def _wait(self, question: str) -> None:
        if question == self._held:
            self.asked += 1
            assert self.goes_on.wait(patient(SECONDS))

    def find(self, asked: PastQuery) -> PastFound:
        self._wait("find")
        return super().find(asked)

    def annotations_of(self, conversation_id: str) -> Sequence[Annotation] | None:
        if conversation_id.startswith("none"):
            self._wait("unknown")
        return super().annotations_of(conversation_id)


async def test_searches_wait_in_a_room_of_their_own_and_equal_ones_are_made_once() -> None:
    past = HeldPast("p", "find")
    async with (
        serving(past=past) as made,
        made.client(limits=httpx.Limits(max_connections=None)) as client,
    ):
        bounds, _ = site.WORKSHOPS["history"]
        most = bounds.threads + bounds.waiting
        different = [
            asyncio.create_task(client.get("/past", params={"text": str(n)})) for n in range(most)
        ]
        equal = [asyncio.create_task(client.get("/past", params={"text": "0"})) for _ in range(20)]
        async with asyncio.timeout(patient(SECONDS)):
            while len(made.site._workshops["history"]._open) < most:
                await made.turn()
        refused = await client.get("/past", params={"text": "more"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert "As many searches of past calls wait" in refused.text
        for path in ("/", f"/calls/{CALL}", f"{api.PREFIX}/fleet"):
            assert (await client.get(path)).status_code == 200, "others do not wait for them"
        past.goes_on.set()
        answers = await asyncio.gather(*different, *equal)
    assert {each.status_code for each in answers} <= {200, 503}
    assert past.asked <= most + 1, "those who ask the same wait for one answer"


async def test_who_asks_again_at_once_gets_no_more_than_the_share_of_all_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(site, "ANSWERED_BYTES", 8 * site.LEAST_ANSWER_BYTES)
    async with serving() as made, made.client() as client:
        began = time.monotonic()
        for _ in range(20):
            assert (await client.get("/login")).status_code == 303
        assert time.monotonic() - began >= (20 - 1 - 2 * 8) / 8, "16 at once, and 8 a second"
        async with following(made, "/live/now") as events:
            await events.until('"parts"')
    waited = made.registry.get_sample_value(
        "callgauge_console_waited_seconds_total", {"kind": "answers"}
    )
    assert waited is not None


async def test_unknown_ids_delay_no_call_that_runs() -> None:
    past = HeldPast("p", "unknown")
    async with (
        serving(past=past) as made,
        made.client(limits=httpx.Limits(max_connections=None)) as client,
    ):
        bounds, _ = site.WORKSHOPS["unknown"]
        most = bounds.threads + bounds.waiting
        unknown = [
            asyncio.create_task(client.get(f"/calls/none-{number}")) for number in range(most + 10)
        ]
        async with asyncio.timeout(patient(SECONDS)):
            while not any(each.done() for each in unknown):
                await made.turn()
        assert (await client.get(f"/calls/{CALL}")).status_code == 200
        past.goes_on.set()
        statuses = [each.status_code for each in await asyncio.gather(*unknown)]
        assert set(statuses) == {404, 503}


async def test_an_id_that_is_nowhere_is_not_looked_for_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    past = NoPast("p")
    asked: list[str] = []

    def call(name: str, _at_ms: int | None = None) -> StoredCall | None:
        asked.append(name)
        return None

    monkeypatch.setattr(past, "call", call)
    monkeypatch.setattr(site, "MAX_NOWHERE", 3)
    async with serving(past=past) as made:
        for _ in range(5):
            assert (await made.get("/calls/none")).status_code == 404
        assert asked == ["none"]
        for number in range(10):
            await made.get(f"/calls/none-{number}")
        assert len(made.site._nowhere) == 3
        made.calls.add(*simulated(name="none"))
        assert (await made.get("/calls/none")).status_code == 200, "it has a row now"


async def test_one_call_is_drawn_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    boxes = pages.call_boxes

    def counted(*given: Any) -> Any:
        drawn.append("parts")
        return boxes(*given)

    monkeypatch.setattr(pages, "call_boxes", counted)
    async with serving() as made, made.client(limits=httpx.Limits(max_connections=None)) as client:
        answers = await asyncio.gather(
            *(
                client.get(path)
                for _ in range(20)
                for path in (f"/calls/{CALL}", f"/parts/calls/{CALL}")
            )
        )
        assert {each.status_code for each in answers} == {200}
        assert len(drawn) <= 2
        before = len(drawn)
        made.calls.note(made.rows[:1])
        await client.get(f"/calls/{CALL}")
        assert len(drawn) == before + 1, "it has a new row"


async def test_too_many_drawings_of_one_call_are_refused_and_another_call_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on = threading.Event()

    async with serving() as made, made.client(limits=httpx.Limits(max_connections=None)) as client:
        made.calls.add(*simulated(name="other"))
        read = made.calls.call

        def slowly(name: str, at_ms: int | None = None) -> StoredCall | None:
            assert name != NAME or goes_on.wait(patient(SECONDS))
            return read(name, at_ms)

        monkeypatch.setattr(made.calls, "call", slowly)
        readers = [
            asyncio.create_task(client.get(f"/report/{CALL}?at_ms={number}"))
            for number in range(30)
        ]
        async with asyncio.timeout(patient(SECONDS)):
            while not any(each.done() for each in readers):
                await made.turn()
        assert (await client.get("/calls/other")).status_code == 200
        goes_on.set()
        statuses = [each.status_code for each in await asyncio.gather(*readers)]
        assert statuses.count(200) == workshop.MAX_OF_ONE
        assert statuses.count(503) == 30 - workshop.MAX_OF_ONE
        assert 'reason="drawings"} 24.0' in generate_latest(made.registry).decode()
