"""The routes of the console: pages, their streams, and the API."""

import asyncio
import contextlib
import hashlib
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qs

import msgspec
import structlog
from pydantic import BaseModel, ValidationError
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from consumers.console import api, pages
from consumers.console.access import (
    COOKIE,
    MAX_FORM_BYTES,
    Access,
    WrongTokens,
    came_by_https,
    is_of_another_site,
)
from consumers.console.channels import Boxes, Channel, encoded, whole_message
from consumers.console.fleet import Fleet
from consumers.console.page.rendering import STYLE, render
from consumers.console.page.whole import page_of
from consumers.console.past import (
    LotsQuery,
    PastFound,
    PastQuery,
    Usual,
    Versions,
    bad_times_page,
    comparison_page,
    past_page,
    versions_page,
)
from consumers.console.reading import ReadCalls
from consumers.console.settings import ConsoleSettings
from consumers.console.streams import Streams, events_of, version_in
from consumers.console.workshop import Bounds, BusyError, Pace, Workshop
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import challenge, is_from_our_page
from consumers.runtime.process import OperatorError, wall_clock_ms
from consumers.runtime.registry import Instruments
from consumers.store.rows import StoredCall
from consumers.view.calls import ReportedCall
from consumers.view.words import counted
from schemas.annotations import MAX_ANNOTATION_BYTES, Annotation
from schemas.rows import CallRow, Labels
from schemas.scores.running import RunningCalls, WantedCalls

MAX_PAGES: Final = 400
"""Pages and readers of the stream that are open at the same time; further ones are asked to wait.
Each costs memory, and with more of them the newest state comes late to all.
"""
RETRY_SECONDS: Final = 5
"""Pause after which a refused reader should try again."""
LOGIN_PAUSE_SECONDS: Final = 0.5
"""How long the answer to a wrong token takes."""
STEP_SECONDS: Final = 0.005
"""How long looking through the running calls goes on before everything else has its turn."""
MAX_CHOICES: Final = 64
"""Different choices of running calls that open pages show: each is drawn anew again and again, once
for all that show the same.
"""
WORKSHOPS: Final[Mapping[str, tuple[Bounds, str]]] = {
    # One page of 900 turns takes a second and has 1 MB; the second thread is for other calls.
    "drawings": (
        Bounds(threads=2, waiting=30, kept_bytes=64 * 2**20, share=0.3, at_once_seconds=4),
        "As many pages of calls are being drawn as the console does at a time.",
    ),
    # Some 10 ms each, with 10,000 calls 30 ms.
    "lists": (
        Bounds(threads=1, waiting=2 * MAX_CHOICES, kept_bytes=16 * 2**20),
        "As many lists of calls are being made as the console does at a time.",
    ),
    # Half a second each with 200,000 calls, and never longer than history allows.
    "history": (
        Bounds(threads=2, waiting=10, kept_bytes=2 * 2**20, share=0.25, at_once_seconds=3),
        "As many searches of past calls wait as the console allows.",
    ),
    # What people say of a call that was read: a millisecond or two each.
    "known": (
        Bounds(threads=1, waiting=60),
        "As many calls are being looked up in history as the console does at a time.",
    ),
    # Any other call, which history may not have: apart, so that unknown ids delay no call that runs.
    "unknown": (
        Bounds(threads=1, waiting=20),
        "As many calls are being looked for in history as the console does at a time.",
    ),
}
"""What is made in threads, by the reason that is counted where there is no room: pages and answers
about one call, lists of running calls, searches, and two ways to ask history about a call. Each
with its bounds, and the text of an answer where it has no room.
"""
ANSWERED_BYTES: Final = 32 * 2**20
"""Bytes a second of all answers together that are no streams, and twice that at once: to copy 1 MB
into a socket takes the loop a millisecond or two, and who reads the same page again and again gets
it from memory.
"""
LEAST_ANSWER_BYTES: Final = 2**16
"""A small answer counts as so many: a request takes the loop half a millisecond or more, whatever
it asks for.
"""
SEARCH_KEPT_MS: Final = 3_000
"""How long the answer to a search is given to who asks the same."""
NOWHERE_SECONDS: Final = 5.0
"""How long an id that neither the rows that were read nor history have is not looked for again;
once it has a row, it is known.
"""
MAX_NOWHERE: Final = 10_000
"""Such ids that are remembered; the oldest make room."""
NOW_SHARE: Final = 0.1
"""Share of a processor that telling the state of all calls may take, however often it is asked for;
it is that much older then.
"""
RENDER_SECONDS: Final = 0.2
"""Least time from one state of a call's page to the next."""
RENDER_SHARE: Final = 0.3
"""Share of a processor that drawing the pages of calls may take; with many watched calls each is
drawn less often.
"""
LOOK_SECONDS: Final = 1.0
"""How often it is asked whether people say something else of a call with an open page; new rows of
it are drawn at once.
"""
RING_MS: Final = 120_000
"""How long rows wait for a reader of the API's stream who comes again."""
MOST_IN_NAME: Final = 40
"""Characters of an agent or tenant in the name of a file."""
MOST_LEFT_OUT: Final = 10
"""Ids that are named of calls that were marked and not compared."""
MAX_RING: Final = 50_000
"""Most of them: two minutes of 400 rows a second."""
MAX_SAID: Final = 1_000
"""Labels and notes of this process that are kept until history has them; the oldest make room."""
MAX_LOGGED: Final = 1_000
"""People and calls of which it is remembered that the log says so; the oldest make room."""
MAX_BURST: Final = 500
"""Rows of one write to a reader of the API's stream."""

_STATIC: Final = Path(__file__).parent / "page" / "static"
_ASSETS: Final[Mapping[str, tuple[str, bytes]]] = {
    "page.css": ("text/css", STYLE.encode()),
    "console.css": ("text/css", (_STATIC / "console.css").read_bytes()),
    "past.css": ("text/css", (_STATIC / "past.css").read_bytes()),
    "console.js": ("text/javascript", (_STATIC / "console.js").read_bytes()),
    "idiomorph.min.js": ("text/javascript", (_STATIC / "idiomorph.min.js").read_bytes()),
}
_STAMP: Final = hashlib.sha256(b"".join(content for _, content in _ASSETS.values())).hexdigest()[
    :12
]
SECURITY: Final = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types callgauge",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)


def security_headers(recording_origins: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """The headers of every answer. A page loads nothing from elsewhere but sound, from these
    origins alone.
    """
    (name, policy), *others = SECURITY
    sound = f"; media-src {' '.join(recording_origins)}" if recording_origins else ""
    return [(each.encode(), value.encode()) for each, value in ((name, policy + sound), *others)]


Query = TypeVar("Query", bound=BaseModel)
_Made = TypeVar("_Made")
_Key = TypeVar("_Key")
log = structlog.get_logger()


class CallHistory(Protocol):
    """A history of calls, for pages of calls that are over. Its methods may block."""

    def find(self, asked: PastQuery) -> PastFound:
        """The calls of a page.

        Raises:
            OperatorError: The question cannot be understood, or its answer takes too long.
        """

    def table(
        self, asked: PastQuery, site: pages.Site, redact: Callable[[str], str] | None
    ) -> bytes:
        """The same calls, of all pages, as CSV.

        Args:
            asked: Which.
            site: Has the address of a call's page.
            redact: Redacts words; None if the page hides them.

        Raises:
            OperatorError: As `find`.
        """

    def versions(self, asked: LotsQuery) -> Versions:
        """Two lots of calls compared.

        Raises:
            OperatorError: As `find`.
        """

    def lots_table(self, asked: LotsQuery) -> bytes:
        """Returns the list of the page of versions as CSV.

        Raises:
            OperatorError: As `find`.
        """

    def usual(self, call: CallRow) -> Usual:
        """Medians of the calls of its agent on the day before the end of a call."""

    def call(self, conversation_id: str, at_ms: int | None = None) -> StoredCall | None:
        """A call as it was known at a moment, None is now; None for one that is not known."""

    def annotations_of(self, conversation_id: str) -> Sequence[Annotation] | None:
        """What people say of it; None for a call that was deleted on request."""


class Annotate(Protocol):
    """Writes what a person says of a call, or takes back, to the topic `annotations`."""

    async def __call__(
        self,
        conversation_id: str,
        by: str,
        label: str | None,
        note: str | None,
        labels: Labels,
        /,
        *,
        withdraws: bool,
    ) -> Annotation:
        """Returns what was written, once the broker has it.

        Raises:
            OperatorError: It does not fit, a right is missing, or no broker answers.
        """


class _AnyPath(PathConvertor):
    """A rest of an address with every character: an id may have line breaks, and Starlette's own
    pattern ends there.
    """

    regex = r"[\s\S]*"


register_url_convertor("path", _AnyPath())


class _Ring:
    """The newest rows of `scores`, for readers of the API's stream."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(4)
        self.next = 1
        self._records: deque[tuple[int, bytes]] = deque(maxlen=MAX_RING)
        self._has_news = asyncio.Event()

    def put(self, values: Iterable[bytes], now_ms: int) -> None:
        for value in values:
            # a line break would end the field of the stream
            one_line = b" ".join(value.splitlines())
            self._records.append((now_ms, one_line))
            self.next += 1
        while self._records and self._records[0][0] < now_ms - RING_MS:
            self._records.popleft()
        self._has_news.set()
        self._has_news = asyncio.Event()

    async def events(self, last_event_id: str) -> AsyncIterator[bytes]:
        """The records after the one with this id; if it is too old or from another process, an
        event `gap`, then new ones.
        """
        place = self.next
        if last_event_id:
            number = version_in(last_event_id, self.name)
            if number and self._first <= number + 1 <= self.next:
                place = number + 1
            else:
                yield (
                    b'event: gap\ndata: {"detail":"records between are not kept here; read /calls '
                    b'and go on"}\n\n'
                )
        while True:
            if place < self._first:
                yield (
                    b'event: gap\ndata: {"detail":"this reader was too slow; records between are '
                    b'left out"}\n\n'
                )
                place = self._first
            if place < self.next:
                until = min(self.next, place + MAX_BURST)
                lines = [
                    f"id: {self.name}.{at}\ndata: ".encode()
                    + self._records[at - self._first][1]
                    + b"\n\n"
                    for at in range(place, until)
                ]
                place = until
                yield b"".join(lines)
                continue
            try:
                async with asyncio.timeout(RETRY_SECONDS):
                    await self._has_news.wait()
            except TimeoutError:
                yield b": still here\n\n"

    @property
    def _first(self) -> int:
        return self.next - len(self._records)


class _Drawn(NamedTuple):
    """A page as it was drawn: of a choice of running calls, or of one call.

    Attributes:
        edition: Of what was drawn, or an earlier one.
        boxes: The parts of the page as markup.
        parts: The same, encoded.
        took_seconds: Processor time of drawing it.
        span_ms: Broker times of the first record of a call and of the newest one of which its row
            tells.
    """

    edition: Hashable
    boxes: Mapping[str, Mapping[str, str]]
    parts: Boxes
    took_seconds: float
    span_ms: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class _Found:
    """A call that somebody asks for.

    Attributes:
        conversation_id: Its id.
        read: Gives the call as it was known at a moment, from the rows that were read or from
            history. It may block.
        annotations: What people say of it.
        calls: The rows that were read.
    """

    conversation_id: str
    read: Callable[[str, int | None], StoredCall | None]
    annotations: Sequence[Annotation]
    calls: ReadCalls

    @property
    def edition(self) -> Hashable:
        """Names a state of it: what is made of the same edition is the same."""
        said = tuple((each.by, each.label, each.at_ms) for each in self.annotations)
        return self.calls.edition(self.conversation_id), said

    def stored(self, at_ms: int | None) -> StoredCall:
        """Its rows as they were known at a moment, None is now; a call without a turn where its
        first row came later. It may block.
        """
        nothing = CallRow(
            conversation_id=self.conversation_id, first_known_ms=at_ms or 0, known_ms=at_ms or 0
        )
        return self.read(self.conversation_id, at_ms) or StoredCall(nothing, (), None, ())


@dataclass(slots=True)
class _Opened:
    """A page that is open, once for all who read it.

    Attributes:
        channel: Its newest state.
        readers: How many read it.
        call: The call that it shows; None for running calls.
        drawing: Draws that again and again.
        took_seconds: Processor time of drawing it last.
    """

    channel: Channel
    readers: int = 0
    call: _Found | None = None
    drawing: asyncio.Task[None] | None = None
    took_seconds: float = 0.0


class ConsoleSite:
    """Answers requests from the state of the role.

    Attributes:
        streams: The streams that are open.
        alerts: The alerts that fire or are about to, for the page of running calls.
        ring: The newest rows of `scores`, for readers of the stream of the API.
    """

    def __init__(
        self,
        settings: ConsoleSettings,
        fleet: Fleet,
        calls: ReadCalls,
        annotate: Annotate | None,
        past: CallHistory | None,
        redactor: Redactor,
        instruments: Instruments,
        version: str,
    ) -> None:
        self.streams = Streams(MAX_PAGES)
        self.alerts = pages.Alerts()
        self._settings = settings
        self._fleet = fleet
        self._calls = calls
        self._annotate = annotate
        self._past = past
        self._redactor = redactor
        self._instruments = instruments
        self._version = version
        self._access = Access(settings)
        self._wrong = WrongTokens(lambda: LOGIN_PAUSE_SECONDS)
        self.ring = _Ring()
        self._now: RunningCalls = fleet.now(wall_clock_ms())
        self._now_until = 0.0
        self._states = 0
        """How often `_now` was made anew."""
        self._looking: asyncio.Task[float] | None = None
        self._names: tuple[object, Mapping[str, Mapping[str, str]]] = (None, {})
        self._workshops = {
            name: Workshop(name, bounds, self._waited_for(name))
            for name, (bounds, _) in WORKSHOPS.items()
        }
        self._nowhere: OrderedDict[str, float] = OrderedDict()
        """Ids that were found nowhere, and until when they are not looked for."""
        self._lists: dict[WantedCalls, _Opened] = {}
        self._drawn: dict[str, _Opened] = {}
        self._boot = secrets.token_hex(4)
        self._one_writes = asyncio.Lock()
        self._said: OrderedDict[tuple[str, str, str | None], Annotation] = OrderedDict()
        self._logged: OrderedDict[tuple[str, str], float] = OrderedDict()
        instruments.read_gauge(
            "callgauge_console_pages_open", lambda: {(): float(len(self.streams))}
        )

    def routes(self) -> list[BaseRoute]:
        """All routes, behind what every answer has."""
        routes: list[BaseRoute] = [
            Route("/", self._page(self._now_page)),
            Route("/calls", _to_now),
            Route("/calls/{id:path}", self._page(self._call_page)),
            Route("/calls/{id:path}", self._page(self._say), methods=["POST"]),
            Route("/report/{id:path}", self._page(self._report)),
            Route("/past", self._page(self._past_page)),
            Route("/past.csv", self._page(self._past_table)),
            Route("/versions", self._page(self._versions)),
            Route("/versions.csv", self._page(self._lots_table)),
            Route("/bad-times", self._page(self._bad_times)),
            Route("/compare", self._page(self._comparison)),
            Route("/runbooks/{name}", self._page(self._runbook)),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/static/{name}", self._static),
            Route("/live/now", _Asgi(self._require_user, self._live_now)),
            Route("/live/calls/{id:path}", _Asgi(self._require_user, self._live_call)),
            Route("/parts/calls/{id:path}", self._page(self._call_parts)),
            Route(f"{api.PREFIX}/openapi.json", self._api(self._api_description)),
            Route(f"{api.PREFIX}/calls", self._api(self._api_calls)),
            Route(f"{api.PREFIX}/calls/{{id:path}}", self._api(self._api_call)),
            Route(f"{api.PREFIX}/fleet", self._api(self._api_fleet)),
            Route(f"{api.PREFIX}/stream", _Asgi(self._require_user, self._live_records)),
        ]
        return [
            Mount(
                "/",
                app=_Secured(
                    Router(routes, redirect_slashes=False),
                    self._instruments,
                    self._waited_for("answers"),
                    self._settings.recording_origins,
                ),
            )
        ]

    async def close(self, seconds: float) -> None:
        """Ends what is being made, and waits for that no longer than this."""
        await asyncio.gather(*(each.close(seconds) for each in self._workshops.values()))

    async def tick(self) -> float:
        """Brings the pages of running calls up to date, and answers requests between them; returns
        the processor time that it took.
        """
        self._now_until = 0.0
        took_seconds = await self._look_again()
        for wanted, opened in list(self._lists.items()):
            # too much is being drawn: it shows the next state
            with contextlib.suppress(_UnansweredError):
                took_seconds += await self._update(opened.channel, wanted)
        return took_seconds

    async def _update(self, channel: Channel, wanted: WantedCalls) -> float:
        """Gives a choice of running calls its newest state; returns the processor time that drawing
        it took.
        """
        drawn = await self._list_of(wanted)
        channel.update(drawn.parts)
        return drawn.took_seconds

    async def _list_of(self, wanted: WantedCalls) -> _Drawn:
        """The running calls that are asked for, drawn once for all who ask for the same."""

        def draw() -> _Drawn:
            began = time.thread_time()
            state, now = (self._states, self.alerts), self._now
            if self._names[0] != state:  # one thread draws lists
                self._names = state, pages.names_boxes(now)
            boxes = pages.now_boxes(
                self._site("./"), now, wanted, self._fleet, self.alerts, self._names[1]
            )
            return _Drawn(state[0], boxes, encoded(boxes), time.thread_time() - began)

        return await self._made("lists", wanted, "boxes", draw, lambda: (self._states, self.alerts))

    @property
    def has_readers(self) -> bool:
        """Whether anybody looks at running calls."""
        return bool(self._lists)

    async def _present(self) -> RunningCalls:
        """The running calls as they are now, or were a moment ago where there are many."""
        if time.perf_counter() >= self._now_until:
            await self._look_again()
        return self._now

    async def _look_again(self) -> float:
        """Looks at the running calls, once for all who wait for it; returns the processor time that
        it took.
        """
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> float:
        took_seconds, steps = 0.0, self._fleet.looking(wall_clock_ms())
        try:
            while True:
                began, ends_at = time.thread_time(), time.perf_counter() + STEP_SECONDS
                try:
                    next(steps)
                    while time.perf_counter() < ends_at:
                        next(steps)
                except StopIteration as done:
                    self._now, self._states = done.value, self._states + 1
                    return took_seconds + time.thread_time() - began
                took_seconds += time.thread_time() - began
                await asyncio.sleep(0)
        finally:
            self._now_until = time.perf_counter() + took_seconds / NOW_SHARE
            self._looking = None

    async def _made(
        self,
        workshop: str,
        subject: Hashable,
        what: Hashable,
        work: Callable[[], _Made],
        version: Callable[[], Hashable] = object,
    ) -> _Made:
        """Returns the result of a workshop; without a version it is made anew for everybody who
        asks after it has begun.

        Raises:
            _UnansweredError: Too much of it waits already.
        """
        try:
            return await self._workshops[workshop].make(subject, what, version, work)
        except BusyError:
            raise self._busy(workshop, WORKSHOPS[workshop][1]) from None

    def _waited_for(self, share: str) -> Callable[[float], None]:
        return lambda seconds: self._instruments.inc(
            "callgauge_console_waited_seconds_total", (share,), seconds
        )

    def _busy(self, reason: str, detail: str) -> "_UnansweredError":
        self._instruments.inc("callgauge_console_refused_total", (reason,))
        return _UnansweredError(HTTPStatus.SERVICE_UNAVAILABLE, detail)

    def _site(self, root: str) -> pages.Site:
        return pages.Site(
            root, self._version, _STAMP, self._past is not None, self._access.has_form
        )

    # Pages.

    def _page(
        self, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A page for people who may read; others get the form, or a sentence."""

        async def answered(request: Request) -> Response:
            try:
                if self._access.user_of(request) is None:
                    await self._note_wrong(request)
                    return self._refusal(request)
                return await answer(request)
            except _UnansweredError as problem:
                return self._problem_page(request, problem)

        return answered

    async def _note_wrong(self, request: Request, *, by_form: bool = False) -> None:
        """Lets a wrong token wait; a request without any is answered at once.

        Raises:
            _UnansweredError: Too many wrong tokens wait already.
        """
        if not by_form and not self._access.is_wrong(request):
            return
        self._instruments.inc("callgauge_console_refused_total", ("token",))
        if not await self._wrong.pause(_address(request)):
            raise _UnansweredError(
                HTTPStatus.TOO_MANY_REQUESTS, "Too many wrong tokens come at the same time."
            )

    def _root(self, request: Request) -> str:
        return "../" * max(0, request.scope["raw_path"].count(b"/") - 1) or "./"

    def _refusal(self, request: Request) -> Response:
        if not self._access.has_form:
            problem = _UnansweredError(
                HTTPStatus.FORBIDDEN,
                "Nobody vouches for you: the proxy names no user.",
            )
            return self._problem_page(request, problem)
        return self._login_page(self._root(request), _local(request), "", HTTPStatus.UNAUTHORIZED)

    def _login_page(self, root: str, to: str, remark: str, status: int) -> Response:
        content = render("login.html", remark=remark, to=to, root=root)
        return _html(
            pages.page(self._site(root)._replace(has_login=False), "Log in", content), status
        )

    def _problem_page(self, request: Request, problem: "_UnansweredError") -> Response:
        title = HTTPStatus(problem.status_code).phrase
        content = render("problem.html", title=title, detail=problem.detail)
        answer = _html(
            pages.page(self._site(self._root(request)), title, content), problem.status_code
        )
        answer.headers.update(problem.headers or {})
        return answer

    async def _login(self, request: Request) -> Response:
        if request.method != "POST" or not self._access.has_form:
            return RedirectResponse("./", status_code=303)
        fields = await _form(request, MAX_FORM_BYTES)
        to = fields.get("to", "")
        if not to.startswith("./"):
            to = "./"
        answer = self._access.let_in(fields.get("token", ""), to, is_https=came_by_https(request))
        if answer is not None:
            log.info("logged_in", role="console", address=_address(request))
            return answer
        await self._note_wrong(request, by_form=True)
        return self._login_page("./", to, "This is not the token.", HTTPStatus.UNAUTHORIZED)

    async def _logout(self, request: Request) -> Response:
        _require_our_page(request, "Nobody was logged out")
        answer = RedirectResponse("./", status_code=303)
        answer.delete_cookie(COOKIE)
        return answer

    async def _static(self, request: Request) -> Response:
        kind, content = _ASSETS.get(request.path_params["name"], ("", b""))
        if not kind:
            raise HTTPException(404, "There is no such file.")
        return Response(
            content,
            media_type=kind,
            headers={"cache-control": "public, max-age=31536000, immutable"},
        )

    async def _now_page(self, request: Request) -> Response:
        fields = dict(request.query_params)
        is_wall = fields.pop("wall", "") not in {"", "0"}
        wanted = _query(request, api.CallsQuery, fields).wanted()
        await self._present()
        drawn, site = await self._list_of(wanted), self._site("./")
        return _html(
            await self._made(
                "lists",
                wanted,
                ("page", is_wall, drawn.edition),
                lambda: pages.now_page(site, drawn.boxes, wanted, wall=is_wall).encode(),
                lambda: drawn.edition,
            )
        )

    async def _call_page(self, request: Request) -> Response:
        call = await self._found(request, _id(request))
        drawn = await self._drawn_of(call, None)
        site, author = self._site(self._root(request)), self._author_of(request)
        return _html(
            await self._made(
                "drawings",
                call.conversation_id,
                ("page", site.root, author, drawn.edition),
                lambda: pages.call_page(
                    site, call.conversation_id, drawn.boxes, span_ms=drawn.span_ms, author=author
                ).encode(),
                lambda: drawn.edition,
            )
        )

    async def _drawn_of(self, call: _Found, at_ms: int | None) -> _Drawn:
        """A call as it was known at a moment; None is now. It is drawn once for all who ask for the
        same.
        """

        def draw() -> _Drawn:
            began, edition = time.thread_time(), call.edition
            shown, remark = self._shown(call, at_ms)
            boxes = pages.call_boxes(shown, remark)
            # looking back changes what was known, and stops no sound
            if at_ms is None:
                origins = self._settings.recording_origins if self._settings.words else None
                boxes["sound"] = pages.recording_of(shown, origins)
            span = shown.row.first_known_ms, shown.row.known_ms
            return _Drawn(edition, boxes, encoded(boxes), time.thread_time() - began, span)

        return await self._made(
            "drawings", call.conversation_id, ("parts", at_ms), draw, lambda: call.edition
        )

    def _author_of(self, request: Request, given: str = "") -> str | None:
        """Returns who writes a label or note, or None if nobody may. Where the console hides words,
        it hides notes too.
        """
        return (
            self._access.author_of(request, given)
            if self._annotate is not None and self._settings.words
            else None
        )

    async def _say(self, request: Request) -> Response:
        """Writes what a person says of a call, and leads back to its page."""
        conversation_id = _id(request)
        _require_our_page(request, "Nothing was written")
        fields = await _form(request, MAX_ANNOTATION_BYTES)
        by = self._author_of(request, fields.get("by", ""))
        if by is None or self._annotate is None:
            raise _UnansweredError(
                HTTPStatus.FORBIDDEN,
                "Nothing was written: strangers may read here, or console.words is false.",
            )
        call = await self._found(request, _id(request))
        row = await self._made(
            "drawings", conversation_id, "row", lambda: call.stored(None).call, lambda: call.edition
        )
        label, note = (
            fields.get("label", "").strip() or None,
            fields.get("note", "").replace("\r\n", "\n").strip(),
        )
        try:
            async with self._one_writes:
                said = await self._annotate(
                    conversation_id,
                    by,
                    label,
                    note or None,
                    row.labels,
                    withdraws="take_back" in fields,
                )
        except OperatorError as error:
            if error.is_away:
                raise _UnansweredError(
                    HTTPStatus.SERVICE_UNAVAILABLE, f"Nothing was written: {error}"
                ) from error
            raise _UnansweredError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        _remember(self._said, (conversation_id, said.by, said.label), said, MAX_SAID)
        log.info(
            "call_annotated",
            role="console",
            user=self._access.user_of(request),
            by=said.by,
            label=said.label,
            is_withdrawn=said.is_withdrawn,
            conversation_id=conversation_id,
        )
        place = request.scope["raw_path"].rpartition(b"/")[2].decode("ascii", "replace")
        return RedirectResponse(f"./{place}#call-top", status_code=303)

    async def _call_parts(self, request: Request) -> Response:
        query = _query(request, api.MomentQuery)
        call = await self._found(request, _id(request))
        drawn = await self._drawn_of(call, query.at_ms)
        return _json(
            await self._made(
                "drawings",
                call.conversation_id,
                ("answer", query.at_ms, drawn.edition),
                lambda: whole_message(drawn.parts).encode(),
                lambda: drawn.edition,
            )
        )

    def _shown(
        self, call: _Found, at_ms: int | None, anchor_id: str = pages.ANCHOR
    ) -> tuple[ReportedCall, str]:
        """The call as it was known at a moment, and what a reader should know of that; it may
        block.
        """
        stored = call.stored(at_ms)
        words, annotations = (stored.words, call.annotations) if self._settings.words else ((), ())
        shown = ReportedCall(
            stored.call,
            stored.turns,
            stored.goals,
            words,
            anchor_id,
            self._redactor,
            annotations,
            stored.own,
        )
        return shown, pages.remark_on(shown, at_ms, self._calls.since_ms)

    async def _past_page(self, request: Request) -> Response:
        past, site = self._require_past(), self._site("./")
        asked, remark = self._past_query(request)
        redact = self._redactor.redact
        return await self._page_of_history(
            (asked, remark),
            lambda: past_page(site, asked, past.find(asked), remark, redact),
            lambda error: past_page(site, asked, PastFound(), error),
        )

    def _past_query(self, request: Request) -> tuple[PastQuery, str]:
        """Which past calls are asked for, and what a reader should know of that; the log says who
        asked.
        """
        asked, remark = _query(request, PastQuery), ""
        # a search would tell what was said
        if (asked.text or asked.said) and not self._settings.words:
            asked = asked.model_copy(update={"text": "", "said": ""})
            remark = "Words are hidden: console.words is false. They are not searched."
        sought = {
            name: self._redactor.redact(value)
            for name, value in asked.model_dump(exclude_defaults=True, exclude={"page"}).items()
        }
        log.info("calls_searched", role="console", user=self._access.user_of(request), **sought)
        return asked, remark

    async def _past_table(self, request: Request) -> Response:
        """The calls of the page of past calls, as CSV."""
        past, site = self._require_past(), self._site(str(request.base_url))
        asked, _ = self._past_query(request)
        redact = self._redactor.redact if self._settings.words else None
        table = self._made_of_history(
            ("table", asked, site), lambda: past.table(asked, site, redact)
        )
        return _csv(await table, "calls", asked.day, asked.agent, asked.version, asked.tenant)

    async def _lots_table(self, request: Request) -> Response:
        """Returns the list of the page of versions as CSV."""
        past, asked = self._require_past(), _query(request, LotsQuery)
        table = self._made_of_history(("lots", asked), lambda: past.lots_table(asked))
        return _csv(await table, asked.by or "versions", asked.agent, asked.since, asked.until)

    async def _versions(self, request: Request) -> Response:
        """Two versions of an agent compared, or any two lots of calls."""
        past, asked, site = self._require_past(), _query(request, LotsQuery), self._site("./")
        return await self._page_of_history(
            asked,
            lambda: versions_page(site, asked, past.versions(asked), ""),
            lambda error: versions_page(site, asked, Versions(None), error),
        )

    async def _bad_times(self, request: Request) -> Response:
        """When versions of agents were bad."""
        _query(request, api.NoQuery)
        await self._present()
        times, now_ms = self._fleet.bad_times.newest_first, self._fleet.agents.at_ms
        site = self._site("./")
        return _html(
            await self._made(
                "lists",
                "bad times",
                "page",
                lambda: bad_times_page(site, times, now_ms).encode(),
                lambda: self._states,
            )
        )

    async def _page_of_history(
        self, what: Hashable, page: Callable[[], str], without: Callable[[str], str]
    ) -> Response:
        """A page that is made of history, or without it where that says why it has no answer."""
        try:
            made = await self._made(
                "history", what, "page", lambda: page().encode(), _version_of_search
            )
        except OperatorError as error:
            made = without(str(error)).encode()
        return _html(made)

    async def _made_of_history(self, what: Hashable, work: Callable[[], _Made]) -> _Made:
        """What is made of history; who asks the same gets the same for a while.

        Raises:
            _UnansweredError: It cannot be made.
        """
        try:
            return await self._made("history", what, "answer", work, _version_of_search)
        except OperatorError as error:
            raise _UnansweredError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error

    async def _report(self, request: Request) -> Response:
        """The page of a call as one file to keep, which needs no console."""
        query = _query(request, api.MomentQuery)
        call = await self._found(request, _id(request))

        def file() -> bytes:
            shown, remark = self._shown(call, query.at_ms)
            return page_of([shown], [remark], self._version).encode()

        answer = _html(
            await self._made(
                "drawings",
                call.conversation_id,
                ("report", query.at_ms),
                file,
                lambda: call.edition,
            )
        )
        answer.headers["content-disposition"] = "attachment; filename=call.html"
        return answer

    async def _comparison(self, request: Request) -> Response:
        """Two calls side by side, or one beside what calls of its agent are like."""
        past, site, remark = self._require_past(), self._site("./"), ""
        ids = list(dict.fromkeys(filter(None, request.query_params.getlist("id"))))
        if not ids:
            raise _UnansweredError(
                HTTPStatus.UNPROCESSABLE_ENTITY, "No call was marked: mark one, or two."
            )
        if left_out := ids[2:]:
            remark = (
                f"{counted(len(ids), 'call')} were marked, and two can be side by side. Left out: "
                + ", ".join(left_out[:MOST_LEFT_OUT])
                + (", and more." if len(left_out) > MOST_LEFT_OUT else ".")
            )
        calls = [await self._found(request, each) for each in ids[:2]]

        def compared() -> bytes:
            shown = [
                self._shown(call, None, name)[0]
                for call, name in zip(calls, "ab"[-len(calls) :], strict=True)
            ]
            usual = past.usual(shown[0].row) if len(shown) == 1 else None
            return comparison_page(site, shown, usual, remark).encode()

        return _html(await self._made_of_history(("compare", *ids), compared))

    async def _runbook(self, request: Request) -> Response:
        name = request.path_params["name"]
        if (runbook := self._fleet.runbooks.get(name)) is None:
            raise _UnansweredError(HTTPStatus.NOT_FOUND, "There is no runbook of this name.")
        content = render(
            "runbook.html",
            name=name,
            team=runbook.team,
            contact=runbook.contact,
            sections=pages.runbook_sections(runbook.text),
            others=self._fleet.runbooks,
        )
        return _html(pages.page(self._site("../"), name, content))

    def _require_past(self) -> CallHistory:
        if self._past is None:
            raise _UnansweredError(
                HTTPStatus.NOT_FOUND,
                "No history is kept: set history.folder or history.clickhouse_url.",
            )
        return self._past

    async def _found(self, request: Request, conversation_id: str) -> _Found:
        """A call, from the rows that were read, otherwise from history; the log says who opened it.

        Raises:
            _UnansweredError: There is no such call, or it was deleted.
        """
        if len(conversation_id) > api.MAX_ID_CHARS:
            raise _UnansweredError(
                HTTPStatus.REQUEST_URI_TOO_LONG, f"An id has at most {api.MAX_ID_CHARS} characters."
            )
        self._note(request, conversation_id)
        is_known = self._calls.edition(conversation_id) > 0
        unknown = _UnansweredError(
            HTTPStatus.NOT_FOUND,
            f"No call with the id {conversation_id} is known here. A call has a page from its first "
            "speech, word or tool on.",
        )
        # it was looked for everywhere a moment ago
        if not is_known and self._nowhere.get(conversation_id, 0.0) > time.monotonic():
            raise unknown
        annotations = await self._said_of(conversation_id, is_known=is_known)
        read: Callable[[str, int | None], StoredCall | None] | None = self._calls.call
        if not is_known:
            read = await self._made(
                "unknown", conversation_id, "found", lambda: self._reader_of(conversation_id)
            )
        if read is None and (whole := self._fleet.table.ending_in(conversation_id)) is not None:
            return await self._found(request, whole)
        if read is None:
            until = time.monotonic() + NOWHERE_SECONDS
            _remember(self._nowhere, conversation_id, until, MAX_NOWHERE)
            raise unknown
        found = _Found(conversation_id, read, annotations, self._calls)
        if (opened := self._drawn.get(conversation_id)) and opened.call:
            opened.call.annotations = annotations  # open pages show them
        return found

    def _reader_of(
        self, conversation_id: str
    ) -> Callable[[str, int | None], StoredCall | None] | None:
        """Looks for a call without new rows: in the store, which an earlier process may have
        filled, then in history. It may block.
        """
        readers = [self._calls.call, *([] if self._past is None else [self._past.call])]
        for read in readers:
            with contextlib.suppress(OperatorError):  # no folder yet
                if read(conversation_id, None) is not None:
                    return read
        return None

    async def _said_of(self, conversation_id: str, *, is_known: bool) -> Sequence[Annotation]:
        """Returns the labels and notes of a call: those in history, if there is one, and those that
        this console wrote.

        Raises:
            _UnansweredError: It was deleted on request.
        """
        stored: Sequence[Annotation] | None = ()
        past = self._past
        if past is not None:
            with contextlib.suppress(OperatorError):  # no folder yet
                workshop = "known" if is_known else "unknown"
                stored = await self._made(
                    workshop, conversation_id, "said", lambda: past.annotations_of(conversation_id)
                )
        if stored is None:
            raise _UnansweredError(HTTPStatus.GONE, "This call was deleted on request.")
        said = [each for (name, _, _), each in self._said.items() if name == conversation_id]
        newest = {
            (each.by, each.label): each
            for each in sorted((*stored, *said), key=attrgetter("at_ms"))
        }
        return tuple(each for each in newest.values() if not each.is_withdrawn)

    def _note(self, request: Request, conversation_id: str) -> None:
        """Logs who opened which call, once a minute each."""
        user, now = self._access.user_of(request) or "", time.monotonic()
        if now - self._logged.get(key := (user, conversation_id), -60.0) >= 60.0:
            log.info("call_opened", role="console", user=user, conversation_id=conversation_id)
            _remember(self._logged, key, now, MAX_LOGGED)

    # Streams.

    async def _live_now(self, request: Request, receive: Receive, send: Send) -> None:
        wanted = _query(request, api.CallsQuery, _without_since(request)).wanted()
        self._require_room()
        if not self._lists:  # while nobody looked it was brought up to date seldom
            await self._present()
        if wanted not in self._lists and len(self._lists) >= MAX_CHOICES:
            raise self._busy(
                "choices",
                f"Open pages show {MAX_CHOICES} different choices of calls already. Choose fewer "
                "things.",
            )
        async with self._reading(self._lists, wanted) as opened:
            if opened.channel.version == 0:
                await self._update(opened.channel, wanted)
            await self._stream(request, receive, send, opened.channel)

    async def _live_call(self, request: Request, receive: Receive, send: Send) -> None:
        _query(request, api.NoQuery, _without_since(request))
        self._require_room()
        call = await self._found(request, _id(request))
        async with self._reading(self._drawn, call.conversation_id) as opened:
            if opened.drawing is None:
                opened.call, opened.drawing = call, asyncio.create_task(self._draw(opened, call))
            await self._stream(request, receive, send, opened.channel)

    @asynccontextmanager
    async def _reading(self, pages_open: dict[_Key, _Opened], key: _Key) -> AsyncIterator[_Opened]:
        """A page that somebody reads; who is the last closes it."""
        channel = Channel(f"{self._boot}-{secrets.token_hex(3)}")
        opened = pages_open.setdefault(key, _Opened(channel))
        opened.readers += 1
        try:
            yield opened
        finally:
            opened.readers -= 1
            if not opened.readers:
                del pages_open[key]
                if opened.drawing is not None:
                    opened.drawing.cancel()

    async def _draw(self, opened: _Opened, call: _Found) -> None:
        """Draws a call whenever it has new rows, no faster than the bounds allow."""
        edition: Hashable = None
        while True:
            if call.edition == edition:
                await self._calls.await_rows(call.conversation_id, LOOK_SECONDS)
                continue
            try:
                drawn = await self._drawn_of(call, None)
                edition, opened.took_seconds = drawn.edition, drawn.took_seconds
                first_ms, last_ms = drawn.span_ms
                opened.channel.update(drawn.parts, first_ms=first_ms, last_ms=last_ms)
            except _UnansweredError:  # too much is being drawn: it is tried again
                pass
            # drawing must not end the page of a call that goes on: the next row may repair it
            except Exception:
                edition = call.edition
                log.exception(
                    "call_not_drawn", role="console", conversation_id=call.conversation_id
                )
            all_of_them_seconds = sum(each.took_seconds for each in self._drawn.values())
            await asyncio.sleep(max(RENDER_SECONDS, all_of_them_seconds / RENDER_SHARE))

    async def _live_records(self, request: Request, receive: Receive, send: Send) -> None:
        _query(request, api.NoQuery)
        self._require_room()
        await self.streams.answer(
            receive, send, self.ring.events(request.headers.get("last-event-id", ""))
        )

    async def _stream(
        self, request: Request, receive: Receive, send: Send, channel: Channel
    ) -> None:
        self._require_room()
        last = request.headers.get("last-event-id") or request.query_params.get("since", "")
        await self.streams.answer(
            receive, send, events_of(channel, version_in(last, channel.name), wall_clock_ms)
        )

    def _require_room(self) -> None:
        if self.streams.is_full:
            self._instruments.inc("callgauge_console_refused_total", ("pages",))
            raise _UnansweredError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{MAX_PAGES} pages are open, as many as this console has at a time.",
            )

    # The API.

    def _api(
        self, answer: Callable[[Request], Awaitable[bytes]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            await self._require_user(request)
            return _json(await answer(request))

        return answered

    async def _api_description(self, request: Request) -> bytes:
        _query(request, api.NoQuery)
        return msgspec.json.encode(api.openapi(self._version))

    async def _api_calls(self, request: Request) -> bytes:
        query = _query(request, api.ListQuery)
        return await self._answer_of_now(
            (query.wanted(), query.limit),
            lambda now, now_ms: api.call_answer(self._fleet, now, query, now_ms),
        )

    async def _api_fleet(self, request: Request) -> bytes:
        _query(request, api.NoQuery)
        return await self._answer_of_now(
            "fleet", lambda now, now_ms: api.fleet_answer(self._fleet, now, now_ms)
        )

    async def _answer_of_now(
        self, subject: Hashable, answer: Callable[[RunningCalls, int], msgspec.Struct]
    ) -> bytes:
        """An answer about all running calls as they are now, made once for all who ask for it."""
        now_ms, now, state = wall_clock_ms(), await self._present(), self._states
        return await self._made(
            "lists",
            subject,
            "answer",
            lambda: msgspec.json.encode(answer(now, now_ms)),
            lambda: state,
        )

    async def _api_call(self, request: Request) -> bytes:
        query = _query(request, api.MomentQuery)
        call = await self._found(request, _id(request))

        def detail() -> bytes | None:
            stored = call.read(call.conversation_id, query.at_ms)
            has_words = self._settings.words
            said = call.annotations if has_words else ()
            return None if stored is None else api.call_detail(stored, said, words=has_words)

        made = await self._made(
            "drawings",
            call.conversation_id,
            ("detail", query.at_ms),
            detail,
            lambda: call.edition,
        )
        if made is None:
            raise _UnansweredError(
                HTTPStatus.NOT_FOUND, "Nothing was known of this call at that moment."
            )
        return made

    async def _require_user(self, request: Request) -> None:
        if self._access.user_of(request) is None:
            await self._note_wrong(request)
            raise _UnansweredError(
                HTTPStatus.UNAUTHORIZED, "Send `Authorization: Bearer` with the token."
            )


_NO_STORE: Final = {"cache-control": "no-store"}


class _UnansweredError(HTTPException):
    """A request has no answer, for this reason; people get a page that says so."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        is_later = status in {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS}
        super().__init__(status, detail, {"retry-after": str(RETRY_SECONDS)} if is_later else None)


class _Asgi:
    """A stream as an ASGI application; only who may read gets it."""

    def __init__(
        self,
        require_user: Callable[[Request], Awaitable[None]],
        answer: Callable[[Request, Receive, Send], Awaitable[None]],
    ) -> None:
        self._require_user = require_user
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method != "GET":
            raise HTTPException(405, "Only GET is answered.", {"allow": "GET"})
        await self._require_user(request)
        await self._answer(request, receive, send)


class _Secured:
    """Gives every answer the headers that keep foreign text from running, answers what has no
    route, and refuses what pages of other sites have a browser ask: only a link may lead here from
    there.
    """

    def __init__(
        self,
        app: ASGIApp,
        instruments: Instruments,
        waited: Callable[[float], None],
        recording_origins: Sequence[str],
    ) -> None:
        self._headers = security_headers(recording_origins)
        self._app = app
        self._instruments = instruments
        self._pace = Pace(ANSWERED_BYTES, 2 * ANSWERED_BYTES)
        self._waited = waited

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def sent(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                await self._turn(dict(message["headers"]))
                has_begun = True
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        scope["starlette.exception_handlers"] = {}, {}  # Starlette's own would answer in plain text
        request = Request(scope, receive)
        if is_of_another_site(request) and not scope["path"].startswith("/static/"):
            self._instruments.inc("callgauge_console_refused_total", ("other_site",))
            await _problem(request, HTTPException(HTTPStatus.FORBIDDEN, _OTHER_SITE))(
                scope, receive, sent
            )
            return
        try:
            await self._app(scope, receive, sent)
        except HTTPException as error:
            if has_begun:
                raise
            await _problem(request, error)(scope, receive, sent)

    async def _turn(self, headers: Mapping[bytes, bytes]) -> None:
        """Waits until this answer fits into what all answers may have; a stream, which has no
        length, has bounds of its own.
        """
        if (length := headers.get(b"content-length")) is None:
            return
        seconds = self._pace.wait_seconds()
        self._pace.spend(max(LEAST_ANSWER_BYTES, int(length)))
        if seconds > 0:
            self._waited(seconds)
            await asyncio.sleep(seconds)


def _csv(table: bytes, *names: str) -> Response:
    """A table with a name for its file that says what it has."""
    name = "-".join(re.sub(r"[^A-Za-z0-9-]+", "-", each)[:MOST_IN_NAME] for each in names if each)
    headers = {**_NO_STORE, "content-disposition": f"attachment; filename={name}.csv"}
    return Response(table, media_type="text/csv", headers=headers)


async def _to_now(request: Request) -> Response:
    """Leads links of alerts and dashboards, such as /calls?agent=desk, to the running calls."""
    query = request.url.query
    return RedirectResponse(f"./{f'?{query}' if query else ''}", status_code=307)


_OTHER_SITE: Final = (
    "A page of another site asked for this. Open it by a link, or type its address."
)
_DETAILS: Final = {
    HTTPStatus.NOT_FOUND: "There is nothing at this address.",
    HTTPStatus.METHOD_NOT_ALLOWED: "Only GET is answered.",
}


def _problem(request: Request, error: HTTPException) -> Response:
    status = HTTPStatus(error.status_code)
    detail = _DETAILS.get(status, "") if error.detail == status.phrase else error.detail
    made = api.Problem(title=status.phrase, status=status, detail=detail)
    headers = {**(error.headers or {}), **_NO_STORE}
    if status is HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = challenge(
            request.headers.get("authorization", "").encode("latin-1")
        )
    return Response(
        msgspec.json.encode(made), status, headers, media_type="application/problem+json"
    )


async def _form(request: Request, most_bytes: int) -> dict[str, str]:
    """The fields of a form, the first value of each.

    Raises:
        HTTPException: It is too large, or has too many fields.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > most_bytes:
            raise HTTPException(413, "The form is too large.")
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        raise HTTPException(400, "The form has too many fields.") from None
    return {name: values[0] for name, values in fields.items()}


def _html(text: str | bytes, status: int = 200) -> Response:
    return HTMLResponse(text, status, headers=_NO_STORE)


def _json(text: bytes) -> Response:
    return Response(text, media_type="application/json", headers=_NO_STORE)


def _require_our_page(request: Request, what_happened: str) -> None:
    """Refuses a form that was on no page of ours.

    Raises:
        _UnansweredError: It was not; `what_happened` says what that means.
    """
    if not is_from_our_page(request.headers):
        raise _UnansweredError(
            HTTPStatus.FORBIDDEN,
            f"{what_happened}: the form was on no page of this console. A proxy in front must pass "
            "Host, or X-Forwarded-Host.",
        )


def _remember(kept: OrderedDict[_Key, _Made], key: _Key, value: _Made, most: int) -> None:
    """Keeps a value as the newest of so many."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


def _version_of_search() -> int:
    """Changes every few seconds: so long who asks the same gets the same."""
    return wall_clock_ms() // SEARCH_KEPT_MS


def _query(request: Request, model: type[Query], fields: Mapping[str, str] | None = None) -> Query:
    """The query of a request.

    Raises:
        _UnansweredError: A field is unknown, given twice, or wrong.
    """
    given = request.query_params
    values = dict(given) if fields is None else dict(fields)
    doubled = [name for name in values if len(given.getlist(name)) > 1]
    if doubled:
        raise _UnansweredError(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"{doubled[0][:100]!r} is given more than once."
        )
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(each)[:100] for each in first["loc"])
        raise _UnansweredError(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"{where}: {first['msg']}"
        ) from None


def _without_since(request: Request) -> dict[str, str]:
    return {name: value for name, value in request.query_params.items() if name != "since"}


def _id(request: Request) -> str:
    conversation_id: str = request.path_params["id"]
    if not conversation_id:
        raise _UnansweredError(HTTPStatus.NOT_FOUND, "There is no id in the address.")
    return conversation_id


def _local(request: Request) -> str:
    """The address of a page as seen from /login."""
    path = request.scope["raw_path"].decode("ascii", "replace").lstrip("/")
    query = request.url.query
    return f"./{path}{f'?{query}' if query else ''}"


def _address(request: Request) -> str:
    return "unknown" if request.client is None else request.client.host
