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

from fedhp.algorithms import load_algorithm
from fedhp.algorithms.base import is_synchronous, traits_of
from fedhp.cluster import events
from fedhp.cluster.coordinator.attempts.attempts import attempt_pause
from fedhp.cluster.coordinator.committed_state import (
    CommittedState,
    RunRecordWriter,
    check_same_settings,
)
from fedhp.cluster.coordinator.conductor import AttemptVerdict, Conductor, ConductorSettings
from fedhp.cluster.coordinator.context import STOP_SECONDS, LeaderContext, Phase
from fedhp.cluster.coordinator.members.members import BY_OPERATOR
from fedhp.cluster.coordinator.members.setup_checks import parts_of_this_machine
from fedhp.cluster.coordinator.planning.link_estimates import SURVEY_SECONDS, LinkSurvey
from fedhp.cluster.coordinator.planning.round_planner import NetworkRound
from fedhp.cluster.coordinator.service import CoordinatorService, CoordinatorState
from fedhp.cluster.failpoints import reach
from fedhp.cluster.history import History
from fedhp.cluster.ledger.base import Ledger, NotLeader, Unreachable
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import parse_listen, reserve_port
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.calls import COORDINATOR_SERVICE, ServiceMethods
from fedhp.cluster.security.renewal import AnyIdentity, ExpiryWatch, renewable
from fedhp.cluster.security.tls import AllowList, server_credentials
from fedhp.config import Experiment, to_tables
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
        if state is None or state.phase.has_all_rounds(state.round_index):
            return ""
        return state.phase.stopping

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
                rounds = CoordinatorRoundLoop(state, self.ledger, self.settings.on_round)
                # Proves that the lead holds, and makes the name of the run durable.
                await rounds.commit()
                service = CoordinatorService(
                    state,
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
            if self.state is not None and not self.state.phase.is_finished:
                try:
                    stopped = self.state.phase.stopping
                    self.state.context.record.finish("interrupted", stopped=stopped)
                except StorageFull as error:  # what was committed counts, not this word
                    LOG.warning("the record does not say that it was interrupted: %s", error)
            raise
        finally:
            await server.stop(grace=0.5)
            if self.state is not None:
                self.state.context.record.close()
            self.history.close()

    async def _learn_own_setup(self, state: CoordinatorState) -> None:
        """Find out what this machine has, while the workers prepare themselves."""
        if state.members.setups.awaits_own:
            folders = self.settings.folders or ()
            parts = await parts_of_this_machine(self.settings.experiment, folders)
            state.members.own_setup_known(parts)

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
            check_same_settings(to_tables(committed.experiment), experiment)
            committed.check_place(self.ledger.place(), moved=self.settings.moved)
            committed = self._resumed(replace(committed, experiment=experiment))
        conductor = _conductor(committed, epoch=epoch)
        asynchronous = conductor.settings.asynchronous
        context = LeaderContext(
            committed,
            conductor,
            record=RunRecordWriter.open(self.settings.folder, committed, asynchronous=asynchronous),
            history=self.history,
        )
        self.state = state = CoordinatorState(
            context,
            self.ledger,
            allowed=self.settings.allowed,
            compares=self.settings.folders is not None,
        )
        self.history.note(
            events.Lead(
                committed.run,
                epoch,
                stand=committed.attempt.to_list(),
                min_workers=conductor.settings.min_workers,
                asynchronous=asynchronous,
            )
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
        members, began, over_before = state.members, time.monotonic(), not state.phase.has_begun
        known = set(members.informed)
        while True:
            now = time.monotonic()
            expected = members.expected_back(now)
            most = MISSED_SECONDS if over_before else limits.POLL_SECONDS
            if not expected and not (over_before and members.uninformed()):
                break
            if now - began > (JOINED_SECONDS if over_before and expected else most):
                break
            await state.context.round_loop.until_changed(CHECK_SECONDS)
        waiting = ", ".join(sorted(member.name for member in members.uninformed()))
        if waiting:
            LOG.warning(
                "the run is over, but these workers have not said that they know it: %s; those "
                "that still run wait until a coordinator of this run is started again",
                waiting,
            )
        if members.informed != known:
            with contextlib.suppress(Deposed, TimeoutError):
                async with asyncio.timeout(LAST_COMMIT_SECONDS):
                    await rounds.commit()


def _conductor(committed: CommittedState, *, epoch: int) -> Conductor[wire.RoundReport]:
    """The round protocol, with the members of the coordinators before."""
    experiment, part = committed.experiment, committed.experiment.algorithm
    algorithm = load_algorithm(part.name, part.settings)
    settings = ConductorSettings(
        workers=experiment.workers,
        min_workers=experiment.cluster.min_workers,
        suspect_after=experiment.cluster.suspect_after,
        dead_after=experiment.cluster.dead_after,
        asynchronous=not is_synchronous(algorithm),
        groups=traits_of(algorithm).group_average,
        hearing=BEATS_TO_HEAR * experiment.cluster.beat,
    )
    conductor: Conductor[wire.RoundReport] = Conductor(
        settings, epoch=epoch, committed=committed.attempt
    )
    conductor.restore(committed.members)
    for name in committed.removed:
        member = conductor.by_name.get(name)
        if member is not None:
            conductor.remove(member, BY_OPERATOR)
    return conductor


class CoordinatorRoundLoop:
    """The rounds of a coordinator that leads: gather, survey, plan, order, collect, commit."""

    def __init__(
        self, state: CoordinatorState, ledger: Ledger, on_round: Callable[[RoundRecord], None]
    ) -> None:
        self.state, self.context, self.phase = state, state.context, state.phase
        self.history, self.folder = state.context.history, state.context.record.folder
        self.experiment = state.experiment
        self.ledger, self.on_round = ledger, on_round
        self._last: CommittedState | None = None  # as the ledger has it
        self._committing = asyncio.Lock()
        self._vain_tries = 0  # to write, although there was space
        self._needed, self._surveyed = ROUND_BYTES, False

    async def run(self) -> None:
        """Rounds until all are done, a condition is reached or an operator stops the run."""
        state, phase = self.state, self.phase
        phase.current = Phase.GATHERING
        one_round = self._round_of_turns if self.context.asynchronous else self._round
        stopping = asyncio.create_task(self._commit_stop())
        removing = asyncio.create_task(self._commit_removals())
        try:
            conductor, ends = state.conductor, phase.stop_condition
            while conductor.committed.round_index < ends.last_round and not phase.stopping:
                phase.has_begun = True
                await one_round()
            if phase.stop_requested.is_set():
                await stopping
        finally:
            for task in (stopping, removing):
                task.cancel()
            await asyncio.gather(stopping, removing, return_exceptions=True)
        await self._write(self._finish)

    def _finish(self) -> None:
        """The run ends here: with all its rounds, by a condition, or because it was stopped."""
        phase, last = self.phase, self.state.round_index
        ended = phase.has_all_rounds(last)
        self.context.record.finish(
            "finished" if ended else "interrupted",
            reached=phase.stop_condition.reason,
            stopped="" if ended else phase.stopping,
        )
        phase.current, phase.interrupted = Phase.FINISHED, None
        phase.why = phase.stop_condition.reason or f"all {self.experiment.rounds} rounds are done"
        if phase.stopping and not ended:
            phase.why = phase.stopping
        self.history.note(events.Finished(last, phase.why))
        self.context.round_loop.notify()
        self.context.waiting.wake_all()

    async def _commit_stop(self) -> None:
        """Make an operator's stop durable at once: the round takes a while, and whoever takes over
        in the meantime must not go on."""
        phase = self.phase
        await phase.stop_requested.wait()
        async with self._committing:
            assert self._last is not None
            await self._commit(replace(self._last, stopped=phase.stopping))
        self.history.note(events.Stopped(phase.stopping))
        phase.stop_committed.set()

    async def _commit_removals(self) -> None:
        """Make the operator's removals durable at once: whoever takes over must know them."""
        admission = self.state.admission
        while True:
            await admission.removals_changed.wait()
            async with self._committing:
                admission.removals_changed.clear()
                assert self._last is not None
                await self._commit(replace(self._last, **admission.named()))
            if not admission.removals_changed.is_set():
                admission.removals_committed.set()

    async def _round(self) -> None:
        """One attempt at the next round."""
        attempts = self.state.attempts
        if self.state.conductor.tries:
            await self._hold_back()
        participants = await self._gather()
        if self.context.groups:
            participants = attempts.chosen(participants)
        if self.phase.stopping:
            return
        probed = self.experiment.cluster.probe_bytes > 0 and not self._surveyed
        if probed and len(participants) >= 2 and not self.state.planning.rounds.links.known():
            await self._survey(participants)
        planned = await self._plan(participants)
        await self._write(self.history.flush)
        started = time.monotonic()
        attempt = attempts.begin(planned, participants, started=started)
        reach("coordinator.ordering", attempt.round_index)
        self.context.waiting.wake(participants)
        reports = await self._collect(attempt, started)
        if reports is None:
            return
        planner, seconds = self.state.planning.rounds, attempts.deadlines.last_round
        record = planner.finish(planned, reports, seconds=seconds)
        if self.context.groups:
            attempts.groups.judge_losses(attempt, reports)
        await self._commit_round(record, attempt, reported=sorted(reports))

    async def _round_of_turns(self) -> None:
        """A round of an asynchronous algorithm: as many turns as there are members."""
        attempts, coming = self.state.attempts, self.state.round_index + 1
        await self._gather()
        if self.phase.stopping:
            return
        reach("coordinator.planning", coming)
        await self._write(self.history.flush)
        started = time.monotonic()
        attempt = attempts.begin_turns()
        reach("coordinator.ordering", coming)
        self.context.waiting.wake_all()
        reach("coordinator.gathering", coming)
        while not attempts.turns.is_complete(time.monotonic()):
            if self.phase.stopping:
                break
            await self._wait()
        now = time.monotonic()
        attempts.deadlines.round_ended(now - started, ())
        attempts.turns.end_round(now=now)
        planner = self.state.planning.turns
        record = planner.finish(round_index=coming, seconds=now - started)
        await self._commit_round(record, attempt, reported=[])

    async def _hold_back(self) -> None:
        """Attempts at one round follow each other more and more slowly."""
        until = time.monotonic() + attempt_pause(self.state.conductor.tries)
        while (left := until - time.monotonic()) > 0 and not self.phase.stopping:
            await self._wait(min(left, CHECK_SECONDS))

    async def _wait(self, seconds: float = CHECK_SECONDS) -> None:
        """Until something changes, or it is time for another look."""
        self.state.members.supervise(time.monotonic())
        await self.context.round_loop.until_changed(seconds)

    # --- the steps of a round --------------------------------------------------------------

    async def _gather(self) -> list[int]:
        """The workers of the next attempt: all of them, or enough of them after a while."""
        state, wanted = self.state, self.experiment.workers
        members, groups, catch_up = state.members, state.attempts.groups, state.catch_up
        least = self.experiment.cluster.min_workers
        started, noted = time.monotonic(), False
        timed = state.attempts.deadlines.last_round > 0
        patience = 0.0 if timed else self.experiment.cluster.gather
        while not self.phase.stopping:
            now = time.monotonic()
            aside = groups.left_aside() if self.context.groups else []
            ready = members.ready(now, without=aside)
            waited, enough = now - started, len(ready) >= max(1, least)
            if not enough and aside:
                groups.end_left_aside(aside)
                continue
            if not enough and state.conductor.end_suspensions(now):
                members.wake_behind()
                continue
            complete = len(ready) + len(aside) == wanted or (enough and waited >= patience)
            if complete and members.setups.unsettled and members.setups.settle(ready):
                self.context.waiting.wake_all()
                continue  # some of them may differ
            if complete and state.planning.planner is None:
                state.planning.settle_model_size(ready)
            if complete and state.planning.planner is not None:
                late = catch_up.late_members(now) if catch_up.waits else []
                self.phase.current, self.phase.why = Phase.RUNNING, ""
                if not late or waited >= patience + catch_up.seconds(late, now=now):
                    if catch_up.waits:
                        catch_up.waited_for(late, ready=ready)
                    return ready
                waiting = events.Waiting(ready=ready, late=[member.worker for member in late])
            else:
                why = f"{len(ready)} of {wanted} workers are ready; at least {least} are needed"
                if members.setups.awaits_own:
                    why += "; this machine still reads its own data, to compare it with theirs"
                elif members.setups.refused:
                    names = ", ".join(sorted(members.setups.refused))
                    why += f"; refused, since they have another setup: {names}"
                self.phase.current = Phase.PAUSED if state.round_index else Phase.GATHERING
                self.phase.why = why
                waiting = events.Waiting(why, ready, patience)
            if not noted:
                noted = True
                self.history.note(waiting)
            if self.history.waits_for_space:
                await self._write(self.history.flush)
            await self._wait()
        return []

    async def _survey(self, participants: list[int]) -> None:
        """Have links timed before the first plan, once under each coordinator."""
        planning, conductor, self._surveyed = self.state.planning, self.state.conductor, True
        base, began = planning.rounds.stage.federation.base_topology, time.monotonic()
        survey = planning.survey = LinkSurvey(participants, base.links)
        self.context.waiting.wake(participants)
        self.phase.why = "the links are being timed"
        while not self.phase.stopping and (now := time.monotonic()) - began <= SURVEY_SECONDS:
            if survey.is_over([member.worker for member in conductor.alive(now)]):
                break
            await self._wait()
        self.phase.why, planning.survey = "", None
        planning.rounds.learn_links(survey.timed)
        self.history.note(events.Surveyed(sorted(survey.timed), time.monotonic() - began))

    async def _plan(self, participants: list[int]) -> NetworkRound:
        """Ask the algorithm, in a thread: it may take a while."""
        planning, attempts = self.state.planning, self.state.attempts
        groups, coming = attempts.groups, self.state.conductor.committed.round_index + 1
        reach("coordinator.planning", coming)
        present = np.isin(np.arange(self.experiment.workers), participants)
        if self.context.groups:
            groups.settle_versions(participants)
        return await asyncio.to_thread(
            planning.rounds.plan,
            coming,
            present,
            planning.step_times(),
            restarted=groups.restarting() if self.context.groups else (),
            epoch_steps=planning.epoch_steps(),
            avoid=attempts.avoided_links(time.monotonic()),
            grouped=not (self.context.groups and attempts.goes_without_group()),
        )

    async def _collect(
        self, attempt: Attempt, started: float
    ) -> dict[int, wire.RoundReport] | None:
        """Wait for the reports of an attempt; None if it had to be given up."""
        conductor, attempts = self.state.conductor, self.state.attempts
        reach("coordinator.gathering", attempt.round_index)
        noted: list[int] = []
        hurried = False
        while True:
            now = time.monotonic()
            if self.phase.stopping and not hurried and conductor.running is not None:
                hurried = True
                ends = now + STOP_SECONDS
                conductor.running.deadline = min(conductor.running.deadline, ends)
            verdict = conductor.verdict(now)
            if verdict is AttemptVerdict.COMMIT and hurried and conductor.overdue(now):
                verdict = AttemptVerdict.GIVE_UP  # who is late would be left with an older model
            if verdict is AttemptVerdict.COMMIT and self.context.groups:
                disputed = attempts.groups.dispute_results()
                verdict = AttemptVerdict.GIVE_UP if disputed else verdict
            if verdict is not AttemptVerdict.WAIT:
                break
            gone = self.state.members.gone(now)
            if gone != noted:
                noted = gone
                self.history.note(events.Gone(gone))
            await self._wait()
        if verdict is AttemptVerdict.GIVE_UP:
            if attempts.give_up(attempt, now=now):
                await self.commit()  # whoever takes over goes back, too
            return None
        return attempts.seal(started=started, now=now)

    async def _commit_round(
        self, record: RoundRecord, attempt: Attempt, *, reported: list[int]
    ) -> None:
        """Write the round into the record, then make it count."""
        reach("coordinator.committing", record.round_index)
        self.phase.stop_condition.is_last(record)  # is committed together with the round
        await self._write(self.history.flush)
        await self._write(lambda: self.context.record.write(record))
        await self.commit(attempt)
        self.state.attempts.committed(attempt, reported=reported)
        if (accuracy := record.accuracy) is not None:
            self.state.attempts.accuracy_tested(accuracy)
        reach("coordinator.committed", record.round_index)
        self.on_round(record)
        if len(reported) < len(self.state.conductor.members):  # others may be behind now
            self.state.members.wake_behind()

    async def commit(self, attempt: Attempt | None = None) -> None:
        """Make the state durable with this attempt; without a majority wait for one."""
        async with self._committing:
            await self._commit(self.state.committed_state(attempt))

    async def _commit(self, committed: CommittedState) -> None:
        content = committed.to_bytes()
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
                if self.phase.interrupted:
                    self._continue(self.phase.interrupted)
                self._last, self._vain_tries, self.phase.why = committed, 0, ""
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
                if self.phase.interrupted:
                    self._continue(self.phase.interrupted)
                self._vain_tries = 0
                return

    async def _wait_for_space(self, error: StorageFull) -> None:
        """Pause until the folder has space for about a round; the workers wait meanwhile."""
        while not has_space(self.folder, self._needed):
            self._vain_tries = 0
            await self._pause(full_disk(self.folder, self._needed))
        self._vain_tries += 1
        if self._vain_tries > WRITE_TRIES:
            raise error
        await self._pause(self.phase.why if self.phase.interrupted else error.problem)

    async def _pause(self, why: str) -> None:
        """Do nothing for a moment; the first one says why in the log and the history."""
        phase = self.phase
        if phase.interrupted is None:
            LOG.warning("paused: %s", why)
            self.history.note(events.Paused(why))
            phase.interrupted = phase.current
        phase.current, phase.why = Phase.PAUSED, why
        self.state.members.supervise(time.monotonic())
        await asyncio.sleep(RETRY_SECONDS)

    def _continue(self, interrupted: Phase) -> None:
        """Something was written: the pause is over."""
        self.phase.current, self.phase.why, self.phase.interrupted = interrupted, "", None
        LOG.info("the pause is over: round %d goes on", self.state.round_index + 1)
        self.history.note(events.Resumed(self.state.round_index + 1))


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
            history.note(events.Frozen(since, seconds))


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
