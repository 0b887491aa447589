"""What counts as code: the source that runs, what it carries, and what it reaches in the user's own modules."""

from __future__ import annotations

import array
import ast
import collections
import dataclasses
import functools
import importlib
import linecache
import pickle
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import polars as pl
import pytest

from meander.plan.code import code_of, read_code
from meander.plan.syntax import text_of

HELPERS = """
import functools, logging, time

RATE = 0.2
RATES = {"a": 1}
STARTED = time.time()
LOG = logging.getLogger(__name__)
SEEN = {}
calls = 0

def rate(x):
    global calls
    calls += 1
    SEEN[x] = STARTED
    LOG.info("rate")
    return x * RATE + RATES["a"]

@functools.lru_cache(maxsize=8)
def slow(x):
    return x + 1

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

class Table:
    LIMIT = 3

    def look(self, x):
        return min(x, self.LIMIT)

class Deep(Table):
    pass
"""

FLOW = """
import helpers
import helpers as h
from helpers import rate, RATE as r, slow, Deep, even

def by_module(x):
    return helpers.rate(x)

def by_alias(x):
    return h.rate(x)

def by_name(x):
    return rate(x)

def by_constant(x):
    return x * r

def by_import(x):
    from helpers import rate as inner
    return inner(x)

def by_import_of_module(x):
    import helpers as inner
    return inner.rate(x)

def by_cache(x):
    return slow(x)

def by_class(x):
    return Deep().look(x)

def by_cycle(x):
    return even(x)

def by_nested(x):
    def inside(y):
        return [rate(z) for z in y]
    return inside(x)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Writes ``helpers.py`` and ``flow_file.py`` and imports them, as a process that starts now would."""
    monkeypatch.syspath_prepend(tmp_path)
    count = 0

    def write(*edits: tuple[str, str], of: str = "helpers") -> ModuleType:
        nonlocal count
        count += 1
        texts = {"helpers": HELPERS, "flow_file": FLOW}
        for old, new in edits:
            assert old in texts[of], old
            texts[of] = texts[of].replace(old, new)
        folder = tmp_path / str(count)
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("flow_file")

    yield write
    for name in ("helpers", "flow_file"):
        sys.modules.pop(name, None)


WAYS = ["by_module", "by_alias", "by_name", "by_import", "by_import_of_module", "by_nested"]


@pytest.mark.parametrize("way", WAYS)
def test_a_changed_helper_is_other_code(modules: Callable[..., ModuleType], way: str) -> None:
    before = code_of(getattr(modules(), way))
    assert code_of(getattr(modules(("return x * RATE", "return 2 * x * RATE")), way)) != before
    assert code_of(getattr(modules(("RATE = 0.2", "RATE = 0.3")), way)) != before
    assert code_of(getattr(modules(('{"a": 1}', '{"a": 2}')), way)) != before


@pytest.mark.parametrize(
    ("way", "edit"),
    [
        ("by_constant", ("RATE = 0.2", "RATE = 0.3")),
        ("by_cache", ("return x + 1", "return x + 2")),
        ("by_class", ("return min(", "return max(")),
        ("by_class", ("LIMIT = 3", "LIMIT = 4")),
        ("by_cycle", ("n != 0 and even", "n > 0 and even")),
    ],
)
def test_what_a_helper_reaches_counts(modules: Callable[..., ModuleType], way: str, edit: tuple[str, str]) -> None:
    before = code_of(getattr(modules(), way))
    assert code_of(getattr(modules(), way)) == before
    assert code_of(getattr(modules(edit), way)) != before


@pytest.mark.parametrize("way", [*WAYS, "by_constant", "by_cache", "by_class", "by_cycle"])
def test_what_is_written_otherwise_and_does_the_same_is_the_same(modules: Callable[..., ModuleType], way: str) -> None:
    before = code_of(getattr(modules(), way))
    edited = modules(
        ("def rate(x):", "\n\n# how much\ndef rate(x: float) -> 'float':\n    '''The rate.'''\n    pass"),
        ("RATE + RATES", "(RATE)\\\n       + RATES"),
        ("RATE = 0.2", "RATE: float = 0.20  # a fifth"),
        ("class Deep(Table):\n    pass", "class Deep(Table):\n    '''A table.'''"),
    )
    assert code_of(getattr(edited, way)) == before


def test_a_name_that_nobody_reads_does_not_count(modules: Callable[..., ModuleType]) -> None:
    before = code_of(modules().by_cache)
    assert code_of(modules(("RATE = 0.2", "RATE = 0.3\nOTHER = 7")).by_cache) == before


def test_names_that_change_as_a_program_runs_are_what_was_written(modules: Callable[..., ModuleType]) -> None:
    flow = modules()
    before = [code_of(getattr(flow, way)) for way in (*WAYS, "by_cache")]
    for x in range(3):
        flow.by_name(x), flow.by_cache(x)
    assert (flow.helpers.calls, len(flow.helpers.SEEN)) == (3, 3)
    flow.helpers.STARTED = 0.0
    flow.helpers.LOG.setLevel(10)
    assert [code_of(getattr(flow, way)) for way in (*WAYS, "by_cache")] == before


def test_a_text_that_was_edited_since_it_was_loaded_is_not_taken_for_what_runs(modules: Callable[..., ModuleType]) -> None:
    flow = modules()
    file = Path(str(flow.helpers.__file__))
    file.write_text(HELPERS.replace("RATE = 0.2", "RATE = 0.3").replace("x * RATE", "x / RATE"))
    edited = read_code(flow.by_name)
    assert edited.compiled  # as bytecode, which is that of no text that is there
    assert edited.digest != code_of(modules(("RATE = 0.2", "RATE = 0.3"), ("x * RATE", "x / RATE")).by_name)


def test_the_part_that_differs_is_known_by_its_name(modules: Callable[..., ModuleType]) -> None:
    before, after = read_code(modules().by_module), read_code(modules(("RATE = 0.2", "RATE = 0.3")).by_module)
    assert [name for name in after.parts if before.parts.get(name) != after.parts[name]] == ["helpers.RATE"]
    assert {"by_module()", "helpers.rate()", "helpers.RATE", "helpers.RATES"} <= set(after.parts)


def test_a_package_that_pip_has_put_beside_is_not_followed(modules: Callable[..., ModuleType], tmp_path: Path) -> None:
    """``pip install --target`` makes folders that look like a user's own."""

    def record(flow: ModuleType) -> str:
        folder = Path(str(flow.helpers.__file__)).parent
        (folder / "helpers-1.0.dist-info").mkdir()
        (folder / "helpers-1.0.dist-info" / "RECORD").write_text("helpers.py,sha256=x,1\nhelpers-1.0.dist-info/RECORD,,\n")
        return code_of(flow.by_module)

    assert record(modules()) == record(modules(("RATE = 0.2", "RATE = 0.3")))


# -- what a function carries ------------------------------------------------------------------------------------------


def make(rate: float, table: Any = None) -> Callable[[float], Any]:
    return lambda x: (x * rate, table)


def with_default(x: int, y: int = 1) -> int:
    return x + y


def test_a_closure_counts_by_value() -> None:
    assert code_of(make(0.1)) == code_of(make(0.1)) != code_of(make(0.2))
    assert code_of(make(0.1, {"a": [1, 2]})) == code_of(make(0.1, {"a": [1, 2]})) != code_of(make(0.1, {"a": [1, 3]}))


def test_a_partial_and_a_bound_method_count_with_what_they_hold() -> None:
    class Held:
        def __init__(self, by: int) -> None:
            self.by = by

        def add(self, x: int) -> int:
            return x + self.by

    assert code_of(functools.partial(with_default, 1)) != code_of(functools.partial(with_default, 2))
    assert code_of(Held(1).add) == code_of(Held(1).add) != code_of(Held(2).add)


def test_a_memo_that_a_decorator_keeps_is_not_what_it_was_given() -> None:
    def memo(fn: Callable[[int], int], base: dict[str, int]) -> Callable[[int], int]:
        cache: dict[int, int] = {}
        calls = 0

        def inner(x: int) -> int:
            nonlocal calls
            calls += 1
            cache[x] = fn(x) + base["b"]
            return cache[x]

        return inner

    one, other = memo(with_default, {"b": 1}), memo(with_default, {"b": 2})
    before = code_of(one)
    one(3)
    assert code_of(one) == before != code_of(other)


def test_an_attribute_that_methods_change_is_not_what_the_object_was_given() -> None:
    class Scorer:
        def __init__(self, by: int) -> None:
            self.by, self.calls, self.seen = by, 0, set()

        def __call__(self, x: int) -> int:
            self.calls += 1
            self.seen.add(x)
            return x * self.by

    one = Scorer(1)
    before = code_of(one)
    one(3)
    assert code_of(one) == before != code_of(Scorer(2))


def test_a_lambda_and_a_function_of_the_same_text_are_the_same() -> None:
    def twice(x: int) -> int:
        """Twice as much."""
        return x * 2

    both = [lambda x: x * 2, lambda x: x * 3]  # on one line, and told apart
    assert code_of(twice) == code_of(both[0]) != code_of(both[1])
    assert not read_code(both[0]).compiled


def test_code_without_a_text_is_known_by_its_bytecode() -> None:
    one, same, other = (eval(text) for text in ("lambda x: x + 1", "lambda x: x + 1", "lambda x: x + 2"))
    assert code_of(one) == code_of(same) != code_of(other)
    assert read_code(one).compiled == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_a_changed_function_of_a_class_counts_and_one_of_its_base_too() -> None:
    def kind(by: int) -> type:
        class Base:
            def inner(self, x: int) -> int:
                return x + by

        class Derived(Base):
            LIMIT = by

        return Derived

    assert code_of(kind(1)()) == code_of(kind(1)()) != code_of(kind(2)())


def test_the_source_of_a_notebooks_cell_is_known_and_its_names_count_by_value() -> None:
    def run(*cells: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        for cell in cells:
            file = f"<cell {hash(cell)}>"
            linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
            exec(compile(cell, file, "exec", dont_inherit=True), names)
        return names

    function = "def f(x):\n    global n\n    n += 1\n    return x * RATE + n\n"
    one, same = run("RATE = 2", "n = 0", function), run("n = 0\nRATE = 2", "# f\n" + function)
    assert not read_code(one["f"]).compiled
    one["f"](1)
    assert code_of(one["f"]) == code_of(same["f"])
    assert code_of(one["f"]) != code_of(run("RATE = 3", "n = 0", function)["f"])


def test_a_module_in_an_archive_has_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def packed(text: str) -> Any:
        archive = tmp_path / f"{len(list(tmp_path.iterdir()))}.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("archived_rates.py", text)
        monkeypatch.syspath_prepend(archive)
        sys.modules.pop("archived_rates", None)
        return importlib.import_module("archived_rates").rate

    one, same, other = (packed(f"{comment}RATE = {n}\ndef rate(x): return x * RATE\n") for comment, n in (("", 1), ("# a\n", 1), ("", 2)))
    assert not read_code(one).compiled
    assert code_of(one) == code_of(same) != code_of(other)


# -- another process -------------------------------------------------------------------------------------------------

SHAPES = """
import collections, dataclasses, enum, functools, itertools, logging, os, random, re, socket, threading, time, uuid
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple
import polars as pl
import meander as md

HERE = Path(__file__).parent
NOW = time.time()
PID = os.getpid()
RUN = uuid.uuid4().hex
HOST = socket.gethostname()
LOCK = threading.Lock()
LOG = logging.getLogger("shapes")
WORDS = {"b", "a", "c", "d", "e"}
FROZEN = frozenset(WORDS)
PATTERN = re.compile("a+b", re.I)
COUNT = itertools.count()
FRAME = pl.DataFrame({"a": [1, 2], "r": [random.random(), 1.0]})
EXPR = pl.col("a") + 1
OBJECT = object()
DEFAULTS = collections.defaultdict(list)
LOOKUP = {word: hash(word) for word in WORDS}

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

@dataclasses.dataclass(frozen=True)
class Config:
    rate: Decimal = Decimal("0.1")
    words: frozenset = frozenset({"x", "y", "z"})
    made: float = dataclasses.field(default_factory=time.time)

class Pair(NamedTuple):
    left: int = 1
    right: str = "r"

CONFIG = Config()

@functools.singledispatch
def show(x):
    return repr(x)

@show.register
def _(x: int):
    return str(x)

@show.register(str)
def _(x):
    return x

@functools.lru_cache
def cached(x):
    return x + next(COUNT)

def retry(times):
    def decorate(fn):
        @functools.wraps(fn)
        def inner(*args, **kwargs):
            for _ in range(times):
                return fn(*args, **kwargs)
        return inner
    return decorate

@retry(3)
def decorated(x):
    return cached(x)

def uses_all(df):
    with LOCK:
        LOG.info("%s %s %s %s %s", HERE, NOW, PID, RUN, HOST)
    DEFAULTS["k"].append(1)
    return [WORDS, FROZEN, PATTERN, COUNT, FRAME, EXPR, OBJECT, LOOKUP, Colour.RED, Config(), Pair(), CONFIG, show(1), decorated(2)]

def closure():
    made, log, lock, words = object(), LOG, LOCK, WORDS
    return lambda df: (made, log, lock, words, Colour.BLUE)

class Visits(md.Processor):
    colour = Colour.RED
    started = NOW
    def __init__(self):
        self.log, self.lock, self.config = LOG, LOCK, Pair(2)
    def on_rows(self, rows, state, ctx):
        return uses_all(rows)

ALL = [uses_all, closure(), Visits(), Visits, decorated, cached, show, functools.partial(uses_all, WORDS), CONFIG.words.union,
       Pair(1).index, PATTERN.match, len, pl.DataFrame.unique, str.upper, eval("lambda x: x + NOW"), LOG.info, EXPR, FRAME["a"]]
if __name__ == "__main__":
    from meander.plan.code import read_code
    cached(1), show("x")
    print(*[read_code(one).digest for one in ALL])
"""


def test_an_unchanged_script_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Whatever it has: times, ids, caches, locks, sets whose order differs. Here as a script, there moved, and loaded by another name."""
    (tmp_path / "shapes.py").write_text(SHAPES)
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "renamed.py").write_text("# moved\n\n" + SHAPES)
    said = []
    for seed, file in ((1, "shapes.py"), (2, "moved/renamed.py")):
        done = subprocess.run(
            [sys.executable, str(tmp_path / file)], capture_output=True, text=True, env={"PYTHONHASHSEED": str(seed), "PATH": ""}
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    assert said[0] == said[1]
    assert len(set(said[0])) > 12


# -- versions of Python ----------------------------------------------------------------------------------------------


def dumped(text: str) -> str:
    return text_of(ast.parse(textwrap.dedent(text)).body[0])


def test_the_text_of_a_tree_leaves_out_what_only_some_versions_have() -> None:
    """3.12 gives functions and classes type parameters; a tree that was made without them is the same."""
    node = ast.parse("def f(x):\n    def g(y): return y\n    return g(x)").body[0]
    before = text_of(node)
    for one in ast.walk(node):
        one.type_params = []  # type: ignore[attr-defined]
        one._fields = (*one._fields, "type_params")  # type: ignore[misc]
    assert text_of(node) == before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(x): return f'{x}a' 'b'", "def f(x): return f'{x}ab'"),
        ("def f(x): return 1_000", "def f(y): return 1000".replace("y", "x")),
        ("def f(x):\n  y: int = 1\n  return y", "def f(x):\n  y = 1\n  return y"),
        ("def f(x): return u'a'", "def f(x): return 'a'"),
    ],
)
def test_texts_that_mean_the_same_tree(one: str, other: str) -> None:
    assert dumped(one) == dumped(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(x): return 1", "def f(x): return True"),
        ("def f(x): return 1", "def f(x): return 1.0"),
        ("def f(x): return 0", "def f(x): return None"),
        ("def f(x): return 'a'", "def f(x): return b'a'"),
        ("def f(x): return f'{x}'", "def f(x): return f'{x!r}'"),
        ("def f(x): return f'{x:>3}'", "def f(x): return f'{x:>4}'"),
        ("def f(x, *, y): return x", "def f(x, y): return x"),
        ("def f(x): return [y for y in x]", "async def f(x): return [y for y in x]"),
        ("def f(x):\n  x\n  return 1", "def f(x):\n  return 1"),
    ],
)
def test_texts_that_do_something_else(one: str, other: str) -> None:
    assert dumped(one) != dumped(other)


def test_the_text_of_a_function_is_fixed() -> None:
    """Stores hold digests of it: another text for the same function orphans them."""
    text = dumped("def f(a, *b, c=1, **d) -> int:\n  'doc'\n  for x in a: yield x + 2\n  return f'{a!r:>{c}}' or -1.5 if d else b'x'")
    assert text == (
        '["function",[[],["a"],"b",["c"],"d"],[["For",["body",[["Expr",["value",["Yield",["value",["BinOp",["left",["Name",["id'
        '","x"]]],["op",["Add"]],["right",["Constant","int","0x2"]]]]]]]]],["iter",["Name",["id","a"]]],["target",["Name",["id"'
        ',"x"]]]],["Return",["value",["IfExp",["body",["BoolOp",["op",["Or"]],["values",[["JoinedStr",[["FormattedValue",["conv'
        'ersion",114],["format_spec",[">",["FormattedValue",["value",["Name",["id","c"]]]]]],["value",["Name",["id","a"]]]]]],['
        '"UnaryOp",["op",["USub"]],["operand",["Constant","float","1.5"]]]]]]],["orelse",["Constant","bytes","78"]],["test",["N'
        'ame",["id","d"]]]]]]]]'
    )


# -- what travels ----------------------------------------------------------------------------------------------------


def test_an_operator_that_was_pickled_keeps_the_code_that_it_had_where_it_was_written(modules: Callable[..., ModuleType]) -> None:
    import meander as md

    flow_file = modules()
    cloudpickle.register_pickle_by_value(flow_file)
    try:
        op = md.map_batches(flow_file.by_name, schema={"a": int})
        packed = cloudpickle.dumps(op)
    finally:
        cloudpickle.unregister_pickle_by_value(flow_file)
    before = op.code()
    modules(("RATE = 0.2", "RATE = 0.3"))
    assert pickle.loads(packed).code() == before


def test_a_plan_is_the_same_in_a_process_that_has_no_source_of_it(tmp_path: Path) -> None:
    """As a replica has it that was started from Python, an executor, or a driver that is asked for a change."""
    file = tmp_path / "written.py"
    file.write_text(
        "import sys, cloudpickle, meander as md, polars as pl\n"
        "def rate(x): return x * 2\n"
        "class Total(md.Aggregator):\n"
        "    def init(self): return {'s': rate(pl.col('a').sum())}\n"
        "    def merge(self): return {'s': self.state('s').sum()}\n"
        "    def finish(self): return self.state('s')\n"
        "class Last(md.Processor):\n"
        "    output = {'n': 'int64'}\n"
        "    def on_events(self, key, rows, state, ctx): yield (rate(1),)\n"
        "flow = md.Flow('f')\n"
        "rows = flow.source('in', md.generator('wikipedia')).with_columns(a=pl.lit(1)).map_batches(lambda df: df.with_columns(b=rate(1)))\n"
        "keyed = rows.key_by('server_name')\n"
        "keyed.process(Last(), name='last').sink('one', md.console())\n"
        "keyed.aggregate(Total('a').alias('t'), name='totals').sink('two', md.console())\n"
        "plan = flow.plan()\n"
        "open(sys.argv[1], 'wb').write(cloudpickle.dumps(plan))\n"
        "print(plan.digest())\n"
    )
    packed = tmp_path / "packed"
    own = subprocess.run([sys.executable, str(file), str(packed)], capture_output=True, text=True, check=True).stdout.strip()
    file.unlink()
    read = (
        "import pickle, sys; from meander.plan.graph import Plan\n"
        "plan = pickle.load(open(sys.argv[1], 'rb'))\n"
        "again = Plan(2, plan.flow, plan.nodes)\n"
        "totals = again.node('totals').op.aggs[0]\n"
        "assert all(node.code == node.op.code() for node in again.nodes)\n"
        "print(plan.digest(), again.digest(), max(node.code.compiled for node in again.nodes))\n"
    )
    done = subprocess.run([sys.executable, "-c", read, str(packed)], capture_output=True, text=True)
    assert done.stdout.split() == [own, own], done.stderr


# -- values, and expressions -----------------------------------------------------------------------------------------


class Slots:
    __slots__ = ("rate",)

    def __init__(self, rate: float) -> None:
        self.rate = rate


class Rates(dict[str, float]):
    pass


@dataclasses.dataclass
class Limits:
    most: int

    def __post_init__(self) -> None:
        self.twice = 2 * self.most if self.most < 100 else 7


def limits(least: int) -> Limits:
    found = Limits(200)
    found.twice = least
    return found


def holding(value: Any) -> Any:
    return lambda frame: (frame, value)


VALUES = [
    (Slots(1.0), Slots(2.0)),
    (Rates(a=1), Rates(a=2)),
    (Rates(a=1), {"a": 1}),
    (limits(1), limits(2)),
    (np.float64(1.5), np.float64(2.5)),
    (np.int64(1), np.int64(2)),
    (np.datetime64("2020-01-01"), np.datetime64("2021-01-01")),
    (np.array([1, 2]), np.array([1, 3])),
    (np.array([[1, 2]]), np.array([[1], [2]])),
    (np.array(["a", None], dtype=object), np.array(["b", None], dtype=object)),
    (np.vectorize(abs), np.vectorize(len)),
    (bytearray(b"a"), bytearray(b"b")),
    (collections.deque([1]), collections.deque([2])),
    (collections.UserDict(a=1), collections.UserDict(a=2)),
    (collections.defaultdict(lambda: 1), collections.defaultdict(lambda: 2)),
    (array.array("i", [1]), array.array("i", [2])),
    (pl.DataFrame({"a": [b"\xff"]}), pl.DataFrame({"a": [b"\xfe"]})),
    (pl.DataFrame({"a": [float("nan")]}), pl.DataFrame({"a": [None]}, schema={"a": pl.Float64})),
    (pl.lit(float("inf")), pl.lit(float("-inf"))),
    (pl.col("a").map_batches(lambda s: s + 1), pl.col("a").map_batches(lambda s: s + 2)),
]


@pytest.mark.parametrize(("one", "other"), VALUES)
def test_other_values_are_other_code(one: Any, other: Any) -> None:
    assert code_of(holding(one)) == code_of(holding(one)) != code_of(holding(other))


UNORDERED = """
import enum, warnings
import polars as pl
from meander.plan.code import read_code

class Colour(enum.Enum):
    RED = 1

class Form(enum.Enum):
    ROUND = 1

class Size(enum.Enum):
    BIG = 1

RATE = 2

def holding(value):
    return lambda frame: (frame, value)

def rate(x):
    return x * RATE

warnings.simplefilter("ignore")
with_set = pl.col("a").map_elements(lambda x: x in {"a", "b", "c", "d", "e"}, return_dtype=pl.Boolean)
with_helper = pl.col("a").map_elements(rate, return_dtype=pl.Int64)
ALL = [holding({Colour.RED, Form.ROUND, Size.BIG}), holding(frozenset({Colour, Form, Size})), with_set, with_helper]
if __name__ == "__main__":
    from meander.plan.operators import Filter, WithColumns
    ops = [Filter(with_set), WithColumns((with_helper,))]
    print(*[read_code(one).digest for one in ALL], *[f"{op.canonical()}{op.code().digest}".replace(" ", "") for op in ops])
"""


def test_sets_and_functions_of_expressions_are_the_same_in_every_process(tmp_path: Path) -> None:
    def said(seed: int, name: str, text: str) -> list[str]:
        (tmp_path / name).write_text(text)
        done = subprocess.run(
            [sys.executable, str(tmp_path / name)], capture_output=True, text=True, env={"PYTHONHASHSEED": str(seed), "PATH": ""}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first = said(1, "one.py", UNORDERED)
    assert [said(seed, f"moved{seed}.py", "# moved\n\n" + UNORDERED) for seed in (2, 3, 4, 5)] == [first] * 4
    edited = said(1, "edited.py", UNORDERED.replace("RATE = 2", "RATE = 3"))
    assert [one == other for one, other in zip(first, edited, strict=True)] == [True, True, True, False, True, False]


class Weighing:
    """Reaches a class, a constant and a function of this module."""

    def weigh(self, x: int) -> str:
        return textwrap.dedent(UNORDERED) + holding_of(x)


def holding_of(x: int) -> str:
    return f"{x} of {len(HELPERS)}"


def test_a_file_is_not_walked_again_for_code_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads the code of a plan several times: to make it, and to store each function."""
    first = read_code(Weighing())
    assert {"Weighing", "Weighing.weigh()", "holding_of()", "HELPERS"} <= set(first.parts)
    walked: list[ast.AST] = []
    real = ast.iter_child_nodes
    monkeypatch.setattr(ast, "iter_child_nodes", lambda node: walked.append(node) or real(node))
    assert read_code(Weighing()) == first
    assert not walked
