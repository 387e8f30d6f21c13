"""Room at the end of an LMDB file, made a piece at a time so that most commits write over blocks the file has already.

A sync of a file that has just grown also writes the file system's journal, because where the new blocks lie is news; a sync
of blocks that are there already writes only them. On the ext4 this was measured on, the first took 2.6 ms and the second
0.07 ms, and a commit waits for two of them. LMDB grows its file with nearly every commit, by a few pages.

The room is written, not reserved: reserved blocks become real ones when they are first written, which is news again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["ROOM_BYTES", "Room"]

ROOM_BYTES = 1 << 20
"""How far the file is written ahead at once: one slower sync for about eighty runs of three steps."""
ROOM_BYTES_LEAST = ROOM_BYTES // 4
"""What is left of it when the next piece is made: more than nearly any group of commits adds."""
_PIECE = bytes(1 << 16)


class Room:
    """The end of one file. Only whoever holds the file's write lock may use it, since nobody else then moves that end."""

    def __init__(self, path: Path) -> None:
        """Keep `path` open; it must exist.

        Raises:
            OSError: it cannot be opened.
        """
        self._descriptor = os.open(path, os.O_WRONLY)
        self._end = 0

    def make(self, used_bytes: int, bytes_max: int) -> None:
        """See that the file goes on behind its first `used_bytes`, but not beyond `bytes_max`.

        Nothing is ever written inside the file as it is, so no page of anybody's is touched. A disk without space for
        more is left to the commit to find: room only saves time.
        """
        if used_bytes + ROOM_BYTES_LEAST <= self._end:
            return
        with suppress(OSError):
            # Other processes make room too, and large transactions write pages before they commit.
            self._end = os.fstat(self._descriptor).st_size
            if used_bytes + ROOM_BYTES_LEAST <= self._end:
                return
            wanted = min(used_bytes + ROOM_BYTES, bytes_max)
            while self._end < wanted:
                self._end += os.pwrite(self._descriptor, _PIECE[: wanted - self._end], self._end)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
