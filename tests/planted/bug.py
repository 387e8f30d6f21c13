"""What a planted bug is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bug", "planted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A mistake of one line, and the tests that are to notice it.

    Attributes:
        name: what went wrong, in words; unique.
        file: the file it is made in, from the root of the repository.
        old: text of that file, there exactly once.
        new: what stands there instead.
        why: what the mistake would do to somebody.
        tests: what is run first, quickest first: files or single tests, from the root of the repository.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]


def planted(bug: Bug, text: str) -> str:
    """Return a file's text with the bug in it.

    Raises:
        ValueError: the old text is not there exactly once, so that the list and the code have grown apart.
    """
    count = text.count(bug.old)
    if count != 1:
        raise ValueError(f"{bug.name}: the old text stands {count} times in {bug.file}, not once")
    return text.replace(bug.old, bug.new)
