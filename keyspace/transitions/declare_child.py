"""Declare a child invocation: the child run comes to be with its parent's step, in one decision.

The child's identity is derived from its parent and the step, never minted, so that whatever repeats the declaration can only
ever name the same child. It is an ordinary run of the same application and manifest generation, made by the one
materialization there is.
"""

from __future__ import annotations

import msgspec

from keyspace.errors import Refusal
from keyspace.layout import MANIFEST_FUNCTION, RUN, RUN_INPUT
from keyspace.lifecycle import DeadlineSource
from keyspace.limits import CHILD_DEPTH_MAX
from keyspace.records.run import ParentRecord, RunRecord, StepRecord
from keyspace.records.tenancy import FunctionRecord
from keyspace.transitions.declaration import ChildTerms
from keyspace.transitions.materialize_run import RunSource, materialize_run
from keyspace.tx import Tx, digest_of

__all__ = ["check_child", "child_identity", "declare_child", "tightest_timeout"]


def child_identity(workspace: str, application: str, run_id: str, step_id: str) -> str:
    """Return the child's id: a digest over its scope, its parent and the step (RFD 2, "The child's identity is derived").

    Workspace and application are the child's whole scope: it belongs to its parent's application.
    """
    return digest_of("ryusen.child", workspace, application, run_id, step_id)


def check_child(
    run: RunRecord,
    terms: ChildTerms,
    declared: FunctionRecord | None,
    *,
    value_bytes_max: int,
    longest_ms: int | None = None,
) -> int:
    """Return the child's depth, or refuse an invocation that the engine will not make (RFD 2, "The engine refuses").

    Raises:
        Refusal: `value_too_large`, `run_timeout_above_maximum`, `unknown_function`, `child_depth`.
    """
    if longest_ms is not None and terms.timeout_ms is not None and terms.timeout_ms > longest_ms:
        raise Refusal(
            "run_timeout_above_maximum", "An invocation's timeout is longer than this deployment allows.",
            field="timeout_ms", value=terms.timeout_ms, limit=longest_ms,
        )  # fmt: skip
    if len(terms.input) > value_bytes_max:
        raise Refusal(
            "value_too_large", "A child's input is too large.", field="input", bytes=len(terms.input),
            limit=value_bytes_max,
        )  # fmt: skip
    if declared is None:
        raise Refusal(
            "unknown_function", "The run's manifest generation declares no such function.", field="function",
            value=terms.function, application=run.application, generation=run.manifest_generation,
        )  # fmt: skip
    depth = (run.parent.depth if run.parent is not None else 0) + 1
    if depth > CHILD_DEPTH_MAX:
        raise Refusal(
            "child_depth", "The chain of invocations is as deep as it may be.", field="depth", value=depth,
            limit=CHILD_DEPTH_MAX,
        )  # fmt: skip
    return depth


def tightest_timeout(
    run: RunRecord, terms: ChildTerms, declared: FunctionRecord, now_ms: int, default_ms: int | None = None
) -> tuple[int | None, DeadlineSource]:
    """Return how long the child may take from `now_ms`, and which of its three bounds says so; None is for ever.

    The bounds: what its function declares, or else the deployment's `default_ms`; the invocation's own timeout; and what its
    parent has left. Of equal ones the invocation's is named, so that a timeout of zero is told from a parent without time.
    """
    bounds: list[tuple[int, DeadlineSource]] = []
    if terms.timeout_ms is not None:
        bounds.append((terms.timeout_ms, DeadlineSource.INVOKE))
    if declared.timeout_ms is not None:
        bounds.append((declared.timeout_ms, DeadlineSource.FUNCTION))
    elif default_ms is not None:
        bounds.append((default_ms, DeadlineSource.DEPLOYMENT))
    if run.deadline_at_ms is not None:
        bounds.append((run.deadline_at_ms - now_ms, DeadlineSource.PARENT))
    # min keeps the first of equal ones.
    return min(bounds, key=lambda bound: bound[0], default=(None, DeadlineSource.FUNCTION))


async def declare_child(
    tx: Tx, workspace: str, run: RunRecord, step: StepRecord, terms: ChildTerms, now_ms: int, *, value_bytes_max: int
) -> StepRecord:
    """Create the child run and return its parent's step naming it (RFD 2, "A declaration may be a durable child invocation").

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run: the parent, Running or blocked and before its deadline.
        step: its step, WAITING, not yet written.
        terms: sound in themselves (`check_declaration`).
        now_ms: engine time of the acceptance; the invocation's timeout counts from it.
        value_bytes_max: the largest input a child is given.

    Reads: the function's declaration by snapshot (a generation never changes); the child, which must not exist.
    Writes: the child run with everything `materialize_run` writes, and its input.
    Conflicts: with nobody; the child has no other creator.  Budget: the input plus 7 kB.
    Idempotent: by the derived identity, under the receipt of the pass that declares it.

    Raises:
        Refusal: as `check_child`; `child_conflict`: a run of the child's identity exists that this invocation did not
            create. Nothing was written.
    """
    declared = await tx.load(
        MANIFEST_FUNCTION.at(workspace, run.application, run.manifest_generation, terms.function), snapshot=True
    )
    depth = check_child(run, terms, declared, value_bytes_max=value_bytes_max, longest_ms=tx.run_time.longest_ms)
    assert declared is not None
    child_id = child_identity(workspace, run.application, run.run_id, step.step_id)
    parent = ParentRecord(run_id=run.run_id, step_id=step.step_id, depth=depth)
    existing = await tx.load(RUN.at(workspace, child_id))
    if existing is not None:
        # Its step would be recorded with it, so a child without one is not this step's, whatever it says of itself. A
        # refusal answers the pass, where an error would have it delivered for ever.
        raise Refusal("child_conflict", "The child's identity is another run's.", field="step id", run=child_id)
    timeout_ms, source = tightest_timeout(run, terms, declared, now_ms, tx.run_time.default_ms)
    materialize_run(
        tx,
        workspace,
        child_id,
        RunSource(
            event_id="",
            event_name="",
            payload_bytes=len(terms.input),
            application=run.application,
            function=terms.function,
            binding="",
            manifest_generation=run.manifest_generation,
            routing_generation=run.routing_generation,
            timeout_ms=timeout_ms,
            deadline_source=source,
            parent=parent,
        ),
        order=0,
        at_ms=now_ms,
    )
    tx.put_blob(RUN_INPUT, workspace, child_id, value=terms.input)
    assert step.server is not None
    return msgspec.structs.replace(step, server=msgspec.structs.replace(step.server, child_id=child_id))
