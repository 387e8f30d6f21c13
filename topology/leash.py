"""Become another program that the kernel kills when the launcher dies: `python leash.py PARENT_PID PROGRAM ARGUMENTS...`.

The launcher ends its processes itself; this covers the launcher's own kill -9. It runs as a file, with nothing of the
project imported, because it stands before the start of every process. Linux only; elsewhere it does no more than exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Source: torvalds/linux include/uapi/linux/prctl.h. The setting survives exec."""


def main(arguments: list[str]) -> None:
    """Tie this process to its parent, then become the program."""
    parent, program = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died before the line above.
        if os.getppid() != parent:
            sys.exit(f"the launcher {parent} is gone")
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
