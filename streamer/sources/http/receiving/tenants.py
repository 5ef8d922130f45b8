"""The senders that may post: their tokens, how much each may send, and which conversations are theirs."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from consumers.runtime.http import is_token
from streamer.settings.ingest import SenderSettings

BURST_SECONDS: Final = 10.0
"""A sender may send so many seconds' worth of events at once, for example after its network was away."""
MAX_REMEMBERED_CALLS: Final = 100_000
"""Conversations of which this process remembers the tenant: some hours of a busy installation, 20 MB."""


class Sender:
    """One tenant, or everybody if there are no tenants.

    Attributes:
        tenant: Name of the tenant; empty for everybody.
        settings: Its rights and limits.
    """

    def __init__(self, tenant: str, settings: SenderSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts with a full allowance.

        Args:
            tenant: Name of the tenant; empty for everybody.
            settings: Its rights and limits.
            clock: Seconds, monotonic.
        """
        self.tenant = tenant
        self.settings = settings
        self._clock = clock
        self._most = settings.events_per_second * BURST_SECONDS
        self._left = self._most
        self._at = clock()

    def wait_seconds(self) -> float:
        """How long the sender has to wait before it may send again; 0 if it may send now."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self.settings.events_per_second)
        self._at = now
        return 0.0 if self._left > 0 else 1 - self._left / self.settings.events_per_second

    def take(self, events: int) -> None:
        """Takes events from the allowance. It may fall below 0: a batch is never cut, and the next one waits."""
        self._left -= events


class Senders:
    """All senders, and the owners of the newest conversations."""

    def __init__(self, settings: Mapping[str, SenderSettings], clock: Callable[[], float] = time.monotonic) -> None:
        """Makes the senders.

        Args:
            settings: By tenant.
            clock: Seconds, monotonic.
        """
        self.by_tenant = {tenant: Sender(tenant, each, clock) for tenant, each in settings.items()}
        self._has_tenants = any(self.by_tenant)
        self._owners: OrderedDict[str, str] = OrderedDict()

    def with_token(self, token: bytes) -> Sender | None:
        """The sender with this token. Every token is compared, so that time says nothing."""
        found = None
        for sender in self.by_tenant.values():
            if sender.settings.token is not None and is_token(token, sender.settings.token):
                found = sender
        return found

    def owns(self, sender: Sender, conversation_id: str) -> bool:
        """Whether a conversation is the sender's. It belongs to the tenant that first sent an event of it."""
        if not self._has_tenants:
            return True
        owner = self._owners.setdefault(conversation_id, sender.tenant)
        self._owners.move_to_end(conversation_id)
        if len(self._owners) > MAX_REMEMBERED_CALLS:
            self._owners.popitem(last=False)
        return owner == sender.tenant
