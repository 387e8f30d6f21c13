"""The list of planted bugs fits the code it is to be planted in; `make planted` is what tries them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from planted.bug import Bug, planted
from planted.bugs import BUGS
from planted.ground import PARTS

ROOT = Path(__file__).parents[2]
BUGS_MIN = 20


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug) -> None:
    """Would catch a list that has grown apart from the code, and a bug that is none because the code does not load."""
    text = (ROOT / bug.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(planted(bug, text))) != ast.dump(ast.parse(text))
    assert bug.tests, "nobody is to notice it"
    for test in bug.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test


def test_the_list_is_whole() -> None:
    """Would catch two bugs under one name, and a part of the core that nothing is planted in."""
    names = [bug.name for bug in BUGS]
    assert len(names) == len(set(names)) >= BUGS_MIN
    files = {bug.file for bug in BUGS}
    for part in (
        "keyspace/store/",
        "keyspace/queue/",
        "keyspace/transitions/",
        "keyspace/tx.py",
        "services/dispatcher/",
    ):
        assert any(file.startswith(part) for file in files), part
    assert {file.partition("/")[0] for file in files} <= set(PARTS)


def test_a_bug_that_does_not_fit_is_said_to() -> None:
    """Would catch a change of the code that silently takes a bug off the list."""
    bug = Bug(name="odd", file="a.py", old="x", new="y", why="", tests=())
    for text in ("", "x x"):
        with pytest.raises(ValueError, match="odd"):
            planted(bug, text)
