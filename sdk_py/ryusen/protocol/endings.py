"""How an attempt and how a discovery pass end, as the worker says it in `Result` and `Answer`."""

from __future__ import annotations

from typing import Literal

import msgspec

from ryusen.protocol.steps import Failure, Part, StepDeclaration

__all__ = ["CallSite", "Complete", "Declare", "DefinitionBlocked", "Fail", "Failed", "Outcome", "Succeeded"]


class Succeeded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="outcome", tag="success"):
    """The callback returned; `value` is its portable encoding."""

    value: msgspec.Raw


class Failed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="outcome", tag="failure"):
    """The callback failed. `retryable` is false for NonRetryable and invalid results; `retry_after_ms` for RetryAfter."""

    failure: Failure
    retryable: bool = True
    retry_after_ms: int | None = None


Outcome = Succeeded | Failed


class Declare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="pass", tag="declare"):
    """The pass met unresolved steps: one today."""

    steps: list[StepDeclaration]


class Complete(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="pass", tag="complete"):
    """The function returned."""

    value: msgspec.Raw


class Fail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="pass", tag="fail"):
    """The function failed; the failure reached its entry."""

    failure: Failure


class CallSite(Part, frozen=True, kw_only=True, omit_defaults=True):
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
