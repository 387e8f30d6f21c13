"""What the deployment says where a declaration does not."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ANY_TIME", "RunTimePolicy"]


class RunTimePolicy(NamedTuple):
    """How long runs may take, in milliseconds (RFD 1, "Runs have no deadline by default").

    `default_ms` is for a run whose function declares nothing; `longest_ms` is the longest that may be declared: what exceeds it
    is refused, never clamped. None is for ever, and anything.
    """

    default_ms: int | None = None
    longest_ms: int | None = None


ANY_TIME = RunTimePolicy()
"""What a deployment says that says nothing."""
