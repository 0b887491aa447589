"""The shape of the package: who may import whom, what is public, and how long a file may be."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "meander"
FILES = sorted(PACKAGE.rglob("*.py"))

LONGEST_FILE = 640
"""A file is cut where an idea ends, around 250 lines; this only stops one that has stopped being about one thing."""
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "core", "base", "manager", "misc"}

# A room is a module or a package directly under meander; "meander" itself is the public face.
GROUND = {"version", "errors", "clock", "durable", "settings", "metrics", "outcomes", "processes", "familiar", "stored"}
VOCABULARY = {"aggregates", "sketches", "processor"}
BELOW_TASK = GROUND | VOCABULARY | {"plan", "state", "connect", "coordinate"}
BELOW_RUN = BELOW_TASK | {"task", "cache", "worker", "epochs", "control", "modifying", "replicate", "on_spark", "status"}
BELOW_FLOW = BELOW_RUN | {"run"}
EVERYTHING_BUT_THE_TOP = BELOW_FLOW | {"starting", "flow", "testing", "meander"}

# What each room may import beside itself. A room that is not here is a room nobody has thought about.
MAY_IMPORT: dict[str, set[str]] = {
    "version": set(),
    "errors": set(),
    "clock": {"errors"},
    "durable": {"clock"},
    "settings": {"errors"},
    "metrics": {"errors", "clock"},
    "outcomes": set(),
    "processes": {"errors", "clock"},
    "familiar": set(),  # the names of other libraries, for messages
    "stored": {"errors"},  # how descriptions become data: every room registers its own
    "sketches": GROUND,
    "aggregates": GROUND | {"sketches"},
    "processor": GROUND,
    "connect": GROUND | VOCABULARY,
    "state": GROUND | VOCABULARY,
    "plan": GROUND | VOCABULARY | {"connect"},
    "coordinate": GROUND | VOCABULARY | {"plan", "state", "connect"},
    "task": BELOW_TASK,
    "cache": BELOW_TASK | {"task"},
    "epochs": BELOW_TASK | {"task", "cache"},
    "status": BELOW_TASK | {"task", "cache", "epochs"},
    "control": GROUND,  # knows a running flow by its protocol alone: a run serves itself, and tests serve a fake
    "modifying": BELOW_TASK | {"task", "cache", "epochs"},  # the verbs that a run and replicas have in common
    "worker": BELOW_TASK | {"task", "cache"},  # what runs in Spark's Python workers
    "replicate": BELOW_TASK | {"task", "cache", "epochs", "control", "modifying"},  # a handle asks its replicas over HTTP
    "on_spark": BELOW_TASK | {"task", "cache", "worker", "epochs", "control", "modifying", "replicate"},
    "run": BELOW_RUN,
    "starting": BELOW_FLOW,
    "flow": BELOW_FLOW | {"starting"},
    "meander": BELOW_FLOW | {"flow"},
    "testing": EVERYTHING_BUT_THE_TOP,
    "nexmark": EVERYTHING_BUT_THE_TOP,
    "bench": EVERYTHING_BUT_THE_TOP | {"nexmark"},
    "cli": EVERYTHING_BUT_THE_TOP | {"nexmark", "bench"},
}
# Leaves that import nothing of ours: anyone may use them, whatever room they stand in.
LEAVES = {
    *("meander.state.hashing", "meander.state.formats"),
    *("meander.plan.code", "meander.plan.reach", "meander.plan.syntax", "meander.plan.schemas"),
    *("meander.plan.content", "meander.plan.serial"),
}
PLAN_SEES_OF_CONNECT = {"meander.connect.source", "meander.connect.sink"}
MAY_IMPORT_SPARK = {"on_spark", "bench"}
# The oracle knows what a source is, to read what a run took, and nothing else that takes part in an answer.
ORACLE = {"meander.nexmark.answers", "meander.nexmark.oracle", "meander.nexmark.comparison"}
ORACLE_SEES = ORACLE | {"meander.errors", "meander.connect.source"}


class Import(NamedTuple):
    """One imported module, as written at one line of one file."""

    file: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def module_name(file: Path) -> str:
    parts = ("meander", *file.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file) for file in FILES}


def room(module: str) -> str:
    """The room a module of ours is in: meander.state.table is in state; meander is its own."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "meander"


def imports(file: Path) -> Iterator[Import]:
    """Every import, also inside functions and under TYPE_CHECKING: direction is about who knows whom."""
    package = module_name(file).split(".")
    if file.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                # `from meander import plan` brings a module in, `from meander import Flow` a name.
                yield Import(file, node.lineno, inner if inner in MODULES else origin)


ALL_IMPORTS = [found for file in FILES for found in imports(file)]
OUR_IMPORTS = [found for found in ALL_IMPORTS if found.module.split(".")[0] == "meander"]


def test_every_room_has_a_place_in_the_house() -> None:
    unknown = {room(module) for module in MODULES} - MAY_IMPORT.keys()
    assert not unknown, f"say in MAY_IMPORT what these may import: {sorted(unknown)}"


def test_imports_point_one_way() -> None:
    wrong = []
    for found in OUR_IMPORTS:
        here, there = room(module_name(found.file)), room(found.module)
        if there != here and there not in MAY_IMPORT.get(here, set()) and found.module not in LEAVES:
            wrong.append(str(found))
    assert not wrong, "\n".join(wrong)


def test_leaves_import_nothing_of_ours_but_errors() -> None:
    wrong = [str(f) for f in OUR_IMPORTS if module_name(f.file) in LEAVES and f.module not in LEAVES | {"meander.errors"}]
    assert not wrong, "\n".join(wrong)


def test_the_rules_themselves_have_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(MAY_IMPORT):
        ready = {name for name, allowed in MAY_IMPORT.items() if name not in done and allowed - {name} <= done}
        assert ready, f"these import each other: {sorted(MAY_IMPORT.keys() - done)}"
        done |= ready


def test_the_plan_knows_sources_and_sinks_only_by_their_protocols() -> None:
    wrong = [
        str(found)
        for found in OUR_IMPORTS
        if room(module_name(found.file)) == "plan" and room(found.module) == "connect" and found.module not in PLAN_SEES_OF_CONNECT
    ]
    assert not wrong, "\n".join(wrong)


def test_the_oracle_shares_nothing_with_what_it_judges() -> None:
    wrong = [str(found) for found in OUR_IMPORTS if module_name(found.file) in ORACLE and found.module not in ORACLE_SEES]
    assert not wrong, "\n".join(wrong)


def test_a_worker_holds_nothing_in_modules() -> None:
    """All that stays from task to task is in a ``Worker``: a run in process has one of its own, and no other run sees it."""
    wrong = []
    for file in FILES:
        if room(module_name(file)) not in {"worker", "task", "cache"}:
            continue
        tree = ast.parse(file.read_text(), str(file))
        wrong += [f"{file.name}:{node.lineno} has a global statement" for node in ast.walk(tree) if isinstance(node, ast.Global)]
        for node in tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            names = [
                target.id for target in (node.targets if isinstance(node, ast.Assign) else [node.target]) if isinstance(target, ast.Name)
            ]
            if isinstance(node.value, ast.Call | ast.Dict | ast.List | ast.Set) and any(name.strip("_").islower() for name in names):
                wrong.append(f"{file.name}:{node.lineno} holds {', '.join(names)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.many
def test_every_room_but_one_is_imported_without_spark() -> None:
    """In a process of its own: here something may have imported it already. The benchmarks have peers that are Spark's."""
    code = f"""
import importlib, sys
for module in {sorted(m for m in MODULES if room(m) not in MAY_IMPORT_SPARK and not m.endswith("__main__"))}:
    importlib.import_module(module)
    assert not {{"pyspark", "py4j"}} & sys.modules.keys(), f"importing {{module}} imports PySpark"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_one_room_and_the_benchmarks_import_spark() -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if found.module.split(".")[0] in {"pyspark", "py4j"} and room(module_name(found.file)) not in MAY_IMPORT_SPARK
    ]
    assert not wrong, "\n".join(wrong)


def test_every_public_name_is_there_and_no_other() -> None:
    meander = importlib.import_module("meander")
    assert len(meander.__all__) == len(set(meander.__all__))
    missing = [name for name in meander.__all__ if not hasattr(meander, name)]
    assert not missing
    visible = {name for name, value in vars(meander).items() if not name.startswith("_") and not isinstance(value, ModuleType)}
    lazy = {"spark", "spark_stream", "EpochDone", "Modified"}  # they bring PySpark in, which not everyone needs
    assert (visible | lazy) - {"annotations", "TYPE_CHECKING", "Any", "import_module"} == set(meander.__all__)


def test_one_file_asks_the_system_about_processes() -> None:
    """Two others read what psutil does not know: a file without a name is linked by its descriptor, and a processor has a name."""
    allowed = {"processes.py", "durable.py", "bench/harness/machine.py"}
    asking = set()
    for file in FILES:
        texts = [str(node.value) for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)]
        if any(text.startswith("/proc") for text in texts):
            asking.add(str(file.relative_to(PACKAGE)))
    assert asking <= allowed


@pytest.mark.many
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_is_short_enough_to_read(file: Path) -> None:
    length = len(file.read_text().splitlines())
    assert length <= LONGEST_FILE, f"{length} lines: split it by idea"


def test_modules_are_named_for_ideas() -> None:
    wrong = [str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*") if path.stem.strip("_") in BANNED_NAMES]
    assert not wrong


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


PACKAGES = sorted(file for file in FILES if file.name == "__init__.py")
# The docstring of a benchmark is what its command shows as help.
HELP_TEXTS = {file for file in PACKAGES if file.parent.parent.name == "bench" and file.parent.name not in ("harness", "load")}


@pytest.mark.parametrize(
    "file", [file for file in PACKAGES if file not in HELP_TEXTS], ids=lambda file: str(file.parent.relative_to(PACKAGE))
)
def test_a_room_says_what_it_owns_what_it_may_import_and_where_to_begin(file: Path) -> None:
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    owns, may_import, rest = text.partition("May import:")
    assert len(owns.split()) >= 10, "say what it owns"
    assert may_import, "say what it may import"
    rooms, begin, where = rest.partition("Begin with")
    assert begin, "say where to begin reading"
    named = re.findall(r"``([\w/.]+)``", where)
    assert named
    assert not [name for name in named if not (file.parent / name).exists()], "what is named here is in the room"
    allowed = MAY_IMPORT.get(room(module_name(file)), set()) | {room(module_name(file))}
    leaves = {leaf.removeprefix("meander.").replace(".", "/") + ".py" for leaf in LEAVES}
    words = set(re.findall(r"``([\w/.]+)``", re.split(r"\.\s", rooms)[0])) - leaves
    said = {name.partition("/")[0].removesuffix(".py") for name in words} & MAY_IMPORT.keys()
    if "everything but" in rooms:
        allowed = MAY_IMPORT.keys() - allowed
    assert said <= allowed, f"the table in this file says otherwise: {sorted(said - allowed)}"
