"""What somebody tries first who comes from PySpark, in a process of its own: names of operators, a master by name, a wrong address."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FLOW = """
import json
from pathlib import Path
import meander as md

Path("in").mkdir()
rows = [{"id": 1, "tags": "a,b", "amount": 2.0, "note": "x"}, {"id": 2, "tags": "b", "amount": 4.0, "note": "y"}]
Path("in/1.json").write_text("".join(json.dumps(row) + chr(10) for row in rows))
flow = md.Flow("shop")
posts = flow.source("posts", md.files("in", format="json", schema="id long, tags string, amount double, note string", settle=0))
(
    posts.where("amount > 0")
    .drop("note")
    .with_columns("string_to_array(tags, ',') AS tags")
    .explode("tags")
    .rename({"tags": "tag"})
    .key_by("tag")
    .aggregate(md.avg("amount").alias("mean"), name="means")
    .sink("out", md.parquet("out"))
)
with flow.start("state", spark="local[2]", trigger=None) as run:
    run.process_available()
    assert run.spark is not None
print(sorted((row["tag"], row["mean"]) for row in md.read_state("state", "means").to_pylist()))
"""

NOWHERE = """
import meander as md
try:
    md.spark(master="spark://127.0.0.1:1")
except md.ConfigError as error:
    print(error)
"""


def script(text: str, folder: Path, timeout: float) -> str:
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=folder, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_flow_in_the_words_of_pyspark_runs_on_a_master_by_its_name(tmp_path: Path) -> None:
    assert script(FLOW, tmp_path, 120) == "[('a', 2.0), ('b', 3.0)]\n"


@pytest.mark.slow
def test_a_master_that_does_not_answer_is_said_in_a_sentence(tmp_path: Path) -> None:
    """Spark itself looks for it for a minute."""
    said = script(NOWHERE, tmp_path, 200)
    assert said == "Spark did not start on master 'spark://127.0.0.1:1': no master answers there; is it running, and is that its address?\n"
