"""The cases of the fault campaign: who is hurt, when, and what must happen then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from faults.drill import Case, Drill, experiment
from fedhp.cluster.failpoints import COORDINATOR as COORDINATOR_PHASES
from fedhp.cluster.failpoints import WORKER as WORKER_PHASES
from fedhp.cluster.ledger.etcd import LEASE
from fedhp.config import Experiment
from fedhp.seeds import Purpose, generator
from net.etcd_support import running_etcd

BOSS = "coordinator"
FIRST, SECOND = "c0", "c1"
TAKEOVER = LEASE + 5.0  # s until a standby must lead

Played = tuple[Experiment, float | None]


def moment(seed: int) -> float:
    """A part of a round, other for every seed."""
    return float(generator(seed, Purpose.ALGORITHM, 77).uniform(0, 0.5))


def at(who: str, phase: str, action: str, *, seed: int) -> str:
    """A fail point; those before the first round have no number."""
    early = phase in ("joined", "leading")
    return f"{who}.{phase}={action}" if early else f"{who}.{phase}@{3 + seed % 4}={action}"


def must(condition: bool, what: str) -> None:
    """Fail the drill."""
    if not condition:
        raise AssertionError(what)


def went_on(drill: Drill, rounds: int = 2) -> None:
    """So many rounds are committed after what has just happened."""
    drill.until_round(drill.committed() + rounds)


# --- workers -------------------------------------------------------------------------------


def worker_dies(phase: str) -> Callable[[Path, int], Played]:
    """kill -9 in a phase of a round; the others go on; it comes back."""

    def play(folder: Path, seed: int) -> Played:
        settings = experiment(seed=seed)
        with Drill(settings, folder) as drill:
            victim = f"w{seed % settings.workers}"
            drill.start(**{victim: at("worker", phase, "kill", seed=seed)})
            drill.until_dead(victim)
            if phase != "joined":
                went_on(drill)
            drill.restart(victim)
            drill.finish()
            back = seed % settings.workers in drill.last_participants()
            must(back, f"{victim} did not come back")
        return settings, None

    return play


def worker_stops(folder: Path, seed: int) -> Played:
    """SIGSTOP at any instant, SIGCONT before or after it is taken for dead."""
    settings = experiment(seed=seed)
    with Drill(settings, folder) as drill:
        victim = f"w{seed % settings.workers}"
        drill.start()
        drill.until_round(3)
        drill.pass_time(moment(seed))
        drill.stop(victim)
        went_on(drill)
        drill.pass_time(2.0 if seed % 2 else settings.cluster.dead_after + 1.0)
        drill.wake(victim)
        drill.finish()
        must(seed % settings.workers in drill.last_participants(), f"{victim} did not come back")
    return settings, None


def three_of_eight_die(folder: Path, seed: int) -> Played:
    """kill -9 of three workers at once, at any instant."""
    settings = experiment(seed=seed, workers=8)
    with Drill(settings, folder) as drill:
        numbers = [(seed + offset) % 8 for offset in (0, 3, 5)]
        victims = [f"w{number}" for number in numbers]
        drill.start()
        drill.until_round(3)
        drill.pass_time(moment(seed))
        drill.kill(*victims)
        went_on(drill)
        drill.restart(*victims)
        drill.finish()
        must(drill.last_participants() >= set(numbers), f"not all of {victims} came back")
    return settings, None


# --- coordinators --------------------------------------------------------------------------


def coordinator_dies(phase: str) -> Callable[[Path, int], Played]:
    """kill -9 in a phase, started again at once."""

    def play(folder: Path, seed: int) -> Played:
        settings = experiment(seed=seed, rounds=12)
        with Drill(settings, folder) as drill:
            drill.start(**{BOSS: at("coordinator", phase, "kill", seed=seed)})
            drill.until_dead(BOSS)
            drill.restart(BOSS)
            drill.finish()
        return settings, None

    return play


def coordinator_stops(phase: str) -> Callable[[Path, int], Played]:
    """SIGSTOP in a phase, woken before or after it would take its workers for dead."""

    def play(folder: Path, seed: int) -> Played:
        settings = experiment(seed=seed, rounds=12)
        with Drill(settings, folder) as drill:
            drill.start(**{BOSS: at("coordinator", phase, "stop", seed=seed)})
            drill.until_stopped(BOSS)
            drill.pass_time(2.0 if seed % 2 else settings.cluster.dead_after + 2.0)
            drill.wake(BOSS)
            drill.finish()
        return settings, None

    return play


def standby(phase: str, action: str) -> Callable[[Path, int], Played]:
    """The leader dies or freezes in a phase; another one takes over through etcd in time."""

    def play(folder: Path, seed: int) -> Played:
        settings = experiment(seed=seed, rounds=20)
        folder.mkdir(parents=True)
        with (
            running_etcd(_made(folder / "etcd"), 1) as etcd,
            Drill(settings, folder, coordinators=(FIRST, SECOND), ha=etcd.url) as drill,
        ):
            cluster = drill.cluster
            cluster.prepare()
            point = at("coordinator", phase, action, seed=seed)
            cluster.start_coordinator(FIRST, environment={"FEDHP_FAILPOINTS": point})
            if phase != "leading":
                drill.until_lead(FIRST)
            for name in cluster.workers:
                cluster.start_worker(name)
            seen = drill.until_dead if action == "kill" else drill.until_stopped
            if phase == "leading":
                hurt = seen(FIRST)
                cluster.start_coordinator(SECOND)
            else:
                cluster.start_coordinator(SECOND)
                hurt = seen(FIRST)
            takeover = drill.until_lead(SECOND) - hurt
            went_on(drill)
            if action == "kill":
                drill.restart(FIRST)
            else:
                drill.wake(FIRST)
            drill.finish()
            must(takeover <= TAKEOVER, f"the standby led only after {takeover:.1f} s")
        return settings, takeover

    return play


def etcd_member_dies(folder: Path, seed: int) -> Played:
    """kill -9 of one of three members of etcd: nobody need notice."""
    settings = experiment(seed=seed, rounds=16)
    folder.mkdir(parents=True)
    with (
        running_etcd(_made(folder / "etcd"), 3) as etcd,
        Drill(settings, folder, coordinators=(FIRST, SECOND), ha=etcd.url) as drill,
    ):
        drill.start()
        drill.until_round(3)
        drill.pass_time(moment(seed))
        drill.note("kill", f"etcd{seed % 3}")
        etcd.kill(seed % 3)
        went_on(drill, 4)
        etcd.start(seed % 3)
        drill.finish()
    return settings, None


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


CASES: tuple[Case, ...] = (
    *(Case(f"worker killed: {phase}", worker_dies(phase)) for phase in WORKER_PHASES),
    Case("worker stopped and woken", worker_stops),
    Case("three of eight workers killed", three_of_eight_die),
    *(
        Case(f"coordinator killed: {phase}", coordinator_dies(phase))
        for phase in COORDINATOR_PHASES
    ),
    *(
        Case(f"coordinator stopped: {phase}", coordinator_stops(phase))
        for phase in COORDINATOR_PHASES
    ),
    *(
        Case(f"leader killed, standby: {each}", standby(each, "kill"))
        for each in COORDINATOR_PHASES
    ),
    *(
        Case(f"leader stopped, standby: {each}", standby(each, "stop"))
        for each in COORDINATOR_PHASES
    ),
    Case("one of three etcd members killed", etcd_member_dies),
)
