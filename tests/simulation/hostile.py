"""Moves of frames that come twice, in another order, or forged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from ryusen.protocol.frames import (
    Answer,
    Complete,
    Failed,
    Failure,
    GiveBack,
    Hello,
    NotFound,
    Ready,
    Renew,
    Result,
    Succeeded,
    WorkRef,
    decode_worker_frame,
    encode_frame,
)

from keyspace.limits import RENEW_ITEMS_MAX
from simulation.maker import Maker
from simulation.model import FORGED
from simulation.scenario import Draws, Kind
from simulation.world import World

__all__ = ["MAKERS"]


async def duplicate(world: World, draws: Draws) -> str:
    """Let a frame that a worker has sent before come once more by its present connection."""
    workers = [one for one in world.workers if one.line is not None and one.said and not one.line.is_cut]
    if not workers:
        return "nobody has said anything"
    worker = draws.choose(workers, lambda one: one.name)
    frames = [data for data in worker.said if not isinstance(decode_worker_frame(data), Hello)]
    if not frames or worker.line is None:
        return "nobody has said anything"
    data = draws.choose(frames, lambda one: one.decode())
    worker.line.to_server.append(data)
    return f"{worker.name}: {type(decode_worker_frame(data)).__name__.lower()} again"


async def reorder(world: World, draws: Draws) -> str:
    """Let the frames of a connection arrive in another order."""
    lines = [line for line in world.lines if len(line.to_server) > 1 and line.has_hello]
    if not lines:
        return "no two frames are on their way"
    line = draws.choose(lines, lambda one: one.name)
    frames = sorted(line.to_server, key=lambda data: hashlib.blake2b(data + draws.bytes(4)).digest())
    line.to_server.clear()
    line.to_server.extend(frames)
    return f"{len(frames)} frames of {line.name} are mixed"


async def forge(world: World, draws: Draws) -> str:
    """Let a worker send a frame that names work it was never given: something said before, with one part changed."""
    senders = [one for one in world.workers if one.line is not None and not one.line.is_cut and one.line.has_hello]
    refs = sorted({ref for worker in world.workers for ref in worker.refs()}, key=str)
    said = [
        data for worker in world.workers for data in worker.said if isinstance(decode_worker_frame(data), FORGEABLE)
    ]
    if not senders or not (refs or said):
        return "nothing to forge from"
    sender = draws.choose(senders, lambda one: one.name)
    assert sender.line is not None
    part = draws.one_of(("token", "item", "run", "step", "generation"))
    if refs and (draws.chance(0.7) or not said):
        ref = _changed(draws.choose(refs, str), part, draws)
        forged = draws.one_of(_frames_about(ref, draws.bytes(16).hex()))
    else:
        forged = _twisted(decode_worker_frame(draws.choose(said, lambda one: one.decode())), part, draws)
    sender.line.to_server.append(encode_frame(forged))
    return f"{sender.name} forges the {part} of a {type(forged).__name__.lower()}"


Forgeable = Result | Answer | NotFound | GiveBack | Ready | Renew
FORGEABLE = (Result, Answer, NotFound, GiveBack, Ready, Renew)


def _changed(ref: WorkRef, part: str, draws: Draws) -> WorkRef:
    stranger = draws.bytes(16).hex()
    if part == "step":
        return msgspec.structs.replace(ref, step=None if ref.step is None else "elsewhere", token=stranger)
    if part == "generation":
        return msgspec.structs.replace(ref, generation=ref.generation + 1)
    return msgspec.structs.replace(ref, **{part: stranger})


def _frames_about(ref: WorkRef, request: str) -> list[Forgeable]:
    """Everything a worker might say of a delivery, with values that give it away."""
    success, failure = (
        Succeeded(value=msgspec.Raw(FORGED)),
        Failed(failure=Failure(category="forged", message="forged")),
    )
    return [
        Result(request=request, ref=ref, outcome=success),
        Result(request=request, ref=ref, outcome=failure),
        Result(request=request, ref=ref, outcome=success, following=f"{request}+"),
        Answer(request=request, ref=ref, ending=Complete(value=msgspec.Raw(FORGED))),
        NotFound(request=request, ref=ref),
        GiveBack(request=request, ref=ref),
    ]


def _twisted(frame: object, part: str, draws: Draws) -> Forgeable:
    """Return something that was said, about other work."""
    stranger = draws.bytes(16).hex()
    if isinstance(frame, Renew):
        return Renew(requests=[*frame.requests, stranger][:RENEW_ITEMS_MAX])
    if isinstance(frame, Ready):
        return Ready(request=stranger)
    assert isinstance(frame, Result | Answer | NotFound | GiveBack)
    ref = _changed(frame.ref, part, draws)
    if isinstance(frame, Result):
        return Result(request=stranger, ref=ref, outcome=Succeeded(value=msgspec.Raw(FORGED)))
    return msgspec.structs.replace(frame, ref=ref, request=stranger)


MAKERS: Mapping[Kind, Maker] = {
    Kind.DUPLICATE: duplicate,
    Kind.REORDER: reorder,
    Kind.FORGE: forge,
}
"""The makers of these kinds of moves."""
