"""The plugin in other people's projects: it loads quietly, costs nothing until it is used, and tells what failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RUN_S_MAX = 60
USES = """
from ryusen import App, Context

app = App("shop")

@app.function(on="placed")
async def fulfil(ctx: Context, number: int) -> int:
    return await ctx.step.run("double", lambda: 2 * number)
"""


def run_pytest(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one file in an otherwise empty folder, with every warning an error."""
    (folder / "test_theirs.py").write_text(text)
    command = [sys.executable, "-W", "error", "-m", "pytest", "-W", "error", "-p", "no:anyio", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [*command, *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )


def test_it_loads_in_an_empty_project_and_imports_nothing_of_the_service(tmp_path: Path) -> None:
    """A user's other projects start as fast as before, without warnings and without anyio's plugin."""
    done = run_pytest(
        tmp_path,
        """
import sys

def test_nothing_heavy_is_loaded(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("ryusen")
    heavy = ("services.testing", "services.dispatcher", "keyspace", "ryusen", "starlette", "msgspec", "anyio", "httpx")
    assert [name for name in heavy if name in sys.modules] == []
""",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert done.stderr == ""


def test_the_fixture_runs_workflows_and_reports_what_failed(tmp_path: Path) -> None:
    """Where warnings are errors it works and leaves no thread; a failed test shows its run's history and its seed.

    The check at the end is part of the test: an incident that was planned and never happened fails it.
    """
    done = run_pytest(
        tmp_path,
        USES
        + """
import threading

def test_passes(workflow):
    workflow.app(app)
    assert workflow.run("fulfil", 21).output == 42

def test_nothing_is_left():
    assert [thread.name for thread in threading.enumerate() if "ryusen" in thread.name] == []

def test_fails(workflow):
    workflow.app(app)
    assert workflow.run("fulfil", 1).output == 3

def test_plans(workflow):
    workflow.app(app)
    workflow.lose_worker_during("duoble")
""",
        "--ryusen-seed=77",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 3 passed, 1 error" in done.stdout
    assert "FAILED test_theirs.py::test_fails" in done.stdout
    assert "- ryusen workflow -" in done.stdout
    assert "step 'double' completed at attempt 1" in done.stdout
    assert "repeat its ids with --ryusen-seed=77" in done.stdout
    assert "ERROR test_theirs.py::test_plans" in done.stdout
    assert "was planned for step 'duoble'" in done.stdout
