"""A copy of the tree in which one bug at a time is planted and the tests are run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from .bug import Bug, planted

__all__ = ["PARTS", "ROOT", "Ground", "Told", "Verdict"]

ROOT = Path(__file__).parents[2]
PARTS = ("keyspace", "services", "sdk_py", "topology", "perf", "tests", "pyproject.toml")
"""What the tests need; the rest is not copied."""
FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
SOME_FAILED = 1
ALL_PASSED = 0


class Verdict(StrEnum):
    """What the tests said."""

    PASSED = "passed"
    FAILED = "failed"
    BROKEN = "broken"
    """They could not be run: the code does not load, so nothing is known of the bug."""
    TIMED_OUT = "timed out"


class Told(NamedTuple):
    """The outcome of a run of tests: the first test that failed, how long it took, and the end of what was printed."""

    verdict: Verdict
    by: str
    seconds: float
    tail: str


class Ground:
    """A copy of the tree."""

    def __init__(self, folder: Path) -> None:
        """Copy the tree into `folder`."""
        self.folder = folder
        self._write_count = 0
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "results")
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=ignored)
            else:
                shutil.copy2(source, folder / part)

    @contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        """Have the bug in the copy for as long as the block runs.

        Raises:
            ValueError: the bug does not fit the code.
        """
        path = self.folder / bug.file
        before = path.read_text(encoding="utf-8")
        self._write(path, planted(bug, before))
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Compiled code is told from stale code by size and whole seconds, and two writes may share both.
        self._write_count += 1
        at_s = int(time.time()) - 1_000_000 + self._write_count
        os.utime(path, (at_s, at_s))

    def test(self, tests: Sequence[str], seconds_max: float) -> Told:
        """Run tests in the copy up to the first that fails."""
        options = ("-q", "-x", "-rfE", "--tb=line", "--no-header", "-p", "no:cacheprovider")
        command = [sys.executable, "-m", "pytest", *options, *tests]
        environment = {name: value for name, value in os.environ.items() if name != "FDB_CLUSTER_FILE"}
        environment["PYTHONPATH"] = os.pathsep.join((str(self.folder), str(self.folder / "sdk_py")))
        begun_s = time.monotonic()
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds_max)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                return Told(Verdict.TIMED_OUT, "", time.monotonic() - begun_s, output[-2_000:])
        seconds = time.monotonic() - begun_s
        found = FIRST_FAILURE.search(output)
        if process.returncode == SOME_FAILED and found is not None:
            return Told(Verdict.FAILED, found.group(1), seconds, output[-2_000:])
        verdict = Verdict.PASSED if process.returncode == ALL_PASSED else Verdict.BROKEN
        return Told(verdict, "", seconds, output[-2_000:])
