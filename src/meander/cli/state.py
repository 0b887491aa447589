"""``meander state``: a flow's state as a table, at any retained epoch, as it is or through SQL."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from meander.cli.parser import Commands, at_least_0
from meander.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl


FORMATS = ("table", "csv", "json", "parquet")
_TABLE_ROWS = 20
_EXAMPLES = """examples:
  meander state state/                                    the operators that have state, and the epochs that can be read
  meander state state/ totals                             the first 20 keys and their values
  meander state state/ totals --epoch 12 --limit 0        all of them, as they were after epoch 12
  meander state state/ totals --sql "SELECT customer, total FROM state ORDER BY total DESC LIMIT 5"
  meander state state/ totals --format csv > totals.csv
  meander state state/ totals --format parquet --output totals.parquet

SQL is DuckDB's; the table is called state. A flow may run meanwhile: it is not disturbed."""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "state",
        help="a flow's state as a table",
        description="An operator's state as a table: its key columns and its values, at the newest epoch or at any retained one.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("store", metavar="STORE", help="the folder that is the flow's store")
    parser.add_argument("operator", metavar="OPERATOR", nargs="?", help="the stateful operator; without it, a list of them")
    parser.add_argument("--epoch", type=int, metavar="N", help="the state right after this epoch (default: the newest)")
    parser.add_argument("--sql", metavar="QUERY", help="a DuckDB query over the table `state`")
    parser.add_argument("--format", choices=FORMATS, help="json is one object per line (default: table, or what FILE ends in)")
    parser.add_argument("--output", metavar="FILE", help="write there instead of standard output")
    parser.add_argument(
        "--limit", type=at_least_0, metavar="N", help=f"at most N rows, 0 for all (default: {_TABLE_ROWS} in a table, else all)"
    )
    parser.add_argument(
        "--run-code",
        action="store_true",
        help="run the flow's own aggregates, which are stored as code, to finish their values",
    )
    parser.add_argument("--no-color", action="store_true", help="plain text")
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    if arguments.operator is None:
        return _list(arguments)
    import meander as md
    from meander.cli.store_view import open_existing

    form = choose_format(arguments.format, arguments.output)
    open_existing(arguments.store)  # says it where there is no flow
    table = md.read_state(arguments.store, arguments.operator, arguments.epoch, arguments.run_code)
    frame = query(table, arguments.sql)
    limit = arguments.limit if arguments.limit is not None else (_TABLE_ROWS if form == "table" else 0)
    shown = frame.head(limit) if limit > 0 else frame
    if arguments.output is not None:
        try:
            with open(arguments.output, "wb") as out:
                write(shown, form, out)
        except OSError as error:
            raise ConfigError(f"--output {arguments.output}: cannot be written ({error.strerror}); give another file") from error
        return 0
    if form != "table":
        write(shown, form, sys.stdout.buffer)
        return 0
    _print(shown, frame.height, arguments)
    return 0


def choose_format(given: str | None, output: str | None) -> str:
    """The format: as said, or by the file's ending, or a table."""
    ending = Path(output).suffix.removeprefix(".") if output is not None else ""
    form = given or ({"jsonl": "json", "ndjson": "json"}.get(ending, ending) if ending else "table")
    if form not in FORMATS or (form == "table" and output is not None):
        raise ConfigError(f"--output {output}: say the format with --format csv, json or parquet")
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise ConfigError("--format parquet is not for a terminal: add --output FILE.parquet")
    return form


def query(table: Any, sql: str | None) -> pl.DataFrame:
    """The Arrow table, or what a query makes of it, as a frame."""
    import duckdb
    import polars as pl

    if sql is None:
        return pl.DataFrame(table)
    with duckdb.connect() as connection:
        connection.register("state", table)
        try:
            result = connection.sql(sql)
        except duckdb.Error as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"--sql: {reason}; the table is `state`, its columns are {', '.join(table.column_names)}") from error
        if result is None:
            raise ConfigError("--sql: the query has no result; write a SELECT over the table `state`")
        frame: pl.DataFrame = result.pl()
        return frame


def write(frame: pl.DataFrame, form: str, out: IO[bytes]) -> None:
    """All rows of the frame in a machine's format."""
    import polars as pl

    if form == "parquet":
        frame.write_parquet(out)
    elif form == "json":
        frame.write_ndjson(out)
    else:  # CSV has no lists: their JSON is the best it can hold
        nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
        frame.with_columns(pl.struct(name).struct.json_encode().alias(name) for name in nested).write_csv(out)


def _print(shown: pl.DataFrame, rows: int, arguments: argparse.Namespace) -> None:
    from rich import box
    from rich.table import Table

    from meander.cli.progress import make_console

    console = make_console(False, arguments.no_color)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, dtype in shown.schema.items():
        table.add_column(name, justify="right" if dtype.is_numeric() else "left", overflow="fold")
    for row in shown.iter_rows():
        table.add_row(*(_cell(value) for value in row))
    console.print(table)
    if shown.height < rows:
        console.print(f"{shown.height} of {rows:,} rows; --limit 0 shows all", style="dim")


def _cell(value: Any) -> str:
    from rich.markup import escape

    if value is None:
        return "[dim]null[/]"
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else escape(str(value))


def _list(arguments: argparse.Namespace) -> int:
    from meander.cli.progress import make_console
    from meander.cli.status import read_status, tables_of

    if arguments.sql is not None or arguments.epoch is not None:
        raise ConfigError(f"which operator's state? `meander state {arguments.store}` lists them")
    status = read_status(arguments.store)
    console = make_console(False, arguments.no_color)
    if not status["tables"]:
        console.print(f"flow '{status['flow'] or 'unknown'}' has no state yet", soft_wrap=True)
        return 0
    readable = status["epochs_readable"]
    console.print(f"flow '{status['flow']}', epoch {status['epoch']}; epochs {readable[0]} to {readable[1]} can be read", soft_wrap=True)
    console.print()
    console.print(tables_of(status["tables"]))
    operator = next(iter(status["tables"]))
    console.print(f"look into one: meander state {arguments.store} {operator} --limit 5", style="dim", soft_wrap=True)
    return 0
