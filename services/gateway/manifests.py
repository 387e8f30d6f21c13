"""Manifests and routing: which functions an application has, and which generation new events are pinned to."""

from __future__ import annotations

import msgspec
from ryusen.protocol.manifest import Manifest as SentManifest
from ryusen.protocol.manifest import ManifestRefused, decode_manifest

from keyspace.layout import MANIFEST, MANIFEST_BINDING, MANIFEST_FUNCTION, ROUTING, ROUTING_HEAD
from keyspace.limits import BINDINGS_MAX, FUNCTIONS_MAX
from keyspace.records.tenancy import ManifestRecord, RoutingRecord
from keyspace.store.api import KeyRange
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.create_workspace import require_workspace
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.tx import Tx
from services.gateway.bodies import check_duplicates
from services.gateway.cursors import ListQuery
from services.gateway.endpoints import Answer, Call, missing
from services.gateway.pages import PageRequest, read_rows
from services.gateway.problems import ApiProblem
from services.gateway.types import (
    Activated,
    Activation,
    ManifestFunction,
    ManifestSummary,
    ManifestTrigger,
    Page,
    PublishedManifest,
)

__all__ = ["activate", "get_manifest", "get_routing", "list_manifests", "publish"]

MANIFEST_BYTES_MAX = 4 * 1024 * 1024
ROUTING_BYTES_MAX = 256 * 1024
READ_PAGE_ROWS = 1_000
GENERATION_CHARS_MAX = 18

_activation_decoder = msgspec.json.Decoder(Activation)


async def publish(call: Call) -> Answer:
    """Store a manifest as a new immutable generation; the same content again answers the generation that exists."""
    body = await call.body(MANIFEST_BYTES_MAX)
    try:
        manifest = decode_manifest(body)
    except ManifestRefused as error:
        raise ApiProblem("invalid_manifest", str(error), path=error.path, reason=error.reason) from None
    check_duplicates(body, b"")
    if manifest.application != call.parts["application"]:
        raise ApiProblem(
            "invalid_manifest",
            "The manifest is of another application than the path.",
            path="$.application",
            value=manifest.application,
        )
    spec = _spec(manifest)
    longest_ms = call.gateway.config.run_timeout_max_ms or None
    record, is_new = await call.transact(
        "publish_manifest",
        lambda tx: publish_manifest(
            tx, call.workspace, spec, published_by=call.identity.key_id, run_timeout_max_ms=longest_ms
        ),
    )
    return Answer(_summary(record), 201 if is_new else 200)


async def list_manifests(call: Call) -> Answer:
    """List an application's generations, the newest first."""
    application = call.parts["application"]
    request = PageRequest.of(ListQuery("manifests", call.workspace, application), call.query)

    async def page(tx: Tx) -> Page[ManifestSummary]:
        await require_workspace(tx, call.workspace)
        found = await read_rows(tx, MANIFEST.span(call.workspace, application), request, reverse=True)
        items = [_summary(MANIFEST.codec.decode(value)) for _, value in found.rows]
        return Page(items=items, next_cursor=found.next_cursor)

    return Answer(await call.transact("list_manifests", page))


async def get_manifest(call: Call) -> Answer:
    """Answer one generation with its functions."""
    application, text = call.parts["application"], call.parts["generation"]
    if not (text.isascii() and text.isdigit() and len(text) <= GENERATION_CHARS_MAX):
        raise missing("manifest generation", generation=text[:80])
    generation = int(text)

    async def read(tx: Tx) -> PublishedManifest:
        record = await tx.load(MANIFEST.at(call.workspace, application, generation), snapshot=True)
        if record is None:
            raise missing("manifest generation", application=application, generation=text)
        at = (call.workspace, application, generation)
        triggers: dict[str, list[ManifestTrigger]] = {}
        for key, value in await _all(tx, MANIFEST_BINDING.span(*at), BINDINGS_MAX):
            _, _, _, event, binding = MANIFEST_BINDING.parse(key)
            function = MANIFEST_BINDING.codec.decode(value).function
            triggers.setdefault(function, []).append(ManifestTrigger(event=event, binding=binding))
        functions = [
            ManifestFunction(
                name=found.name,
                triggers=triggers.get(found.name, []),
                contract=found.contract,
                timeout_ms=found.timeout_ms,
            )
            for found in [
                MANIFEST_FUNCTION.codec.decode(value)
                for _, value in await _all(tx, MANIFEST_FUNCTION.span(*at), FUNCTIONS_MAX)
            ]
        ]
        return PublishedManifest(
            application=record.application,
            generation=record.generation,
            digest=record.digest,
            function_count=record.function_count,
            binding_count=record.binding_count,
            published_at_ms=record.published_at_ms,
            published_by=record.published_by,
            functions=functions,
        )

    return Answer(await call.transact("get_manifest", read))


async def activate(call: Call) -> Answer:
    """Make manifest generations the ones that new events are pinned to."""
    wanted = await call.decode(_activation_decoder, ROUTING_BYTES_MAX)
    record, is_new = await call.transact(
        "activate_routing",
        lambda tx: activate_routing(
            tx, call.workspace, wanted.applications, activated_by=call.identity.key_id, is_merge=wanted.merge
        ),
    )
    return Answer(_activated(record), 201 if is_new else 200)


async def get_routing(call: Call) -> Answer:
    """Answer the active routing generation."""

    async def read(tx: Tx) -> RoutingRecord | None:
        await require_workspace(tx, call.workspace)
        head = await tx.load(ROUTING_HEAD.at(call.workspace), snapshot=True)
        return None if head is None else await tx.load(ROUTING.at(call.workspace, head), snapshot=True)

    return Answer(_activated(await call.transact("get_routing", read)))


def _spec(manifest: SentManifest) -> ManifestSpec:
    return ManifestSpec(
        manifest.application,
        tuple(
            FunctionSpec(
                function.name,
                tuple(TriggerSpec(trigger.event, trigger.binding) for trigger in function.triggers),
                function.contract,
                function.timeout_ms,
            )
            for function in manifest.functions
        ),
    )


async def _all(tx: Tx, span: KeyRange, rows_max: int) -> list[tuple[bytes, bytes]]:
    rows: list[tuple[bytes, bytes]] = []
    while len(rows) <= rows_max:
        page = await tx.page(span, limit=READ_PAGE_ROWS, snapshot=True)
        rows += page
        if len(page) < READ_PAGE_ROWS:
            break
        span = KeyRange(page[-1][0] + b"\x00", span.end)
    return rows


def _summary(record: ManifestRecord) -> ManifestSummary:
    return ManifestSummary(
        application=record.application,
        generation=record.generation,
        digest=record.digest,
        function_count=record.function_count,
        binding_count=record.binding_count,
        published_at_ms=record.published_at_ms,
        published_by=record.published_by,
    )


def _activated(record: RoutingRecord | None) -> Activated:
    if record is None:
        return Activated(generation=0, applications={})
    return Activated(
        generation=record.generation,
        applications=record.applications,
        activated_at_ms=record.activated_at_ms,
        activated_by=record.activated_by,
    )
