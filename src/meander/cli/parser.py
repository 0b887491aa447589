"""The argument parser that every command adds to."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors look like all others."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"error: {message}\ntry: {self.prog} --help\n")
        raise SystemExit(2)


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]
else:
    Commands = object
