"""Activate a routing generation: which manifest generation of each application new events are pinned to."""

from __future__ import annotations

from keyspace.errors import Refusal
from keyspace.layout import MANIFEST, ROUTING, ROUTING_HEAD
from keyspace.limits import APPLICATIONS_MAX
from keyspace.records.tenancy import RoutingRecord
from keyspace.transitions.create_workspace import require_workspace
from keyspace.transitions.names import check_name
from keyspace.tx import Tx

__all__ = ["activate_routing"]


async def activate_routing(
    tx: Tx, workspace: str, applications: dict[str, int], *, activated_by: str, is_merge: bool = False
) -> tuple[RoutingRecord, bool]:
    """Make a new routing generation active, or return the active one when it says the same; the second value says which.

    Args:
        tx: the open transaction.
        workspace: whose events are routed.
        applications: the manifest generation of each application, at most 100.
        activated_by: the acting key.
        is_merge: keep the active generation's other applications.

    Reads: the workspace, the head, the active generation, each manifest.  Writes: the generation and the head.
    Conflicts: with other activations, and with submissions that read the head meanwhile (they retry).
    Idempotent: by content.  An acknowledged event keeps the generation it was accepted under (RFD 2, "Event acknowledgement").

    Raises:
        Refusal: `not_found`, `invalid_routing`, `unknown_manifest`.
    """
    for application, generation in applications.items():
        check_name("applications", application)
        if generation < 1:
            raise Refusal(
                "invalid_routing",
                "A manifest generation is 1 or more.",
                field=f"applications.{application}",
                value=generation,
            )
    await require_workspace(tx, workspace)
    head = await tx.load(ROUTING_HEAD.at(workspace)) or 0
    current = await tx.load(ROUTING.at(workspace, head))
    wanted = dict(current.applications) | applications if is_merge and current else dict(applications)
    if not 1 <= len(wanted) <= APPLICATIONS_MAX:
        raise Refusal(
            "invalid_routing", "Routing names at least one application and not more than the limit.",
            field="applications", value=len(wanted), limit=APPLICATIONS_MAX,
        )  # fmt: skip
    if current is not None and current.applications == wanted:
        return current, False
    manifests = await tx.load_all(MANIFEST.at(workspace, name, generation) for name, generation in wanted.items())
    for (name, generation), manifest in zip(wanted.items(), manifests, strict=True):
        if manifest is None:
            raise Refusal(
                "unknown_manifest",
                "No such manifest generation was published.",
                application=name,
                generation=generation,
            )
    record = RoutingRecord(
        generation=head + 1,
        applications=dict(sorted(wanted.items())),
        activated_at_ms=tx.now_ms,
        activated_by=activated_by,
    )
    tx.put(ROUTING.at(workspace, record.generation), record)
    tx.put(ROUTING_HEAD.at(workspace), record.generation)
    return record, True
