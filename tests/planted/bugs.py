"""Every planted bug."""

from __future__ import annotations

from .bug import Bug
from .dispatching import DISPATCHING
from .families import FAMILIES
from .leasing import LEASING
from .matching import MATCHING
from .queueing import QUEUEING
from .revoking import REVOKING
from .server_steps import SERVER_STEPS
from .settling import SETTLING
from .stopping import STOPPING
from .waiting_work import WAITING_WORK

__all__ = ["BUGS"]

BUGS: tuple[Bug, ...] = (
    *QUEUEING,
    *LEASING,
    *SETTLING,
    *STOPPING,
    *WAITING_WORK,
    *MATCHING,
    *SERVER_STEPS,
    *FAMILIES,
    *DISPATCHING,
    *REVOKING,
)
