"""Asks ElevenLabs which calls of the agents run now."""

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.wire import Name
from streamer.settings.monitor import MonitorSettings
from streamer.sources.monitor.bridge import LiveCall

PAGE_SIZE: Final = 100
MAX_PAGES: Final = 5
"""Most pages of one look: calls are listed newest first, and a running call is among the newest."""
ANSWER_SECONDS: Final = 10.0
MAX_AGE_SECONDS: Final = 4 * 3_600
"""A call that began earlier is not looked for any more."""
_RUNNING: Final = "in-progress"


class LookError(Exception):
    """ElevenLabs did not answer with a list of calls. The text has no secret."""


class _Summary(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    conversation_id: Name
    agent_id: Name | None = None
    agent_name: Name | None = None
    status: str | None = None


class _Page(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    conversations: list[_Summary]
    next_cursor: str | None = None
    has_more: bool = False


class LiveCalls:
    """The list of conversations of ElevenLabs' API."""

    def __init__(self, settings: MonitorSettings, client: httpx2.AsyncClient) -> None:
        """Stores the key and the agents; the client is the caller's to close."""
        self._settings = settings
        self._client = client

    async def look(self, now_seconds: float) -> list[LiveCall]:
        """Returns the calls that run now.

        Args:
            now_seconds: Seconds since 1970.

        Raises:
            LookError: There is no answer, or another one.
        """
        agents: tuple[str | None, ...] = self._settings.agents or (None,)
        return [call for agent in agents async for call in self._of(agent, now_seconds)]

    async def _of(self, agent: str | None, now_seconds: float) -> AsyncIterator[LiveCall]:
        asked: dict[str, Any] = {"page_size": PAGE_SIZE, "call_start_after_unix": int(now_seconds) - MAX_AGE_SECONDS}
        if agent is not None:
            asked["agent_id"] = agent
        for _ in range(MAX_PAGES):
            page = await self._page(asked)
            for each in page.conversations:
                if each.status == _RUNNING:
                    yield LiveCall(each.conversation_id, each.agent_name or each.agent_id)
            if not page.has_more or page.next_cursor is None:
                return
            asked["cursor"] = page.next_cursor

    async def _page(self, asked: dict[str, Any]) -> _Page:
        key = self._settings.api_key
        headers = {} if key is None else {"xi-api-key": key.get_secret_value()}
        url = f"{self._settings.base_url}/v1/convai/conversations"
        try:
            response = await self._client.get(url, params=asked, headers=headers, timeout=ANSWER_SECONDS)
            response.raise_for_status()
            return _Page.model_validate_json(response.content)
        except httpx2.HTTPStatusError as error:
            raise LookError(f"ElevenLabs answers {error.response.status_code}") from None
        except httpx2.HTTPError as error:
            raise LookError(f"ElevenLabs does not answer ({type(error).__name__})") from None
        except ValidationError:
            raise LookError("the answer is no list of conversations") from None
