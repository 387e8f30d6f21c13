"""Bugs of what stands open under a key that is revoked."""

from __future__ import annotations

from .bug import Bug

__all__ = ["REVOKING"]

HISTORIES = "services/gateway/histories.py"
STREAM_TESTS = "tests/unit/services/gateway/test_gateway_runs.py"

REVOKING: tuple[Bug, ...] = (
    Bug(
        name="nobody looks at keys in use",
        file="services/runtime/process.py",
        old='            group.start_soon(process.keys_in_use.run, name="keys in use")\n',
        new="",
        why="sessions and streams outlive their key for ever",
        tests=("tests/unit/services/runtime/test_runtime_key_watch.py",),
    ),
    Bug(
        name="a stream's revoked key is still believed",
        file=HISTORIES,
        old="        self._call.gateway.keys.forget_key(self._call.identity.key_id)\n",
        new="",
        why="the reader whose stream was ended opens the next one at once",
        tests=(STREAM_TESTS,),
    ),
    Bug(
        name="the last word waits for a full buffer",
        file=HISTORIES,
        old="        if self.is_revoked:\n            self._hurry()",
        new="",
        why="a reader that takes nothing keeps its stream half a minute beyond its key",
        tests=(STREAM_TESTS,),
    ),
    Bug(
        name="a stream that is over still holds its key",
        file=HISTORIES,
        old="        if self._held is not None:\n            self._held.release()",
        new="        pass",
        why="the watch of keys in use grows with every key that ever had a stream",
        tests=(STREAM_TESTS,),
    ),
)
