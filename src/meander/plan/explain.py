"""The plan as text, for people: stages, what each operator does, the columns that leave it, and whether its rows replace older ones."""

from __future__ import annotations

from meander.connect.sink import shows_table
from meander.plan.graph import Plan
from meander.plan.operators import Operator, SinkOp
from meander.plan.schemas import show_schema
from meander.plan.stages import derive_stages


def explain(plan: Plan) -> str:
    """Lines of stages and operators, in the order in which rows pass them. Ends without a newline."""
    lines = [f"flow {plan.flow}, plan version {plan.version}"]
    for stage in derive_stages(plan):
        lines += ["", f"stage {stage.number} ({'stateful: ' + ', '.join(stage.stateful) if stage.stateful else 'stateless'})"]
        for name in stage.operators:
            node = plan.node(name)
            after = f" <- {', '.join(node.inputs)}" if node.inputs else ""
            lines.append(f"  {node.op.kind} {name}{after}: {node.op.describe()}")
            if node.op.kind != "sink":
                lines.append(f"      columns: {show_schema(plan.schema(name))}")
            rows = plan.changes.get(name)
            if rows is not None:
                lines.append(f"      rows: {_table_or_log(node.op)}{rows.describe()}")
    return "\n".join(lines)


def _table_or_log(op: Operator) -> str:
    """Whether a sink gets the table or the log of a stream of changes, in words."""
    if not isinstance(op, SinkOp):
        return ""
    return "the table of " if shows_table(op.sink) else "the log of "
