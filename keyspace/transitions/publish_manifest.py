"""Publish a manifest generation: which functions an application has and which events start them."""

from __future__ import annotations

from typing import NamedTuple

from keyspace.errors import BudgetExceeded, Refusal
from keyspace.layout import MANIFEST, MANIFEST_BINDING, MANIFEST_FUNCTION, MANIFEST_HEAD
from keyspace.limits import BINDINGS_MAX, CONTRACT_BYTES_MAX, FUNCTIONS_MAX
from keyspace.records.tenancy import BindingRecord, FunctionRecord, ManifestRecord
from keyspace.transitions.create_workspace import require_workspace
from keyspace.transitions.names import RESERVED_EVENT_PREFIX, check_name, check_text
from keyspace.tx import Tx, digest_of

__all__ = ["FunctionSpec", "ManifestSpec", "TriggerSpec", "publish_manifest"]

RESERVED_BINDINGS = frozenset({"invoke"})


class TriggerSpec(NamedTuple):
    """A binding: the event name that starts the function, and the binding's id, unique in the application."""

    event: str
    binding: str


class FunctionSpec(NamedTuple):
    """A function as the caller declares it."""

    name: str
    triggers: tuple[TriggerSpec, ...] = ()
    contract: str = ""


class ManifestSpec(NamedTuple):
    """A manifest as the caller declares it."""

    application: str
    functions: tuple[FunctionSpec, ...]


def check_manifest(spec: ManifestSpec) -> None:
    """Refuse a manifest that is not sound, naming the path of what is wrong.

    Raises:
        Refusal: `invalid_name`, `invalid_manifest`, `reserved_name`.
    """
    check_name("application", spec.application)
    if not 1 <= len(spec.functions) <= FUNCTIONS_MAX:
        raise Refusal(
            "invalid_manifest",
            "A manifest declares at least one function and not more than the limit.",
            field="functions",
            value=len(spec.functions),
            limit=FUNCTIONS_MAX,
        )
    bindings: set[str] = set()
    functions: set[str] = set()
    for index, function in enumerate(spec.functions):
        path = f"functions[{index}]"
        check_name(f"{path}.name", function.name)
        check_text(f"{path}.contract", function.contract, bytes_max=CONTRACT_BYTES_MAX, empty=True)
        if function.name in functions:
            raise Refusal("invalid_manifest", "Two functions have one name.", field=f"{path}.name", value=function.name)
        functions.add(function.name)
        for number, trigger in enumerate(function.triggers):
            _check_trigger(f"{path}.triggers[{number}]", trigger, bindings)
    if len(bindings) > BINDINGS_MAX:
        raise Refusal(
            "invalid_manifest", "Too many bindings.", field="functions", value=len(bindings), limit=BINDINGS_MAX
        )


def _check_trigger(path: str, trigger: TriggerSpec, bindings: set[str]) -> None:
    check_name(f"{path}.event", trigger.event)
    check_name(f"{path}.binding", trigger.binding)
    if trigger.event.startswith(RESERVED_EVENT_PREFIX):
        raise Refusal(
            "reserved_name",
            "The prefix ryusen/ is reserved for the server.",
            field=f"{path}.event",
            value=trigger.event,
        )
    if trigger.binding in RESERVED_BINDINGS:
        raise Refusal("reserved_name", "This binding id is reserved.", field=f"{path}.binding", value=trigger.binding)
    if trigger.binding in bindings:
        raise Refusal("invalid_manifest", "Two bindings have one id.", field=f"{path}.binding", value=trigger.binding)
    bindings.add(trigger.binding)


def manifest_digest(spec: ManifestSpec) -> str:
    """Return the digest of what a manifest says."""
    parts: list[str] = [spec.application]
    for function in sorted(spec.functions):
        parts += [function.name, function.contract, str(len(function.triggers))]
        parts += [text for trigger in sorted(function.triggers) for text in trigger]
    return digest_of("ryusen.manifest", *parts)


async def publish_manifest(
    tx: Tx, workspace: str, spec: ManifestSpec, *, published_by: str
) -> tuple[ManifestRecord, bool]:
    """Store a new immutable generation, or return the newest when it says the same; the second value says which.

    Reads: the workspace, the application's newest generation.  Writes: the generation, its functions and bindings, the head.
    Conflicts: with publications of the same application.  Budget: about 300 bytes a binding; refused when it cannot fit.
    Idempotent: by content.

    Raises:
        Refusal: `not_found`, `invalid_name`, `invalid_manifest`, `reserved_name`, `manifest_too_large`.
    """
    check_manifest(spec)
    application = spec.application
    await require_workspace(tx, workspace)
    newest = await tx.load(MANIFEST_HEAD.at(workspace, application)) or 0
    digest = manifest_digest(spec)
    if newest:
        current = await tx.load(MANIFEST.at(workspace, application, newest))
        if current is not None and current.digest == digest:
            return current, False
    generation = newest + 1
    record = ManifestRecord(
        application=application,
        generation=generation,
        digest=digest,
        function_count=len(spec.functions),
        binding_count=sum(len(function.triggers) for function in spec.functions),
        published_at_ms=tx.now_ms,
        published_by=published_by,
    )
    try:
        _write_generation(tx, workspace, spec, record)
    except BudgetExceeded as error:
        raise Refusal(
            "manifest_too_large",
            "The manifest's names are too long together for one transaction; shorten them or split the application.",
            field="functions",
            bindings=record.binding_count,
            allowance_bytes=tx.budget.allowance_bytes,
        ) from error
    return record, True


def _write_generation(tx: Tx, workspace: str, spec: ManifestSpec, record: ManifestRecord) -> None:
    application, generation = record.application, record.generation
    tx.put(MANIFEST.at(workspace, application, generation), record)
    tx.put(MANIFEST_HEAD.at(workspace, application), generation)
    for function in spec.functions:
        tx.put(
            MANIFEST_FUNCTION.at(workspace, application, generation, function.name),
            FunctionRecord(name=function.name, contract=function.contract),
        )
        for trigger in function.triggers:
            tx.put(
                MANIFEST_BINDING.at(workspace, application, generation, trigger.event, trigger.binding),
                BindingRecord(function=function.name),
            )
