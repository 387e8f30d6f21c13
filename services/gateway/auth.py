"""Who is calling: bearer keys, looked up by digest and believed for a short, stated time; and what each role may do."""

from __future__ import annotations

import hmac
from collections import OrderedDict
from enum import StrEnum
from typing import NamedTuple

from keyspace.clock import Clock
from keyspace.keyspace import Keyspace
from keyspace.records.tenancy import Role
from keyspace.transitions.keys import authenticate, secret_digest
from services.gateway.problems import ApiProblem

__all__ = ["GRANTS", "Action", "Identity", "KeyRing", "bearer_secret"]

CACHED_KEYS_MAX = 10_000
HEADER_CHARS_MAX = 1_000
SYSTEM_KEY_ID = "system"


class Action(StrEnum):
    """What a route does, as far as permission is concerned."""

    CREATE_WORKSPACE = "create workspaces"
    MANAGE_KEYS = "manage keys"
    DEPLOY = "publish manifests and activate routing"
    SUBMIT = "submit events"
    CANCEL = "cancel runs"
    RESOLVE = "resolve attempts"
    REDISCOVER = "look at the code of blocked runs again"
    READ = "read"


GRANTS: dict[Role, frozenset[Action]] = {
    Role.SYSTEM: frozenset(Action),
    Role.ADMIN: frozenset(Action) - {Action.CREATE_WORKSPACE},
    Role.CLIENT: frozenset({Action.SUBMIT, Action.CANCEL, Action.REDISCOVER, Action.READ}),
    Role.READER: frozenset({Action.READ}),
    Role.WORKER: frozenset(),
}
"""What each role may do through the API. A worker's key only opens worker sessions, with the dispatcher."""


class Identity(NamedTuple):
    """A caller. `workspace` is None for the operator's own key, which reaches every workspace as `system` keys do."""

    workspace: str | None
    role: Role
    key_id: str

    def reaches(self, workspace: str) -> bool:
        """Whether the caller may know that `workspace` exists."""
        return self.role is Role.SYSTEM or self.workspace == workspace

    def may(self, action: Action) -> bool:
        """Whether the caller's role grants `action`."""
        return action in GRANTS[self.role]


def bearer_secret(header: str | None) -> str | None:
    """Return the secret in an Authorization header, or None when it holds no single bearer token."""
    if header is None or len(header) > HEADER_CHARS_MAX:
        return None
    scheme, _, secret = header.partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret or " " in secret:
        return None
    return secret


class KeyRing:
    """Looks keys up and remembers the good ones for `ttl_ms`, which bounds how long a revoked key still acts."""

    def __init__(self, keyspace: Keyspace, *, clock: Clock, ttl_ms: int, system_key: str = "") -> None:
        """Look up in `keyspace`; `system_key` is the operator's configured secret, empty when there is none."""
        self._keyspace = keyspace
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._system_digest = secret_digest(system_key) if system_key else ""
        self._known: OrderedDict[str, tuple[Identity, float]] = OrderedDict()

    async def identify(self, secret: str | None) -> Identity:
        """Return whose key `secret` is.

        Raises:
            ApiProblem: `unauthenticated`: no key, not one of ours, or revoked.
        """
        if secret is not None:
            digest = secret_digest(secret)
            if self._system_digest and hmac.compare_digest(digest, self._system_digest):
                return Identity(None, Role.SYSTEM, SYSTEM_KEY_ID)
            found = self._recall(digest) or await self._look_up(secret, digest)
            if found is not None:
                return found
        raise ApiProblem("unauthenticated", "Present a valid key as Authorization: Bearer.")

    def forget_key(self, key_id: str) -> None:
        """Stop believing a key that was just revoked here; other processes follow within the stated time."""
        for digest in [digest for digest, (identity, _) in self._known.items() if identity.key_id == key_id]:
            del self._known[digest]

    def _recall(self, digest: str) -> Identity | None:
        entry = self._known.get(digest)
        if entry is None:
            return None
        identity, until_ms = entry
        if self._clock.monotonic_ms() >= until_ms:
            del self._known[digest]
            return None
        return identity

    async def _look_up(self, secret: str, digest: str) -> Identity | None:
        # Time counts from before the look-up: a revocation that commits during it must not be outlived.
        until_ms = self._clock.monotonic_ms() + self._ttl_ms
        owner = await self._keyspace.transact("authenticate", lambda tx: authenticate(tx, secret))
        if owner is None:
            # Unknown secrets are not remembered: a new key works at once, and garbage pushes nobody out.
            return None
        identity = Identity(owner.workspace, owner.role, owner.key_id)
        if self._ttl_ms:
            self._known[digest] = (identity, until_ms)
            while len(self._known) > CACHED_KEYS_MAX:
                self._known.popitem(last=False)
        return identity
