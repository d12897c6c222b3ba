"""``python -m rankprobe``, and the installed command: start the command line."""

import gc
import sys


def run() -> int:
    """Load and run the command line; an interrupt while it loads ends as quietly as a later one."""
    # Loading modules makes much and drops nothing: to look for garbage all the time takes a tenth of a start.
    gc.set_threshold(50_000)
    try:
        from rankprobe.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())
