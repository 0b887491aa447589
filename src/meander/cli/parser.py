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


def at_least_0(text: str) -> int:
    """The type of an option that is a number of rows."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 up")
    return number


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]
else:
    Commands = object
