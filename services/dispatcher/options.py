"""The settings and bounds of the dispatcher."""

from __future__ import annotations

from dataclasses import dataclass

from keyspace.limits import CLAIM_ITEMS_MAX, LEASE_MS_DEFAULT, PAYLOAD_BYTES_DEFAULT, RENEW_ITEMS_MAX, SKEW_MS_DEFAULT

__all__ = ["DispatcherOptions"]

CAPACITY_MAX = 1_000
"""Work that one session may hold at once, and as much again of compensation alone; above the SDK's bounds on callbacks."""
FUNCTIONS_MAX = 1_000
"""Functions that one session may serve. Source: the bound of a manifest."""
HELD_MAX = 4_096
"""Work that a hello may list; twice what a worker can hold."""
STARTS_PAGES_MAX = 256
"""Pages of recorded starts read at a hello; 64 a page is far above what any capacity allows."""
FEATURES_MAX = 64
TEXT_CHARS_MAX = 200
HELLO_MS_MAX = 10_000
"""How long a peer may take to say hello after the upgrade."""
SEND_MS_MAX = 10_000
"""How long a peer may take to accept one frame."""
SETTLE_MS_MAX = 5_000
"""How long transactions of a session that ended may go on before they are cancelled."""
CLEANUP_MS_MAX = 20_000
"""How long giving back what an ended session held may take; what is left runs out with its lease."""
HANDLERS_MAX = 64
"""Frames of one session worked on at the same time; beyond, its reader waits, and with it the peer."""
INPUT_AT_HAND_BYTES_MAX = 4_096
"""The largest input that is read with the lease of a run's first pass: a claim of 64 then holds 256 kB of them."""
LOADS_MAX = 8
"""Assignments of one session read and not yet written to its peer: with the frame bound, the session's memory."""
OUTBOX_FRAMES_MAX = 4_096
"""Small frames that may wait for a slow peer; more end its session."""
CLEANUP_CONCURRENCY = 8
"""Transactions at once for what one ended session held, or for the starts that a hello disproves."""
SETTLE_TRIES_MAX = 6
"""Tries of a settlement that the store keeps from committing before its session is closed, so that the worker sends again."""
SETTLE_PAUSE_MS = 100
"""The first pause between them; it doubles."""
PAUSE_MS_FIRST = 250
PAUSE_MS_MAX = 5_000
"""A session that gives work back is passed over for a while, doubling from the first of these to the second."""
DUE_PAGE_ITEMS = 2_048
"""Pointers of one application read in a scan."""
SHARED_SCANS_MAX = 32
"""Applications whose pointers one transaction reads at the turn of a bucket."""
RETRY_MS = 250
"""How long a pump or sweep that met trouble with the store waits."""
ISOLATION_ITEMS_MAX = 64
"""Entries tried one by one after a claim failed, to find the one that fails."""
LINGER_MS = 5_000
"""How long the pump of an application outlives its last session; reconnecting workers find it warm."""
RECOVERY_PAGE_ITEMS = 64
RECOVERY_PAGES_MAX = 1_000
"""Pages of expired leases in one pass over a shard; the next pass begins at the oldest again."""
RECOVERY_CONCURRENCY = 8
PEER_SHARDS_FACTOR = 5
"""Shards of other live dispatchers are swept this many times less often than one's own."""
HOLD_MS = 5
"""How long a success waits for the answer of the pass that follows it. Source: ARCHITECTURE 6, "Continuation"."""
CONTINUED_STEPS_MAX = 64
"""Steps that a session runs in a row before the run yields to the queue."""
YIELD_MS = 500
"""How long work stays ready before a session of an older release takes it while a newer one is live: long enough for a newer
session's ring and claim, at another dispatcher too, and short for a step that nobody newer has room for."""
LIVE_LOOK_MS = 1_000
"""How often a dispatcher reads what others' sessions run and which contracts are declared."""
LIVE_PAUSE_MS = 100
"""The least time between two looks: workers that come or go together cost one look, not one each."""
LIVE_FORGOTTEN_MS = 60_000
LIVE_FORGOTTEN_PROCESSES_MAX = 16
"""The words of dispatchers silent for so long, that one look takes away."""
ROUTING_PAGE_ITEMS = 64
"""Workspaces whose routing one transaction reads."""
OFFERS_KEPT_MAX = 1_024
"""Releases at other dispatchers whose offers are kept; they never change."""
LANE_CONCURRENCY = 16
"""Server items (timers, deadlines) handled at once, beside the transactions of the sessions."""
CLAIM_STARTS = 3
"""With several dispatchers on a lane, a claim starts in one of this many first batches at random."""

assert CLAIM_ITEMS_MAX <= RENEW_ITEMS_MAX
assert CLAIM_ITEMS_MAX * INPUT_AT_HAND_BYTES_MAX <= 1 << 20


@dataclass(frozen=True)
class DispatcherOptions:
    """How the dispatcher works.

    Attributes:
        lease_ms: how long a lease lasts unless renewed.
        skew_ms: how far the clocks of live processes may lie apart.
        rescan_ms: how often all pointers of an application are read.
        drain_ms: how long a leaving dispatcher lets what is under way settle.
        sessions_max: sessions at once.
        concurrency: transactions at once, over all sessions.
        value_bytes_max: the largest result or output, in bytes.
        continues: whether a session may go on with a run by itself, one transaction a step.
    """

    lease_ms: int = LEASE_MS_DEFAULT
    skew_ms: int = SKEW_MS_DEFAULT
    rescan_ms: int = 30_000
    drain_ms: int = 10_000
    sessions_max: int = 1_000
    concurrency: int = 64
    value_bytes_max: int = PAYLOAD_BYTES_DEFAULT
    continues: bool = True

    @property
    def renew_every_ms(self) -> int:
        """How often workers renew: two renewals may be lost before a lease is."""
        return max(1, self.lease_ms // 3)

    @property
    def silence_ms(self) -> int:
        """After which silence a session ends: by then its leases have run out."""
        return self.lease_ms

    @property
    def recovery_ms(self) -> int:
        """How often expired leases are looked for."""
        return max(100, min(1_000, self.lease_ms // 5))
