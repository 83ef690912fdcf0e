"""The coordinator: takes the lead, then plans, orders, collects and commits rounds (Algorithm 2).

It calls nobody and never sees a model. What the ledger has committed is what happened;
everything else may be lost at any instant.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import grpc.aio
import numpy as np

from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.conductor import AttemptVerdict, Conductor, ConductorSettings
from fedhp.cluster.coordinator.deadlines import attempt_pause
from fedhp.cluster.coordinator.handlers import CoordinatorHandlers
from fedhp.cluster.coordinator.link_estimates import SURVEY_SECONDS
from fedhp.cluster.coordinator.round_planner import NetworkRound, RoundPlanner
from fedhp.cluster.coordinator.run_record import RunRecordWriter
from fedhp.cluster.coordinator.service import CoordinatorService
from fedhp.cluster.coordinator.setup_checks import SetupChecks, parts_of_this_machine
from fedhp.cluster.coordinator.state import (
    BY_OPERATOR,
    STOP_SECONDS,
    CoordinatorState,
    Phase,
    averages_in_groups,
    create_planner,
    is_asynchronous,
)
from fedhp.cluster.coordinator.turn_planner import TurnPlanner
from fedhp.cluster.failpoints import reach
from fedhp.cluster.history import History
from fedhp.cluster.ledger.base import Ledger, NotLeader, Unreachable
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import parse_listen, reserve_port
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.service_methods import COORDINATOR_SERVICE, ServiceMethods
from fedhp.cluster.protocol.succession import extended
from fedhp.cluster.security.name_bindings import NameBindings
from fedhp.cluster.security.renewal import AnyIdentity, ExpiryWatch, renewable
from fedhp.cluster.security.tls import AllowList, server_credentials
from fedhp.config import Experiment
from fedhp.errors import StorageFull
from fedhp.files import full_disk, has_space
from fedhp.learn.attack import attackers_of
from fedhp.types import RoundRecord

LOG = logging.getLogger("fedhp.coordinator")
CHECK_SECONDS = 0.1  # between two checks which workers are silent
BEATS_TO_HEAR = 1.5  # heartbeats within which a member that is alive has sent one
RETRY_SECONDS = 1.0  # between two tries to write or commit
ROUND_BYTES = 1_000_000  # that a round may need on the disk, in addition to the committed state
WRITE_TRIES = 5  # that may fail although there is space: the disk is broken, not full
PULSE_SECONDS = 0.5  # between two looks at the clock
FROZEN_SECONDS = 2.0  # without a pulse, and without work, that are noted
MISSED_SECONDS = 1.5 * limits.POLL_SECONDS  # for workers that missed the end to find this process
JOINED_SECONDS = 60.0  # for those that have found it to prepare and ask
LAST_COMMIT_SECONDS = 5.0


class Deposed(Exception):
    """Another coordinator leads; this one must not do anything any more."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """What a coordinator is started with."""

    experiment: Experiment
    identity: AnyIdentity
    listen: str
    folder: Path  # of the record and the history
    allowed: AllowList
    advertise: str | None = None
    resume: bool = False  # continue a run that an operator stopped
    moved: bool = False  # the ledger was moved or restored here; the original is gone
    expiry: ExpiryWatch | None = None  # gets the certificates of those that call
    on_round: Callable[[RoundRecord], None] = lambda record: None
    # Where the user's own parts are looked for, to compare this machine's data and model with
    # those of the workers; None: the workers are compared with each other only.
    folders: tuple[str, ...] | None = None


class Coordinator:
    """Leads once: from taking the lead until the run ends or the lead is lost."""

    def __init__(self, settings: CoordinatorSettings, ledger: Ledger) -> None:
        self.settings = settings
        self.ledger = ledger
        self.history = History(settings.folder, settings.identity.name)
        self.address = ""
        self.state: CoordinatorState | None = None  # None until it leads

    @property
    def stopped(self) -> str:
        """Why an operator ended the run before its last round; empty if nobody did."""
        state = self.state
        if state is None or state.round_index >= state.stop_condition.last_round:
            return ""
        return state.stopping

    async def run(self) -> None:
        """Serve until the run is finished. Raises Deposed when another coordinator leads."""
        bounds = limits.coordinator_limits(self.settings.experiment.workers)
        server = grpc.aio.server(options=bounds.options())
        listen = parse_listen(self.settings.listen, key="--listen")
        try:
            # gRPC would not release the port of a server that was never started, so it gets the
            # port only when everything else is done.
            with reserve_port(listen, key="--listen") as reserved:
                self.address = self.settings.advertise or str(reserved)
                state = await self._lead()
                rounds = CoordinatorRoundLoop(
                    state, self.ledger, self.settings.on_round, folder=self.settings.folder
                )
                # Proves that the lead holds, and makes the name of the run durable.
                await rounds.commit()
                service = CoordinatorService(
                    CoordinatorHandlers(state),
                    state.allowed,
                    renewable(self.settings.identity),
                    address=self.address,
                    expiry=self.settings.expiry,
                )
                methods = ServiceMethods(service, COORDINATOR_SERVICE, bounds)
                server.add_generic_rpc_handlers((methods,))
                server.add_secure_port(str(reserved), server_credentials(self.settings.identity))
                await server.start()
            _announce_attack(state)
            LOG.info("coordinating at %s, epoch %d", self.address, state.conductor.epoch)
            running = asyncio.create_task(rounds.run())
            lost = asyncio.create_task(self.ledger.lost.wait())
            pulse = asyncio.create_task(note_freezes(self.history))
            comparing = asyncio.create_task(self._learn_own_setup(state))
            try:
                await asyncio.wait({running, lost}, return_when=asyncio.FIRST_COMPLETED)
                if lost.done() and not running.done():
                    raise Deposed("the lead was lost")
                await running
            finally:
                tasks = (running, lost, pulse, comparing)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await self._say_goodbye(state, rounds)
        except asyncio.CancelledError:
            if self.state is not None and self.state.phase is not Phase.FINISHED:
                try:
                    self.state.record.finish("interrupted", stopped=self.state.stopping)
                except StorageFull as error:  # what was committed counts, not this word
                    LOG.warning("the record does not say that it was interrupted: %s", error)
            raise
        finally:
            await server.stop(grace=0.5)
            if self.state is not None:
                self.state.record.close()
            self.history.close()

    async def _learn_own_setup(self, state: CoordinatorState) -> None:
        """Find out what this machine has, while the workers prepare themselves."""
        if state.setups.awaits_own:
            folders = self.settings.folders or ()
            state.own_setup_known(await parts_of_this_machine(self.settings.experiment, folders))

    async def _lead(self) -> CoordinatorState:
        """Take the lead, and continue from what is committed."""
        epoch = await self.ledger.lead(name=self.settings.identity.name, address=self.address)
        reach("coordinator.leading")
        experiment = self.settings.experiment
        content = await self.ledger.committed()
        if content is None:
            committed = CommittedState(uuid.uuid4().hex, experiment, INITIAL)
        else:
            committed = CommittedState.from_bytes(content)
            committed.check_experiment(experiment)
            committed.check_place(self.ledger.place(), moved=self.settings.moved)
            committed = self._resumed(committed)
        asynchronous = is_asynchronous(experiment)
        settings = ConductorSettings(
            workers=experiment.workers,
            min_workers=experiment.cluster.min_workers,
            suspect_after=experiment.cluster.suspect_after,
            dead_after=experiment.cluster.dead_after,
            asynchronous=asynchronous,
            groups=averages_in_groups(experiment),
            hearing=BEATS_TO_HEAR * experiment.cluster.beat,
        )
        conductor: Conductor[wire.RoundReport] = Conductor(
            settings, epoch=epoch, committed=committed.attempt
        )
        conductor.restore(committed.members)
        for name in committed.removed:
            member = conductor.by_name(name)
            if member is not None:
                conductor.remove(member, BY_OPERATOR)
        allowed = self.settings.allowed
        if allowed.names is None and committed.allowed is not None:
            LOG.info("no --allow is given: the allow-list of the last coordinator counts")
            allowed = AllowList.of(committed.allowed)
        planner = None
        if committed.model_bytes:
            planner = create_planner(
                experiment, model_bytes=committed.model_bytes, packed=committed.planner
            )
        self.state = state = CoordinatorState(
            experiment,
            run=committed.run,
            conductor=conductor,
            planner=planner,
            model_bytes=committed.model_bytes,
            record=RunRecordWriter.open(self.settings.folder, committed, asynchronous=asynchronous),
            history=self.history,
            leads=self.ledger.leads,
            bytes_sent=committed.bytes_sent,
            ended=committed.ended,
            allowed=allowed,
            stopped=committed.stopped,
            informed=committed.informed,
            digests=committed.digests,
            bindings=NameBindings(committed.certificates),
            leaders=extended(committed.leaders, epoch, start=committed.attempt),
            place=self.ledger.place(),
            versions=committed.versions,
            norms=committed.norms,
            checkpoints=committed.checkpoints,
            setups=SetupChecks(
                committed.setup,
                private=committed.private,
                awaits_own=self.settings.folders is not None and not committed.setup,
            ),
        )
        self.history.note(
            "lead",
            {
                "run": committed.run,
                "epoch": epoch,
                "stand": committed.attempt.to_list(),
                "min_workers": settings.min_workers,
                "asynchronous": asynchronous,
            },
        )
        return state

    def _resumed(self, committed: CommittedState) -> CommittedState:
        """What was committed, without the stop if the operator wants the run to go on."""
        if not committed.stopped:
            return committed
        what = f"the run was {committed.stopped} after round {committed.attempt.round_index}"
        if self.settings.resume:
            LOG.info("%s; it is resumed", what)
            return replace(committed, stopped="", informed=())
        LOG.warning("%s; workers that do not know it yet are told; --resume continues it", what)
        return committed

    async def _say_goodbye(self, state: CoordinatorState, rounds: CoordinatorRoundLoop) -> None:
        """Let every worker that may still ask hear that the run is over, and note who said that it
        did: an order may be lost on its way.

        One that took over a run that was over already has seen nobody: it waits for all members
        that do not know it yet, since they look for a coordinator.
        """
        began, over_before = time.monotonic(), not state.has_begun
        known = set(state.informed)
        while True:
            waited = time.monotonic() - began
            most = MISSED_SECONDS if over_before else limits.POLL_SECONDS
            if not state.expected_back() and not (over_before and state.uninformed()):
                break
            if waited > (JOINED_SECONDS if over_before and state.expected_back() else most):
                break
            await state.wait_for_change(CHECK_SECONDS)
        waiting = ", ".join(sorted(member.name for member in state.uninformed()))
        if waiting:
            LOG.warning(
                "the run is over, but these workers have not said that they know it: %s; those "
                "that still run wait until a coordinator of this run is started again",
                waiting,
            )
        if state.informed != known:
            with contextlib.suppress(Deposed, TimeoutError):
                async with asyncio.timeout(LAST_COMMIT_SECONDS):
                    await rounds.commit()


class CoordinatorRoundLoop:
    """The rounds of a coordinator that leads: gather, survey, plan, order, collect, commit."""

    def __init__(
        self,
        state: CoordinatorState,
        ledger: Ledger,
        on_round: Callable[[RoundRecord], None],
        *,
        folder: Path,
    ) -> None:
        self.state = state
        self.folder = folder
        self.experiment = state.experiment
        self.ledger = ledger
        self.on_round = on_round
        self._surveyed = False
        self._last: CommittedState | None = None  # as the ledger has it
        self._committing = asyncio.Lock()
        self._vain_tries = 0  # to write, although there was space
        self._needed = ROUND_BYTES

    async def run(self) -> None:
        """Rounds until all are done, a condition is reached or an operator stops the run."""
        state = self.state
        state.start()
        one_round = self._round_of_turns if state.asynchronous else self._round
        stopping = asyncio.create_task(self._commit_stop())
        removing = asyncio.create_task(self._commit_removals())
        try:
            while state.round_index < state.stop_condition.last_round and not state.stopping:
                state.has_begun = True
                await one_round()
            if state.stop_requested.is_set():
                await stopping
        finally:
            for task in (stopping, removing):
                task.cancel()
            await asyncio.gather(stopping, removing, return_exceptions=True)
        await self._write(state.finish)

    async def _commit_stop(self) -> None:
        """Make an operator's stop durable at once: the round takes a while, and whoever takes over
        in the meantime must not go on."""
        state = self.state
        await state.stop_requested.wait()
        async with self._committing:
            assert self._last is not None
            await self._commit(replace(self._last, stopped=state.stopping))
        state.history.note("stopped", {"why": state.stopping})
        state.stop_committed.set()

    async def _commit_removals(self) -> None:
        """Make the operator's removals durable at once: whoever takes over must know them."""
        state = self.state
        while True:
            await state.removals_changed.wait()
            async with self._committing:
                state.removals_changed.clear()
                assert self._last is not None
                names, members = state.removed_names(), state.named_members()
                await self._commit(replace(self._last, removed=names, members=members))
            if not state.removals_changed.is_set():
                state.removals_committed.set()

    async def _round(self) -> None:
        """One attempt at the next round."""
        await self._hold_back()
        participants = self.state.chosen(await self._gather())
        if self.state.stopping:
            return
        planner = self.state.planner
        assert isinstance(planner, RoundPlanner)
        await self._survey(participants, planner)
        planned = await self._plan(participants, planner)
        await self._write(self.state.history.flush)
        started = time.monotonic()
        attempt = self._order(participants, planned, started)
        reports = await self._collect(attempt, started)
        if reports is None:
            return
        record = planner.finish(planned, reports, seconds=self.state.round_seconds)
        self.state.judge_losses(attempt, reports)
        await self._commit_round(record, attempt, reported=sorted(reports))

    async def _round_of_turns(self) -> None:
        """A round of an asynchronous algorithm: as many turns as there are members."""
        state, coming = self.state, self.state.round_index + 1
        await self._gather()
        if state.stopping:
            return
        reach("coordinator.planning", coming)
        planner = state.planner
        assert isinstance(planner, TurnPlanner)
        await self._write(state.history.flush)
        started = time.monotonic()
        attempt = state.begin_turns()
        reach("coordinator.ordering", coming)
        state.waiting.wake_all()
        reach("coordinator.gathering", coming)
        while not planner.is_complete([member.worker for member in state.alive()]):
            if state.stopping:
                break
            await self._wait()
        seconds = time.monotonic() - started
        state.end_turns(seconds=seconds)
        record = planner.finish(round_index=coming, seconds=seconds)
        await self._commit_round(record, attempt, reported=[])

    async def _hold_back(self) -> None:
        """Attempts at one round follow each other more and more slowly."""
        until = time.monotonic() + attempt_pause(self.state.conductor.tries)
        while (left := until - time.monotonic()) > 0 and not self.state.stopping:
            self.state.supervise()
            await self.state.wait_for_change(min(left, CHECK_SECONDS))

    async def _wait(self) -> None:
        """Until something changes, or it is time for another look."""
        self.state.supervise()
        await self.state.wait_for_change(CHECK_SECONDS)

    # --- the steps of a round --------------------------------------------------------------

    async def _gather(self) -> list[int]:
        """The workers of the next attempt: all of them, or enough of them after a while."""
        state, wanted = self.state, self.experiment.workers
        started, noted = time.monotonic(), False
        waiting: dict[str, object]
        patience = self.experiment.cluster.gather if state.round_seconds == 0 else 0.0
        while not state.stopping:
            aside = state.left_aside()
            ready = [
                member.worker
                for member in state.conductor.ready(time.monotonic())
                if np.isfinite(member.step_time)
                and state.has_usual_model(member)
                and state.setups.is_agreed(member.worker)
                and member.worker not in aside
            ]
            waited = time.monotonic() - started
            enough = len(ready) >= max(1, self.experiment.cluster.min_workers)
            if not enough and aside:
                state.end_left_aside()
                continue
            if not enough and state.conductor.end_suspensions(time.monotonic()):
                state.wake_behind()
                continue
            complete = len(ready) + len(aside) == wanted or (enough and waited >= patience)
            if complete and state.settle_setup(ready):
                continue  # some of them may differ
            if complete:
                state.settle_model_size(ready)
            if complete and state.planner is not None:
                late = state.late_members()
                state.proceed()
                if not late or waited >= patience + state.catch_up_seconds(late):
                    state.waited_for(late, ready=ready)
                    return ready
                waiting = {"ready": ready, "late": [member.worker for member in late]}
            else:
                why = (
                    f"{len(ready)} of {wanted} workers are ready; "
                    f"at least {self.experiment.cluster.min_workers} are needed"
                )
                if state.setups.awaits_own:
                    why += "; this machine still reads its own data, to compare it with theirs"
                elif state.setups.refused:
                    names = ", ".join(sorted(state.setups.refused))
                    why += f"; refused, since they have another setup: {names}"
                state.wait_for_workers(why)
                waiting = {"why": why, "ready": ready, "patience": patience}
            if not noted:
                noted = True
                state.history.note("waiting", waiting)
            if state.history.waits_for_space:
                await self._write(state.history.flush)
            await self._wait()
        return []

    async def _survey(self, participants: list[int], planner: RoundPlanner) -> None:
        """Have links timed before the first plan, once, if none was timed yet."""
        wanted = self.experiment.cluster.probe_bytes > 0 and not planner.links.known()
        if self._surveyed or not wanted or len(participants) < 2:
            return
        self._surveyed = True
        state, started = self.state, time.monotonic()
        survey = state.begin_survey(participants)
        while not survey.is_over([member.worker for member in state.alive()]):
            if state.stopping or time.monotonic() - started > SURVEY_SECONDS:
                break
            await self._wait()
        state.end_survey(seconds=time.monotonic() - started)

    async def _plan(self, participants: list[int], planner: RoundPlanner) -> NetworkRound:
        """Ask the algorithm, in a thread: it may take a while."""
        coming = self.state.round_index + 1
        reach("coordinator.planning", coming)
        present = np.isin(np.arange(self.experiment.workers), participants)
        self.state.settle_versions(participants)
        restarted = self.state.restarting()
        return await asyncio.to_thread(
            planner.plan,
            coming,
            present,
            self.state.step_times(),
            restarted=restarted,
            epoch_steps=self.state.epoch_steps(),
            avoid=self.state.avoided_links(),
            grouped=not self.state.goes_without_group(),
        )

    def _order(self, participants: list[int], planned: NetworkRound, started: float) -> Attempt:
        """Begin an attempt; the workers that wait get their orders."""
        attempt = self.state.begin_attempt(
            planned,
            participants,
            started=started,
            deadline=self.state.deadlines.deadline(slowest=planned.slowest, middle=planned.middle),
        )
        reach("coordinator.ordering", attempt.round_index)
        self.state.waiting.wake(participants)
        return attempt

    async def _collect(
        self, attempt: Attempt, started: float
    ) -> dict[int, wire.RoundReport] | None:
        """Wait for the reports of an attempt; None if it had to be given up."""
        state = self.state
        reach("coordinator.gathering", attempt.round_index)
        noted: list[int] = []
        hurried = False
        while True:
            now = time.monotonic()
            if state.stopping and not hurried:
                hurried = True
                state.conductor.hurry(now + STOP_SECONDS)
            verdict = state.conductor.verdict(now)
            if verdict is AttemptVerdict.COMMIT and hurried and state.conductor.overdue(now):
                verdict = AttemptVerdict.GIVE_UP  # who is late would be left with an older model
            if verdict is AttemptVerdict.COMMIT and state.dispute_results():
                verdict = AttemptVerdict.GIVE_UP
            if verdict is not AttemptVerdict.WAIT:
                break
            gone = state.gone(now)
            if gone != noted:
                noted = gone
                state.history.note("gone", {"workers": gone})
            await self._wait()
        if verdict is AttemptVerdict.GIVE_UP:
            if state.give_up_attempt(attempt):
                await self.commit()  # whoever takes over goes back, too
            return None
        return state.seal_attempt(seconds=time.monotonic() - started)

    async def _commit_round(
        self, record: RoundRecord, attempt: Attempt, *, reported: list[int]
    ) -> None:
        """Write the round into the record, then make it count."""
        reach("coordinator.committing", record.round_index)
        self.state.stop_condition.is_last(record)  # is committed together with the round
        await self._write(self.state.history.flush)
        await self._write(lambda: self.state.record.write(record))
        await self.commit(attempt)
        self.state.attempt_committed(attempt, reported=reported)
        self.state.accuracy_tested(record.accuracy)
        reach("coordinator.committed", record.round_index)
        self.on_round(record)
        self.state.wake_behind()

    async def commit(self, attempt: Attempt | None = None) -> None:
        """Make the state durable with this attempt; without a majority wait for one."""
        async with self._committing:
            await self._commit(self.state.committed_state(attempt))

    async def _commit(self, committed: CommittedState) -> None:
        state, content = self.state, committed.to_bytes()
        self._needed = ROUND_BYTES + 4 * len(content)  # with the journals of two databases
        while True:
            try:
                await self.ledger.commit(content)
            except NotLeader as error:
                raise Deposed(str(error)) from None
            except Unreachable as error:
                await self._pause(str(error))
            except StorageFull as error:
                if self.ledger.place():
                    await self._wait_for_space(error)
                else:  # etcd has a quota, too
                    await self._pause(str(error))
            else:
                self._last = committed
                self._continue()
                state.why = ""
                return

    # --- pauses ----------------------------------------------------------------------------

    async def _write(self, write: Callable[[], object]) -> None:
        """Write to the run folder; while its disk is full, wait and try again."""
        while True:
            try:
                write()
            except StorageFull as error:
                await self._wait_for_space(error)
            else:
                self._continue()
                return

    async def _wait_for_space(self, error: StorageFull) -> None:
        """Pause until the folder has space for about a round; the workers wait meanwhile."""
        while not has_space(self.folder, self._needed):
            self._vain_tries = 0
            await self._pause(full_disk(self.folder, self._needed))
        self._vain_tries += 1
        if self._vain_tries > WRITE_TRIES:
            raise error
        await self._pause(self.state.why if self.state.is_interrupted else error.problem)

    async def _pause(self, why: str) -> None:
        """Do nothing for a moment; the first one says why in the log and the history."""
        state = self.state
        if not state.is_interrupted:
            LOG.warning("paused: %s", why)
            state.history.note("paused", {"why": why})
        state.pause(why)
        state.supervise()
        await asyncio.sleep(RETRY_SECONDS)

    def _continue(self) -> None:
        """Something was written: the pause, if there was one, is over."""
        self._vain_tries = 0
        if self.state.is_interrupted:
            self.state.resume()
            LOG.info("the pause is over: round %d goes on", self.state.round_index + 1)
            self.state.history.note("resumed", {"round": self.state.round_index + 1})


async def note_freezes(history: History) -> None:
    """Note when this process did not run: stopped, on a machine that slept, or without a core.

    Whoever checks the history afterwards knows then that nobody could keep a deadline.
    """
    clock, work = time.time(), time.process_time()
    while True:
        await asyncio.sleep(PULSE_SECONDS)
        since, worked = clock, work
        clock, work = time.time(), time.process_time()
        seconds = clock - since - (work - worked)  # a loop that is only busy is not frozen
        if seconds > FROZEN_SECONDS:
            LOG.warning(
                "this process did not run for %.1f s: it was stopped, its machine slept, or other "
                "processes took the CPU",
                seconds,
            )
            history.note("frozen", {"since": since, "seconds": seconds})


def _announce_attack(state: CoordinatorState) -> None:
    """Say loudly that some workers attack the others, since the experiment says so."""
    experiment = state.experiment
    attackers = attackers_of(experiment.attack, workers=experiment.workers, seed=experiment.seed)
    if attackers:
        LOG.warning(
            "ATTACK STUDY: attack.kind = %s, scale %g: workers %s attack the others; the tests of "
            "the run are those of the other workers",
            experiment.attack.kind,
            experiment.attack.scale,
            ", ".join(map(str, attackers)),
        )
