"""What the API takes and answers, as types: the one definition from which requests are read and the OpenAPI document is made.

Instants are Unix epoch milliseconds. Ids are 32 lower-case hexadecimal digits and opaque. A payload, input, output or step
value is the caller's own JSON text and stands in an answer byte for byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from keyspace.records.tenancy import Role
from services.gateway.blocker_types import Blocker
from services.gateway.invocation_types import Target
from services.gateway.operator_types import Stop

__all__ = [
    "Activated",
    "Activation",
    "Attempt",
    "Event",
    "EventSummary",
    "Expansion",
    "ExpansionSummary",
    "Failure",
    "HistoryEntry",
    "HistoryPage",
    "Invoked",
    "Key",
    "KeyRequest",
    "ManifestFunction",
    "ManifestSummary",
    "ManifestTrigger",
    "Match",
    "NewKey",
    "Page",
    "Problem",
    "PublishedManifest",
    "Retry",
    "Run",
    "RunSummary",
    "StaleResult",
    "Step",
    "StepDetail",
    "Submission",
    "Submitted",
    "Unwind",
    "Waiting",
    "Workspace",
    "WorkspaceRequest",
]

T = TypeVar("T")

if TYPE_CHECKING:
    OptionalRaw: TypeAlias = msgspec.Raw | None
else:
    # The decoder keeps raw text only for a member declared as nothing but raw; an absent one stays None all the same.
    OptionalRaw = msgspec.Raw


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Page(_Answer, Generic[T], frozen=True, kw_only=True):
    """A page of a list. `next_cursor` asks for the next one; null means that this is the last."""

    items: list[T]
    next_cursor: str | None = None


class Problem(_Answer, frozen=True, kw_only=True):
    """Why a request was refused (RFC 9457). `code` is stable; further members name the field, its value and the limit."""

    type: str
    title: str
    status: int
    code: str
    detail: str


# -- workspaces and keys


class WorkspaceRequest(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Create a workspace. Its name takes 1 to 63 of a-z, 0-9 and inner hyphens."""

    name: str
    retention_ms: int | None = None


class Workspace(_Answer, frozen=True, kw_only=True):
    """A workspace: one tenant's events, runs, manifests and keys. `retention_ms` also bounds idempotency keys."""

    name: str
    created_at_ms: int
    retention_ms: int


class KeyRequest(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Create a bearer key."""

    role: Role
    label: str = ""


class Key(_Answer, frozen=True, kw_only=True):
    """A bearer key, without its secret, which nobody stores."""

    key: str
    role: Role
    label: str
    created_at_ms: int
    revoked_at_ms: int | None = None


class NewKey(_Answer, frozen=True, kw_only=True):
    """A key that was just made. `secret` is shown here and never again."""

    key: str
    secret: str
    role: Role
    label: str
    created_at_ms: int


# -- events


class Submission(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Submit an event. `correlation` holds up to 16 pairs of texts that waits may match; `timestamp_ms` is the caller's own."""

    name: str
    payload: msgspec.Raw
    correlation: dict[str, str] = {}
    timestamp_ms: int | None = None


class ExpansionSummary(_Answer, frozen=True, kw_only=True):
    """How far an event has become runs. `explanation` says in words what became of it."""

    state: str
    matched_count: int
    explanation: str = ""


class Expansion(ExpansionSummary, frozen=True, kw_only=True):
    """How far an event has become runs, with how many candidates were looked at and when the last one was.

    `inspected_count` is how many waits were looked at that it might have satisfied, `settled_count` how many it settled.
    """

    evaluated_count: int = 0
    inspected_count: int = 0
    settled_count: int = 0
    completed_at_ms: int | None = None


class Submitted(_Answer, frozen=True, kw_only=True):
    """The acknowledgement: the event is durable. `replayed` says that this idempotency key had made it before."""

    event: str
    routing_generation: int
    expansion: ExpansionSummary
    replayed: bool
    accepted_at_ms: int
    claim_expires_at_ms: int | None = None


class Invoked(Submitted, frozen=True, kw_only=True):
    """The acknowledgement of a direct invocation: it is durable.

    `run` is the id that the run has once the expansion has found the function, known at once and by nobody else's run ever
    borne; null when it was not found.
    """

    run: str | None


class EventSummary(_Answer, frozen=True, kw_only=True):
    """An event in a list; `target` says that it is a direct invocation, and of what."""

    event: str
    name: str
    correlation: dict[str, str]
    timestamp_ms: int | None
    accepted_at_ms: int
    routing_generation: int
    payload_bytes: int
    target: Target | None = None
    expansion: Expansion


class Match(_Answer, frozen=True, kw_only=True):
    """A run that an event started, and by which binding."""

    application: str
    binding: str
    function: str
    run: str
    evaluated_at_ms: int


class Event(_Answer, frozen=True, kw_only=True):
    """An event with its payload and the first of the runs it started."""

    event: str
    name: str
    correlation: dict[str, str]
    timestamp_ms: int | None
    accepted_at_ms: int
    accepted_by: str
    claim_expires_at_ms: int | None
    routing_generation: int
    payload_bytes: int
    payload: msgspec.Raw
    target: Target | None = None
    expansion: Expansion
    matches: Page[Match]


# -- runs


class Failure(_Answer, frozen=True, kw_only=True):
    """A structured failure; `details` is what the failing code attached, if anything."""

    category: str
    message: str
    details: OptionalRaw = None


class Waiting(_Answer, frozen=True, kw_only=True):
    """What a run that has not ended waits for, since when, and until when at most."""

    word: str
    sentence: str
    since_ms: int
    until_ms: int | None = None


class Deadline(_Answer, frozen=True, kw_only=True):
    """When a run's forward execution must have ended, who said so, and how much of that is left.

    `source` is function (its declaration), deployment (its default), invoke (the invocation that made it) or parent (what
    its parent had left). `left_ms` is null once forward execution has ended or was stopped: the deadline counts no more.
    """

    at_ms: int
    source: str
    left_ms: int | None


class Unwind(_Answer, frozen=True, kw_only=True):
    """How far the undoing of completed steps has come, in completion ordinals; `cursor` 0 means that none is left."""

    upper: int
    cursor: int
    executed_count: int
    skipped_count: int


class Parent(_Answer, frozen=True, kw_only=True):
    """The run and step that invoked a run; `depth` is 1 where that run was not invoked itself."""

    run: str
    step: str
    depth: int


class RunSummary(_Answer, frozen=True, kw_only=True):
    """A run in a list. `status` is the phase, or how execution ended once the run is terminal.

    A run comes from an event or from a `parent`, never from both. `child` is the run that it waits for.
    """

    run: str
    application: str
    function: str
    event: str | None
    event_name: str | None
    parent: Parent | None
    child: str | None
    status: str
    phase: str
    execution: str | None
    recovery: str | None
    created_at_ms: int
    updated_at_ms: int
    terminal_at_ms: int | None
    step_count: int
    unknown_count: int
    failure: Failure | None
    waiting: Waiting | None
    deadline: Deadline | None = None


class Run(RunSummary, frozen=True, kw_only=True):
    """A run with its input and, once it has completed, its output."""

    binding: str | None
    manifest_generation: int
    routing_generation: int
    generation: int
    history_count: int
    completion_count: int
    stop: Stop | None
    unwind: Unwind | None
    blocker: Blocker | None
    input_bytes: int
    input: msgspec.Raw
    output_bytes: int | None = None
    output: OptionalRaw = None


class Retry(_Answer, frozen=True, kw_only=True):
    """The retry policy that the declaration recorded; `attempts` counts the first one too."""

    attempts: int
    initial_ms: int
    coefficient: float
    cap_ms: int


class Attempt(_Answer, frozen=True, kw_only=True):
    """One physical attempt of a step, by the worker instance that was authorized to make it."""

    direction: str
    generation: int
    ordinal: int
    operation: str
    state: str
    queued_at_ms: int
    vesting_ms: int
    authorized_at_ms: int | None
    lost_at_ms: int | None
    settled_at_ms: int | None
    session: str | None
    instance: str | None
    release: str | None
    failure: Failure | None
    stale_count: int
    loss_count: int


class AwaitedEvent(_Answer, frozen=True, kw_only=True):
    """What a waiting step is registered for: an event of this name that carries every pair of `match`.

    Only an event accepted after the registration counts, and before the timeout is over: `registered_at_ms` is when it was
    made, and `stamp` is its place among the commits, which decides between two of the same millisecond.
    """

    name: str
    match: dict[str, str]
    timeout_ms: int
    registered_at_ms: int
    stamp: str


class Step(_Answer, frozen=True, kw_only=True):
    """A step with all its attempts, forward ones first.

    `repeatable` says that an attempt that is lost is delivered again by itself; `undo_repeatable` says it of its compensator.
    `kind` is `callback`, or names a step that the service settles itself and that has no attempts: `due_at_ms` is the instant it
    waits for, `event` the event it emitted or was settled by, `awaited` what a wait that is not settled is registered for, `child`
    the run that it started.
    """

    step: str
    name: str
    kind: str
    child: str | None
    state: str
    compensation: str
    ordinal: int
    failure_count: int
    retry: Retry
    timeout_ms: int | None
    repeatable: bool
    undo_repeatable: bool
    location: str
    declared_at_ms: int
    settled_at_ms: int | None
    completion: int | None
    value_bytes: int | None
    failure: Failure | None
    attempts: list[Attempt]
    due_at_ms: int | None
    event: str | None
    awaited: AwaitedEvent | None = None


class StaleResult(_Answer, frozen=True, kw_only=True):
    """A result that came after the attempt had been decided: a diagnostic, acted upon by nobody."""

    direction: str
    generation: int
    received_at_ms: int
    outcome: str
    value_bytes: int
    failure: Failure | None


class StepDetail(Step, frozen=True, kw_only=True):
    """A step with its accepted value and the results that lost."""

    stale_results: list[StaleResult] = []
    value: OptionalRaw = None


class HistoryEntry(_Answer, frozen=True, kw_only=True):
    """One accepted transition of a run; ordinals count from 1 without a gap."""

    ordinal: int
    at_ms: int
    kind: str
    data: dict[str, Any]


class HistoryPage(_Answer, frozen=True, kw_only=True):
    """A page of history. `next_after` asks for the next one; `is_complete` says that nothing will ever follow."""

    items: list[HistoryEntry]
    next_after: int | None
    is_complete: bool


# -- manifests and routing


class ManifestTrigger(_Answer, frozen=True, kw_only=True):
    """An event name that starts a function, and the binding's id."""

    event: str
    binding: str


class ManifestFunction(_Answer, frozen=True, kw_only=True):
    """A function of a manifest. `timeout_ms` is how long one run of it may take; null is for ever."""

    name: str
    triggers: list[ManifestTrigger]
    contract: str = ""
    timeout_ms: int | None = None


class ManifestSummary(_Answer, frozen=True, kw_only=True):
    """An immutable generation of an application's manifest."""

    application: str
    generation: int
    digest: str
    function_count: int
    binding_count: int
    published_at_ms: int
    published_by: str


class PublishedManifest(ManifestSummary, frozen=True, kw_only=True):
    """A manifest generation with its functions."""

    functions: list[ManifestFunction]


class Activation(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Route new events by these manifest generations. With `merge`, applications that are not named stay as they are."""

    applications: dict[str, int]
    merge: bool = False


class Activated(_Answer, frozen=True, kw_only=True):
    """The active routing generation; 0 says that none was ever activated."""

    generation: int
    applications: dict[str, int]
    activated_at_ms: int | None = None
    activated_by: str | None = None
