"""Every endpoint of the API, in one table: path, permission, types, parameters and what it may refuse."""

from __future__ import annotations

from ryusen.protocol.manifest import Manifest as SentManifest

from keyspace.limits import (
    HISTORY_PAGE_ITEMS_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX,
    LIST_PAGE_ITEMS_DEFAULT,
    LIST_PAGE_ITEMS_MAX,
)
from services.gateway import (
    attempts,
    blockers,
    events,
    histories,
    invocations,
    manifests,
    releases,
    runs,
    steps,
    workspaces,
)
from services.gateway.auth import Action
from services.gateway.blocker_types import Rediscovery
from services.gateway.endpoints import Endpoint, Parameter
from services.gateway.event_types import Event, EventSummary, Invoked, Match, Submission, Submitted
from services.gateway.invocation_types import InvocationRequest
from services.gateway.operator_types import Cancellation, Resolution, ResolutionRequest, UnresolvedAttempt
from services.gateway.releases import ReleaseSummary
from services.gateway.run_types import HistoryPage, Run, RunSummary
from services.gateway.step_types import Step, StepDetail
from services.gateway.types import (
    Activated,
    Activation,
    Key,
    KeyRequest,
    ManifestSummary,
    NewKey,
    Page,
    PublishedManifest,
    Workspace,
    WorkspaceRequest,
)

__all__ = ["ENDPOINTS"]

_WORKSPACES = "/v1/workspaces"
_WORKSPACE = _WORKSPACES + "/{workspace}"
_RUN = _WORKSPACE + "/runs/{run}"
_FUNCTION = _WORKSPACE + "/applications/{application}/functions/{function}"
_MANIFESTS = _WORKSPACE + "/applications/{application}/manifests"


def _integer(name: str, meaning: str, low: int, high: int | None, default: int) -> Parameter:
    schema: dict[str, object] = {"type": "integer", "minimum": low, "default": default}
    return Parameter(name, meaning, schema if high is None else schema | {"maximum": high})


def _text(name: str, meaning: str, *choices: str) -> Parameter:
    return Parameter(name, meaning, {"type": "string"} | ({"enum": list(choices)} if choices else {}))


_PAGE = (
    _integer("limit", "How many entries a page has at most.", 1, LIST_PAGE_ITEMS_MAX, LIST_PAGE_ITEMS_DEFAULT),
    _text("cursor", "The next_cursor of the page before, of the same list with the same filters."),
)
_AFTER = _integer("after", "The ordinal of the last entry already seen; 0 begins at the beginning.", 0, None, 0)
_IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    f"Makes repeating the submission harmless: 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes of text, not blank. Equal submissions "
    "with one key are one event; a different one is refused. Each operation has keys of its own. The payload counts as bytes: reordered members are different.",
    {"type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_BYTES_MAX},
    "header",
)
_COMMAND_KEY = Parameter(
    "Idempotency-Key",
    f"Required. Makes repeating the command harmless for as long as the run lives: 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes of "
    "text, not blank. The same command with the same key answers what was recorded; another command is refused.",
    _IDEMPOTENCY_KEY.schema,
    "header",
    is_required=True,
)
_QUERY = ("invalid_query", "invalid_cursor")
_BODY = ("malformed_body", "invalid_body", "body_too_large", "body_timeout")

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        name="create_workspace", method="POST", path=_WORKSPACES, action=Action.CREATE_WORKSPACE,
        handler=workspaces.new_workspace, body=WorkspaceRequest, answer=Workspace, status=201,
        summary="Create a workspace; an existing one is answered with 200.",
        problems=(*_BODY, "invalid_name", "invalid_retention"),
    ),
    Endpoint(
        name="list_workspaces", method="GET", path=_WORKSPACES, action=None,
        handler=workspaces.list_workspaces, answer=Page[Workspace], parameters=_PAGE,
        summary="List the workspaces that the key reaches.", problems=_QUERY,
    ),
    Endpoint(
        name="get_workspace", method="GET", path=_WORKSPACE, action=Action.READ,
        handler=workspaces.get_workspace, answer=Workspace, summary="Read a workspace.",
    ),
    Endpoint(
        name="create_key", method="POST", path=_WORKSPACE + "/keys", action=Action.MANAGE_KEYS,
        handler=workspaces.create_workspace_key, body=KeyRequest, answer=NewKey, status=201,
        summary="Create a bearer key; its secret is shown in this answer and never again.",
        problems=(*_BODY, "invalid_text", "too_many_keys"),
    ),
    Endpoint(
        name="list_keys", method="GET", path=_WORKSPACE + "/keys", action=Action.MANAGE_KEYS,
        handler=workspaces.list_workspace_keys, answer=Page[Key], summary="List all keys, revoked ones included.",
    ),
    Endpoint(
        name="revoke_key", method="DELETE", path=_WORKSPACE + "/keys/{key}", action=Action.MANAGE_KEYS,
        handler=workspaces.revoke_workspace_key, answer=Key,
        summary="Revoke a key. Processes that knew it follow within key_cache_ms, at most 5 seconds; sessions and streams that stand end within 5 seconds.",
    ),
    Endpoint(
        name="submit_event", method="POST", path=_WORKSPACE + "/events", action=Action.SUBMIT,
        handler=events.submit_event, body=Submission, answer=Submitted, status=202, parameters=(_IDEMPOTENCY_KEY,),
        summary="Submit an event; once answered it is durable.",
        problems=(
            *_BODY, "invalid_idempotency_key", "invalid_name", "reserved_name", "invalid_text", "invalid_correlation",
            "invalid_timestamp", "invalid_value", "payload_too_large", "idempotency_conflict", "event_deleted",
        ),
    ),
    Endpoint(
        name="invoke_function", method="POST", path=_FUNCTION + "/invoke", action=Action.SUBMIT,
        handler=invocations.invoke, body=InvocationRequest, answer=Invoked, status=202, parameters=(_IDEMPOTENCY_KEY,),
        summary="Start one function with an input; once answered it is durable. What is not in the routing is told by the event.",
        problems=(
            *_BODY, "invalid_idempotency_key", "invalid_timestamp", "invalid_value", "payload_too_large",
            "idempotency_conflict", "event_deleted",
        ),
    ),
    Endpoint(
        name="list_events", method="GET", path=_WORKSPACE + "/events", action=Action.READ,
        handler=events.list_events, answer=Page[EventSummary], parameters=_PAGE,
        summary="List events, the newest first.", problems=_QUERY,
    ),
    Endpoint(
        name="get_event", method="GET", path=_WORKSPACE + "/events/{event}", action=Action.READ,
        handler=events.get_event, answer=Event, summary="Read an event, its payload and the runs it started.",
    ),
    Endpoint(
        name="list_matches", method="GET", path=_WORKSPACE + "/events/{event}/matches", action=Action.READ,
        handler=events.list_matches, answer=Page[Match], parameters=_PAGE,
        summary="List the runs that an event started.", problems=_QUERY,
    ),
    Endpoint(
        name="list_runs", method="GET", path=_WORKSPACE + "/runs", action=Action.READ,
        handler=runs.list_runs, answer=Page[RunSummary],
        parameters=(
            _text("status", "Only runs of this status.", *runs.STATUSES),
            _text("application", "With function: only runs of that function."),
            _text("function", "With application: only runs of this function."),
            *_PAGE,
        ),
        summary="List runs, the newest first.", problems=(*_QUERY, "unsupported_filter"),
    ),
    Endpoint(
        name="get_run", method="GET", path=_RUN, action=Action.READ,
        handler=runs.get_run, answer=Run, summary="Read a run with its input and output.",
    ),
    Endpoint(
        name="cancel_run", method="POST", path=_RUN + "/cancel", action=Action.CANCEL,
        handler=runs.cancel, answer=Cancellation,
        summary="Cancel a run: no forward work starts any more. Work that had begun is not stopped; its outcome is waited for.",
        problems=("stop_conflict",),
    ),
    Endpoint(
        name="rediscover_run", method="POST", path=_RUN + "/rediscover", action=Action.REDISCOVER,
        handler=blockers.rediscover, answer=Rediscovery,
        summary="Look at the code of a run that is blocked by its definition again, now. Asking twice changes nothing.",
        problems=("run_not_blocked",),
    ),
    Endpoint(
        name="list_attempts", method="GET", path=_WORKSPACE + "/attempts", action=Action.READ,
        handler=attempts.list_attempts, answer=Page[UnresolvedAttempt],
        parameters=(
            Parameter("unresolved", "Always true: only attempts whose outcome is unknown are listed across runs.",
                      {"type": "boolean", "const": True, "default": True}),
            *_PAGE,
        ),
        summary="List the attempts whose outcome is unknown, by run.", problems=(*_QUERY, "unsupported_filter"),
    ),
    Endpoint(
        name="resolve_attempt", method="POST", path=_RUN + "/steps/{step}/attempts/{generation}/resolve",
        action=Action.RESOLVE, handler=attempts.resolve, body=ResolutionRequest, answer=Resolution,
        parameters=(_COMMAND_KEY,),
        summary="Settle an attempt whose outcome is unknown: supply its success, declare its failure, or authorize a retry.",
        problems=(
            *_BODY, "invalid_idempotency_key", "invalid_value", "invalid_text", "invalid_name", "value_too_large",
            "idempotency_conflict", "stale_attempt", "retry_forbidden", "deadline_elapsed", "replay_budget",
        ),
    ),
    Endpoint(
        name="list_steps", method="GET", path=_RUN + "/steps", action=Action.READ,
        handler=steps.list_steps, answer=Page[Step], parameters=_PAGE,
        summary="List a run's steps with all their attempts, by step id.", problems=_QUERY,
    ),
    Endpoint(
        name="get_step", method="GET", path=_RUN + "/steps/{step}", action=Action.READ,
        handler=steps.get_step, answer=StepDetail, summary="Read a step with its value.",
    ),
    Endpoint(
        name="get_history", method="GET", path=_RUN + "/history", action=Action.READ,
        handler=histories.get_history, answer=HistoryPage,
        parameters=(
            _AFTER,
            _integer("limit", "How many entries a page has at most.", 1, HISTORY_PAGE_ITEMS_MAX, LIST_PAGE_ITEMS_DEFAULT),
        ),
        summary="Read a page of a run's history.", problems=("invalid_query",),
    ),
    Endpoint(
        name="follow_history", method="GET", path=_RUN + "/history/stream", action=Action.READ,
        handler=histories.follow_history, answer=str, parameters=(_AFTER,), media_type="text/event-stream",
        summary="Follow a run's history: one server-sent event an entry, its id the ordinal; `end` when the run has ended.",
        problems=("invalid_query",),
    ),
    Endpoint(
        name="publish_manifest", method="POST", path=_MANIFESTS, action=Action.DEPLOY,
        handler=manifests.publish, body=SentManifest, answer=ManifestSummary, status=201,
        summary="Publish a manifest as a new generation; unchanged content is answered with 200 and its generation.",
        problems=("body_too_large", "body_timeout", "malformed_body", "invalid_manifest", "invalid_name", "invalid_text",
                  "reserved_name", "invalid_timeout", "run_timeout_above_maximum", "manifest_too_large"),
    ),
    Endpoint(
        name="list_manifests", method="GET", path=_MANIFESTS, action=Action.READ,
        handler=manifests.list_manifests, answer=Page[ManifestSummary], parameters=_PAGE,
        summary="List an application's generations, the newest first.", problems=_QUERY,
    ),
    Endpoint(
        name="get_manifest", method="GET", path=_MANIFESTS + "/{generation}", action=Action.READ,
        handler=manifests.get_manifest, answer=PublishedManifest, summary="Read a manifest generation.",
    ),
    Endpoint(
        name="list_releases", method="GET", path=_WORKSPACE + "/applications/{application}/releases", action=Action.READ,
        handler=releases.list_releases, answer=Page[ReleaseSummary], parameters=_PAGE,
        summary="List an application's connected releases, the greatest position first.", problems=_QUERY,
    ),
    Endpoint(
        name="activate_routing", method="POST", path=_WORKSPACE + "/routing", action=Action.DEPLOY,
        handler=manifests.activate, body=Activation, answer=Activated, status=201,
        summary="Pin new events to these manifest generations; an unchanged routing is answered with 200.",
        problems=(*_BODY, "invalid_name", "invalid_routing", "unknown_manifest"),
    ),
    Endpoint(
        name="get_routing", method="GET", path=_WORKSPACE + "/routing", action=Action.READ,
        handler=manifests.get_routing, answer=Activated, summary="Read the active routing generation.",
    ),
)  # fmt: skip
"""The table; the document at /openapi.json is made from it."""
