"""The pytest plugin of the server distribution: the fixture `workflow` for users' own tests.

Every pytest run in an environment with this distribution loads this module, so it imports nothing but pytest: the service is
imported when a test first asks for the fixture.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pluggy import Result

    from services.testing import WorkflowTest

_TESTS: pytest.StashKey[WorkflowTest] = pytest.StashKey()
_FAILED: pytest.StashKey[bool] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option that repeats a failed test's ids."""
    group = parser.getgroup("ryusen", "workflow tests")
    group.addoption(
        "--ryusen-seed", type=int, default=None, metavar="N", help="where the ids of workflow tests come from"
    )


@pytest.fixture
def workflow(request: pytest.FixtureRequest) -> Generator[WorkflowTest, None, None]:
    """Run workflow functions against the real service, on a store in memory and in virtual time.

    What was stored is checked when the test has passed.
    """
    testing = importlib.import_module("services.testing")
    test: WorkflowTest = testing.WorkflowTest(seed=request.config.getoption("--ryusen-seed"))
    request.node.stash[_TESTS] = test
    try:
        yield test
        if not request.node.stash.get(_FAILED, False):
            test.check()
    finally:
        del request.node.stash[_TESTS]
        test.close()


# The older kind of wrapper: every pytest with a stash knows it, and a plugin that others load unasked must not need a new one.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Result[pytest.TestReport], None]:
    """Add to the report of a failed test what happened in its workspace, and the seed."""
    outcome = yield
    test = item.stash.get(_TESTS, None)
    if test is None:
        return
    report = outcome.get_result()
    if report.failed:
        item.stash[_FAILED] = True
        try:
            told = test.describe()
        except Exception as error:  # noqa: BLE001 - the test's own failure must be shown whatever state the service is in
            told = f"seed {test.seed}; the store cannot be read: {error!r}"
        report.sections.append(("ryusen workflow", f"{told}\nrepeat its ids with --ryusen-seed={test.seed}"))
