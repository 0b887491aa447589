from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from meander.cli.flow_file import load_flow
from meander.errors import FlowError

FLOW = """
import meander as md
{name} = md.Flow("orders")
{name}.source("s", md.generator("key_value", events=3)).sink("out", md.memory())
"""


@pytest.fixture(autouse=True)
def _paths_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def written(folder: Path, text: str) -> Path:
    file = folder / "my_flow.py"
    file.write_text(text)
    return file


def test_a_flow_at_module_level_is_found(tmp_path: Path) -> None:
    assert load_flow(written(tmp_path, FLOW.format(name="flow"))).name == "orders"


def test_a_function_that_makes_the_flow_is_called(tmp_path: Path) -> None:
    text = FLOW.format(name="made") + "def flow():\n    return made\n"
    assert load_flow(written(tmp_path, text)).name == "orders"


def test_a_flow_file_can_import_its_neighbours_and_leaves_no_module_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_flow.py").write_text("LIMIT = 3\n")
    text = "import neighbour_of_flow\n" + FLOW.format(name="flow")
    load_flow(written(tmp_path, text))
    assert "my_flow" not in sys.modules  # otherwise its functions would travel by a name that executors cannot import
    assert str(tmp_path) in os.environ["PYTHONPATH"].split(os.pathsep)
    del sys.modules["neighbour_of_flow"]


def test_the_file_does_not_run_as_a_script(tmp_path: Path) -> None:
    text = FLOW.format(name="flow") + "if __name__ == '__main__':\n    raise SystemExit('ran')\n"
    assert load_flow(written(tmp_path, text)).name == "orders"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "defines no `flow`; define flow = md.Flow(...) at module level, or a function flow()"),
        (FLOW.format(name="orders"), "there is a flow named `orders`; rename it, or add: flow = orders"),
        ("flow = 3\n", "its `flow` is of type int"),
        ("def flow():\n    pass\n", "flow() returned nothing"),
        ("a = 1\nb = a / 0\n", "my_flow.py, line 2: ZeroDivisionError: division by zero"),
        ("a = (\n", "my_flow.py, line 1: '(' was never closed"),
        ("import no_such_module_here\n", "line 1: ModuleNotFoundError"),
        ("def flow():\n    return 1 / 0\n", "my_flow.py, line 2: ZeroDivisionError"),
        (
            "import meander as md\nflow = md.Flow('f')\nflow.source('s', md.generator('key_value', events=1)).filter('kei > 1')\n",
            "my_flow.py, line 3: filter 'filter_1': there is no column 'kei'",
        ),
    ],
)
def test_what_is_wrong_with_a_flow_file_is_said_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FlowError) as raised:
        load_flow(written(tmp_path, text))
    assert message in str(raised.value)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match="there is no such file"):
        load_flow(tmp_path / "nothing.py")
    with pytest.raises(FlowError, match="this is a folder"):
        load_flow(tmp_path)
