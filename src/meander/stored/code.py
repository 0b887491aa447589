"""The code of users in a store: functions and classes, each as one blob that says what it is and which versions have written it.

Unpacking runs code. Call ``unpack`` only with bytes from a trusted place. Nothing of ours is in the
bytes: our objects and public names stand there under the names that stores have for them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import cloudpickle
import polars as pl

from meander.errors import ConfigError, Corrupted
from meander.plan.code import Code, code_of
from meander.plan.reach import is_own
from meander.stored.kinds import stored

Json = dict[str, Any]
ToData = Callable[[Any], Any]
_OURS = __name__.split(".")[0]
_flows: set[str] = set()
stored("code")(Code)  # here, since it is a leaf that imports nothing of ours


def written_by_users(package: str) -> None:
    """Of this package of ours, functions and classes are stored by value, as a user's are: it has flows, and nothing that runs them.

    A module calls it with its own ``__name__``.
    """
    _flows.add(package)


def versions() -> dict[str, str]:
    """The versions that decide whether code can be unpacked elsewhere."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "meander": str(getattr(sys.modules[_OURS], "__version__", "unknown")),
        "polars": pl.__version__,
        "cloudpickle": cloudpickle.__version__,
    }


def pack(thing: Any, to_data: ToData) -> Json:
    """A function, a class or another object of a user's as a blob. ``to_data`` gives the stored form of our own objects, or None.

    By value where ``ship`` was called before, as for everything that a flow is started with, and by name otherwise.
    """
    out = io.BytesIO()
    with _flows_by_value():
        _Pickler(out, to_data).dump(thing)
    return {
        "name": getattr(thing, "__qualname__", type(thing).__qualname__),
        "does": code_of(thing),
        "written_by": versions(),
        "sha256": hashlib.sha256(out.getvalue()).hexdigest(),
        "pickle": base64.b64encode(out.getvalue()).decode(),
    }


def unpack(found: Json, what: str, from_data: Callable[[Any], Any]) -> Any:
    """The object of a blob. Runs code. Corrupted where the bytes are not those that were written."""
    data = _contents(found, what)
    try:
        return _Unpickler(io.BytesIO(data), from_data).load()
    except (Corrupted, ConfigError):
        raise
    except Exception as error:
        raise _unreadable(found, what, error) from error


def _contents(found: Json, what: str) -> bytes:
    """A blob's bytes; Corrupted where they are not those that were written."""
    try:
        data = base64.b64decode(found["pickle"], validate=True)
    except ValueError as error:
        raise Corrupted(f"{what}: the stored code of {found['name']!r} is damaged ({error})") from error
    if (digest := hashlib.sha256(data).hexdigest()) != found["sha256"]:
        raise Corrupted(
            f"{what}: the stored code of {found['name']!r} is damaged: its digest is {digest[:12]}, and was {found['sha256'][:12]} "
            "when it was written"
        )
    return data


def _unreadable(found: Json, what: str, error: Exception) -> ConfigError:
    """The error for code that cannot be unpacked in this process."""
    there, here = found["written_by"], versions()
    return ConfigError(
        f"{what}: the stored code of {found['name']!r} cannot be read here ({type(error).__name__}: {error}); it was written with "
        f"{_show(there)}, and here are {_show(here)}. Use the versions that have written it, and see that the modules that it imports "
        "are there"
    )


def ship(thing: Any) -> None:
    """From now on, functions and classes of a user's own files travel by value: other processes cannot import a script's neighbour."""
    for one in thing.__mro__ if isinstance(thing, type) else (thing,):
        name = getattr(one, "__module__", None) or ""
        if name.split(".")[0] not in ("__main__", _OURS) and name in sys.modules and is_users_own(name):
            cloudpickle.register_pickle_by_value(sys.modules[name])


def is_users_own(name: str) -> bool:
    """Whether a module is a file of the user's, and neither installed nor ours."""
    if name == "__main__" or any(name == package or name.startswith(f"{package}.") for package in _flows):
        return True
    path = getattr(sys.modules.get(name), "__file__", None)
    return path is not None and is_own(name, path)


@contextlib.contextmanager
def _flows_by_value() -> Iterator[None]:
    """Within this, our own packages of flows are pickled by value, as the files of users are."""
    known = cloudpickle.list_registry_pickle_by_value()
    new = [sys.modules[name] for name in sorted(_flows) if name in sys.modules and name not in known]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)


class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, with two differences in classes that it packs by value.

    Members keep their order, by which a processor's variables are known: cloudpickle sorts them by name. And a class is a new one
    wherever it is read. In the process that has packed it, cloudpickle would give the copies of its members to the class itself, whose
    code then is another one, and its flow another flow.
    """

    def reducer_override(self, thing: Any) -> Any:
        found = super().reducer_override(thing)
        if isinstance(thing, type) and isinstance(found, tuple) and len(found) > 2 and isinstance(found[2], tuple):
            members, slots = found[2]
            ordered = {name: members[name] for name in vars(thing) if name in members}
            tracked = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(thing)
            arguments = tuple(None if one is not None and one is tracked else one for one in found[1])
            found = (found[0], arguments, ({**ordered, **members}, slots), *found[3:])
        return found


class _Pickler(ByValue):
    """Names our public functions and classes, and describes our objects, instead of pickling them."""

    def __init__(self, out: io.BytesIO, to_data: ToData) -> None:
        super().__init__(out)
        self._to_data = to_data
        self._public = _public_names()

    def persistent_id(self, thing: Any) -> tuple[str, str] | None:
        if isinstance(thing, type | FunctionType):
            name = self._public.get(id(thing))
            return None if name is None else ("public", name)
        data = self._to_data(thing)
        return None if data is None else ("data", json.dumps(data))


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, from_data: Callable[[Any], Any]) -> None:
        super().__init__(data)
        self._from_data = from_data

    def persistent_load(self, found: Any) -> Any:
        kind, content = found
        return getattr(sys.modules[_OURS], content) if kind == "public" else self._from_data(json.loads(content))


def _public_names() -> dict[int, str]:
    """Our public functions and classes, by identity. Names that are imported when they are first asked for are left alone."""
    public = vars(sys.modules[_OURS])
    return {id(public[name]): name for name in public.get("__all__", ()) if name in public}


def _show(written_by: dict[str, str]) -> str:
    return ", ".join(f"{name.capitalize() if name != 'cloudpickle' else name} {version}" for name, version in written_by.items())
