"""`python -m services.runtime.cli`: the `ryusen` command where it is not installed as one."""

from services.runtime.cli import main

if __name__ == "__main__":
    main(prog_name="ryusen")
