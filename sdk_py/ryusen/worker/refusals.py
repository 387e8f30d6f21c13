"""What a worker says instead of what the service refused to record."""

from __future__ import annotations

import msgspec

from ryusen.errors import DeclarationRefused
from ryusen.failures import INVALID_RESULT
from ryusen.protocol.frames import (
    Answer,
    Complete,
    Declare,
    DefinitionBlocked,
    Fail,
    Failed,
    Failure,
    NotFound,
    Result,
    Succeeded,
)

__all__ = ["instead_of"]


def instead_of(kept: Result | Answer | NotFound | None, refusal: DeclarationRefused) -> Result | Answer | None:
    """Return the failure that takes the place of a refused value, declaration or conflict; None when a failure itself was refused."""
    if isinstance(kept, Answer) and isinstance(kept.ending, Complete | Declare | DefinitionBlocked):
        category = INVALID_RESULT if isinstance(kept.ending, Complete) else f"sdk.{refusal.code}"
        ending = Fail(failure=Failure(category=category, message=str(refusal)))
        return msgspec.structs.replace(kept, ending=ending)
    if isinstance(kept, Result) and isinstance(kept.outcome, Succeeded):
        outcome = Failed(failure=Failure(category=INVALID_RESULT, message=str(refusal)), retryable=False)
        return msgspec.structs.replace(kept, outcome=outcome)
    return None
