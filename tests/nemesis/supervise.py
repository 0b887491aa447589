"""``meander …`` with another Python for the processes that it starts: ``python supervise.py PYTHON WORDS…``."""

import sys

from meander.cli.main import main

if __name__ == "__main__":
    sys.executable = sys.argv.pop(1)
    sys.exit(main())
