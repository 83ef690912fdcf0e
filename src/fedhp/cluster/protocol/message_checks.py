"""Every message that comes from outside, field by field, before anything acts on it.

The envelope's authority is guard.py's business; here it need only be there. A function returns
nothing or raises Refused. What a coordinator takes comes first, then a worker, then a peer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.field_checks import (
    WEEK,
    check_address,
    check_count,
    check_digest,
    check_length,
    check_name,
    check_number,
    check_positive,
    check_run,
    check_text,
    check_worker,
)
from fedhp.cluster.protocol.guard import Refused

MOST_STEPS = 1_000_000  # local steps of one round
MOST_BEAT_SECONDS = 60.0
WEIGHT_SLACK = 1e-6  # of the sum of a worker's mixing weights
ENCODINGS = frozenset({"raw", "fp16", "int8", "topk"})
VERSIONS = 50  # libraries a coordinator may tell of
STATES = frozenset({"gathering", "running", "paused", "finished"})
STATUSES = frozenset({"ready", "behind", "suspect", "dead", "left", "draining", "quarantined"})
_UINT32 = 2**32 - 1
_NOT_TOML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

Request: TypeAlias = (
    wire.JoinRequest
    | wire.NextRequest
    | wire.RoundReport
    | wire.BeatRequest
    | wire.LeaveRequest
    | wire.StatusRequest
    | wire.CommandRequest
    | wire.PullRequest
    | wire.Chunk
)


def check_join(request: wire.JoinRequest) -> None:
    """A worker that wants to take part."""
    _check_envelope(request)
    check_address(request.address, "the worker's address")
    check_text(request.fedhp, "the version of the program", most=limits.NAME_LENGTH)
    check_number(request.step_time, "step_time", least=0.0, most=WEEK)
    _check_stands(request.stands)


def check_next(request: wire.NextRequest) -> None:
    """A worker that asks what to do."""
    _check_envelope(request)
    check_number(request.step_time, "step_time", least=0.0, most=WEEK)
    _check_stands(request.stands)
    _check_links(request.surveyed, "surveyed", workers=limits.WORKERS)


def check_report(
    report: wire.RoundReport,
    *,
    workers: int,
    worker: int,
    attempt: Attempt,
    asked: Collection[int] | None = None,
) -> None:
    """What worker `worker` measured in this attempt.

    A report of an earlier attempt is refused before its fields are looked at: it is late, not
    bad. asked: the peers and probes of its order; it may tell of no others.
    """
    _check_envelope(report)
    _check_attempt(report.envelope, attempt)
    check_positive(report.step_time, "step_time", most=WEEK)
    check_number(report.compute_seconds, "compute_seconds", least=0.0, most=WEEK)
    check_number(report.exchange_seconds, "exchange_seconds", least=0.0, most=WEEK)
    check_number(report.other_seconds, "other_seconds", least=0.0, most=WEEK)
    check_number(report.train_loss, "train_loss")
    check_number(report.update_norm, "update_norm", least=0.0)
    check_number(report.smoothness, "smoothness", least=0.0, nan=True)
    check_number(report.gradient_variance, "gradient_variance", least=0.0, nan=True)
    check_number(report.start_loss, "start_loss", nan=True)
    check_number(report.accuracy, "accuracy", nan=True)
    check_number(report.whole_accuracy, "whole_accuracy", nan=True)
    check_digest(report.digest, "the model's digest")
    _check_links(report.links, "a link", workers=workers, own=worker, asked=asked)
    _check_workers(report.selected, "selected", workers=workers, own=worker, asked=asked)


def check_beat(request: wire.BeatRequest) -> None:
    """A sign of life."""
    _check_envelope(request)
    check_text(request.phase, "phase")


def check_leave(request: wire.LeaveRequest) -> None:
    """A worker that goes."""
    _check_envelope(request)
    check_text(request.why, "why")


def check_status(request: wire.StatusRequest) -> None:
    """Somebody who wants to know how it stands."""
    _check_envelope(request)


def check_command(request: wire.CommandRequest) -> None:
    """An operator's wish."""
    _check_envelope(request)
    what = request.WhichOneof("what")
    if what == "drain":
        check_name(request.drain, "the worker to drain")
    elif what == "allow":
        check_name(request.allow, "the worker to allow")
    elif what is None or not request.stop:
        raise Refused("kind", "the command says nothing to do")


def check_join_reply(reply: wire.JoinReply) -> None:
    """A worker's place in the run; the experiment is parsed by who reads it."""
    check_run(reply.run, "the run")
    _check_epoch(reply.epoch)
    check_worker(reply.worker, "the reply", workers=limits.WORKERS)
    size = len(reply.experiment.encode())
    check_length(size, "bytes of the experiment", most=limits.EXPERIMENT_BYTES)
    if _NOT_TOML.search(reply.experiment):
        raise Refused("text", "the experiment has control characters")
    check_positive(reply.beat_seconds, "beat_seconds", most=MOST_BEAT_SECONDS)


def check_order(order: wire.Order, *, workers: int, worker: int) -> None:
    """An order of any kind to worker `worker`; whether to obey its epoch is the guard's."""
    _check_epoch(order.epoch)
    if not order.HasField("committed"):
        raise Refused("missing", "the order names no committed stand")
    _check_stand(order.committed)
    if order.committed.epoch > order.epoch:
        raise Refused("future", "the committed stand is of a later epoch than the order")
    what = order.WhichOneof("what")
    if what == "work":
        _check_work(order.work, committed=order.committed.round, workers=workers, worker=worker)
    elif what == "act":
        _check_act(order.act, workers=workers, worker=worker)
    elif what == "catch_up":
        if not order.catch_up.peers:
            raise Refused("missing", "there is nobody to catch up from")
        _check_peers(order.catch_up.peers, "catch_up", workers=workers, own=worker)
    elif what == "survey":
        if not order.survey.peers:
            raise Refused("missing", "there is no link to survey")
        _check_peers(order.survey.peers, "survey", workers=workers, own=worker)
        check_positive(order.survey.deadline, "deadline", most=WEEK)
    elif what == "wait":
        check_text(order.wait.why, "why")
    elif what == "finished":
        check_text(order.finished.why, "why")
    else:
        raise Refused("kind", "the order says nothing to do")


def check_beat_reply(reply: wire.BeatReply, *, workers: int) -> None:
    """The current attempt, and whom not to wait for."""
    _check_epoch(reply.epoch)
    _check_workers(reply.gone, "gone", workers=workers)


def check_receipt(receipt: wire.Receipt) -> None:
    """Whether something was counted."""
    check_text(receipt.why, "why")


def check_status_reply(reply: wire.StatusReply) -> None:
    """How the run stands, for a terminal."""
    check_run(reply.run, "the run")
    check_text(reply.why, "why")
    if reply.state not in STATES:
        raise Refused("kind", "the state of the run is unknown")
    check_number(reply.clock, "clock", least=0.0)
    check_number(reply.round_seconds, "round_seconds", least=0.0, most=WEEK)
    check_length(len(reply.versions), "versions", most=VERSIONS)
    for text in (*reply.versions.keys(), *reply.versions.values()):
        check_text(text, "a version", most=limits.NAME_LENGTH)
    check_length(len(reply.members), "members", most=limits.WORKERS)
    _check_workers([each.worker for each in reply.members], "a member", workers=limits.WORKERS)
    for each in reply.members:
        check_name(each.name, "the name of a member")
        if each.address:
            check_address(each.address, "the address of a member")
        if each.status not in STATUSES:
            raise Refused("kind", "the status of a member is unknown")
        check_text(each.phase, "the phase of a member")
        check_number(each.silent_seconds, "silent_seconds", least=0.0)
        check_number(each.step_time, "step_time", least=0.0, most=WEEK)
        check_number(each.accuracy, "accuracy", nan=True)


def check_pull(request: wire.PullRequest) -> None:
    """A peer that wants a model or some bytes; whether it may is decided elsewhere."""
    _check_envelope(request)
    if request.wanted == wire.TRAINED:
        check_count(request.envelope.round, "the round", least=1, most=_UINT32)
        check_count(request.envelope.attempt, "the attempt", least=1, most=_UINT32)
    elif request.wanted == wire.COMMITTED:
        if not request.HasField("stand"):
            raise Refused("missing", "the request names no stand")
        _check_stand(request.stand)
    elif request.wanted == wire.PROBE:
        check_count(request.bytes, "the bytes of a probe", least=1, most=limits.PROBE_BYTES)
    else:
        raise Refused("kind", "what is wanted is unknown")
    check_number(request.patience, "patience", least=0.0, most=WEEK)
    check_digest(request.base, "the digest of the base")


def check_first_chunk(
    chunk: wire.Chunk,
    *,
    most: int = limits.MODEL_BYTES,
    encodings: Collection[str] = ENCODINGS,
) -> None:
    """The first chunk of a stream: what follows. most: the bytes the receiver can use."""
    _check_envelope(chunk)
    check_count(chunk.total, "the bytes of the model", least=1, most=most)
    if chunk.encoding not in encodings:
        raise Refused("encoding", f"the encoding is none of {', '.join(sorted(encodings))}")
    check_length(len(chunk.data), "bytes of a chunk", most=min(limits.CHUNK_BYTES, chunk.total))
    check_digest(chunk.digest, "the digest of the model")
    if chunk.digest and len(chunk.data) < chunk.total:
        raise Refused("digest", "a chunk that is not the last has the digest")


def _check_envelope(request: Request) -> None:
    if not request.HasField("envelope"):
        raise Refused("missing", "the message has no envelope")


def _check_epoch(epoch: int) -> None:
    if not epoch:
        raise Refused("missing", "the reply names no epoch")


def _check_attempt(envelope: wire.Envelope, now: Attempt) -> None:
    pairs = (
        ("epoch", envelope.epoch, now.epoch),
        ("round", envelope.round, now.round_index),
        ("attempt", envelope.attempt, now.number),
    )
    for word, said, current in pairs:
        if said == current:
            continue
        # A later epoch is a later coordinator's; within an epoch nobody is ahead of its orders.
        late = said < current or word == "epoch"
        raise Refused(word if late else "future", f"it is of {word} {said}, now is {current}")


def _check_stands(stands: Sequence[wire.Stand]) -> None:
    check_length(len(stands), "stands", most=limits.STANDS)
    for stand in stands:
        _check_stand(stand)
    if len({(each.round, each.epoch, each.attempt) for each in stands}) < len(stands):
        raise Refused("duplicate", "the same stand is there twice")


def _check_stand(stand: wire.Stand) -> None:
    if stand.round and not stand.epoch:
        raise Refused("missing", f"a stand at round {stand.round} names no epoch")


def _check_workers(
    indices: Iterable[int],
    what: str,
    *,
    workers: int,
    own: int | None = None,
    asked: Collection[int] | None = None,
) -> None:
    known: set[int] = set()
    for index in indices:
        check_worker(index, what, workers=workers, own=own)
        if asked is not None and index not in asked:
            raise Refused("worker", f"{what} names worker {index}, which was not in the order")
        if index in known:
            raise Refused("duplicate", f"{what} names worker {index} twice")
        known.add(index)


def _check_peers(
    peers: Sequence[wire.PeerAddress], what: str, *, workers: int, own: int
) -> list[int]:
    check_length(len(peers), what, most=workers)
    indices = [peer.worker for peer in peers]
    _check_workers(indices, what, workers=workers, own=own)
    for peer in peers:
        check_name(peer.name, f"a name in {what}")
        check_address(peer.address, f"an address in {what}")
    if len({peer.name for peer in peers}) < len(peers):
        raise Refused("duplicate", f"a name is twice in {what}")
    return indices


def _check_links(
    links: Sequence[wire.LinkReport],
    what: str,
    *,
    workers: int,
    own: int | None = None,
    asked: Collection[int] | None = None,
) -> None:
    check_length(len(links), "links", most=limits.LINKS)
    for link in links:
        _check_link(link)
    _check_workers([link.worker for link in links], what, workers=workers, own=own, asked=asked)


def _check_link(link: wire.LinkReport) -> None:
    check_length(link.bytes, "bytes over a link", most=limits.MODEL_BYTES)
    check_number(link.seconds, "the seconds of a link", least=0.0, most=WEEK)
    check_number(link.started, "the start of a link", least=0.0, most=WEEK)
    check_number(link.distance, "the distance of a link", least=0.0, nan=True)
    check_text(link.lost, "why a link was lost")


def _check_work(work: wire.Work, *, committed: int, workers: int, worker: int) -> None:
    check_count(work.attempt, "the attempt", least=1, most=_UINT32)
    if work.round <= committed:
        raise Refused("order", f"round {work.round} comes after {committed}, which is committed")
    _check_training(work)
    check_positive(work.exchange_deadline, "exchange_deadline", most=WEEK)
    peers = _check_peers(work.peers, "peers", workers=workers, own=worker)
    if peers != sorted(peers):
        raise Refused("order", "the peers do not stand by rising worker")
    _check_peers(work.readers, "readers", workers=workers, own=worker)
    probes = _check_peers(work.probes, "probes", workers=workers, own=worker)
    if not set(peers).isdisjoint(probes):
        raise Refused("duplicate", "a peer is to be probed beside its exchange")
    if work.keep > len(peers):
        raise Refused("range", f"keep is {work.keep}, but there are {len(peers)} peers")
    if work.keep:
        check_count(work.samples, "the samples to score on", least=1, most=_UINT32)
    _check_weights(work)


def _check_act(act: wire.Act, *, workers: int, worker: int) -> None:
    check_count(act.round, "the round", least=1, most=_UINT32)
    _check_training(act)
    if act.HasField("partner"):
        _check_peers([act.partner], "partner", workers=workers, own=worker)


def _check_training(order: wire.Work | wire.Act) -> None:
    check_count(order.local_steps, "local_steps", least=1, most=MOST_STEPS)
    check_positive(order.learning_rate, "learning_rate")
    check_positive(order.deadline, "deadline", most=WEEK)


def _check_weights(work: wire.Work) -> None:
    wanted = 0 if work.keep else len(work.peers)
    if len(work.weights) != wanted:
        raise Refused("weights", f"there are {len(work.weights)} weights, not {wanted}")
    for weight in (*work.weights, work.own_weight):
        check_number(weight, "a weight", least=0.0, most=1.0 + WEIGHT_SLACK)
    total = math.fsum((*work.weights, work.own_weight))
    if not work.keep and abs(total - 1.0) > WEIGHT_SLACK:
        raise Refused("weights", f"the weights sum to {total}, not to 1")
