"""Publish a manifest generation: which functions an application has and which events start them."""

from __future__ import annotations

from typing import NamedTuple

from keyspace.errors import BudgetExceeded, Refusal
from keyspace.layout import MANIFEST, MANIFEST_BINDING, MANIFEST_FUNCTION, MANIFEST_HEAD
from keyspace.limits import BINDINGS_MAX, CONTRACT_BYTES_MAX, FUNCTIONS_MAX, RUN_TIMEOUT_MS_MAX
from keyspace.records.tenancy import BindingRecord, FunctionRecord, ManifestRecord
from keyspace.transitions.create_workspace import require_workspace
from keyspace.transitions.names import INVOKE_BINDING, RESERVED_EVENT_PREFIX, check_name, check_text
from keyspace.tx import Tx, digest_of

__all__ = ["FunctionSpec", "ManifestSpec", "TriggerSpec", "publish_manifest"]

RESERVED_BINDINGS = frozenset({INVOKE_BINDING})


class TriggerSpec(NamedTuple):
    """A binding: the event name that starts the function, and the binding's id, unique in the application."""

    event: str
    binding: str


class FunctionSpec(NamedTuple):
    """A function as the caller declares it; `timeout_ms` is how long a run of it may take, None is for ever."""

    name: str
    triggers: tuple[TriggerSpec, ...] = ()
    contract: str = ""
    timeout_ms: int | None = None


class ManifestSpec(NamedTuple):
    """A manifest as the caller declares it."""

    application: str
    functions: tuple[FunctionSpec, ...]


def check_manifest(spec: ManifestSpec) -> None:
    """Refuse a manifest that is not sound, naming the path of what is wrong.

    Raises:
        Refusal: `invalid_name`, `invalid_manifest`, `reserved_name`, `invalid_timeout`.
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
        _check_timeout(f"{path}.timeout_ms", function.timeout_ms)
        for number, trigger in enumerate(function.triggers):
            _check_trigger(f"{path}.triggers[{number}]", trigger, bindings)
    if len(bindings) > BINDINGS_MAX:
        raise Refusal(
            "invalid_manifest", "Too many bindings.", field="functions", value=len(bindings), limit=BINDINGS_MAX
        )


def _check_timeout(path: str, timeout_ms: int | None) -> None:
    if timeout_ms is not None and not 1 <= timeout_ms <= RUN_TIMEOUT_MS_MAX:
        raise Refusal(
            "invalid_timeout", "A run timeout lies outside its range.", field=path, value=timeout_ms, minimum=1,
            limit=RUN_TIMEOUT_MS_MAX,
        )  # fmt: skip


def check_timeout_policy(spec: ManifestSpec, run_timeout_max_ms: int | None) -> None:
    """Refuse a manifest that declares a longer run than the deployment allows; nothing is ever clamped.

    Source: RFD 1, "Runs have no deadline by default".

    Raises:
        Refusal: `run_timeout_above_maximum`, naming path, value and limit.
    """
    if run_timeout_max_ms is None:
        return
    for index, function in enumerate(spec.functions):
        if function.timeout_ms is not None and function.timeout_ms > run_timeout_max_ms:
            raise Refusal(
                "run_timeout_above_maximum", "A run timeout is longer than this deployment allows; declare a shorter one.",
                field=f"functions[{index}].timeout_ms", function=function.name, value=function.timeout_ms,
                limit=run_timeout_max_ms,
            )  # fmt: skip


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
        if function.timeout_ms is not None:
            parts += ["timeout_ms", str(function.timeout_ms)]
    return digest_of("ryusen.manifest", *parts)


async def publish_manifest(
    tx: Tx, workspace: str, spec: ManifestSpec, *, published_by: str, run_timeout_max_ms: int | None = None
) -> tuple[ManifestRecord, bool]:
    """Store a new immutable generation, or return the newest when it says the same; the second value says which.

    Args:
        tx: the open transaction.
        workspace: whose application it is.
        spec: what the manifest says.
        published_by: the acting key, for the record.
        run_timeout_max_ms: the longest run timeout that this deployment accepts; None is any.

    Reads: the workspace, the application's newest generation.  Writes: the generation, its functions and bindings, the head.
    Conflicts: with publications of the same application.  Budget: about 300 bytes a binding; refused when it cannot fit.
    Idempotent: by content.

    Raises:
        Refusal: `not_found`, `invalid_name`, `invalid_manifest`, `reserved_name`, `invalid_timeout`,
            `run_timeout_above_maximum`, `manifest_too_large`.
    """
    check_manifest(spec)
    check_timeout_policy(spec, run_timeout_max_ms)
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
            FunctionRecord(name=function.name, contract=function.contract, timeout_ms=function.timeout_ms),
        )
        for trigger in function.triggers:
            tx.put(
                MANIFEST_BINDING.at(workspace, application, generation, trigger.event, trigger.binding),
                BindingRecord(function=function.name, timeout_ms=function.timeout_ms),
            )
