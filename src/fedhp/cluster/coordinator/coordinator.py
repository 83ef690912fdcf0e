"""The coordinator: leads, plans attempts, gathers reports, commits rounds (Algorithm 2).

It calls nobody and never sees a model. Its state lives in a ledger (journal or etcd): what is
committed there is what happened; everything else can be thrown away at any instant.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import numpy as np

from fedhp.cluster.coordinator import orders
from fedhp.cluster.coordinator.conductor import AttemptVerdict, Conductor, Member, Rules
from fedhp.cluster.coordinator.handlers import CoordinatorHandlers
from fedhp.cluster.coordinator.planning import Planned, Planning
from fedhp.cluster.coordinator.run_record import Content, RunRecordWriter
from fedhp.cluster.coordinator.service import CoordinatorService
from fedhp.cluster.coordinator.state import CoordinatorState
from fedhp.cluster.coordinator.survey import SECONDS as SURVEY_SECONDS
from fedhp.cluster.coordinator.survey import Survey
from fedhp.cluster.coordinator.turns import Turns
from fedhp.cluster.failpoints import reach
from fedhp.cluster.history import History
from fedhp.cluster.ledger.base import Ledger, NotLeader, Unreachable
from fedhp.cluster.protocol import limits, services
from fedhp.cluster.protocol.addresses import parse_listen, reserve_port
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.security.identity import Identity
from fedhp.cluster.security.tls import AllowList, server_credentials
from fedhp.config import Experiment
from fedhp.errors import RunError
from fedhp.types import RoundRecord

LOG = logging.getLogger("fedhp.coordinator")
LOOK = 0.1  # s between two looks at who is silent
FIRST_DEADLINE = 60.0  # s at least, while no round has been timed
PAUSE = 1.0  # s between two tries to reach the ledger


class Deposed(Exception):
    """Another coordinator leads; this one must not do anything any more."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """What a coordinator is started with."""

    experiment: Experiment
    identity: Identity
    listen: str
    folder: Path  # of the record and the history
    allowed: AllowList
    advertise: str | None = None
    on_round: Callable[[RoundRecord], None] = lambda record: None


class Coordinator:
    """One term of office: from taking the lead until the run ends or the lead is lost."""

    def __init__(self, settings: CoordinatorSettings, ledger: Ledger) -> None:
        self.settings = settings
        self.experiment = settings.experiment
        self.ledger = ledger
        self.history = History(settings.folder, settings.identity.name)
        self.term = CoordinatorState(settings.experiment, history=self.history, leads=ledger.leads)
        self.address = ""
        self._surveyed = False

    # --- a term of office ------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until the run is finished. Raises Deposed when somebody else leads."""
        server = grpc.aio.server(options=services.OPTIONS)
        listen = parse_listen(self.settings.listen, key="--listen")
        try:
            # A server that was never started would not let go of its port: it has none before.
            with reserve_port(listen, key="--listen") as place:
                self.address = self.settings.advertise or str(place)
                await self._lead()
                server.add_generic_rpc_handlers(
                    [
                        services.handler(
                            "Coordinator",
                            CoordinatorService(
                                CoordinatorHandlers(self.term), self.settings.allowed
                            ),
                        )
                    ]
                )
                server.add_secure_port(str(place), server_credentials(self.settings.identity))
                await server.start()
            LOG.info("coordinating at %s, epoch %d", self.address, self.term.conductor.epoch)
            drive = asyncio.create_task(self._drive())
            lost = asyncio.create_task(self.ledger.lost.wait())
            try:
                await asyncio.wait({drive, lost}, return_when=asyncio.FIRST_COMPLETED)
                if lost.done() and not drive.done():
                    raise Deposed("the lead was lost")
                await drive
            finally:
                for task in (drive, lost):
                    task.cancel()
                await asyncio.gather(drive, lost, return_exceptions=True)
            await self._say_goodbye()
        except asyncio.CancelledError:
            if hasattr(self.term, "book") and self.term.state != "finished":
                self.term.book.finish("interrupted")
            raise
        finally:
            await server.stop(grace=0.5)
            if hasattr(self.term, "book"):
                self.term.book.close()
            self.history.close()

    async def _lead(self) -> None:
        """Take the lead, and take up what is committed."""
        self.term.state, self.term.why = "waiting", "for the lead"
        epoch = await self.ledger.lead(name=self.settings.identity.name, address=self.address)
        reach("coordinator.leading")
        committed = await self.ledger.committed()
        if committed is None:
            content = Content(
                run=uuid.uuid4().hex,
                experiment=self.experiment,
                committed=INITIAL,
                members=(),
                model_bytes=0,
                planner=b"",
            )
        else:
            content = Content.from_bytes(committed)
            content.check(self.experiment)
        rules = Rules(
            workers=self.experiment.workers,
            min_workers=self.experiment.cluster.min_workers,
            suspect_after=self.experiment.cluster.suspect_after,
            dead_after=self.experiment.cluster.dead_after,
            asynchronous=self.term.asynchronous,
        )
        self.term.conductor = Conductor(rules, epoch=epoch, committed=content.committed)
        self.term.conductor.restore(content.members)
        self.term.guard.run, self.term.guard.epoch = content.run, epoch
        if content.model_bytes:
            self.term.create_planner(content.model_bytes)
            if content.planner:
                assert self.term.planner is not None
                self.term.planner.unpack(content.planner)
        self.term.book = RunRecordWriter.open(
            self.settings.folder, content, asynchronous=self.term.asynchronous
        )
        self.history.note(
            "lead",
            {
                "run": content.run,
                "epoch": epoch,
                "stand": content.committed.to_list(),
                "min_workers": rules.min_workers,
                "asynchronous": self.term.asynchronous,
            },
        )
        await self._commit()  # proves that the lead holds, and makes the run's name durable

    async def _drive(self) -> None:
        self.term.state = "gathering"
        self._began = time.monotonic()
        turn = self._turns_round if self.term.asynchronous else self._round
        while self.term.round_index < self.experiment.rounds and not self.term.stopping:
            await turn()
        self.term.state = "finished"
        self.term.why = self.term.stopping or f"all {self.experiment.rounds} rounds are done"
        self.term.book.finish("interrupted" if self.term.stopping else "finished")
        self.history.note("finished", {"round": self.term.round_index, "why": self.term.why})
        self.term.notify()

    async def _round(self) -> None:
        """One attempt at the next round."""
        coming = self.term.round_index + 1
        participants = await self._gather()
        if self.term.stopping:
            return
        assert isinstance(self.term.planner, Planning)
        await self._survey(participants, self.term.planner)
        reach("coordinator.planning", coming)
        present = np.isin(np.arange(self.experiment.workers), participants)
        planned = await asyncio.to_thread(
            self.term.planner.plan, coming, present, self.term.step_times()
        )
        deadline = self._deadline(planned)
        started = time.monotonic()
        attempt = self.term.conductor.begin(participants, deadline=started + deadline)
        self.term.works = orders.works(
            planned,
            attempt,
            self.term.conductor.members,
            tests=self.term.tests(coming),
            probes=self.term.planner.probes(planned),
            deadline=deadline,
        )
        self.term.asked = {
            worker: frozenset(each.worker for each in (*work.peers, *work.probes))
            for worker, work in self.term.works.items()
        }
        self._note_attempt(attempt, participants, deadline)
        reach("coordinator.ordering", coming)
        self.term.notify()
        verdict = await self._reports(coming)
        self.term.works = {}
        if verdict is AttemptVerdict.GIVE_UP:
            self.history.note("gave_up", attempt.to_facts())
            LOG.warning("round %d: too few reports, planned anew", coming)
            self.term.conductor.give_up()
            return
        reports = self.term.conductor.seal()
        self.term.round_seconds = time.monotonic() - started
        record = self.term.planner.finish(planned, reports, seconds=self.term.round_seconds)
        self.term.learn_step_times(reports)
        await self._commit_round(record, attempt, sorted(reports))

    async def _survey(self, participants: list[int], planner: Planning) -> None:
        """Have links timed before the first plan, once, if nothing is known of any."""
        wanted = self.experiment.cluster.probe_bytes > 0 and not planner.links.known()
        if self._surveyed or not wanted or len(participants) < 2:
            return
        self._surveyed = True
        going_on = self.term.survey = Survey(participants)
        self.term.why = "the links are being timed"
        started = time.monotonic()
        self.term.notify()
        while not going_on.over([member.worker for member in self.term.alive()]):
            if self.term.stopping or time.monotonic() - started > SURVEY_SECONDS:
                break
            await self.term.wait(LOOK)
        self.term.survey, self.term.why = None, ""
        planner.survey(going_on.found)
        took = time.monotonic() - started
        self.history.note("survey", {"told": sorted(going_on.found), "seconds": took})

    async def _turns_round(self) -> None:
        """As many turns as there are members: a round of an asynchronous algorithm."""
        coming = self.term.round_index + 1
        await self._gather()
        if self.term.stopping:
            return
        reach("coordinator.planning", coming)
        assert isinstance(self.term.planner, Turns)
        started = time.monotonic()
        attempt = self.term.conductor.begin(range(self.experiment.workers), deadline=np.inf)
        self._note_attempt(attempt, sorted(self.term.conductor.members), 0.0)
        reach("coordinator.ordering", coming)
        self.term.notify()
        reach("coordinator.gathering", coming)
        while (
            len(self.term.planner.ended) < max(1, len(self.term.alive())) and not self.term.stopping
        ):
            await self.term.wait(LOOK)
        record = self.term.planner.finish(round_index=coming, seconds=time.monotonic() - started)
        await self._commit_round(record, attempt, [])

    async def _commit_round(
        self, record: RoundRecord, attempt: Attempt, reported: list[int]
    ) -> None:
        reach("coordinator.committing", record.round_index)
        self.term.book.write(record)
        await self._commit(attempt)
        self.term.conductor.commit()
        self.history.note("commit", {**attempt.to_facts(), "reported": reported})
        reach("coordinator.committed", record.round_index)
        self.term.state = "running"
        self.settings.on_round(record)
        self.term.notify()

    async def _commit(self, attempt: Attempt | None = None) -> None:
        """Make the state durable; without a majority wait for one."""
        content = Content(
            run=self.term.guard.run or "",
            experiment=self.experiment,
            committed=attempt or self.term.conductor.committed,
            members=tuple(
                (each.worker, each.name) for each in self.term.conductor.members.values()
            ),
            model_bytes=self.term.model_bytes,
            planner=self.term.planner.pack() if self.term.planner is not None else b"",
        )
        state = self.term.state
        while True:
            try:
                await self.ledger.commit(content.to_bytes())
                self.term.state, self.term.why = state, ""
                return
            except NotLeader as error:
                raise Deposed(str(error)) from None
            except Unreachable as error:
                if self.term.state != "paused":
                    LOG.warning("paused: %s", error)
                    self.history.note("paused", {"why": str(error)})
                self.term.state, self.term.why = "paused", str(error)
                await asyncio.sleep(PAUSE)

    # --- waiting ---------------------------------------------------------------------------

    async def _gather(self) -> list[int]:
        """The workers of the next attempt: all of them, or enough of them after a while."""
        started, wanted = time.monotonic(), self.experiment.workers
        told = False
        patience = self.experiment.cluster.gather if self.term.round_seconds == 0 else 0.0
        while not self.term.stopping:
            ready = [
                each.worker
                for each in self.term.conductor.ready(time.monotonic())
                if np.isfinite(each.step_time)
            ]
            waited = time.monotonic() - started
            enough = len(ready) >= max(1, self.experiment.cluster.min_workers)
            if self.term.planner is not None and (
                len(ready) == wanted or (enough and waited >= patience)
            ):
                late = self.term.late()
                self.term.state, self.term.why = "running", ""
                if not late or waited >= patience + self.term.catch_up_seconds(late):
                    self._stop_waiting(ready, late)
                    return ready
                if not told:
                    told = True
                    names = [each.worker for each in late]
                    self.history.note("waiting", {"ready": ready, "late": names})
                await self.term.wait(LOOK)
                continue
            self.term.state = "gathering" if self.term.round_index == 0 else "paused"
            self.term.why = (
                f"{len(ready)} of {wanted} workers are ready; "
                f"at least {self.experiment.cluster.min_workers} are needed"
            )
            if not told:
                told = True
                self.history.note(
                    "waiting", {"why": self.term.why, "ready": ready, "patience": patience}
                )
            await self.term.wait(LOOK)
        return []

    def _stop_waiting(self, ready: list[int], late: list[Member]) -> None:
        """The next attempt begins with these; whoever is late may be so a few times."""
        for member in late:
            self.term.catching[member.worker] += 1
        for worker in ready:
            self.term.catching.pop(worker, None)

    async def _reports(self, coming: int) -> AttemptVerdict:
        """Wait until the attempt can be committed or must be given up."""
        reach("coordinator.gathering", coming)
        told: list[int] = []
        while True:
            now = time.monotonic()
            verdict = self.term.conductor.verdict(now)
            if verdict is not AttemptVerdict.WAIT:
                return verdict
            gone = self.term.conductor.gone(now)
            if gone != told:
                told = gone
                self.history.note("gone", {"workers": gone})
                self.term.notify()
            await self.term.wait(LOOK)

    async def _say_goodbye(self) -> None:
        """Let everyone hear that it is over who may still ask, even if it is silent just now."""
        until = time.monotonic() + limits.POLL_SECONDS
        while time.monotonic() < until and self.term.expected_back():
            await self.term.wait(LOOK)

    # --- inside ----------------------------------------------------------------------------

    def _deadline(self, planned: Planned) -> float:
        """How long an attempt may take: by what is predicted, and by what the last one took."""
        cluster = self.experiment.cluster
        known = max(planned.predicted, self.term.round_seconds)
        least = cluster.least_deadline if self.term.round_seconds else FIRST_DEADLINE
        return max(least, cluster.patience * known)

    def _note_attempt(self, attempt: Attempt, participants: list[int], deadline: float) -> None:
        self.history.note(
            "attempt", {**attempt.to_facts(), "participants": participants, "deadline": deadline}
        )


def check_workers(experiment: Experiment) -> None:
    """Refuse settings that could never start."""
    if experiment.cluster.min_workers > experiment.workers:
        raise RunError(
            f"cluster.min_workers is {experiment.cluster.min_workers}, but workers is "
            f"{experiment.workers}",
            allowed="at most as many as there are workers",
            fix="lower cluster.min_workers, or raise workers",
        )
