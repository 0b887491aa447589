"""The HTTP API of one running flow. Turns requests into verbs of the run; ``guard`` decides what a
request may do.

| request | does |
| --- | --- |
| ``GET /status`` | what the flow is doing |
| ``GET /scale?stage=2[&to=4]`` | another number of slots for a stage; one more where ``to`` is left out |
| ``POST /rescale`` | the same for an operator by name, with a strategy |
| ``POST /migrate`` | operators, or key groups of theirs, to an executor |
| ``POST /modify`` | replace, insert and remove operators, as one change; or say what that would do |
| ``GET /modifications`` | all such changes, and what has become of them |
| ``POST /evacuate`` | move all slots away from an executor |
| ``POST /stop`` | finish the epoch that runs, then end |
| ``GET /metrics`` | numbers for Prometheus |
| ``GET /docs``, ``GET /openapi.json`` | this list, for people and for programs |
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from html import escape
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from meander import metrics
from meander.clock import Clock
from meander.control.exposition import CONTENT_TYPE, Exposition
from meander.control.guard import Policy, judge, may_run_code
from meander.control.problems import MEDIA_TYPE, Problem, of_error, refusal
from meander.control.running import Running
from meander.errors import MeanderError
from meander.settings import Strategy

_BY_STATUS = {404: "not-found", 405: "method-not-allowed"}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Rescale(_Body):
    operator: str = Field(description="a stateful operator's name", examples=["counts"])
    parallelism: int = Field(description="its new number of slots", examples=[4])
    strategy: Strategy = Field("hybrid", description="how the new owners get the state that moves")


class Migrate(_Body):
    operators: list[str] = Field(description="stateful operators' names", examples=[["counts"]], min_length=1)
    executor: str = Field(description="an executor's id, as /status shows it", examples=["1"])
    key_groups: list[int] | None = Field(None, description="which of their key groups; all where left out")
    strategy: Strategy = Field("hybrid", description="how the executor gets the state")


class Evacuate(_Body):
    executor: str = Field(description="an executor's id, as /status shows it", examples=["1"])


class Change(_Body):
    change: Literal["replace", "insert", "remove"]
    name: str = Field(description="the operator's name", examples=["positive"])
    operator: dict[str, Any] | None = Field(
        None, description="its kind: filter, select, with_columns, aggregate or watermark", examples=[{"filter": "amount > 10"}]
    )
    after: str | None = Field(None, description="for insert: the operator before it")
    before: str | list[str] | None = Field(None, description="for insert: only in front of these, and not of all that read `after`")


class Modify(_Body):
    changes: list[Change] | None = Field(None, description="in this order, all or none")
    code: str | None = Field(None, description="changes with code, as the shell packs them, in base64; needs the code token")
    dry_run: bool = Field(False, description="only say what would happen")
    drop_state: bool | list[str] = Field(False, description="operators whose state may be dropped; true: all that cannot continue it")
    backfill: dict[str, dict[str, Any]] = Field({}, description="per operator, the values of new aggregates for keys from before")
    request_id: str | None = Field(None, description="a request that is repeated with its id is done once")
    author: str = Field("", max_length=200, description="for the history")
    timeout: float = Field(60.0, gt=0, le=3600, description="seconds that the first epoch may take")


class Rescaled(BaseModel):
    operator: str
    before: int
    after: int
    moved: int = Field(description="key groups that have another slot now")
    strategy: str
    epoch: int = Field(description="the first epoch under the new routing table")
    fetched: int = Field(0, description="bytes that were brought into the new owners' caches ahead of their use")
    failures: list[str] = Field([], description="what could not be brought, and is fetched on first use")
    fetched_from_store: int = Field(0, description="how many of the fetched bytes came from the store, and not from other executors")


def make_app(
    run: Running,
    policy: Policy,
    clock: Clock,
    on_stop: Callable[[], object] | None = None,
    gather: Callable[[], bytes] | None = None,
) -> FastAPI:
    """The application that serves one run. ``on_stop`` is what POST /stop does, in a thread of its own; by default ``run.stop``.

    ``gather`` gives the metrics where other processes run the epochs; by default they are those of the run's own.
    """
    app = FastAPI(
        title=f"Meander: flow '{run.name}'",
        description="Ask a running flow, and change it while it runs. Errors are application/problem+json.",
        docs_url=None,  # its page loads scripts from elsewhere, which could then change the flow
        redoc_url=None,
    )
    exposition = Exposition(run.name, clock)
    run.on_epoch(exposition)
    problem_answers: dict[int | str, dict[str, Any]] = {"4XX": {"description": "A problem"}, "5XX": {"description": "A problem"}}

    def rescale(operator: str, parallelism: int, strategy: Strategy) -> dict[str, Any]:
        done: dict[str, Any] = run.rescale(operator, parallelism, strategy)._asdict()
        exposition.recorder.add(metrics.RESCALES, 1, operator)
        return {**done, "failures": list(done.get("failures", ()))}

    @app.get("/status", summary="What the flow is doing", tags=["ask"])
    def get_status() -> JSONResponse:
        return JSONResponse(run.status())

    @app.get("/metrics", summary="Numbers for Prometheus", tags=["ask"])
    def get_metrics() -> Response:
        text = exposition.text(run.status()) if gather is None else gather()
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    @app.get("/scale", summary="Another number of slots for a stage", tags=["change"], responses=problem_answers)
    def get_scale(
        stage: Annotated[int, Query(description="the number of a stage that keeps state, as /status shows it")],
        to: Annotated[int | None, Query(description="its new number of slots; one more than now where left out")] = None,
        strategy: Strategy = "hybrid",
    ) -> dict[str, Any]:
        found = _stage(_running(run), stage)
        slots = found["slots"] + 1 if to is None else to
        return {"stage": stage, "slots": slots, "rescaled": [rescale(operator, slots, strategy) for operator in found["stateful"]]}

    @app.post("/rescale", summary="Another number of slots for an operator", tags=["change"], responses=problem_answers)
    def post_rescale(request: Rescale) -> Rescaled:
        operators = _running(run)["operators"]
        if request.operator not in operators:
            raise refusal(
                "not-found",
                f"there is no stateful operator '{request.operator}' to rescale; there are: {', '.join(sorted(operators)) or 'none'}",
            )
        return Rescaled(**rescale(request.operator, request.parallelism, request.strategy))

    @app.post("/migrate", summary="Operators, or key groups of theirs, to an executor", tags=["change"], responses=problem_answers)
    def post_migrate(request: Migrate) -> dict[str, Any]:
        operators = _running(run)["operators"]
        for name in request.operators:
            if name not in operators:
                raise refusal(
                    "not-found", f"there is no stateful operator '{name}' to migrate; there are: {', '.join(sorted(operators)) or 'none'}"
                )
        done: dict[str, Any] = run.migrate(request.operators, request.executor, request.key_groups, request.strategy)._asdict()
        return {**done, "operators": list(done["operators"]), "failures": list(done["failures"])}

    @app.post("/modify", summary="Replace, insert and remove operators, as one change", tags=["change"], responses=problem_answers)
    def post_modify(request: Request, body: Modify) -> dict[str, Any]:
        _running(run)
        if (body.changes is None) == (body.code is None):
            raise Problem("ConfigError", 400, "give either changes or code. GET /docs says what a request looks like")
        code = None if body.code is None else _code(body.code, may_run_code(policy, request.headers))
        done = run.modify_as_data(body.model_dump(exclude={"code"}), code)
        if not body.dry_run:
            exposition.recorder.add(metrics.MODIFICATIONS, 1)
        return {"dry_run": body.dry_run, **done}

    @app.get("/modifications", summary="All such changes, and their results", tags=["ask"], responses=problem_answers)
    def get_modifications() -> JSONResponse:
        return JSONResponse({"modifications": run.modifications()})

    @app.post("/evacuate", summary="Move all slots away from an executor", tags=["change"], responses=problem_answers)
    def post_evacuate(request: Evacuate) -> dict[str, Any]:
        executors = _running(run)["executors"]
        if request.executor not in executors:
            there = ", ".join(sorted(executors)) or "none"
            raise refusal("not-found", f"there is no executor '{request.executor}'; there are: {there}")
        if not any(name != request.executor and not executor["leaving"] for name, executor in executors.items()):
            raise refusal("conflict", f"executor '{request.executor}' is the last one: add another before it goes")
        run.evacuate(request.executor)
        return {"executor": request.executor, "slots": run.status()["executors"].get(request.executor, {"slots": 0})["slots"]}

    @app.post("/stop", status_code=202, summary="Finish the epoch that runs, then end", tags=["change"])
    def post_stop() -> dict[str, Any]:
        # Not here: the server itself ends with the run, and this answer must leave before.
        threading.Thread(target=_quietly, args=(on_stop or run.stop,), name="meander-stop", daemon=True).start()
        return {"flow": run.name, "stopping": True}

    @app.get("/docs", include_in_schema=False)
    def get_docs() -> HTMLResponse:
        return HTMLResponse(_page(app.openapi()))

    app.add_exception_handler(Exception, _answer)
    for kind in (Problem, MeanderError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer)
    app.add_middleware(Guarded, policy=policy)
    return app


class Guarded:
    """Asks ``guard`` before anything else sees the request."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            problem = judge(self._policy, scope["method"], scope["path"], headers)
            if problem is not None:
                await _as_response(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _code(text: str, allowed: bool) -> bytes:
    if not allowed:
        raise refusal(
            "forbidden",
            "changes with Python code need the code token, and SQL text does not: start the flow with --code-token "
            "(or MEANDER_CODE_TOKEN), and send that one",
        )
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Problem("ConfigError", 400, "code: it is not base64. GET /docs says what a request looks like") from None


def _running(run: Running) -> dict[str, Any]:
    status = run.status()
    if status["state"] != "running":
        why = f": {status['error']}" if status.get("error") else ""
        raise refusal("conflict", f"flow '{run.name}' has {status['state']}{why}; start it again, then change it")
    return status


def _stage(status: dict[str, Any], number: int) -> dict[str, Any]:
    stateful = [f"{stage['number']} ({', '.join(stage['stateful'])})" for stage in status["stages"] if stage["stateful"]]
    there = f"stages that keep state: {', '.join(stateful)}" if stateful else "this flow has no stage that keeps state"
    for stage in status["stages"]:
        if stage["number"] == number:
            if not stage["stateful"]:
                members = ", ".join(operator["name"] for operator in stage["operators"])
                raise refusal("conflict", f"stage {number} ({members}) keeps no state, its tasks follow the input; {there}")
            found: dict[str, Any] = stage
            return found
    raise refusal("not-found", f"there is no stage {number}; {there}")


def _answer(_: Request, error: Exception) -> Response:
    if isinstance(error, Problem):
        return _as_response(error)
    if isinstance(error, RequestValidationError):
        found = [f"{'.'.join(map(str, one['loc'][1:])) or 'the body'}: {one['msg']}" for one in error.errors()]
        return _as_response(Problem("ConfigError", 400, f"{'; '.join(found)}. GET /docs says what a request looks like"))
    if isinstance(error, HTTPException):
        kind = _BY_STATUS.get(error.status_code, "refused")
        return _as_response(Problem(kind, error.status_code, f"{error.detail}. GET /docs lists what there is"))
    return _as_response(of_error(error))


def _as_response(problem: Problem) -> Response:
    return JSONResponse(problem.to_json(), problem.status, media_type=MEDIA_TYPE, headers=problem.headers())


def _quietly(stop: Callable[[], object]) -> None:
    """Stop the run and ignore its error: a failed run raises when it is stopped, and the thread
    that waits for the run gets that error anyway."""
    try:
        stop()
    except Exception:
        return


def _page(schema: dict[str, Any]) -> str:
    """The OpenAPI description for people, without a script."""
    rows = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            given = [f"{p['name']}{'' if p['required'] else '?'}" for p in operation.get("parameters", [])]
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            if "$ref" in content:
                body = schema["components"]["schemas"][content["$ref"].rsplit("/", 1)[1]]
                given.extend(f"{name}{'' if name in body.get('required', ()) else '?'} (JSON)" for name in body["properties"])
            cells = (f"{method.upper()} {path}", operation.get("summary", ""), ", ".join(given))
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    title = escape(schema["info"]["title"])
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title>"
        "<style>body{font:16px sans-serif;margin:2em}td{padding:.3em 1em}</style>"
        f"<h1>{title}</h1><p>{escape(schema['info']['description'])}</p><table>{''.join(rows)}</table>"
        "<p>The whole description: <a href='/openapi.json'>/openapi.json</a></p>"
    )
