"""The frames of a worker session (ARCHITECTURE 6): JSON text over one WebSocket, one frame a message.

The worker opens the connection with its bearer key in the upgrade request, says `hello`, and is answered `welcome` or
`refused`. Its end is a close code; `ryusen.protocol.closes` has those that mean more than to connect again. Then, for each piece
of work the dispatcher leased for this session:

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

What frames say of steps is in `ryusen.protocol.steps`, how attempts and passes end in `ryusen.protocol.endings`; all of it
can be imported from here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ryusen.protocol.endings import CallSite, Complete, Declare, DefinitionBlocked, Fail, Failed, Outcome, Succeeded
from ryusen.protocol.steps import (
    Child,
    Emission,
    Failure,
    OptionalRaw,
    Part,
    RetryPolicy,
    StepDeclaration,
    StepMemo,
    Timer,
    Wait,
)

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


class _Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="frame"):
    pass


class WorkRef(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Names one physical delivery of work to whoever must settle it. Opaque to the worker; echoed as it came."""

    kind: Literal["discovery", "callback", "compensation"]
    item: str
    token: str
    run: str
    attempt: int
    generation: int
    operation: str
    step: str | None = None


class HeldWork(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Work a reconnecting worker still runs, or has finished without an acknowledgement."""

    ref: WorkRef
    request: str
    state: Literal["assigned", "running", "finished"]


class FunctionOffer(Part, frozen=True, kw_only=True, omit_defaults=True):
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
