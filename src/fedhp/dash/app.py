"""What is served: the page and its API. Every GET only reads."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles

from fedhp import __version__
from fedhp.dash import progress, schema, workers
from fedhp.dash.actions import ActionRefused, Operator
from fedhp.dash.answers import JsonAnswer, problem_response
from fedhp.dash.events import EventLog
from fedhp.dash.isolated import WorkRefused
from fedhp.dash.made import DataSplits, KeptAnswers, Replays
from fedhp.dash.progress import NoSuchRound, round_in_record
from fedhp.dash.runs import NoSuchRun, RunsFolder, record_state
from fedhp.dash.schema import Command, ListedRun, Problem
from fedhp.dash.security import COOKIE, LOGIN, Access, SecurityMiddleware, bearer, posted_token
from fedhp.dash.stream import MOST_VIEWERS, MOST_WATCHED, EventLogs, Streams
from fedhp.errors import FedhpError, RunError, TryAgain
from fedhp.record.reader import RunReader
from fedhp.report.differences import runs_difference_words
from fedhp.report.show import round_json, show_json

LOG = logging.getLogger("fedhp.dash")
STATIC = Path(__file__).parent / "static"
PAGE = STATIC / "index.html"
SIGN_IN = STATIC / "login.html"
DESCRIBED = ("experiment", "label", "workers", "devices", "metric", "status")
COOKIE_SECONDS = 30 * 24 * 3600
LARGEST = 2**53  # a number that JSON readers keep exact
RETRY_SECONDS = "2"

RunName = Annotated[
    str,
    Query(
        description="A run of /api/runs.", min_length=1, max_length=4096, examples=["demo/fedhp"]
    ),
]
After = Annotated[int, Query(ge=0, le=LARGEST, description="Only what came after this round.")]
RoundIndex = Annotated[int, Query(ge=1, le=LARGEST, alias="round", description="From 1.")]
ERRORS: dict[int | str, dict[str, Any]] = {
    number: {"model": Problem, "description": text}
    for number, text in {
        400: "The request is wrong.",
        401: "The token is missing.",
        404: "There is no such run, round or worker.",
        409: "The record is damaged, or not of the kind that is needed.",
        421: "The Host header does not name this server.",
        422: "A parameter is wrong.",
        503: "Busy: ask again.",
    }.items()
}


@dataclass(frozen=True, slots=True)
class DashSettings:
    folder: Path
    access: Access
    operator: Operator = field(default_factory=Operator)


class Served:
    def __init__(self, settings: DashSettings) -> None:
        self.settings = settings
        self.runs = RunsFolder(settings.folder)
        self.logs = EventLogs(self.runs)
        self.streams = Streams(self.runs, self.logs)
        self.replays = Replays()
        self.splits = DataSplits()
        self._summaries = KeptAnswers(64)
        self._lock = threading.Lock()

    @contextmanager
    def reader(self, run: str) -> Iterator[RunReader]:
        """The record of a run; RunError while it is being created."""
        with RunReader(self.runs.folder_of(run)) as reader:
            for key in DESCRIBED:
                if reader.meta(key) is None:
                    raise RunError(
                        f"{run}: the record does not say its {key} yet",
                        allowed="a record that was created completely",
                        fix="ask again in a moment",
                    )
            yield reader

    def entry(self, run: str) -> ListedRun:
        """A run that can be read, in a few numbers."""
        folder = self.runs.folder_of(run)
        entry = self.runs.entry(run)
        if entry is None:
            raise self.runs.unknown(run)
        if entry.problem:
            raise FedhpError(f"{folder.name}: {entry.problem}", fix="see /api/runs")
        return entry

    def log(self, run: str) -> EventLog:
        log = self.logs.log(run)
        log.update()
        return log

    def summary(self, run: str) -> dict[str, Any]:
        """The object of `fedhp show RUN --json`; it is made again when the record has changed."""
        folder = self.runs.folder_of(run)
        state = record_state(folder)
        with self._lock:
            kept = self._summaries.get(run, state)
        if kept is not None and not state.is_fresh:
            return kept
        answer = show_json(folder)
        with self._lock:
            return self._summaries.keep(run, state, answer)


def create_app(settings: DashSettings) -> FastAPI:
    """The application; everything passes security.py first."""
    served = Served(settings)
    app = FastAPI(
        title="fedhp dash",
        version=__version__,
        description="Runs of fedhp, read only. The numbers are those of `--json`; docs/dash.md "
        "has an example of each.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        default_response_class=JsonAnswer,
        separate_input_output_schemas=False,
    )
    app.state.served = served
    _add_error_handlers(app, served)
    _add_run_routes(app, served)
    _add_round_routes(app, served)
    _add_live_routes(app, served)
    _add_actions(app, served)
    _add_page(app, served)
    app.add_middleware(SecurityMiddleware, access=settings.access)
    return app


def _get(app: FastAPI, path: str, model: Any, summary: str) -> Callable[[Any], Any]:
    return app.get(path, response_model=model, responses=ERRORS, summary=summary, tags=["runs"])


def _add_run_routes(app: FastAPI, served: Served) -> None:
    @_get(app, "/api/runs", schema.RunList, "All runs, live ones first, then the newest")
    def runs() -> Response:
        listing = served.runs.listing()
        return JsonAnswer(
            schema.RunList(folder=served.runs.name, runs=listing, most_watched=MOST_WATCHED)
        )

    @_get(app, "/api/run", schema.RunDetails, "A run: its workers, targets and settings")
    def run_details(run: RunName) -> Response:
        entry, log = served.entry(run), served.log(run)
        with served.reader(run) as reader, reader.snapshot():
            actions = served.settings.operator.actions(entry)
            names = log.names(entry.workers)
            missing = log.missing(entry.workers) if entry.network and entry.live else []
            return JsonAnswer(
                progress.details(entry, reader, names=names, missing=missing, actions=actions)
            )

    @_get(app, "/api/summary", dict[str, Any], "The object of `fedhp show RUN --json`")
    def summary(run: RunName) -> Response:
        return JsonAnswer(served.summary(run))

    @_get(
        app, "/api/differences", schema.Differences, "In which settings these runs differ, in words"
    )
    def differences(
        run: Annotated[list[str], Query(description="Runs to compare.", max_length=MOST_WATCHED)],
    ) -> Response:
        folders = [served.runs.folder_of(name) for name in dict.fromkeys(run)]
        return JsonAnswer(schema.Differences(text=runs_difference_words(folders)))

    @_get(app, "/api/progress", schema.ProgressColumns, "Rounds and tests, as columns")
    def run_progress(run: RunName, after: After = 0) -> Response:
        with served.reader(run) as reader:
            return JsonAnswer(progress.progress(reader, after=after))

    @_get(app, "/api/decisions", schema.Decisions, "What was planned in every round, and why")
    def run_decisions(run: RunName, after: After = 0) -> Response:
        with served.reader(run) as reader:
            return JsonAnswer(progress.decisions(reader, after=after))

    @_get(app, "/api/classes", schema.ClassCounts, "How many samples of each class each worker has")
    async def classes(run: RunName) -> Response:
        with served.reader(run) as reader:
            experiment = reader.meta("experiment")
        return JsonAnswer(await served.splits.counts(experiment))

    @_get(app, "/api/worker", schema.WorkerHistory, "One worker over all rounds")
    def worker(
        run: RunName,
        worker: Annotated[int, Query(ge=0, le=LARGEST, description="Its number.")],
    ) -> Response:
        log = served.log(run)
        with served.reader(run) as reader:
            return JsonAnswer(workers.worker_history(reader, log, worker))

    @_get(app, "/api/events", schema.EventList, "What happened, from a position on")
    def events(
        run: RunName,
        after: Annotated[int, Query(ge=0, le=LARGEST, description="The `next` before.")] = 0,
    ) -> Response:
        log = served.log(run)
        found, position = log.since(after)
        reset = after > position
        if reset:
            found, position = log.since(0)
        return JsonAnswer(schema.EventList(next=position, log=log.log, reset=reset, events=found))


def _add_round_routes(app: FastAPI, served: Served) -> None:
    @_get(app, "/api/round", dict[str, Any], "The object of `fedhp show RUN --round N --json`")
    def one_round(run: RunName, round_index: RoundIndex) -> Response:
        with served.reader(run) as reader, reader.snapshot():
            return JsonAnswer(round_json(reader, round_in_record(reader, round_index)))

    @_get(app, "/api/explain", schema.Explanation, "The words of `fedhp explain`")
    def explain(run: RunName, round_index: RoundIndex) -> Response:
        with served.reader(run) as reader, reader.snapshot():
            index = round_in_record(reader, round_index)
            return JsonAnswer(progress.explanation(reader, index))

    @_get(
        app,
        "/api/turns",
        schema.Turns,
        "What every worker did when, around a round without a barrier",
    )
    def turns(run: RunName, round_index: RoundIndex) -> Response:
        with served.reader(run) as reader, reader.snapshot():
            return JsonAnswer(progress.turns(reader, round_in_record(reader, round_index)))

    @_get(app, "/api/workers", schema.WorkerTable, "All workers in a round")
    def worker_rows(
        run: RunName,
        round_index: Annotated[
            int | None, Query(ge=1, le=LARGEST, alias="round", description="Default: the last.")
        ] = None,
    ) -> Response:
        log = served.log(run)
        with served.reader(run) as reader:
            last = reader.rounds_done
            index = last if round_index is None else round_in_record(reader, round_index)
            return JsonAnswer(workers.worker_table(reader, log, round_index=index, last=last))

    @_get(app, "/api/whatif", dict[str, Any], "The object of `fedhp whatif RUN --json`")
    async def whatif(
        run: RunName,
        planner: Annotated[
            list[str] | None,
            Query(description="A built-in planner such as fedhp:deadline=fill; repeat it."),
        ] = None,
    ) -> Response:
        folder = served.runs.folder_of(run)
        with served.reader(run) as reader:
            experiment = reader.meta("experiment")
        answer = await served.replays.whatif(run, folder, planner or [], experiment)
        return JsonAnswer(answer)


def _add_live_routes(app: FastAPI, served: Served) -> None:
    @app.get(
        "/api/stream",
        responses={
            **ERRORS,
            200: {
                "description": "Server-sent events: runs, round and event.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
        },
        response_class=StreamingResponse,
        summary="What is new, as server-sent events",
        tags=["live"],
    )
    async def stream(
        request: Request,
        run: Annotated[
            list[str] | None, Query(description="Runs to watch.", max_length=MOST_WATCHED)
        ] = None,
    ) -> Response:
        names = list(dict.fromkeys(run or []))
        for name in names:
            served.runs.folder_of(name)
        if served.streams.viewers >= MOST_VIEWERS:
            raise TryAgain(
                f"{MOST_VIEWERS} viewers are connected",
                allowed=f"at most {MOST_VIEWERS} viewers",
                fix="close a page",
            )
        last_id = request.headers.get("last-event-id", "")
        return StreamingResponse(
            served.streams.stream(names, last_id=last_id),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    @app.get("/api/health", response_model=schema.DashHealth, summary="Whether the server works")
    def health() -> Response:
        viewers = served.streams.viewers
        return JsonAnswer(schema.DashHealth(status="ok", fedhp=__version__, viewers=viewers))


def _add_actions(app: FastAPI, served: Served) -> None:
    def act(action: str, request: Request, command: Command) -> Response:
        access = served.settings.access
        if not access.is_token(bearer(request.headers)):
            return problem_response(
                401,
                "the token is missing or wrong",
                allowed="the header Authorization: Bearer TOKEN",
                fix="use the token that the server printed, or that of its --token-file",
                headers={"www-authenticate": 'Bearer realm="fedhp dash"'},
            )
        entry = served.entry(command.run)
        folder = served.runs.folder_of(command.run)
        text = served.settings.operator.act(action, entry, folder, command)
        return JsonAnswer(schema.Done(text=text))

    refusals = {**ERRORS, 403: {"model": Problem, "description": "From another site."}}

    @app.post("/api/stop", response_model=schema.Done, responses=refusals, tags=["actions"])
    def stop(request: Request, command: Command) -> Response:
        """End a cluster run after its round."""
        return act("stop", request, command)

    @app.post("/api/drain", response_model=schema.Done, responses=refusals, tags=["actions"])
    def drain(request: Request, command: Command) -> Response:
        """Let a worker of a cluster run leave after its round."""
        return act("drain", request, command)


def _add_page(app: FastAPI, served: Served) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> Response:
        if not PAGE.is_file():
            return problem_response(404, "this installation has no page", fix="use /api/runs")
        return FileResponse(PAGE, media_type="text/html; charset=utf-8")

    @app.get(LOGIN, include_in_schema=False)
    def sign_in() -> Response:
        return FileResponse(SIGN_IN, media_type="text/html; charset=utf-8")

    @app.post(LOGIN, include_in_schema=False)
    async def signed_in(request: Request) -> Response:
        access = served.settings.access
        if not access.is_token(posted_token(await request.body())):
            return FileResponse(SIGN_IN, status_code=401, media_type="text/html; charset=utf-8")
        response = RedirectResponse("/", status_code=303)
        rules: Any = {"httponly": True, "secure": access.tls, "samesite": "strict"}
        response.set_cookie(COOKIE, access.cookie(), max_age=COOKIE_SECONDS, **rules)
        return response

    if STATIC.is_dir():
        app.mount("/static", StaticFiles(directory=STATIC), name="static")


def _add_error_handlers(app: FastAPI, served: Served) -> None:
    statuses: dict[type[FedhpError], int] = {NoSuchRun: 404, NoSuchRound: 404, TryAgain: 503}
    statuses |= {WorkRefused: 400, ActionRefused: 409, FedhpError: 409}  # the last one: all others
    clean = served.runs.without_place

    def failed(_: Request, error: Exception) -> Response:
        assert isinstance(error, FedhpError)
        status = next(number for kind, number in statuses.items() if isinstance(error, kind))
        headers = {"retry-after": RETRY_SECONDS} if status == 503 else {}
        problem, allowed, fix = map(clean, (error.problem, error.allowed, error.fix))
        return problem_response(status, problem, allowed=allowed, fix=fix, headers=headers)

    def gone(_: Request, error: Exception) -> Response:
        """A record that was removed or replaced while it was read."""
        return problem_response(
            409,
            f"the record cannot be read now ({type(error).__name__})",
            allowed="a whole record",
            fix="ask again; if that does not help, `fedhp show RUN` says what is wrong",
        )

    def broken(request: Request, error: Exception) -> Response:
        """A record with damaged values, or a bug."""
        with suppress(FedhpError):
            folder = served.runs.folder_of(request.query_params.get("run", ""))
            try:
                with RunReader(folder) as reader:
                    reader.check()
            except FedhpError as problem:
                return failed(request, problem)
        LOG.error("a bug in fedhp dash", exc_info=error)
        return problem_response(
            500, "a bug in fedhp; its log says more", fix="report it with the log"
        )

    def wrong(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        return problem_response(422, f"{name}: {first['msg']}", fix="see /api/openapi.json")

    def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        allowed = (error.headers or {}).get("Allow", "")
        return problem_response(
            error.status_code, str(error.detail), allowed=allowed, headers=error.headers
        )

    app.add_exception_handler(FedhpError, failed)
    app.add_exception_handler(RequestValidationError, wrong)
    app.add_exception_handler(HTTPException, refused)
    for passing in (OSError, sqlite3.Error):
        app.add_exception_handler(passing, gone)
    for kind in (LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError):
        app.add_exception_handler(kind, broken)
