"""A chain: steps that one worker runs in a row, each behind the success before it (ARCHITECTURE 6, "Continuation").

The pass and its slot go on from delivery to delivery under new names. A success is reported before its pass goes on, so that
whatever becomes of the pass, the result is the service's to keep.
"""

from __future__ import annotations

import msgspec

from ryusen.protocol.frames import Answer, GiveBack, Proceed, Result, Resume, Succeeded
from ryusen.worker.effects import ContinuePass, Effects, MovePass, Send
from ryusen.worker.holdings import Holdings
from ryusen.worker.work import FOLLOWING, State, Work

__all__ = ["drop_following", "follow", "forget_joint", "take_pass", "take_step"]


def follow(works: Holdings, work: Work, outcome: Succeeded, now_ms: float) -> Result:
    """Let a pass follow a success; return the result that announces it."""
    following = Work(work.request + FOLLOWING, work.ref, work.function, None, now_ms, follows=work.request)
    works.add(following)
    works.take_slot(following)
    return Result(request=work.request, ref=work.ref, outcome=outcome, following=following.request)


def take_step(works: Holdings, frame: Proceed, now_ms: float, effects: Effects, *, is_leaving: bool) -> Work | None:
    """Let the pass that declared a step go on as its delivery, and return that; None when the step does not run here."""
    if works.knows(frame.following):
        return None  # repeated: to give back what runs would have it run again
    work = works.get(frame.request)
    if work is None or work.state is not State.ENDED or not isinstance(work.frame, Answer):
        effects.add(Send(GiveBack(request=frame.following, ref=frame.ref, reason="its pass is gone")))
        return None
    # A callback that overran its timeout takes a slot that the dispatcher does not know of.
    is_free = works.holds_slot(work.request) or works.has_slot
    if is_leaving or not is_free:
        reason = "the worker is leaving" if is_leaving else "no slot is free"
        effects.add(Send(GiveBack(request=frame.following, ref=frame.ref, reason=reason)))
        works.forget(work, effects)
        return None
    works.hand_on(work)
    step = Work(frame.following, frame.ref, work.function, frame.timeout_ms, now_ms)
    works.add(step)
    works.take_slot(step)
    effects.add(MovePass(work.request, step.request, frame.ref))
    return step


def take_pass(works: Holdings, frame: Resume, now_ms: float, effects: Effects) -> None:
    """Let the pass that declared a step go on behind it, as the discovery that follows."""
    if works.knows(frame.following):
        return  # repeated: to give back what goes on would have it go on twice
    work = works.get(frame.request)
    if work is None or work.state is not State.ENDED or not isinstance(work.frame, Answer):
        effects.add(Send(GiveBack(request=frame.following, ref=frame.ref, reason="its pass is gone")))
        return
    works.hand_on(work)
    works.add(Work(frame.following, frame.ref, work.function, None, now_ms))
    effects.add(ContinuePass(work.request, frame.following, bytes(frame.value)))


def forget_joint(works: Holdings, request: str, effects: Effects) -> None:
    """The result that was accepted together with its answer is acknowledged."""
    result = works.get(request)
    if result is not None and result.state is State.ENDED:
        works.forget(result, effects)


def drop_following(works: Holdings, work: Work, effects: Effects) -> None:
    """The pass behind a result is void: the result goes alone."""
    if isinstance(work.frame, Result) and work.frame.following:
        following = works.get(work.frame.following)
        if following is not None:
            works.forget(following, effects)
        work.frame = msgspec.structs.replace(work.frame, following="")
