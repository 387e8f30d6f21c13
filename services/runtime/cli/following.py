"""Following one run from the command line until it has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from ryusen.clients.streams import FAILURES_MAX, Following

from services.runtime.cli.api import Api, Refused

__all__ = ["followed"]

RECONNECT_S = 1.0


def followed(api: Api, run: str, after: int) -> Iterator[dict[str, Any]]:
    """Yield entries as they are written, over lost connections; give up when several in a row bring nothing."""
    following = Following(after)
    path = api.path("runs", run, "history", "stream")
    while True:
        try:
            for line in api.lines(path, after=following.after):
                entry = following.line(line)
                if entry is not None:
                    yield entry
                if following.is_over:
                    return
        except Refused as refused:
            if not refused.is_passing or following.failures >= FAILURES_MAX:
                raise
        following.ended()
        time.sleep(RECONNECT_S)
