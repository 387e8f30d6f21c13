"""For users' own tests: run workflow functions against the real transitions, on a store in memory, in virtual time.

Nothing here imitates the service. The gateway's acceptance, fan-out and the dispatcher are the ones that run in production,
the worker is the SDK's; only the connection between them and the clock are replaced.
"""

from services.testing.errors import FunctionNotFound, KeyspaceProblems, NeverSettles, UserCodeHangs, WorkflowTestError
from services.testing.views import AttemptView, BlockerView, FailureView, HistoryEntry, RunView, StepView
from services.testing.workflow import WorkflowTest

__all__ = [
    "AttemptView",
    "BlockerView",
    "FailureView",
    "FunctionNotFound",
    "HistoryEntry",
    "KeyspaceProblems",
    "NeverSettles",
    "RunView",
    "StepView",
    "UserCodeHangs",
    "WorkflowTest",
    "WorkflowTestError",
]
