"""Loading a flow file: a Python file that defines ``flow`` at module level, or a function ``flow()``.

The file runs like a script of its own: its folder is where its imports are looked for, here and in Spark's local workers. Its
module is not left in ``sys.modules``, so that functions and classes of the file travel to executors by value: they could not
import it.
"""

from __future__ import annotations

import os
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from meander.errors import FlowError
from meander.flow import Flow

Found = TypeVar("Found")


def load_flow(path: str | Path) -> Flow:
    """The flow that a file defines; FlowError with file and line where it does not."""
    return _load(path, _flow_of)


def load_names(path: str | Path) -> dict[str, Any]:
    """All that a file defines."""
    return _load(path, lambda module, file: vars(module))


def _load(path: str | Path, take: Callable[[types.ModuleType, Path], Found]) -> Found:
    file = Path(path)
    if not file.is_file():
        raise FlowError(
            f"{path}: {'this is a folder' if file.is_dir() else 'there is no such file'}; give a Python file that defines `flow`"
        )
    _look_for_imports_in(file.resolve().parent)
    module = types.ModuleType(file.stem)
    module.__file__ = str(file.resolve())
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # some decorators look their own module up
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
        return take(module, file)
    except Exception as error:
        raise _located(error, file) from error
    finally:
        if before is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = before


def _look_for_imports_in(folder: Path) -> None:
    """As Python does for a script; workers of a local Spark inherit the variable."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(folder) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([path for path in paths if path] + [str(folder)])


def _flow_of(module: types.ModuleType, file: Path) -> Flow:
    found: Any = getattr(module, "flow", None)
    if isinstance(found, Flow):
        return found
    if callable(found):
        made = found()
        if isinstance(made, Flow):
            return made
        raise FlowError(f"{file}: flow() returned {_kind(made)}; it must return the md.Flow")
    others = [name for name, value in vars(module).items() if isinstance(value, Flow)]
    if found is None and others:
        raise FlowError(f"{file}: it defines no `flow`, but there is a flow named `{others[0]}`; rename it, or add: flow = {others[0]}")
    there = "it defines no `flow`" if found is None else f"its `flow` is {_kind(found)}"
    raise FlowError(f"{file}: {there}; define flow = md.Flow(...) at module level, or a function flow() that returns one")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"


def _located(error: Exception, file: Path) -> FlowError:
    """The error with the line of the user's file that it came from."""
    if isinstance(error, FlowError) and str(error).startswith(f"{file}:"):
        return error
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return FlowError(f"{file}, line {error.lineno}: {error.msg}")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    where = f"{file}, line {lines[-1]}" if lines else str(file)
    text = str(error) if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
    return FlowError(f"{where}: {text}")
