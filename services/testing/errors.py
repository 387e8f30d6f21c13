"""What a workflow test raises of its own.

WorkflowTestError
+-- UserCodeHangs       a pass or a callback took too long in real time
+-- NeverSettles        virtual time was skipped very often and something is still under way
+-- FunctionNotFound    no application of the test has such a function, or several have
+-- KeyspaceProblems    the store is not consistent, or a planned incident never happened; also an AssertionError
"""

from __future__ import annotations

__all__ = ["FunctionNotFound", "KeyspaceProblems", "NeverSettles", "UserCodeHangs", "WorkflowTestError"]


class WorkflowTestError(Exception):
    """The root of the test helper's errors."""


class UserCodeHangs(WorkflowTestError):
    """User code did not give control back within the real time it is allowed."""


class NeverSettles(WorkflowTestError):
    """The bound on skips of virtual time was reached."""


class FunctionNotFound(WorkflowTestError):
    """A function's name leads to no function, or to several."""


class KeyspaceProblems(WorkflowTestError, AssertionError):
    """`WorkflowTest.check` found something."""
