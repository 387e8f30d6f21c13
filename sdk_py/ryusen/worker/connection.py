"""The worker's connection as its core sees it: greeting, renewals, silence. Times are milliseconds of one monotonic clock."""

from __future__ import annotations

from ryusen.protocol.frames import (
    CODEC,
    CONTINUATION,
    PROTOCOL_VERSION,
    REPLAY,
    FunctionOffer,
    HeldWork,
    Hello,
    Renew,
    Welcome,
)
from ryusen.protocol.limits import VALUE_BYTES_DEFAULT
from ryusen.protocol.names import contract_digest
from ryusen.worker.effects import Close, Effects, Send
from ryusen.worker.work import HELLO_MS_MAX, RENEW_EVERY_MS_MIN, RENEW_PAGE, Link, WorkerIdentity

__all__ = ["Connection"]


class Connection:
    """The present connection, if there is one.

    Attributes:
        number: counts connections.
        link: how far the present one has come.
        value_bytes_max: the largest encoded value the service accepts, in bytes.
    """

    def __init__(self, identity: WorkerIdentity) -> None:
        """Begin without one."""
        self._identity = identity
        self.number = 0
        self.link = Link.DOWN
        self.value_bytes_max = VALUE_BYTES_DEFAULT
        self._welcome: Welcome | None = None
        self._hello_due_ms = 0.0
        self._holds_running = False
        self._renew_due_ms = 0.0
        self._heard_ms = 0.0

    @property
    def is_up(self) -> bool:
        """Whether a session stands."""
        return self.link is Link.UP

    @property
    def continues(self) -> bool:
        """Whether a session stands in which a success may announce the pass that follows it."""
        return self.is_up and self._welcome is not None and self._welcome.continues

    def open(self, held: list[HeldWork], now_ms: float) -> Hello:
        """A connection is open: return what to say first."""
        self.number += 1
        self.link = Link.GREETING
        self._hello_due_ms = now_ms + HELLO_MS_MAX
        self._holds_running = any(work.state == "running" for work in held)
        identity = self._identity
        offers = [
            FunctionOffer(name=n, contract=contract_digest(n, CODEC, PROTOCOL_VERSION)) for n in identity.functions
        ]
        return Hello(
            application=identity.application,
            instance=identity.instance,
            protocols=[PROTOCOL_VERSION],
            codecs=[CODEC],
            functions=offers,
            capacity=identity.capacity,
            release=identity.release,
            features=[CONTINUATION, REPLAY],
            held=held,
            connection=self.number,
            sdk=identity.sdk,
            undo_capacity=identity.undo_capacity,
        )

    def heard(self, now_ms: float) -> None:
        """Something came by it."""
        self._heard_ms = now_ms

    def stand(self, welcome: Welcome, now_ms: float) -> None:
        """The session stands."""
        self.link = Link.UP
        self._welcome = welcome
        self.value_bytes_max = welcome.value_bytes_max
        # What ran on between two sessions has been renewed by nobody: its leases may be about to run out.
        delay_ms = 0 if self._holds_running else max(welcome.renew_every_ms, RENEW_EVERY_MS_MIN)
        self._renew_due_ms = now_ms + delay_ms

    def lost(self) -> None:
        """It is gone."""
        self.link = Link.DOWN

    def close(self, reason: str, effects: Effects) -> None:
        """Give it up and let another be opened."""
        self.link = Link.CLOSING
        effects.add(Close(reason))

    def due_ms(self) -> float | None:
        """Return the instant of the next `tick` that will do something, or None."""
        if self.link is Link.GREETING:
            return self._hello_due_ms
        if self.link is Link.UP and self._welcome is not None:
            return min(self._renew_due_ms, self._heard_ms + self._welcome.silence_ms)
        return None

    def tick(self, requests: list[str], now_ms: float, effects: Effects) -> None:
        """Notice silence, or renew the leases of `requests`."""
        if self.link is Link.GREETING and self._hello_due_ms <= now_ms:
            self.close("no answer to hello", effects)
        elif self.link is Link.UP and self._welcome is not None:
            if self._heard_ms + self._welcome.silence_ms <= now_ms:
                self.close("the dispatcher is silent", effects)
            elif self._renew_due_ms <= now_ms:
                self._renew_due_ms = now_ms + max(self._welcome.renew_every_ms, RENEW_EVERY_MS_MIN)
                # An empty one is sent too: it is the heartbeat that either side's silence is measured by.
                for start in range(0, max(1, len(requests)), RENEW_PAGE):
                    effects.add(Send(Renew(requests=requests[start : start + RENEW_PAGE])))
