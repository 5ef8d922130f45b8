"""`POST /events`: events of any framework, answered when Kafka has acknowledged them."""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from consumers.runtime.http import challenge, given_token
from consumers.runtime.registry import Instruments
from schemas.closed_sets import IngestOutcome
from streamer.sources.http.posted.batch import Accepted, Batches, Refusal
from streamer.sources.http.posted.cloudevents import Posted, UnreadableBodyError, posted_events
from streamer.sources.http.receiving.bodies import Bodies, BusyError, GoneError, TooSlowError
from streamer.sources.http.receiving.tenants import Sender, Senders
from streamer.sources.writer import AcknowledgedWriter, NotAcknowledgedError

MAX_BODY_BYTES: Final = 4_194_304
"""Largest body: some 20,000 events. A bot sends a few hundred a second at most."""
MAX_SHOWN_REFUSALS: Final = 100
"""Refused events that an answer describes one by one; `refused_events` counts all of them."""
MAX_SHOWN_MISREADINGS: Final = 20
"""Kinds of events that are not understood which an answer names."""
EVENTS_A_TURN: Final = 200
"""Events that are checked before other requests get their turn: some 20 ms."""
RETRY_SECONDS: Final = 5
"""Pause after which a sender should try again when Kafka is away, or there is no room."""
MAX_REQUEST_ID_CHARS: Final = 200


class EventsRoute:
    """The route for events."""

    def __init__(
        self, senders: Senders, batches: Batches, bodies: Bodies, writer: AcknowledgedWriter, instruments: Instruments
    ) -> None:
        """Stores its parts; nothing is connected here."""
        self._senders = senders
        self._batches = batches
        self._bodies = bodies
        self._writer = writer
        self._instruments = instruments

    async def answer(self, request: Request) -> Response:
        """Answers one request."""
        authorization = request.headers.get("authorization", "").encode("latin-1")
        token = given_token(authorization)
        sender = None if token is None else self._senders.with_token(token)
        if sender is None:
            text = "Expected `Authorization: Bearer` with the token of the setting ingest.token, or of a tenant."
            headers = {"www-authenticate": challenge(authorization)}
            return self._refused("", IngestOutcome.UNAUTHORIZED, 401, text, headers)
        if (wait_seconds := sender.wait_seconds()) > 0:
            text = f"More than {sender.settings.events_per_second} events a second on average; nothing was accepted."
            return self._refused(sender.tenant, IngestOutcome.LIMITED, 429, text, _retry(wait_seconds))
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            text = "Expected a body without Content-Encoding; nothing was accepted."
            return self._refused(sender.tenant, IngestOutcome.UNREADABLE, 415, text)
        try:
            body = await self._bodies.read(request, lambda _: MAX_BODY_BYTES)
        except BusyError:
            text = "Too many requests at a time; nothing was accepted."
            return self._refused(sender.tenant, IngestOutcome.BUSY, 503, text, _retry(RETRY_SECONDS))
        except TooSlowError:
            text = "The body did not arrive in time; nothing was accepted."
            return self._refused(sender.tenant, IngestOutcome.TOO_SLOW, 408, text, {"connection": "close"})
        except GoneError:
            return self._refused(
                sender.tenant, IngestOutcome.GONE, 400, "The body has no end.", {"connection": "close"}
            )
        try:
            if not body.is_whole:
                text = (
                    f"Expected a body of at most {MAX_BODY_BYTES} bytes, saw {body.total_bytes}: send smaller batches."
                )
                return self._refused(sender.tenant, IngestOutcome.TOO_LARGE, 413, text)
            return await self._taken(request, body.content, sender)
        finally:
            body.release()

    async def _taken(self, request: Request, body: bytes, sender: Sender) -> Response:
        began = time.perf_counter()
        try:
            posted = posted_events(body, request.headers.get("content-type", ""), dict(request.headers))
        except UnreadableBodyError as error:
            return self._refused(sender.tenant, IngestOutcome.UNREADABLE, 400, f"{error}. Nothing was accepted.")
        if not posted:
            return self._refused(sender.tenant, IngestOutcome.UNREADABLE, 400, "The body is empty.")
        sender.take(len(posted))
        request_id = request.headers.get("idempotency-key", "")[:MAX_REQUEST_ID_CHARS] or uuid.uuid4().hex
        accepted, refused = await self._sorted(posted, sender, request_id)
        try:
            await self._writer.write([each.record for each in accepted])
        except NotAcknowledgedError:
            text = "Kafka did not acknowledge the events in time. Send the whole request again, with the same Idempotency-Key."
            return self._refused(sender.tenant, IngestOutcome.KAFKA_AWAY, 503, text, _retry(RETRY_SECONDS))
        if accepted:
            seconds = time.perf_counter() - began
            self._instruments.observe("callgauge_ingest_acknowledgement_seconds", ("events",), seconds)
        return self._summary(sender.tenant, accepted, refused)

    async def _sorted(
        self, posted: Sequence[Posted], sender: Sender, request_id: str
    ) -> tuple[list[Accepted], list[Refusal]]:
        accepted: list[Accepted] = []
        refused: list[Refusal] = []
        for begin in range(0, len(posted), EVENTS_A_TURN):
            for each in self._batches.checked(posted[begin : begin + EVENTS_A_TURN], sender, request_id):
                if isinstance(each, Accepted):
                    accepted.append(each)
                else:
                    refused.append(each)
            await asyncio.sleep(0)
        return accepted, refused

    def _summary(self, tenant: str, accepted: Sequence[Accepted], refused: Sequence[Refusal]) -> Response:
        by_source = Counter(each.record.source for each in accepted)
        for source, count in by_source.items():
            self._instruments.inc("callgauge_ingest_events_total", (tenant, source.value), count)
        if refused:
            self._instruments.inc("callgauge_ingest_events_refused_total", (tenant,), len(refused))
        misread = Counter(each.misread for each in accepted if each.misread is not None)
        answer: dict[str, Any] = {"accepted_events": len(accepted), "refused_events": len(refused)}
        if refused:
            answer["refused"] = [_shown(each) for each in refused[:MAX_SHOWN_REFUSALS]]
        if misread:
            answer["not_understood"] = [
                {"events": count, "what": what.what, "what_to_do": what.what_to_do}
                for what, count in misread.most_common(MAX_SHOWN_MISREADINGS)
            ]
        outcome, status = IngestOutcome.ACCEPTED, 202
        if refused:
            outcome, status = (IngestOutcome.PARTLY_REFUSED, 207) if accepted else (IngestOutcome.REFUSED, 422)
        self._instruments.inc("callgauge_ingest_requests_total", (tenant, outcome.value))
        return JSONResponse(answer, status_code=status)

    def _refused(
        self, tenant: str, outcome: IngestOutcome, status: int, text: str, headers: dict[str, str] | None = None
    ) -> Response:
        self._instruments.inc("callgauge_ingest_requests_total", (tenant, outcome.value))
        return JSONResponse({"accepted_events": 0, "error": text}, status_code=status, headers=headers)


def _shown(refusal: Refusal) -> dict[str, object]:
    return {
        "line": refusal.place,
        "reason": refusal.reason.value,
        "what": refusal.what,
        "expected_and_seen": refusal.expected_and_seen,
        "what_to_do": refusal.what_to_do,
    }


def _retry(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, round(seconds)))}
