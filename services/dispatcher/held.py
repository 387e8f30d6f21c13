"""The deliveries of one session and how far each has come, as the dispatcher knows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ryusen.protocol.frames import Answer, Result, WorkRef

from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.continue_run import following_pass
from keyspace.transitions.lease_items import Delivery
from keyspace.transitions.work import Work
from services.dispatcher.refs import ref_of, work_of

__all__ = ["Announced", "Held", "HeldState", "held_item", "held_pass"]


class HeldState(Enum):
    """How far a delivery has come.

    LOADING -> ASSIGNED -> SETTLING                                       discovery: authorized with its lease
    LOADING -> ASSIGNED -> AUTHORIZING -> STARTING -> STARTED -> SETTLING effects
                                                      STARTED             effects that a hello listed
    """

    LOADING = auto()
    ASSIGNED = auto()
    AUTHORIZING = auto()
    STARTING = auto()
    """Authorized; the start frame is not yet in the hands of the transport, so the effect provably has not begun."""
    STARTED = auto()
    SETTLING = auto()


@dataclass
class Held:
    """One delivery.

    Attributes:
        request: its id on the wire; the lease token, which no other delivery has.
        ref: its name on the wire.
        work: its name in the keyspace.
        state: how far it has come.
        was_started: whether its effect may have begun.
        has_lease: whether the lease goes on, as far as the last renewal told.
        lease_until_ms: when the lease runs out unless renewed, as far as this session knows; monotonic time.
        is_returned: the worker gave it back while its start was being authorized.
        delivery: what was leased; None for work that a hello listed.
        chain_count: steps that this session has run in a row without the queue, this one included.
        function: the run's; empty for work that a hello listed.
    """

    request: str
    ref: WorkRef
    work: Work
    state: HeldState
    was_started: bool = False
    has_lease: bool = True
    lease_until_ms: float = 0.0
    is_returned: bool = False
    delivery: Delivery | None = None
    chain_count: int = 0
    function: str = ""

    @property
    def is_discovery(self) -> bool:
        """Whether it is a pass, which may be repeated."""
        return self.work.kind is WorkKind.DISCOVERY


@dataclass
class Announced:
    """A success whose worker goes on with the run: held back for a moment, to be accepted together with the answer.

    Attributes:
        result: the success.
        chain_count: steps that this session has run in a row without the queue.
        is_settling: whether the result is being settled, alone or with its answer.
        answer: the answer that came while the result was being settled alone.
        is_given_back: whether the worker has given the pass up.
    """

    result: Result
    chain_count: int
    is_settling: bool = False
    answer: Answer | None = None
    is_given_back: bool = False


def held_item(item: ItemRecord, state: HeldState, lease_until_ms: float, function: str) -> Held:
    """Return a leased item as what its session holds; its token is its request id."""
    ref = ref_of(item)
    work = work_of(ref)
    assert work is not None, "a leased item that nothing can name"
    return Held(ref.token, ref, work, state, lease_until_ms=lease_until_ms, function=function)


def held_pass(result: Result, lease_until_ms: float, *, chain_count: int, function: str) -> Held:
    """Return the pass behind a success that was settled alone: it goes on where it is, under a lease of its own."""
    work = work_of(result.ref)
    assert work is not None, "a settled result that names nothing"
    held = Held(result.following, result.ref, following_pass(work), HeldState.ASSIGNED, lease_until_ms=lease_until_ms)
    held.chain_count, held.function = chain_count, function
    return held
