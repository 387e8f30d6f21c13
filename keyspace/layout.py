"""Every key there is, in one table. No other module builds keys.

Logical keys: the deployment's physical prefix is added by `Tx`. A key that begins with a text belongs to the workspace of
that name, so that one workspace is one contiguous range; a key that begins with an integer is shared. Integers and texts
never share a first byte, so every stored key parses to exactly one leaf (`identify`).

`keyspace/README.md` prints this table; a test compares.
"""

from __future__ import annotations

from typing import Any

from keyspace.leaf import Id, Int, Key, Leaf, Name, Stamp, Text
from keyspace.limits import BUCKET_MS, SHARDS
from keyspace.records import blocker, event, release, run, system, tenancy, wait, work
from keyspace.records.codec import Empty, IntCodec, RawCodec, RecordCodec, StampCodec, TextCodec
from keyspace.records.work import Lane
from keyspace.store.api import KeyRange
from keyspace.tuple_layer import pack_int, pack_str, range_of, unpack

__all__ = [
    "LEAVES",
    "bucket_of",
    "due_pointer",
    "identify",
    "ready_key",
    "ready_span",
    "shard_of_id",
    "shard_of_workspace",
    "workspace_range",
]

_RAW, _EMPTY, _INT, _STAMP, _TEXT = RawCodec(), Empty(), IntCodec(), StampCodec(), TextCodec()
_W: Any = Name

# -- shared by all workspaces
FORMAT: Leaf[system.FormatRecord] = Leaf(
    "FORMAT", 0, 0, codec=system.FORMAT, writers="open_keyspace", readers="every process at start"
)
HIGH_WATER: Leaf[bytes] = Leaf(
    "HIGH_WATER", 0, 1, codec=_RAW, writers="record_high_water (byte_max)", readers="every process at start",
    note="8 bytes, big-endian read version; a store below it went back in time",
)  # fmt: skip
WORKSPACE_LIST: Leaf[None] = Leaf(
    "WORKSPACE_LIST", 1, Name, codec=_EMPTY, writers="create_workspace", readers="gateway pages, fsck"
)
KEY_OWNER: Leaf[tenancy.KeyOwnerRecord] = Leaf(
    "KEY_OWNER", 2, Text, codec=tenancy.KEY_OWNER, writers="create_key, revoke_key", readers="authentication",
    note="the text is the secret's digest",
)  # fmt: skip
DUE: Leaf[None] = Leaf(
    "DUE", 3, Int, Int, Int, Name, codec=_EMPTY, writers="enqueue", readers="due scans; cleared by clear_due_pointer",
    note="lane kind, shard, bucket, workspace; server lanes", keeps=True,
)  # fmt: skip
LEASE: Leaf[None] = Leaf(
    "LEASE", 4, Int, Int, Name, Id, codec=_EMPTY, writers="lease, renew, settle", readers="recover_lease",
    note="shard, expiry bucket, workspace, item", keeps=True,
)  # fmt: skip
BELL: Leaf[int] = Leaf(
    "BELL", 5, Int, Int, codec=_INT, writers="enqueue (atomic add)", readers="watches", note="lane kind, shard",
    keeps=True,
)  # fmt: skip
PROCESS: Leaf[work.ProcessRecord] = Leaf(
    "PROCESS", 6, Text, codec=work.PROCESS, writers="announce_process", readers="affinity, clock comparison"
)
LIVE: Leaf[release.LiveRecord] = Leaf(
    "LIVE", 7, Text, Int, codec=release.LIVE, writers="announce_live, forget_live", readers="release choice, gateway",
    note="dispatcher process, page from 0",
)  # fmt: skip

# -- one workspace
WORKSPACE: Leaf[tenancy.WorkspaceRecord] = Leaf(
    "WORKSPACE", Name, 0, codec=tenancy.WORKSPACE, writers="create_workspace", readers="accept_event, gateway",
    keeps=True,
)  # fmt: skip
API_KEY: Leaf[tenancy.ApiKeyRecord] = Leaf(
    "API_KEY",
    Name,
    1,
    Id,
    codec=tenancy.API_KEY,
    writers="create_key, revoke_key",
    readers="gateway pages, revoked_keys",
)
CLAIM: Leaf[event.ClaimRecord] = Leaf(
    "CLAIM", Name, 2, Text, Id, codec=event.CLAIM, writers="accept_event", readers="accept_event",
    note="operation, digest of the caller's key",
)  # fmt: skip
EVENT: Leaf[event.EventRecord] = Leaf(
    "EVENT", Name, 3, Id, codec=event.EVENT, writers="accept_event", readers="accept_event, expand_event, gateway",
    cached=2, keeps=True,
)  # fmt: skip
EVENT_PAYLOAD: Leaf[bytes] = Leaf(
    "EVENT_PAYLOAD", Name, 3, Id, 1, Int, codec=_RAW, writers="accept_event", readers="assignments, gateway",
    note="chunk number", cached=2,
)  # fmt: skip
EVENT_STAMP: Leaf[bytes] = Leaf(
    "EVENT_STAMP", Name, 3, Id, 2, codec=_STAMP, writers="accept_event (stamped value)", readers="fsck, retention",
    note="the event's place in EVENT_LIST", cached=2,
)  # fmt: skip
EXPANSION: Leaf[event.ExpansionRecord] = Leaf(
    "EXPANSION", Name, 3, Id, 3, codec=event.EXPANSION, writers="accept_event, expand_event",
    readers="accept_event, expand_event, gateway", cached=2, keeps=True,
)  # fmt: skip
MATCH: Leaf[event.MatchRecord] = Leaf(
    "MATCH", Name, 3, Id, 4, Name, Name, codec=event.MATCH, writers="expand_event", readers="gateway, fsck",
    note="application, binding", cached=2,
)  # fmt: skip
EVENT_LIST: Leaf[str] = Leaf(
    "EVENT_LIST", Name, 4, Stamp, codec=_TEXT, writers="accept_event (stamped key)", readers="gateway pages",
    note="value: event id",
)  # fmt: skip
RUN: Leaf[run.RunRecord] = Leaf(
    "RUN", Name, 5, Id, codec=run.RUN, writers="every run transition", readers="every run transition, gateway",
    cached=2, keeps=True,
)  # fmt: skip
STEP: Leaf[run.StepRecord] = Leaf(
    "STEP", Name, 5, Id, 1, Name, codec=run.STEP, writers="step transitions", readers="step transitions, replay",
    cached=2, keeps=True,
)  # fmt: skip
STEP_VALUE: Leaf[bytes] = Leaf(
    "STEP_VALUE", Name, 5, Id, 2, Name, Int, codec=_RAW, writers="accept_success", readers="replay, gateway",
    note="step, chunk number", cached=2,
)  # fmt: skip
ATTEMPT: Leaf[run.AttemptRecord] = Leaf(
    "ATTEMPT", Name, 5, Id, 3, Int, Name, Int, codec=run.ATTEMPT, writers="step transitions",
    readers="step transitions, gateway", note="direction, step, generation", cached=2, keeps=True,
)  # fmt: skip
STALE: Leaf[run.StaleResultRecord] = Leaf(
    "STALE", Name, 5, Id, 4, Int, Name, Int, Int, codec=run.STALE, writers="accept_result when it lost",
    readers="gateway", note="direction, step, generation, number", cached=2,
)  # fmt: skip
HISTORY: Leaf[run.HistoryRecord] = Leaf(
    "HISTORY", Name, 5, Id, 5, Int, codec=run.HISTORY, writers="every run transition", readers="gateway, fsck",
    note="ordinal from 1", cached=2,
)  # fmt: skip
COMPLETION: Leaf[str] = Leaf(
    "COMPLETION", Name, 5, Id, 6, Int, codec=_TEXT, writers="accept_success", readers="unwind",
    note="completion ordinal from 1; value: step id", cached=2,
)  # fmt: skip
OUTPUT: Leaf[bytes] = Leaf(
    "OUTPUT", Name, 5, Id, 7, Int, codec=_RAW, writers="complete_run", readers="gateway", note="chunk number", cached=2
)
RUN_STAMP: Leaf[bytes] = Leaf(
    "RUN_STAMP", Name, 5, Id, 8, codec=_STAMP, writers="materialize_run (stamped value)", readers="fsck, retention",
    note="the run's place in RUN_LIST and RUN_BY_FUNCTION", cached=2,
)  # fmt: skip
SETTLED: Leaf[str] = Leaf(
    "SETTLED", Name, 5, Id, 10, Int, codec=_TEXT, writers="accept_success, accept_failure", readers="assignments",
    note="ordinal of settlement from 1, completed and failed steps; value: step id", cached=2,
)  # fmt: skip
RESOLUTION: Leaf[run.ResolutionRecord] = Leaf(
    "RESOLUTION", Name, 5, Id, 12, Id, codec=run.RESOLUTION, writers="resolve_attempt", readers="resolve_attempt",
    note="digest of the operator's idempotency key", cached=2,
)  # fmt: skip
RUN_INPUT: Leaf[bytes] = Leaf(
    "RUN_INPUT", Name, 5, Id, 16, Int, codec=_RAW, writers="declare_child", readers="assignments, gateway",
    note="chunk number; only of a child run, other runs' input is their event's payload", cached=2,
)  # fmt: skip
BLOCKER: Leaf[blocker.BlockerRecord] = Leaf(
    "BLOCKER", Name, 5, Id, 13, Text, codec=blocker.BLOCKER,
    writers="block_run, wake_blocked, probe_definition, rediscover_run; goes with the next answer or stop",
    readers="the same, gateway", note="run, reason", cached=2,
)  # fmt: skip
FAILED: Leaf[int] = Leaf(
    "FAILED", Name, 5, Id, 14, Name, codec=_INT, writers="whatever fails a step for good, complete_run, fail_run",
    readers="complete_run, fail_run", note="step; value: bytes it takes to make it Obsolete", cached=2,
)  # fmt: skip
WAIT: Leaf[wait.WaitRecord] = Leaf(
    "WAIT", Name, 5, Id, 17, Name, codec=wait.WAIT, writers="declare_wait, forget_wait", readers="gateway, forget_wait",
    note="step", cached=2,
)  # fmt: skip
WAIT_STAMP: Leaf[bytes] = Leaf(
    "WAIT_STAMP", Name, 5, Id, 18, Name, codec=_STAMP, writers="declare_wait (stamped value), forget_wait",
    readers="forget_wait, gateway", note="step; the registration's place in WAIT_INDEX", cached=2,
)  # fmt: skip
RUN_LIST: Leaf[str] = Leaf(
    "RUN_LIST", Name, 6, Stamp, codec=_TEXT, writers="materialize_run (stamped key)", readers="gateway pages",
    note="value: run id",
)  # fmt: skip
RUN_BY_FUNCTION: Leaf[str] = Leaf(
    "RUN_BY_FUNCTION", Name, 7, Name, Name, Stamp, codec=_TEXT, writers="materialize_run (stamped key)",
    readers="gateway pages", note="application, function; value: run id",
)  # fmt: skip
RUN_BY_STATUS: Leaf[None] = Leaf(
    "RUN_BY_STATUS", Name, 8, Text, Int, Id, codec=_EMPTY, writers="every change of status", readers="gateway pages",
    note="status, creation instant (ms), run",
)  # fmt: skip
UNRESOLVED: Leaf[None] = Leaf(
    "UNRESOLVED", Name, 9, Id, Int, Name, Int, codec=_EMPTY, writers="lose_effect, settlements", readers="gateway pages",
    note="run, direction, step, generation",
)  # fmt: skip
MANIFEST: Leaf[tenancy.ManifestRecord] = Leaf(
    "MANIFEST", Name, 10, Name, Int, codec=tenancy.MANIFEST, writers="publish_manifest",
    readers="activate_routing, gateway", note="application, generation",
)  # fmt: skip
MANIFEST_FUNCTION: Leaf[tenancy.FunctionRecord] = Leaf(
    "MANIFEST_FUNCTION", Name, 11, Name, Int, Name, codec=tenancy.FUNCTION, writers="publish_manifest",
    readers="expand_event, gateway", note="application, generation, function",
)  # fmt: skip
MANIFEST_BINDING: Leaf[tenancy.BindingRecord] = Leaf(
    "MANIFEST_BINDING", Name, 12, Name, Int, Name, Name, codec=tenancy.BINDING, writers="publish_manifest",
    readers="expand_event", note="application, generation, event name, binding",
)  # fmt: skip
MANIFEST_HEAD: Leaf[int] = Leaf(
    "MANIFEST_HEAD", Name, 13, Name, codec=_INT, writers="publish_manifest", readers="publish_manifest, gateway",
    note="application; value: newest generation",
)  # fmt: skip
ROUTING: Leaf[tenancy.RoutingRecord] = Leaf(
    "ROUTING", Name, 14, Int, codec=tenancy.ROUTING, writers="activate_routing", readers="expand_event, gateway",
    note="generation", keeps=True,
)  # fmt: skip
ROUTING_HEAD: Leaf[int] = Leaf(
    "ROUTING_HEAD", Name, 15, codec=_INT, writers="activate_routing", readers="accept_event, activate_routing",
    note="value: the active generation", keeps=True,
)  # fmt: skip
READY: Leaf[None] = Leaf(
    "READY", Name, 16, Int, Int, Int, Id, codec=_EMPTY, writers="enqueue, lease, settle", readers="claims",
    note="server lane kind, vesting ms, priority, item",
)  # fmt: skip
READY_APP: Leaf[None] = Leaf(
    "READY_APP", Name, 17, Int, Name, Name, Int, Int, Int, Id, codec=_EMPTY, writers="enqueue, lease, settle",
    readers="claims", note="lane kind, application, function, direction, vesting ms, priority, item", cached=5,
)  # fmt: skip
ITEM: Leaf[work.ItemRecord] = Leaf(
    "ITEM", Name, 18, Id, codec=work.ITEM, writers="enqueue, lease, renew, settle", readers="the same", keeps=True
)
DUE_APP: Leaf[None] = Leaf(
    "DUE_APP", Name, 19, Int, Name, Int, Name, Int, codec=_EMPTY, writers="enqueue",
    readers="due scans; cleared by clear_due_pointer",
    note="lane kind, application, bucket, function, direction", keeps=True,
)  # fmt: skip
BELL_APP: Leaf[int] = Leaf(
    "BELL_APP", Name, 20, Name, codec=_INT, writers="enqueue (atomic add)", readers="watches", note="application",
    keeps=True,
)  # fmt: skip
INSTANCE: Leaf[work.InstanceRecord] = Leaf(
    "INSTANCE", Name, 21, Id, codec=work.INSTANCE, writers="open_session, close_session", readers="authorize_start",
    keeps=True,
)  # fmt: skip
INSTANCE_WORK: Leaf[str] = Leaf(
    "INSTANCE_WORK", Name, 22, Id, Id, Int, Name, Int, codec=_TEXT, writers="authorize_start, settlements",
    readers="open_session", note="instance, run, direction, step, generation; value: token; authorized and unresolved",
    keeps=True,
)  # fmt: skip
RELEASE: Leaf[release.ReleaseRecord] = Leaf(
    "RELEASE", Name, 23, Name, Id, codec=release.RELEASE, writers="register_release, prefer_release, remove_oldest_release",
    readers="the same, gateway", note="application, release", keeps=True,
)  # fmt: skip
RELEASE_STAMP: Leaf[bytes] = Leaf(
    "RELEASE_STAMP", Name, 23, Name, Id, 1, codec=_STAMP, writers="register_release (stamped value)",
    readers="prefer_release, release choice", note="the release's position, and its place in RELEASE_LIST",
)  # fmt: skip
RELEASE_OFFERS: Leaf[bytes] = Leaf(
    "RELEASE_OFFERS", Name, 23, Name, Id, 2, Int, codec=_RAW, writers="register_release",
    readers="prefer_release, release choice", note="application, release, chunk number; an OffersRecord",
)  # fmt: skip
RELEASE_LIST: Leaf[str] = Leaf(
    "RELEASE_LIST", Name, 24, Name, Stamp, codec=_TEXT, writers="register_release (stamped key)",
    readers="register_release, gateway pages", note="application; value: release id",
)  # fmt: skip
RELEASE_HEAD: Leaf[release.HeadRecord] = Leaf(
    "RELEASE_HEAD", Name, 25, Name, Name, codec=release.HEAD, writers="prefer_release when the preferred release changes",
    readers="prefer_release, block_run", note="application, function",
)  # fmt: skip
BLOCKED: Leaf[None] = Leaf(
    "BLOCKED", Name, 26, Name, Name, Id, codec=_EMPTY, writers="block_run; goes with the blocker",
    readers="prefer_release, wake_blocked", note="application, function, run",
)  # fmt: skip
WAKE: Leaf[blocker.WakeRecord] = Leaf(
    "WAKE", Name, 27, Id, codec=blocker.WAKE, writers="prefer_release, wake_blocked", readers="wake_blocked",
    note="digest of application and function",
)  # fmt: skip
WAIT_INDEX: Leaf[wait.WaitRef] = Leaf(
    "WAIT_INDEX", Name, 29, Name, Id, Stamp, codec=wait.WAIT_REF, writers="declare_wait (stamped key), forget_wait",
    readers="expand_event", note="event name, digest of the first declared pair",
)  # fmt: skip

LEAVES: tuple[Leaf[Any], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Leaf))
_BY_HEAD: dict[tuple[bool, int, int], list[Leaf[Any]]] = {}
for _leaf in LEAVES:
    _shared = isinstance(_leaf.shape[0], int)
    _code = _leaf.shape[0] if isinstance(_leaf.shape[0], int) else _leaf.shape[1]
    assert isinstance(_code, int)
    _BY_HEAD.setdefault((_shared, _code, len(_leaf.shape)), []).append(_leaf)


def identify(data: bytes) -> tuple[Leaf[Any], tuple[Any, ...]] | None:
    """Return the one leaf that the logical key `data` belongs to and its elements, or None for a key that is not ours."""
    try:
        raw = unpack(data)
    except ValueError:
        return None
    shared = bool(raw) and isinstance(raw[0], int)
    code = raw[0] if shared else (raw[1] if len(raw) > 1 else None)
    for leaf in _BY_HEAD.get((shared, code, len(raw)), []) if isinstance(code, int) else []:
        try:
            values = leaf.restore(raw)
        except ValueError:
            continue
        # A key that holds the same elements in other bytes is none that `at` builds, so nobody would ever find it.
        return (leaf, values) if leaf.pack(values) == data else None
    return None


def workspace_range(workspace: str) -> KeyRange:
    """Return the range of every key of one workspace; the shared indexes name it besides."""
    return range_of(pack_str(workspace))


def shared_range() -> KeyRange:
    """Return the range of the keys that all workspaces share."""
    return KeyRange(pack_int(0), pack_int(64))


def bucket_of(instant_ms: int) -> int:
    """Return the one-second bucket of an instant."""
    return instant_ms // BUCKET_MS


def shard_of_workspace(workspace: str) -> int:
    """Return the shard of a workspace's server lanes: the same in every process and release."""
    return sum(workspace.encode()) % SHARDS


def shard_of_id(identifier: str) -> int:
    """Return the shard of an id."""
    return int(identifier[:2], 16) % SHARDS


def ready_key(workspace: str, lane: Lane, vesting_ms: int, priority: int, item_id: str) -> Key[None]:
    """Return an item's place in its lane."""
    if lane.kind.is_server:
        return READY.at(workspace, lane.kind, vesting_ms, priority, item_id)
    return READY_APP.at(
        workspace, lane.kind, lane.application, lane.function, lane.direction, vesting_ms, priority, item_id
    )


def ready_span(workspace: str, lane: Lane, begin_ms: int, end_ms: int) -> KeyRange:
    """Return the range of a lane's entries whose vesting time lies in [begin_ms, end_ms)."""
    if lane.kind.is_server:
        prefix = READY.pack((workspace, lane.kind))
    else:
        prefix = READY_APP.pack((workspace, lane.kind, lane.application, lane.function, lane.direction))
    return KeyRange(prefix + pack_int(begin_ms), prefix + pack_int(end_ms))


def due_pointer(workspace: str, lane: Lane, bucket: int) -> Key[None]:
    """Return the pointer that says: this lane may have work that vests in this bucket."""
    if lane.kind.is_server:
        return DUE.at(lane.kind, shard_of_workspace(workspace), bucket, workspace)
    return DUE_APP.at(workspace, lane.kind, lane.application, bucket, lane.function, lane.direction)


def bell_of(workspace: str, lane: Lane) -> Key[int]:
    """Return the bell that a lane's claimers watch."""
    if lane.kind.is_server:
        return BELL.at(lane.kind, shard_of_workspace(workspace))
    return BELL_APP.at(workspace, lane.application)


def record_codec_of(leaf: Leaf[Any]) -> RecordCodec[Any] | None:
    """Return the record codec of a leaf, or None where values are raw."""
    return leaf.codec if isinstance(leaf.codec, RecordCodec) else None
