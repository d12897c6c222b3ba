"""``python -m rankprobe``: the command line."""

import sys

from rankprobe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
