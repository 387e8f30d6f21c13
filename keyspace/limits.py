"""Every bound of the keyspace, with its unit, reason and source. Relations between bounds are asserted at import.

A bound that must be equal in all processes of one deployment is part of `CLUSTER_FINGERPRINT`, which is stored with the
keyspace; a process whose own differs refuses to start.
"""

from __future__ import annotations

import hashlib

# -- the store (source: apple/foundationdb documentation/sphinx/source/known-limitations.rst)
KEY_BYTES_MAX = 10_000
VALUE_BYTES_MAX = 100_000
TRANSACTION_BYTES_MAX = 10_000_000

# -- a transaction's allowance (ARCHITECTURE 5)
ALLOWANCE_BYTES_DEFAULT = 2_000_000
ALLOWANCE_BYTES_MAX = 8_000_000
ALLOWANCE_PAYLOADS_MIN = 4
ALLOWANCE_FIXED_BYTES = 65_536

CHUNK_BYTES = 90_000
"""Larger values are split over keys; the margin below the store's 100,000 leaves room for a record around a small one."""

# -- what callers may send (ARCHITECTURE 7)
PAYLOAD_BYTES_DEFAULT = 256 * 1024
PAYLOAD_BYTES_MAX = 1024 * 1024
NAME_CHARS_MAX = 200
NAME_BYTES_MAX = 4 * NAME_CHARS_MAX
WORKSPACE_CHARS_MAX = 63
IDEMPOTENCY_KEY_BYTES_MAX = 256
CORRELATION_PAIRS_MAX = 16
CORRELATION_TEXT_BYTES_MAX = 256
APPLICATIONS_MAX = 100
FUNCTIONS_MAX = 1_000
BINDINGS_MAX = 5_000
TIMESTAMP_MS_MAX = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z: the last instant that every language's date type can show."""

# -- a run
STEPS_MAX = 10_000
REPLAY_BYTES_MAX = 8 * 1024 * 1024
"""What a pass must carry: every settled step's id and value. Half a frame, so that a frame always has room."""
REPLAY_STEP_BYTES = 96
"""Charged for each settled step beside its id and value: the memo around it."""
STEP_NAME_CHARS_MAX = 200
LOCATION_CHARS_MAX = 400
FAILURE_MESSAGE_BYTES_MAX = 4_096
FAILURE_DETAILS_BYTES_MAX = 8_192
FAILURE_CATEGORY_CHARS_MAX = 100
FAILED_STEPS_MAX = 1_000
"""Failed steps of one run: as many as the transaction that ends its function can make Obsolete together."""
FAILED_SHARE = 0.5
"""How much of a transaction's allowance they may weigh: the last result and the run's output, accepted together, take a
quarter each."""
FAILED_RESERVE_BYTES = 65_536
"""Kept free for the next failed step: the longest failure, name and id, each character written as an escape."""
FAILED_ENTRY_BYTES = 100
"""What a history entry that names one of them has besides its id."""
ATTEMPTS_MAX = 1_000
RETRY_DELAY_MS_MAX = 30 * 86_400_000
RETRY_COEFFICIENT_MAX = 1_000.0
ATTEMPT_TIMEOUT_MS_MAX = 7 * 86_400_000
RUN_TIMEOUT_MS_MAX = 200_000_000_000_000
"""6,300 years: not a policy, only what keeps every deadline below `TIMESTAMP_MS_MAX` (RFD 2, "no universal engine ceiling")."""
DEADLINE_STOPS_MAX = 8
"""Runs past their deadline that one claim stops: each may begin an unwind, and all must fit beside the claim itself."""
TIMER_MS_MAX = 10 * 365 * 86_400_000
"""How far ahead a timer may lie: ten years; anything longer is taken for a mistake of units."""
CHILD_DEPTH_MAX = 16
"""How deep a chain of child invocations may be; the child of a run that has no parent is at depth 1."""
INVOKE_TIMEOUT_MS_MAX = 10 * 365 * 86_400_000
STALE_RESULTS_MAX = 8
"""Stale results kept for each attempt (FILLED-IN 11)."""

# -- leases and the queue
LEASE_MS_DEFAULT = 15_000
LEASE_MS_MIN = 1_000
SKEW_MS_DEFAULT = 500
SKEW_LEASE_FACTOR = 20
"""The skew bound is at most a twentieth of the shortest lease (FILLED-IN 11)."""
RENEW_ITEMS_MAX = 64
CLAIM_ITEMS_MAX = 64
LOSS_DELAY_MS_INITIAL = 1_000
LOSS_DELAY_MS_MAX = 300_000
REPEATABLE_LOSSES_MAX = 3
"""The loss in a row by which a repeatable attempt becomes Unknown like any other (FILLED-IN 2)."""
LOSSES_STUCK = 10
"""After so many losses in a row a run shows as stuck (FILLED-IN 11)."""
INSTANCE_PAGE_ITEMS = 64
BUCKET_MS = 1_000
SHARDS = 8
PRIORITY_OPERATOR = 2
"""What an operator asked for: a rediscovery, a retry."""
PRIORITY_FIRST = 4
PRIORITY_DEFAULT = 5
PRIORITY_MAX = 9

# -- connected releases
RELEASES_MAX = 200
"""Registered releases of one application; a new one beyond takes the place of the oldest that no session runs."""
RELEASE_NAME_BYTES_MAX = 200
CONTRACT_BYTES_MAX = 100
HEAD_PAGE_ITEMS = 64
"""Functions whose preferred release one transaction looks at."""
LIVE_MS = 10_000
"""How long a dispatcher's word on what its sessions run counts; it is given again before half of that is over."""
LIVE_PAGE_ITEMS = 64
"""Releases in one record of it: with the longest names still below a chunk."""
LIVE_ROWS_MAX = 4_096
"""Records of it that one look reads: 256 dispatchers with 1,000 releases each."""

# -- definition blockers
PROBE_DELAY_MS_INITIAL = 60_000
PROBE_DELAY_MS_MAX = 3_600_000
"""A blocked run whose worker announces no new code is looked at again after 1 min, doubling to 1 h (RFD 2)."""
WAKE_PAGE_ITEMS = 32
"""Blocked runs that one transaction wakes."""
WAKE_RUN_BYTES = 40_000
"""At most what waking one of them charges, with the longest names."""

# -- pages
BINDING_PAGE_ITEMS = 64
WAIT_PAGE_ITEMS = 256
"""Registrations that one chunk of an expansion inspects; bytes bound how many it settles."""
LIST_PAGE_ITEMS_MAX = 500
LIST_PAGE_ITEMS_DEFAULT = 50
HISTORY_PAGE_ITEMS_MAX = 1_000
KEYS_PER_WORKSPACE_MAX = 1_000
REPLAY_PAGE_KEYS = 1_000

# -- retention (FILLED-IN 11)
RETENTION_MS_DEFAULT = 30 * 86_400_000

CLUSTER_FINGERPRINT = hashlib.blake2b(repr((SHARDS, BUCKET_MS, CHUNK_BYTES)).encode(), digest_size=8).hexdigest()

assert CHUNK_BYTES < VALUE_BYTES_MAX
assert ALLOWANCE_BYTES_MAX < TRANSACTION_BYTES_MAX
assert ALLOWANCE_BYTES_DEFAULT >= ALLOWANCE_PAYLOADS_MIN * PAYLOAD_BYTES_DEFAULT + ALLOWANCE_FIXED_BYTES
assert ALLOWANCE_BYTES_MAX >= ALLOWANCE_PAYLOADS_MIN * PAYLOAD_BYTES_MAX + ALLOWANCE_FIXED_BYTES
assert LIVE_PAGE_ITEMS * (WORKSPACE_CHARS_MAX + 4 * NAME_CHARS_MAX + 128) < CHUNK_BYTES
assert SKEW_MS_DEFAULT * SKEW_LEASE_FACTOR <= LEASE_MS_DEFAULT


def chunk_count_max(value_bytes: int) -> int:
    """Return how many keys a value of `value_bytes` takes."""
    return max(1, -(-value_bytes // CHUNK_BYTES))
