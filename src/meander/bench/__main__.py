"""``python -m meander.bench NAME``: the same as ``meander bench NAME``."""

from __future__ import annotations

import argparse
import sys

from meander import MeanderError
from meander.bench.main import add_arguments, run_bench


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m meander.bench", description=__doc__)
    add_arguments(parser)
    try:
        return run_bench(parser.parse_args())
    except MeanderError as error:
        print(f"meander: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
