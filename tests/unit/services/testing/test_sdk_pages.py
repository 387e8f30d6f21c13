"""The SDK's pages, one for each primitive: their programs run, and their quotations are the examples'."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from services.testing import WorkflowTest

SDK = Path(__file__).parents[4] / "sdk_py"
NAMES = ["children", "compensation", "emission", "invocation", "steps", "testing", "timers", "waits"]
PAGES = [SDK / "docs" / f"{name}.md" for name in NAMES]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
QUOTED = re.compile(
    r"From \[[^]]*\]\(\.\./(examples/\w+\.py)\), a whole application:\n\n```python\n(.*?)\n```", re.DOTALL
)


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page's program import the examples, each page anew."""
    monkeypatch.syspath_prepend(str(SDK / "examples"))
    for example in (SDK / "examples").glob("*.py"):
        monkeypatch.delitem(sys.modules, example.stem, raising=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_pages_program_is_a_test_that_passes(page: Path, workflow: WorkflowTest) -> None:
    """Every block that is a whole program with a test runs as a reader would run it; each page has one."""
    programs = [block for block in BLOCK.findall(page.read_text()) if "\ndef test_" in block]
    assert len(programs) == 1
    namespace: dict[str, Any] = {"__name__": f"page_{page.stem}"}
    exec(compile(programs[0], page.name, "exec"), namespace)
    (test,) = [value for name, value in namespace.items() if name.startswith("test_")]
    test(workflow)
    workflow.check()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_pages_other_code_is_python_and_quotes_the_examples(page: Path) -> None:
    """What is said to be from an example stands there word for word."""
    text = page.read_text()
    for block in BLOCK.findall(text):
        compile("async def block():\n" + "".join(f"    {line}\n" for line in block.splitlines()), page.name, "exec")
    quoted = QUOTED.findall(text)
    assert len(quoted) == text.count("a whole application:")
    for example, code in quoted:
        assert code in (SDK / example).read_text()
    if page.stem in {"children", "emission", "steps", "timers", "waits"}:
        assert quoted
