"""The frames of a worker session (ARCHITECTURE 6): JSON text over one WebSocket, one frame a message.

The worker opens the connection with its bearer key in the upgrade request, says `hello`, and is answered `welcome` or
`refused`. Then, for each piece of work the dispatcher leased for this session:

    Discovery               assign -> answer -> settled             (authorized when assigned)
    Callback, Compensation  assign -> ready -> start -> result -> settled
                            assign -> not_found -> settled          (current code has no such step or compensator)
                            assign -> give_back                     (not started; it goes back unharmed)
                            assign(base) -> need_replay -> assign   (the worker no longer has what it was sent before)
                            ready  -> void                          (no longer wanted: settled elsewhere, expired, stopped)

Continuation: a success may announce the pass that follows it on the same worker. The result frame goes first, then the
pass's answer; when both are accepted and the answer declared a step, `proceed` says that it is authorized here:

                            result(following) -> answer -> proceed -> result(following) -> answer -> ... -> settled

A step that the service settles where it is declared, an emission, has no callback: the answer behind `proceed` or `result` that
declares one is followed by `resume`, which brings its value, and the same pass goes on to its next answer.

A value travels as raw JSON text in the portable encoding of `ryusen.protocol.values`, never re-encoded on the way. Every
frame about work names the request id, which is unique to one delivery; a result or answer names the whole `WorkRef`, so
that any dispatcher, also one that never saw the assignment, can settle it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

__all__ = [
    "CODEC",
    "CONTINUATION",
    "FRAME_BYTES_MAX",
    "PROTOCOL_VERSION",
    "REPLAY",
    "Answer",
    "Assign",
    "Bye",
    "CallSite",
    "Cancel",
    "Child",
    "Complete",
    "Declare",
    "DefinitionBlocked",
    "Drain",
    "Emission",
    "Fail",
    "Failed",
    "Failure",
    "FunctionOffer",
    "GiveBack",
    "HeldWork",
    "Hello",
    "NeedReplay",
    "NotFound",
    "Outcome",
    "Proceed",
    "Ready",
    "Refused",
    "Renew",
    "Renewed",
    "Result",
    "Resume",
    "RetryPolicy",
    "ServerFrame",
    "Settled",
    "Start",
    "StepDeclaration",
    "StepMemo",
    "Succeeded",
    "Timer",
    "Void",
    "Wait",
    "Welcome",
    "WorkRef",
    "WorkerFrame",
    "decode_server_frame",
    "decode_worker_frame",
    "encode_frame",
]

PROTOCOL_VERSION = 1
CODEC = "portable-json/1"
CONTINUATION = "continuation"
"""The feature of a worker that goes on behind its own successes; a hello lists it among its features."""
REPLAY = "replay"
"""The feature of a worker that keeps what it was sent of a run's replay (`Assign.base`)."""
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""The largest frame either side accepts: the replay budget of a run, its input and the frame around them."""


if TYPE_CHECKING:
    OptionalRaw: TypeAlias = msgspec.Raw | None
else:
    # The decoder takes raw text only for a member declared as nothing but raw; one that is absent stays None all the same,
    # and a JSON null arrives as the text `null`, which is a value.
    OptionalRaw = msgspec.Raw


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class _Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="frame"):
    pass


class WorkRef(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """Names one physical delivery of work to whoever must settle it. Opaque to the worker; echoed as it came."""

    kind: Literal["discovery", "callback", "compensation"]
    item: str
    token: str
    run: str
    attempt: int
    generation: int
    operation: str
    step: str | None = None


class Failure(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A structured failure: of an attempt, of a step (with `attempts`) or of the function."""

    category: str
    message: str
    details: OptionalRaw = None
    attempts: int = 0


class RetryPolicy(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """How an attempt that failed is tried again; delays in milliseconds. `attempts` counts the first one too."""

    attempts: int = 3
    initial_ms: int = 1_000
    coefficient: float = 2.0
    cap_ms: int = 300_000


class Timer(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A durable timer: so long after the server accepts it, or at an instant (Unix epoch); milliseconds, exactly one of them."""

    delay_ms: int | None = None
    until_ms: int | None = None


class Emission(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """An event to emit. `payload` is one bytes value: the event's payload exactly, itself the encoding of a portable value."""

    event: str
    payload: msgspec.Raw
    correlation: dict[str, str] = {}


class Child(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A run to start of a function of the same application. `input` is the portable value it gets, byte for byte.

    `timeout_ms` counts from when the server accepts the step; None is for as long as the function and this run may take.
    """

    function: str
    input: msgspec.Raw
    timeout_ms: int | None = None


class Wait(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A wait for an event of exactly this name that carries every pair, so long after the server accepts it at most."""

    event: str
    match: dict[str, str] = {}
    timeout_ms: int


class StepDeclaration(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """The next unresolved step that a pass met. `kind` says who settles it: a callback, or the server by the terms beside it.

    What begins with `undo` is its compensator's; `repeatable` says that running the callback again under the same operation id
    is safe. A step of the server's has no attempts: one that asks for a compensator, an attempt timeout or several attempts is
    refused.
    """

    id: str
    name: str = ""
    kind: Literal["callback", "timer", "emission", "child", "wait"] = "callback"
    retry: RetryPolicy = RetryPolicy()
    timeout_ms: int | None = None
    compensable: bool = False
    location: str = ""
    undo_retry: RetryPolicy | None = None
    undo_timeout_ms: int | None = None
    repeatable: bool = False
    undo_repeatable: bool = False
    timer: Timer | None = None
    emission: Emission | None = None
    child: Child | None = None
    wait: Wait | None = None


class StepMemo(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A settled step as every later pass sees it: its accepted value, or its terminal failure."""

    id: str
    value: OptionalRaw = None
    failure: Failure | None = None


class HeldWork(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """Work a reconnecting worker still runs, or has finished without an acknowledgement."""

    ref: WorkRef
    request: str
    state: Literal["assigned", "running", "finished"]


class FunctionOffer(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A function this worker serves. `contract` is the digest of its execution contract."""

    name: str
    contract: str = ""


# ---- from the worker


class Hello(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="hello"):
    """The first frame. `instance` is new for every worker process; `held` lists all work it runs or has finished.

    `connection` counts the process's connections from 1, so that a hello delayed on a former one is told from the present.
    `capacity` is how much work may be assigned at once; `undo_capacity` how much more, of compensation alone.
    """

    application: str
    instance: str
    protocols: list[int]
    codecs: list[str]
    functions: list[FunctionOffer]
    capacity: int
    release: str = ""
    features: list[str] = []
    held: list[HeldWork] = []
    connection: int = 0
    sdk: str = ""
    clock_ms: int | None = None
    undo_capacity: int = 0


class Ready(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="ready"):
    """The target was found and a slot is held: authorize the start."""

    request: str


class Succeeded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="outcome", tag="success"):
    """The callback returned; `value` is its portable encoding."""

    value: msgspec.Raw


class Failed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="outcome", tag="failure"):
    """The callback failed. `retryable` is false for NonRetryable and invalid results; `retry_after_ms` for RetryAfter."""

    failure: Failure
    retryable: bool = True
    retry_after_ms: int | None = None


Outcome = Succeeded | Failed


class Result(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="result"):
    """What an authorized callback or compensator did. Kept by the worker until `settled`; may be sent in a later session.

    `following` announces a pass that goes on from this success on the same worker, by the request id its answer will carry;
    the answer names this result's `ref`. Empty when none follows.
    """

    request: str
    ref: WorkRef
    outcome: Outcome
    following: str = ""


class NotFound(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="not_found"):
    """Current code met no such step (callback) or has no compensator for it; no user code of the step ran."""

    request: str
    ref: WorkRef


class Declare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="pass", tag="declare"):
    """The pass met unresolved steps: one today."""

    steps: list[StepDeclaration]


class Complete(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="pass", tag="complete"):
    """The function returned."""

    value: msgspec.Raw


class Fail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="pass", tag="fail"):
    """The function failed; the failure reached its entry."""

    failure: Failure


class CallSite(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """Where a step is called, as file:line, and what it is shown as there; either may be empty."""

    location: str = ""
    name: str = ""


class DefinitionBlocked(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="pass", tag="definition_blocked"
):
    """The pass met one step id twice and stopped before the second callback; `step` is the id."""

    reason: Literal["duplicate_step_id"]
    step: str
    first: CallSite = CallSite()
    duplicate: CallSite = CallSite()


class Answer(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="answer"):
    """How a discovery pass ended. `failed_met` lists the failed step ids that the pass met.

    The `ref` is the pass's own, or the result's that it follows.
    """

    request: str
    ref: WorkRef
    ending: Declare | Complete | Fail | DefinitionBlocked
    failed_met: list[str] = []


class Renew(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="renew"):
    """Keep these leases: request ids, at most 64. None of them makes it a heartbeat; `renewed` answers that too."""

    requests: list[str]


class GiveBack(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="give_back"):
    """Return work that was not started; `reason` is for logs."""

    request: str
    ref: WorkRef
    reason: str = ""


class NeedReplay(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="need_replay"):
    """The worker does not have the settled steps that an assignment takes for known: send it again in full."""

    request: str


class Drain(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="drain"):
    """The sender is leaving. From a dispatcher: reconnect elsewhere. From a worker: assign nothing more; what it has, it ends."""


class Bye(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="bye"):
    """The worker ends by its own will and holds nothing."""


WorkerFrame = Hello | Ready | Result | NotFound | Answer | Renew | GiveBack | NeedReplay | Drain | Bye


# ---- from the dispatcher


class Welcome(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="welcome"):
    """The session stands. The worker renews every `renew_every_ms`; silence of `silence_ms` from either side ends it."""

    session: str
    protocol: int
    workspace: str
    lease_ms: int
    renew_every_ms: int
    silence_ms: int
    value_bytes_max: int
    clock_ms: int
    continues: bool = False
    """Whether a success may announce the pass that follows it (`Result.following`)."""


class Refused(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="refused"):
    """No session. A `definitive` refusal (credentials, protocol) ends the worker; any other is tried again."""

    code: str
    message: str
    definitive: bool


class Assign(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="assign"):
    """Work leased for this session. A discovery is authorized already; the others wait for `start`.

    `memo` lists settled steps in the order of settlement. With `base_digest`, a worker that keeps replays has the input and
    the first `base` of them already, and their digest (`ryusen.protocol.replay`) is this one; they are not sent again.
    """

    request: str
    ref: WorkRef
    function: str
    input: msgspec.Raw
    memo: list[StepMemo]
    event: str
    event_name: str
    delivery: int = 1
    timeout_ms: int | None = None
    result: OptionalRaw = None
    base: int = 0
    base_digest: str = ""


class Start(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="start"):
    """The start is durable: run the callback now, once."""

    request: str


class Void(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="void"):
    """Drop this assignment; nothing of it may run."""

    request: str
    reason: str


class Proceed(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="proceed"):
    """The declared step is authorized to this session: run its callback now, once, in the pass that declared it.

    `request` is the pass's; the callback goes on as `following` under `ref`. `joint` is the request of the result that was
    accepted in the same transaction, empty when there was none.
    """

    request: str
    following: str
    ref: WorkRef
    timeout_ms: int | None = None
    joint: str = ""


class Resume(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="resume"):
    """The declared step is settled already, with this value: go on behind it in the pass that declared it.

    `request` is the pass's; it goes on as `following` under `ref`, a discovery that is authorized here. `joint` is the request
    of the result that was accepted in the same transaction, empty when there was none.
    """

    request: str
    following: str
    ref: WorkRef
    value: msgspec.Raw
    joint: str = ""


class Settled(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="settled"):
    """The verdict on a result, answer or not_found; the worker may forget it, and the result named by `joint` with it.

    `refused` answers a declaration that mutated nothing: the pass is still open and sees DeclarationRefused(code, field,
    limit) at that call. `stale` means that somebody else decided first; it is benign.
    """

    request: str
    verdict: Literal["accepted", "replayed", "stale", "refused"]
    code: str = ""
    field: str = ""
    limit: int | None = None
    message: str = ""
    joint: str = ""


class Renewed(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="renewed"):
    """Which leases go on; a lost one may have gone elsewhere, its late result is still welcome."""

    requests: list[str]
    lost: list[str] = []


class Cancel(_Frame, frozen=True, kw_only=True, omit_defaults=True, tag="cancel"):
    """The run is stopping: a notice, not a command. The callback's outcome is still wanted."""

    request: str
    reason: str


ServerFrame = Welcome | Refused | Assign | Start | Void | Proceed | Resume | Settled | Renewed | Cancel | Drain

_encoder = msgspec.json.Encoder()
_worker_decoder: msgspec.json.Decoder[WorkerFrame] = msgspec.json.Decoder(WorkerFrame)
_server_decoder: msgspec.json.Decoder[ServerFrame] = msgspec.json.Decoder(ServerFrame)


def encode_frame(frame: WorkerFrame | ServerFrame) -> bytes:
    """Return the frame's JSON text as UTF-8."""
    return _encoder.encode(frame)


def decode_worker_frame(data: bytes | str) -> WorkerFrame:
    """Return the worker's frame in `data`.

    Raises:
        msgspec.DecodeError: not JSON, or not a frame of this protocol; the message names the path.
    """
    return _worker_decoder.decode(data)


def decode_server_frame(data: bytes | str) -> ServerFrame:
    """Return the dispatcher's frame in `data`.

    Raises:
        msgspec.DecodeError: not JSON, or not a frame of this protocol; the message names the path.
    """
    return _server_decoder.decode(data)
