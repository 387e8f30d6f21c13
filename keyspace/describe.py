"""Writes the generated sections of keyspace/README.md anew: `python -m keyspace.describe`."""

from __future__ import annotations

import sys
from pathlib import Path

from keyspace.docs_tables import SECTIONS

__all__ = ["README", "main", "rendered"]

README = Path(__file__).with_name("README.md")
_SECTION = "<!-- generated: {name} -->"
_END = "<!-- end of {name} -->"


def rendered(page: str) -> str:
    """Return `page` with every marked section made anew.

    Raises:
        ValueError: a section's markers are not in the page exactly once.
    """
    for name, render in SECTIONS.items():
        begin, end = _SECTION.format(name=name), _END.format(name=name)
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"the page needs the markers of section {name} exactly once")
        before, after = page.split(begin)[0], page.split(end)[1]
        page = f"{before}{begin}\n\n{render()}\n\n{end}{after}"
    return page


def main() -> int:
    """Rewrite the page when it is stale; say whether it was."""
    page = README.read_text(encoding="utf-8")
    fresh = rendered(page)
    if fresh == page:
        print("keyspace/README.md is up to date")
        return 0
    README.write_text(fresh, encoding="utf-8")
    print("keyspace/README.md was rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
