"""The cases of the fault campaign: which process fails, when, and what must happen then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from faults.fault_run import CaseResult, FaultCase, FaultRun, experiment
from fedhp.cluster.audit.verify import verify
from fedhp.cluster.failpoints import COORDINATOR_POINTS, GROUP_POINTS, WORKER_POINTS
from fedhp.cluster.ledger.etcd import LEASE
from fedhp.config import Experiment
from fedhp.seeds import Purpose, generator
from net.etcd_support import running_etcd

COORDINATOR = "coordinator"
FIRST, SECOND = "c0", "c1"
_ONE_REPLAY = threading.Lock()
TAKEOVER = LEASE + 5.0  # s until a standby must lead
Make = Callable[..., Experiment]  # settings for a seed
Check = Callable[[FaultRun], None]  # of a run that is over, in addition to the promises


def moment(seed: int) -> float:
    """A part of a round, different for every seed."""
    return float(generator(seed, Purpose.ALGORITHM, 77).uniform(0, 0.5))


def at(who: str, phase: str, action: str, *, seed: int) -> str:
    """A fail point; those before the first round have no number."""
    early = phase in ("joined", "leading")
    return f"{who}.{phase}={action}" if early else f"{who}.{phase}@{3 + seed % 4}={action}"


def require(condition: bool, what: str) -> None:
    """Fail the case."""
    if not condition:
        raise AssertionError(what)


def nothing_more(run: FaultRun) -> None:
    """The promises are checked for every case."""


def more_rounds(run: FaultRun, rounds: int = 2) -> None:
    """So many more rounds are committed."""
    run.until_round(run.committed() + rounds)


def group_experiment(*, seed: int, workers: int = 4, rounds: int = 30) -> Experiment:
    """FedHP+: everyone is a member of every group, and a fragment has 15 pieces."""
    return experiment(
        seed=seed,
        workers=workers,
        rounds=rounds,
        algorithm={"name": "fedhp_plus", "first_deadline": 0.3, "min_share": 1.0, "max_steps": 500},
        model={"name": "mlp", "hidden": [400]},
    )


def verified(run: FaultRun) -> None:
    """The simulation repeats every committed round bit by bit: no sum was wrong."""
    with _ONE_REPLAY:  # torch's number of threads is that of the whole process
        verification = verify(run.folder)
    require(verification.equal, f"the bits differ: {verification.rounds}")
    require(verification.whole, f"not all rounds were compared: {verification.rounds}")


# --- workers -------------------------------------------------------------------------------


def worker_dies(
    phase: str, *, make: Make = experiment, check: Check = nothing_more
) -> Callable[[Path, int], CaseResult]:
    """kill -9 in a phase of a round; the others continue; it comes back."""

    def run_case(folder: Path, seed: int) -> CaseResult:
        settings = make(seed=seed)
        with FaultRun(settings, folder) as run:
            victim = f"w{seed % settings.workers}"
            run.start(**{victim: at("worker", phase, "kill", seed=seed)})
            run.until_dead(victim)
            if phase != "joined":
                more_rounds(run)
            run.restart(victim)
            run.finish()
            back = seed % settings.workers in run.last_participants()
            require(back, f"{victim} did not come back")
        check(run)
        return settings, None

    return run_case


def worker_stops(folder: Path, seed: int) -> CaseResult:
    """SIGSTOP at any instant, SIGCONT before or after it is taken for dead."""
    settings = experiment(seed=seed)
    with FaultRun(settings, folder) as run:
        victim = f"w{seed % settings.workers}"
        run.start()
        run.until_round(3)
        run.pass_time(moment(seed))
        run.stop(victim)
        more_rounds(run)
        run.pass_time(2.0 if seed % 2 else settings.cluster.dead_after + 1.0)
        run.wake(victim)
        run.finish()
        require(seed % settings.workers in run.last_participants(), f"{victim} did not come back")
    return settings, None


def three_of_eight_die(folder: Path, seed: int) -> CaseResult:
    """kill -9 of three workers at once, at any instant."""
    settings = experiment(seed=seed, workers=8)
    with FaultRun(settings, folder) as run:
        numbers = [(seed + offset) % 8 for offset in (0, 3, 5)]
        victims = [f"w{number}" for number in numbers]
        run.start()
        run.until_round(3)
        run.pass_time(moment(seed))
        run.kill(*victims)
        more_rounds(run)
        run.restart(*victims)
        run.finish()
        require(run.last_participants() >= set(numbers), f"not all of {victims} came back")
    return settings, None


# --- members of a group average ------------------------------------------------------------


def group_members_fail(action: str) -> Callable[[Path, int], CaseResult]:
    """kill -9, or SIGSTOP, of any member at any instant, again and again."""

    def run_case(folder: Path, seed: int) -> CaseResult:
        settings = group_experiment(seed=seed, rounds=60)
        with FaultRun(settings, folder) as run:
            run.start()
            run.until_round(3)
            for again in range(3):
                victim = f"w{(seed + again) % settings.workers}"
                run.pass_time(moment(seed + 100 * again))
                if action == "kill":
                    run.kill(victim)
                    run.until_dead(victim)
                else:
                    run.stop(victim)
                more_rounds(run, 3)
                if action == "kill":
                    run.restart(victim)
                else:
                    run.wake(victim)
                more_rounds(run, 3)
            run.finish()
        verified(run)
        return settings, None

    return run_case


# --- coordinators --------------------------------------------------------------------------


def coordinator_dies(
    phase: str, *, make: Make = experiment, check: Check = nothing_more
) -> Callable[[Path, int], CaseResult]:
    """kill -9 in a phase, restarted at once."""

    def run_case(folder: Path, seed: int) -> CaseResult:
        settings = make(seed=seed, rounds=12)
        with FaultRun(settings, folder) as run:
            run.start(**{COORDINATOR: at("coordinator", phase, "kill", seed=seed)})
            run.until_dead(COORDINATOR)
            run.restart(COORDINATOR)
            run.finish()
        check(run)
        return settings, None

    return run_case


def coordinator_stops(phase: str) -> Callable[[Path, int], CaseResult]:
    """SIGSTOP in a phase, continued before or after it would take its workers for dead."""

    def run_case(folder: Path, seed: int) -> CaseResult:
        settings = experiment(seed=seed, rounds=12)
        with FaultRun(settings, folder) as run:
            run.start(**{COORDINATOR: at("coordinator", phase, "stop", seed=seed)})
            run.until_stopped(COORDINATOR)
            run.pass_time(2.0 if seed % 2 else settings.cluster.dead_after + 2.0)
            run.wake(COORDINATOR)
            run.finish()
        return settings, None

    return run_case


def standby(phase: str, action: str) -> Callable[[Path, int], CaseResult]:
    """The leader dies or freezes in a phase; another one takes over through etcd in time."""

    def run_case(folder: Path, seed: int) -> CaseResult:
        settings = experiment(seed=seed, rounds=20)
        folder.mkdir(parents=True)
        with (
            running_etcd(_new_folder(folder / "etcd"), 1) as etcd,
            FaultRun(settings, folder, coordinators=(FIRST, SECOND), ha=etcd.url) as run,
        ):
            cluster = run.cluster
            cluster.prepare()
            point = at("coordinator", phase, action, seed=seed)
            cluster.start_process(FIRST, environment={"FEDHP_FAILPOINTS": point})
            if phase != "leading":
                run.until_lead(FIRST)
            for name in cluster.workers:
                cluster.start_process(name)
            seen = run.until_dead if action == "kill" else run.until_stopped
            if phase == "leading":
                failed = seen(FIRST)
                cluster.start_process(SECOND)
            else:
                cluster.start_process(SECOND)
                failed = seen(FIRST)
            takeover = run.until_lead(SECOND) - failed
            more_rounds(run)
            if action == "kill":
                run.restart(FIRST)
            else:
                run.wake(FIRST)
            run.finish()
            require(takeover <= TAKEOVER, f"the standby led only after {takeover:.1f} s")
        return settings, takeover

    return run_case


def etcd_member_dies(folder: Path, seed: int) -> CaseResult:
    """kill -9 of one of three members of etcd: nobody need notice."""
    settings = experiment(seed=seed, rounds=16)
    folder.mkdir(parents=True)
    with (
        running_etcd(_new_folder(folder / "etcd"), 3) as etcd,
        FaultRun(settings, folder, coordinators=(FIRST, SECOND), ha=etcd.url) as run,
    ):
        run.start()
        run.until_round(3)
        run.pass_time(moment(seed))
        run.note("kill", f"etcd{seed % 3}")
        etcd.kill(seed % 3)
        more_rounds(run, 4)
        etcd.start(seed % 3)
        run.finish()
    return settings, None


def _new_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


CASES: tuple[FaultCase, ...] = (
    *(FaultCase(f"worker killed: {phase}", worker_dies(phase)) for phase in WORKER_POINTS),
    FaultCase("worker stopped and woken", worker_stops),
    *(
        FaultCase(
            f"group member killed: {phase}",
            worker_dies(phase, make=group_experiment, check=verified),
        )
        for phase in GROUP_POINTS
    ),
    FaultCase("group members killed at any instant", group_members_fail("kill")),
    FaultCase("group members stopped and woken", group_members_fail("stop")),
    *(
        FaultCase(
            f"coordinator killed during an average: {phase}",
            coordinator_dies(phase, make=group_experiment, check=verified),
        )
        for phase in ("gathering", "committing", "committed")
    ),
    FaultCase("three of eight workers killed", three_of_eight_die),
    *(
        FaultCase(f"coordinator killed: {phase}", coordinator_dies(phase))
        for phase in COORDINATOR_POINTS
    ),
    *(
        FaultCase(f"coordinator stopped: {phase}", coordinator_stops(phase))
        for phase in COORDINATOR_POINTS
    ),
    *(
        FaultCase(f"leader killed, standby: {phase}", standby(phase, "kill"))
        for phase in COORDINATOR_POINTS
    ),
    *(
        FaultCase(f"leader stopped, standby: {phase}", standby(phase, "stop"))
        for phase in COORDINATOR_POINTS
    ),
    FaultCase("one of three etcd members killed", etcd_member_dies),
)
