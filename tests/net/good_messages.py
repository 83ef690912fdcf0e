"""One good message of every kind, and the way a receiver takes it: the guard, then the checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedhp.cluster.protocol import limits, message_checks
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.codec import GROUP_STREAMS
from fedhp.cluster.protocol.guard import CALL_RULES, OPERATOR_ROLE, WORKER_ROLE, Guard

NOW = Attempt(epoch=3, round_index=7, number=2)


@dataclass(frozen=True, slots=True)
class Scene:
    """Who sends a message (or gets it, if it is a reply), and when."""

    name: str = "worker-2"
    worker: int = 2
    workers: int = 6
    run: str = "0123456789abcdef" * 2
    attempt: Attempt = NOW
    sequence: int = 3 * limits.SEQUENCE_WINDOW


SCENE = Scene()


def envelope(scene: Scene) -> wire.Envelope:
    """The envelope of a message in this scene."""
    return wire.Envelope(
        version=limits.PROTOCOL_VERSION,
        run=scene.run,
        epoch=scene.attempt.epoch,
        round=scene.attempt.round_index,
        attempt=scene.attempt.number,
        sender=scene.name,
        incarnation=1_700_000_000_000_000_000,
        sequence=scene.sequence,
    )


def other(scene: Scene, step: int) -> int:
    """The index of the worker so many places after this one."""
    return (scene.worker + step) % scene.workers


def address_of(index: int) -> wire.PeerAddress:
    """Where a worker is."""
    hosts = ("node-a.example.org", "10.0.0.5", "[2001:db8::7]")
    return wire.PeerAddress(
        worker=index, name=f"worker-{index}", address=f"{hosts[index % 3]}:{7000 + index}"
    )


def some_peers(scene: Scene, *steps: int) -> list[wire.PeerAddress]:
    """Other workers by rising index."""
    return [address_of(index) for index in sorted(other(scene, step) for step in steps)]


def _model_versions() -> list[wire.Stand]:
    return [wire.Stand(), wire.Stand(round=6, epoch=3, attempt=1)]


def _join(scene: Scene) -> wire.JoinRequest:
    return wire.JoinRequest(
        envelope=envelope(scene),
        address="[fe80::1]:7002",
        fedhp="0.2.0",
        samples=600,
        step_time=0.0,
        stands=_model_versions(),
        nonce=bytes(16),
        setup=_setup(),
    )


def _setup() -> wire.Setup:
    return wire.Setup(
        parts=[
            wire.SetupPart(name="data", digest=bytes(32), facts="40 training samples"),
            wire.SetupPart(name="model", digest=bytes(32), sketch=[1.5, -0.25]),
        ],
        mean=[0.25],
        deviation=[0.5],
    )


def _report(scene: Scene) -> wire.RoundReport:
    return wire.RoundReport(
        envelope=envelope(scene),
        step_time=0.012,
        compute_seconds=1.5,
        exchange_seconds=0.25,
        other_seconds=0.125,
        train_loss=-0.0,
        update_norm=5e-324,
        smoothness=math.nan,
        gradient_variance=0.5,
        start_loss=math.nan,
        links=[
            wire.LinkReport(worker=other(scene, 1), bytes=1000, seconds=0.1, distance=0.3),
            wire.LinkReport(worker=other(scene, 2), distance=math.nan, lost="no answer"),
            wire.LinkReport(
                worker=other(scene, 3), bytes=65536, seconds=0.2, distance=math.nan, probe=True
            ),
        ],
        selected=[other(scene, 1)],
        accuracy=-3.5,
        whole_accuracy=math.nan,
        images=100,
        digest=bytes(32),
    )


def _order(scene: Scene) -> wire.Order:
    before = scene.attempt.round_index - 1
    return wire.Order(epoch=scene.attempt.epoch, committed=wire.Stand(round=before, epoch=2))


def _work(scene: Scene) -> wire.Order:
    order = _order(scene)
    order.work.CopyFrom(
        wire.Work(
            round=scene.attempt.round_index,
            attempt=scene.attempt.number,
            local_steps=20,
            learning_rate=0.05,
            peers=some_peers(scene, 1, 2),
            weights=[0.25, 0.25],
            own_weight=0.5,
            readers=some_peers(scene, 1, 3),
            probes=some_peers(scene, 4),
            deadline=30.0,
            exchange_deadline=20.0,
        )
    )
    return order


def _scoring(scene: Scene) -> wire.Order:
    order = _work(scene)
    del order.work.weights[:]
    order.work.own_weight, order.work.keep, order.work.samples = 0.0, 2, 64
    return order


def _group(scene: Scene) -> wire.Order:
    """A round with a group average, for a worker with one above and two below."""
    order = _work(scene)
    work = order.work
    del work.weights[:], work.peers[:], work.readers[:]
    work.own_weight = 1.0
    order.own.CopyFrom(wire.Stand(round=1, epoch=2, attempt=1))
    work.group.CopyFrom(
        wire.GroupWork(
            fragment=1,
            fragments=2,
            momentum=0.7,
            compression="int8",
            members=5,
            children=some_peers(scene, 1, 2),
            returning_children=[other(scene, 2)],
            transfer_time=2.0,
            train_time=0.5,
            overlap=True,
            largest_sums=[5.0, 0.0],
            largest_mean=2.5,
        )
    )
    order.keep.add(round=1, epoch=1, attempt=2)
    (parent,) = some_peers(scene, 3)
    work.group.parent.CopyFrom(parent)
    return order


def _group_report(scene: Scene) -> wire.RoundReport:
    report = _report(scene)
    report.steps, report.steps_during, report.consensus = 9, 7, bytes(32)
    report.result, report.whole = bytes(32), bytes(32)
    report.change_norms.extend([0.0, 0.25])
    report.links[0].timed_bytes, report.links[0].timed_seconds = 900, 0.09
    return report


def _failed(scene: Scene) -> wire.RoundReport:
    report = wire.RoundReport(envelope=envelope(scene), failed="a link broke", step_time=0.1)
    report.links.add(worker=other(scene, 1), distance=math.nan, lost="unreachable")
    return report


def _act(scene: Scene) -> wire.Order:
    order = _order(scene)
    order.act.CopyFrom(
        wire.Act(
            round=scene.attempt.round_index,
            turn=9,
            local_steps=1,
            learning_rate=1e-300,
            partner=address_of(other(scene, 1)),
            deadline=1.0,
        )
    )
    return order


def _catch_up(scene: Scene) -> wire.Order:
    order = _order(scene)
    order.catch_up.peers.extend(reversed(some_peers(scene, 1, 2, 3)))
    order.catch_up.digests.append(bytes(32))
    return order


def _survey(scene: Scene) -> wire.Order:
    order = _order(scene)
    order.survey.peers.extend(some_peers(scene, 1, 2))
    order.survey.deadline = 10.0
    return order


def _wait(scene: Scene) -> wire.Order:
    order = _order(scene)
    order.wait.why = "two of six workers are there – waiting"
    return order


def _finished(scene: Scene) -> wire.Order:
    order = _order(scene)
    order.finished.SetInParent()
    return order


def _status_reply(scene: Scene) -> wire.StatusReply:
    return wire.StatusReply(
        run=scene.run,
        epoch=scene.attempt.epoch,
        round=6,
        rounds=100,
        state="running",
        members=[
            wire.MemberStatus(
                worker=1, name="worker-1", status="ready", phase="mixing", accuracy=math.nan
            ),
            wire.MemberStatus(worker=4, name="worker-4", address="a_b:1", status="dead"),
        ],
        broken=[wire.BrokenLink(worker=1, peer=4, why="unreachable", since=2, last=5, failures=4)],
        broken_links=1,
        expiring=[wire.ExpiringCertificate(name="worker-4", seconds=-5.0)],
        warnings=[wire.Warning(key="attempts", members=["worker-4"], value=10, text="10 attempts")],
    )


def _pull(scene: Scene, wanted: wire.Wanted) -> wire.PullRequest:
    request = wire.PullRequest(envelope=envelope(scene), wanted=wanted, patience=2.0)
    if wanted == wire.COMMITTED:
        request.stand.CopyFrom(wire.Stand(round=6, epoch=3, attempt=1))
    if wanted == wire.PROBE:
        request.bytes = 65536
    return request


def _chunk(scene: Scene) -> wire.Chunk:
    return wire.Chunk(envelope=envelope(scene), total=5000, encoding="fp16", data=bytes(4096))


def _piece(scene: Scene) -> wire.Chunk:
    return wire.Chunk(envelope=envelope(scene), total=5000, encoding="sum", data=bytes(1040))


def _check_piece(chunk: wire.Chunk, scene: Scene) -> None:
    message_checks.check_first_chunk(chunk, encodings=GROUP_STREAMS)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of message: a good one, its check, and the call whose request it is, if any."""

    make: Callable[[Scene], Any]
    check: Callable[[Any, Scene], None]
    call: str = ""
    role: str = WORKER_ROLE


def _plain(check: Callable[[Any], None]) -> Callable[[Any, Scene], None]:
    return lambda message, scene: check(message)


def _check_report(report: wire.RoundReport, scene: Scene) -> None:
    message_checks.check_report(
        report,
        workers=scene.workers,
        worker=scene.worker,
        attempt=scene.attempt,
        asked=[other(scene, step) for step in (1, 2, 3)],
    )


def _check_order(order: wire.Order, scene: Scene) -> None:
    message_checks.check_order(order, workers=scene.workers, worker=scene.worker)


def _check_beat_reply(reply: wire.BeatReply, scene: Scene) -> None:
    message_checks.check_beat_reply(reply, workers=scene.workers)


GOOD: Mapping[str, Kind] = {
    "Join": Kind(_join, _plain(message_checks.check_fields), "Join"),
    "Next": Kind(
        lambda scene: wire.NextRequest(
            envelope=envelope(scene),
            stands=_model_versions(),
            step_time=0.1,
            setup=_setup(),
            surveyed=[
                wire.LinkReport(
                    worker=other(scene, 1), bytes=49152, seconds=0.1, distance=math.nan, probe=True
                )
            ],
        ),
        _plain(message_checks.check_next),
        "Next",
    ),
    "Report": Kind(_report, _check_report, "Report"),
    "Group report": Kind(_group_report, _check_report, "Report"),
    "Failed": Kind(_failed, _check_report, "Report"),
    "Beat": Kind(
        lambda scene: wire.BeatRequest(
            envelope=envelope(scene),
            phase="training",
            dialed=[wire.DialResult(test=3, verdict="failed", why="nothing listens there")],
        ),
        _plain(message_checks.check_fields),
        "Beat",
    ),
    "Leave": Kind(
        lambda scene: wire.LeaveRequest(envelope=envelope(scene), why="going home"),
        _plain(message_checks.check_fields),
        "Leave",
    ),
    "Status": Kind(
        lambda scene: wire.StatusRequest(envelope=envelope(scene)),
        _plain(message_checks.check_fields),
        "Status",
    ),
    "Command": Kind(
        lambda scene: wire.CommandRequest(envelope=envelope(scene), drain="worker-4"),
        _plain(message_checks.check_command),
        "Command",
        OPERATOR_ROLE,
    ),
    "DialBack": Kind(
        lambda scene: wire.DialBackRequest(envelope=envelope(scene), address="10.0.0.7:7710"),
        _plain(message_checks.check_fields),
        "DialBack",
    ),
    "Pull": Kind(
        lambda scene: _pull(scene, wire.TRAINED), _plain(message_checks.check_pull), "Pull"
    ),
    "Pull committed": Kind(
        lambda scene: _pull(scene, wire.COMMITTED), _plain(message_checks.check_pull), "Pull"
    ),
    "Pull probe": Kind(
        lambda scene: _pull(scene, wire.PROBE), _plain(message_checks.check_pull), "Pull"
    ),
    "Chunk": Kind(_chunk, _plain(message_checks.check_first_chunk), "Swap"),
    "Piece": Kind(_piece, _check_piece, "Average"),
    "JoinReply": Kind(
        lambda scene: wire.JoinReply(
            run=scene.run, epoch=3, worker=2, experiment="rounds = 9\n", beat_seconds=1.0
        ),
        _plain(message_checks.check_join_reply),
    ),
    "Work": Kind(_work, _check_order),
    "Scoring": Kind(_scoring, _check_order),
    "Group": Kind(_group, _check_order),
    "Act": Kind(_act, _check_order),
    "CatchUp": Kind(_catch_up, _check_order),
    "Survey": Kind(_survey, _check_order),
    "Wait": Kind(_wait, _check_order),
    "Finished": Kind(_finished, _check_order),
    "BeatReply": Kind(
        lambda scene: wire.BeatReply(
            epoch=3,
            round=7,
            attempt=2,
            gone=[4, 0],
            barred=["worker-5"],
            dial=[wire.DialTarget(test=3, name="worker-7", address="10.0.0.7:7710")],
        ),
        _check_beat_reply,
    ),
    "Receipt": Kind(
        lambda scene: wire.Receipt(why="the attempt is over"), _plain(message_checks.check_fields)
    ),
    "StatusReply": Kind(_status_reply, _plain(message_checks.check_status_reply)),
    "DialBackReply": Kind(
        lambda scene: wire.DialBackReply(
            address="10.0.0.7:7710",
            results=[
                wire.DialResult(name="worker-1", verdict="reached"),
                wire.DialResult(verdict="untested", why="it did not report in time"),
            ],
        ),
        _plain(message_checks.check_fields),
    ),
}


def new_guard(scene: Scene = SCENE) -> Guard:
    """The guard of a receiver in this scene."""
    return Guard(run=scene.run, epoch=scene.attempt.epoch)


def take(message: Any, kind: Kind, *, guard: Guard, scene: Scene = SCENE) -> None:
    """What a receiver does with a message before anything else; raises Refused."""
    if kind.call:
        guard.check(
            message.envelope,
            peer=scene.name,
            roles=frozenset({kind.role}),
            rule=CALL_RULES[kind.call],
        )
    kind.check(message, scene)
