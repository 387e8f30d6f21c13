"""Plant each bug of the list in a copy of the tree and say which test notices it.

    python -m tests.planted                     every bug
    python -m tests.planted "no fence"          those whose name holds the words
    python -m tests.planted --list              what there is

It ends with 0 when every bug was noticed, else with 1.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import click

from .bug import Bug
from .bugs import BUGS
from .ground import Ground, Verdict

FIRST_S_MAX = 300.0
"""Seconds for the tests that a bug names."""
REST = (
    "tests/unit/keyspace",
    "tests/transitions",
    "tests/unit/services/dispatcher",
    "tests/unit/services/fanout",
    "tests/unit/services/lanes",
    "tests/conformance",
    "tests/simulation",
)
REST_S_MAX = 1_200.0
"""Seconds for everything else, in which a bug is looked for that the tests it names let through."""


class Finding(NamedTuple):
    """What became of one bug: who noticed it, empty when nobody did, and what was printed then."""

    bug: Bug
    by: str
    seconds: float
    is_named: bool
    trouble: str

    @property
    def line(self) -> str:
        """What is told of it."""
        if self.trouble:
            return f"NOT TRIED  {self.bug.name}: {self.trouble}"
        if not self.by:
            return f"SURVIVED   {self.bug.name} ({self.seconds:.0f} s): {self.bug.why}"
        return f"caught     {self.bug.name}: {self.by} ({self.seconds:.0f} s)" + (
            "" if self.is_named else "; not by a test it names"
        )


def examine(ground: Ground, bug: Bug, *, is_named_only: bool) -> Finding:
    """Plant a bug and run tests until one notices: those it names, then the rest."""
    stages = ((bug.tests, FIRST_S_MAX), (REST, REST_S_MAX))
    begun_s = time.monotonic()
    try:
        with ground.planted(bug):
            for tests, seconds_max in stages[:1] if is_named_only else stages:
                told = ground.test(tests, seconds_max)
                seconds = time.monotonic() - begun_s
                if told.verdict is Verdict.FAILED:
                    return Finding(bug, told.by, seconds, tests is bug.tests, "")
                if told.verdict is not Verdict.PASSED:
                    return Finding(bug, "", seconds, False, f"its tests {told.verdict.value}\n{told.tail}")
    except ValueError as error:
        return Finding(bug, "", 0.0, False, str(error))
    return Finding(bug, "", time.monotonic() - begun_s, False, "")


def baseline(ground: Ground, bugs: Sequence[Bug]) -> str:
    """Run what the bugs name on the code as it is; return what is wrong there, empty when nothing is."""
    named = sorted({test for bug in bugs for test in bug.tests})
    files = sorted({test.partition("::")[0] for test in named})
    told = ground.test(files, REST_S_MAX)
    return "" if told.verdict is Verdict.PASSED else f"{told.by or told.verdict.value}\n{told.tail}"


@click.command(help=__doc__)
@click.argument("words", nargs=-1)
@click.option("--jobs", default=2, show_default=True, help="Copies of the tree, each with a bug at a time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of lines.")
@click.option("--list", "is_list", is_flag=True, help="Only say what bugs there are.")
@click.option("--named-only", is_flag=True, help="Run only the tests that each bug names.")
@click.option("--no-baseline", is_flag=True, help="Do not run the tests on the code as it is first.")
def main(words: tuple[str, ...], jobs: int, as_json: bool, is_list: bool, named_only: bool, no_baseline: bool) -> None:
    chosen = [bug for bug in BUGS if all(word in bug.name for word in words)]
    if is_list:
        for bug in chosen:
            click.echo(f"{bug.name} ({bug.file}): {bug.why}")
        return
    if not chosen:
        raise click.UsageError("no bug has these words in its name")
    say = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="ryusen-planted-") as folder:
        grounds: SimpleQueue[Ground] = SimpleQueue()
        for number in range(min(jobs, len(chosen))):
            grounds.put(Ground(Path(folder) / str(number)))

        def one(bug: Bug) -> Finding:
            ground = grounds.get()
            try:
                finding = examine(ground, bug, is_named_only=named_only)
            finally:
                grounds.put(ground)
            if not as_json:
                with say:
                    click.echo(finding.line)
            return finding

        if not no_baseline:
            ground = grounds.get()
            trouble = baseline(ground, chosen)
            grounds.put(ground)
            if trouble:
                click.echo(f"the tests fail on the code as it is: {trouble}", err=True)
                sys.exit(1)
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            findings = [done.result() for done in as_completed([pool.submit(one, bug) for bug in chosen])]
    caught_count = sum(bool(finding.by) for finding in findings)
    if as_json:
        told = [
            {
                "name": finding.bug.name,
                "file": finding.bug.file,
                "why": finding.bug.why,
                "caught_by": finding.by or None,
                "is_named": finding.is_named,
                "seconds": round(finding.seconds, 1),
                "trouble": finding.trouble or None,
            }
            for finding in sorted(findings, key=lambda finding: BUGS.index(finding.bug))
        ]
        click.echo(json.dumps({"caught": caught_count, "planted": len(findings), "bugs": told}, indent=2))
    else:
        click.echo(f"{caught_count} of {len(findings)} caught")
    sys.exit(0 if caught_count == len(findings) else 1)


if __name__ == "__main__":
    main()
