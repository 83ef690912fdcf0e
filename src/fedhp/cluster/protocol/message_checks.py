"""Every message that comes from outside, field by field, before anything acts on it.

A function returns nothing or raises Refused with the word for that kind of fault. Whether a sender
may say something at all is guard.py's business. What a coordinator receives comes first, then a
worker, then a peer; single values (texts, names, addresses, numbers) are at the end.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

from fedhp.cluster.protocol import guard, limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import is_name, is_reachable, split_host_port
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.codec import ENCODINGS
from fedhp.cluster.protocol.guard import Refused, quoted
from fedhp.cluster.protocol.setup import MAX_FACTS, MAX_PARTS, MAX_SCALED, SKETCH
from fedhp.columns import (
    LARGEST_MEASURE,
    LONGEST_STEP,
    WORKER_COLUMNS,
)
from fedhp.exchange.group import LARGEST_RATE
from fedhp.texts import printable

WEEK_SECONDS = 7 * 86_400.0  # longer than any round and any deadline
SHARE, ANY_METRIC = (0.0, 1.0), (-1e9, 1e9)  # of a test's result: least and most
MAX_SAMPLES = 1_000_000_000
MAX_LOCAL_STEPS = 1_000_000  # of one round
MAX_BEAT_SECONDS = 60.0
MAX_LIBRARIES = 50  # whose versions a coordinator may list
MAX_EXCHANGES = 100_000  # of one round
WEIGHT_TOLERANCE = 1e-6  # of the sum of a worker's mixing weights
DIGEST_BYTES = 32  # of SHA-256
NONCE_BYTES = 16  # of a join
MAX_PROOF_BYTES = 1 << 16  # of a signed reply: a certificate, and some digests
MAX_FRAGMENTS = 1024  # of a model, for group averages
GROUP_COMPRESSIONS = ("int8", "none")
MAX_TICKET_BYTES = 64
MAX_DIALS = 4  # addresses that a member is asked to try with one heartbeat
MAX_DIAL_RESULTS = 64  # in the reply to one test
MAX_DIAL_TEXT = 300  # characters of why an address was not reached
MAX_BROKEN_LINKS = 1_000  # that a status names
MAX_EXPIRING = 100  # certificates that a status names
MAX_WARNINGS = 100  # that a status has
MAX_WARNING_MEMBERS = 100  # that one of them names
MAX_CAUSE = 100  # characters of why a link is broken
MAX_SURVEYED = 64  # links that one worker may be asked to time before the first round
DIAL_VERDICTS = frozenset({"reached", "failed", "untested"})
RUN_STATES = frozenset({"starting", "gathering", "running", "paused", "finished"})
MEMBER_STATUSES = frozenset(
    {
        *("ready", "behind", "suspect", "dead", "left", "draining"),
        *("quarantined", "suspended", "removed"),
    }
)
_UINT32_MAX = 2**32 - 1
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_NOT_TOML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

Request: TypeAlias = (
    wire.JoinRequest
    | wire.NextRequest
    | wire.RoundReport
    | wire.BeatRequest
    | wire.LeaveRequest
    | wire.StatusRequest
    | wire.CommandRequest
    | wire.DialBackRequest
    | wire.PullRequest
    | wire.Chunk
)


def check_join(request: wire.JoinRequest) -> None:
    """A worker joins."""
    _check_envelope(request)
    check_address(request.address, "the worker's address")
    check_text(request.fedhp, "the version of the program", most=limits.NAME_LENGTH)
    check_number(request.step_time, "step_time", least=0.0, most=LONGEST_STEP)
    check_number(request.samples, "samples", most=MAX_SAMPLES)
    _check_versions(request.stands)
    if len(request.nonce) != NONCE_BYTES:
        raise Refused("size", f"the nonce has {len(request.nonce)} bytes, not {NONCE_BYTES}")
    _check_setup(request.setup)


def check_next(request: wire.NextRequest) -> None:
    """A worker asks for its next order."""
    _check_envelope(request)
    check_number(request.step_time, "step_time", least=0.0, most=LONGEST_STEP)
    check_number(request.samples, "samples", most=MAX_SAMPLES)
    check_number(request.model_bytes, "model_bytes", most=limits.MODEL_BYTES)
    _check_versions(request.stands)
    if request.HasField("setup"):
        _check_setup(request.setup)
    check_length(len(request.surveyed), "surveyed links", most=MAX_SURVEYED)
    _check_links(request.surveyed, "surveyed", workers=limits.MAX_WORKERS)


def _check_setup(setup: wire.Setup) -> None:
    """What a worker is going to train."""
    check_length(len(setup.parts), "parts of a setup", most=MAX_PARTS)
    for part in setup.parts:
        check_text(part.name, "the name of a part", most=MAX_FACTS)
        check_text(part.facts, "the facts of a part", most=MAX_FACTS)
        if len(part.digest) != DIGEST_BYTES:
            raise Refused("digest", f"a part has a digest of {len(part.digest)} bytes")
        check_length(len(part.sketch), "numbers of a sketch", most=SKETCH)
        for number in part.sketch:
            check_number(number, "a number of a sketch")
    for name in ("mean", "deviation"):
        numbers = getattr(setup, name)
        check_length(len(numbers), f"numbers of the {name}", most=MAX_SCALED)
        for number in numbers:
            check_number(number, f"a {name}")


def check_report(
    report: wire.RoundReport,
    *,
    workers: int,
    worker: int,
    attempt: Attempt,
    asked: Collection[int] | None = None,
    most_bytes: int = limits.MODEL_BYTES,
    metric: tuple[float, float] = ANY_METRIC,
) -> None:
    """What worker `worker` measured in this attempt.

    A report of an earlier attempt is refused before its fields are checked: it is late, not bad.
    asked: the peers and probes of its order; it may report on no others.
    most_bytes: that can have gone over one link.
    metric: the least and the most that a test can give.
    """
    _check_envelope(report)
    if Attempt.from_wire(report.envelope) != attempt:
        _refuse_attempt(report.envelope, attempt)
    _check_links(
        report.links,
        "a link",
        workers=workers,
        own=worker,
        asked=asked,
        most_bytes=most_bytes,
    )
    check_text(report.failed, "why there is no average")
    _check_measures(report)
    check_number(report.compute_seconds, "compute_seconds", least=0.0, most=WEEK_SECONDS)
    check_number(report.exchange_seconds, "exchange_seconds", least=0.0, most=WEEK_SECONDS)
    check_number(report.other_seconds, "other_seconds", least=0.0, most=WEEK_SECONDS)
    check_number(
        report.start_loss, "start_loss", least=-LARGEST_MEASURE, most=LARGEST_MEASURE, nan=True
    )
    check_number(report.steps, "steps", most=MAX_LOCAL_STEPS)
    check_number(report.steps_during, "the steps during the transfer", most=report.steps)
    check_digest(report.consensus, "the digest of the consensus")
    check_digest(report.result, "the digest of the average")
    check_digest(report.whole, "the digest of the consensus that was sent")
    check_length(len(report.change_norms), "norms of changes", most=MAX_FRAGMENTS)
    for norm in report.change_norms:
        check_number(norm, "the norm of a change", least=0.0, most=LARGEST_MEASURE)
    for name in ("accuracy", "whole_accuracy"):
        check_number(getattr(report, name), name, least=metric[0], most=metric[1], nan=True)
    check_number(report.images, "images", most=MAX_SAMPLES)
    check_digest(report.digest, "the model's digest")
    _check_workers(report.selected, "selected", workers=workers, own=worker, asked=asked)


def _check_measures(report: wire.RoundReport) -> None:
    """The columns of the record that a worker measures itself."""
    added = {column.name for column in WORKER_COLUMNS if column.added and column.reported}
    if unknown := sorted(set(report.measures) - added):
        raise Refused("kind", f"{quoted(unknown[0])} is not a column of the record")
    for column in WORKER_COLUMNS:
        bounds = column.reported
        if bounds is None or (column.added and column.name not in report.measures):
            continue
        name = column.name
        value = float(report.measures[name] if column.added else getattr(report, name))
        check_number(value, name, least=bounds.least, most=bounds.most, nan=bounds.unmeasured)
        if bounds.positive and value == 0:
            raise Refused("range", f"{name} is 0, not above 0")


def check_beat(request: wire.BeatRequest) -> None:
    """A heartbeat."""
    _check_envelope(request)
    check_text(request.phase, "phase")
    _check_dialed(request.dialed, most=MAX_DIALS)


def check_leave(request: wire.LeaveRequest) -> None:
    """A worker leaves."""
    _check_envelope(request)
    check_text(request.why, "why")


def check_status(request: wire.StatusRequest) -> None:
    """A question for the state of the run."""
    _check_envelope(request)


def check_dial_back(request: wire.DialBackRequest) -> None:
    """A worker asks whether others can connect to it."""
    _check_envelope(request)
    check_address(request.address, "the worker's address")


def check_dial_back_reply(reply: wire.DialBackReply) -> None:
    """Who could connect to this machine."""
    check_address(reply.address, "the address that was tried")
    _check_dialed(reply.results, most=MAX_DIAL_RESULTS)


def _check_dialed(results: Sequence[wire.DialResult], *, most: int) -> None:
    check_length(len(results), "tests of addresses", most=most)
    for result in results:
        if result.verdict not in DIAL_VERDICTS:
            raise Refused("kind", "the verdict on an address is not one of the known verdicts")
        check_text(result.why, "why an address was not reached", most=MAX_DIAL_TEXT)
        if result.name:
            check_name(result.name, "the name of a member")


def check_command(request: wire.CommandRequest) -> None:
    """An operator's command."""
    _check_envelope(request)
    what = request.WhichOneof("what")
    if what == "drain":
        check_name(request.drain, "the worker to drain")
    elif what == "remove":
        check_name(request.remove, "the worker to remove")
    elif what == "allow":
        check_name(request.allow, "the worker to allow")
    elif what is None or not request.stop:
        raise Refused("kind", "the command names no action")


def check_join_reply(reply: wire.JoinReply) -> None:
    """A worker's index in the run; the experiment is parsed later, by the worker."""
    check_run(reply.run, "the run")
    guard.check_leader(reply.epoch)
    _check_workers([reply.worker], "the reply", workers=limits.MAX_WORKERS)
    size = len(reply.experiment.encode())
    check_length(size, "bytes of the experiment", most=limits.EXPERIMENT_BYTES)
    if _NOT_TOML.search(reply.experiment):
        raise Refused("text", "the experiment has control characters")
    check_positive(reply.beat_seconds, "beat_seconds", most=MAX_BEAT_SECONDS)
    if len(reply.key) not in (0, DIGEST_BYTES):
        raise Refused("size", f"the key has {len(reply.key)} bytes, not {DIGEST_BYTES}")
    guard.check_line(reply.leaders, epoch=reply.epoch)
    _check_versions([reply.committed])
    check_length(len(reply.proof), "bytes of the proof", most=MAX_PROOF_BYTES)


def check_order(order: wire.Order, *, workers: int, worker: int) -> None:
    """An order of any kind to worker `worker`; the guard decides whether its epoch is followed."""
    guard.check_leader(order.epoch, order.token)
    if not order.HasField("committed"):
        raise Refused("missing", "the order names no committed model version")
    _check_versions([order.committed])
    if order.committed.epoch > order.epoch:
        raise Refused("future", "the committed model version is of a later epoch than the order")
    if order.HasField("receipt"):
        check_text(order.receipt.why, "why")
    if order.HasField("own"):
        _check_versions([order.own])
        if order.own.epoch > order.epoch or order.own.round > order.committed.round:
            raise Refused(
                "future", "the worker's own model version is later than the committed one"
            )
    _check_versions(order.keep)
    what = order.WhichOneof("what")
    if what == "work":
        _check_work(order.work, committed=order.committed.round, workers=workers, worker=worker)
    elif what == "act":
        _check_act(order.act, workers=workers, worker=worker)
    elif what == "catch_up":
        if not order.catch_up.peers:
            raise Refused("missing", "the order names no peer to catch up from")
        _check_peers(order.catch_up.peers, "catch_up", workers=workers, own=worker)
        check_length(len(order.catch_up.digests), "digests", most=workers)
        for digest in order.catch_up.digests:
            check_digest(digest, "the digest of a committed model")
        check_number(order.catch_up.compare, "the models to compare", most=workers)
    elif what == "survey":
        if not order.survey.peers:
            raise Refused("missing", "the order names no link to survey")
        _check_peers(order.survey.peers, "survey", workers=workers, own=worker)
        check_positive(order.survey.deadline, "deadline", most=WEEK_SECONDS)
    elif what == "wait":
        check_text(order.wait.why, "why")
    elif what == "finished":
        check_text(order.finished.why, "why")
    else:
        raise Refused("kind", "the order names no action")


def check_beat_reply(reply: wire.BeatReply, *, workers: int) -> None:
    """The current attempt, and the workers that nobody should wait for."""
    guard.check_leader(reply.epoch, reply.token)
    _check_workers(reply.gone, "gone", workers=workers)
    check_length(len(reply.barred), "barred", most=limits.MAX_WORKERS)
    for name in reply.barred:
        check_name(name, "a barred name")
    check_length(len(reply.readmitted), "readmitted", most=limits.MAX_WORKERS)
    check_length(len(reply.pardoned), "pardoned", most=limits.MAX_WORKERS)
    for name in (*reply.readmitted, *reply.pardoned):
        check_name(name, "a name that was let in again")
    check_length(len(reply.dial), "addresses to try", most=MAX_DIALS)
    for target in reply.dial:
        check_name(target.name, "a name to connect to")
        check_address(target.address, "an address to try")


def check_receipt(receipt: wire.Receipt) -> None:
    """Whether something was accepted."""
    check_text(receipt.why, "why")


def check_status_reply(reply: wire.StatusReply) -> None:
    """The state of the run, for a terminal."""
    check_run(reply.run, "the run")
    check_text(reply.why, "why")
    if reply.state not in RUN_STATES:
        raise Refused("kind", "the state of the run is not one of the known states")
    check_number(reply.clock, "clock", least=0.0)
    check_number(reply.round_seconds, "round_seconds", least=0.0, most=WEEK_SECONDS)
    check_length(len(reply.versions), "versions", most=MAX_LIBRARIES)
    for text in (*reply.versions.keys(), *reply.versions.values()):
        check_text(text, "a version", most=limits.NAME_LENGTH)
    check_length(len(reply.members), "members", most=limits.MAX_WORKERS)
    _check_workers(
        [member.worker for member in reply.members], "a member", workers=limits.MAX_WORKERS
    )
    for member in reply.members:
        check_name(member.name, "the name of a member")
        if member.address:
            check_address(member.address, "the address of a member")
        if member.status not in MEMBER_STATUSES:
            raise Refused("kind", "the status of a member is not one of the known statuses")
        check_text(member.phase, "the phase of a member")
        check_number(member.silent_seconds, "silent_seconds", least=0.0)
        check_number(member.step_time, "step_time", least=0.0, most=WEEK_SECONDS)
        check_number(member.accuracy, "accuracy", nan=True)
    check_length(len(reply.broken), "broken links", most=MAX_BROKEN_LINKS)
    for link in reply.broken:
        for end in (link.worker, link.peer):
            _check_workers([end], "a broken link", workers=limits.MAX_WORKERS)
        check_text(link.why, "why a link is broken", most=MAX_CAUSE)
    check_length(len(reply.expiring), "expiring certificates", most=MAX_EXPIRING)
    for certificate in reply.expiring:
        check_name(certificate.name, "the name in a certificate")
        check_number(certificate.seconds, "the seconds until a certificate expires")
    check_length(len(reply.warnings), "warnings", most=MAX_WARNINGS)
    for warning in reply.warnings:
        check_text(warning.key, "the key of a warning", most=limits.NAME_LENGTH)
        check_length(len(warning.members), "members of a warning", most=MAX_WARNING_MEMBERS)
        for name in warning.members:
            check_name(name, "a member of a warning")
        check_number(warning.value, "the value of a warning")
        check_text(warning.text, "a warning")


def check_pull(request: wire.PullRequest) -> None:
    """A peer asks for a model or probe bytes; whether it gets them is decided elsewhere."""
    _check_envelope(request)
    check_number(request.exchange, "the exchange", most=_UINT32_MAX)
    if request.wanted == wire.TRAINED:
        check_number(request.envelope.round, "the round", least=1, most=_UINT32_MAX)
        check_number(request.envelope.attempt, "the attempt", least=1, most=_UINT32_MAX)
    elif request.wanted == wire.COMMITTED:
        if not request.HasField("stand"):
            raise Refused("missing", "the request names no model version")
        _check_versions([request.stand])
    elif request.wanted == wire.PROBE:
        check_number(request.bytes, "the bytes of a probe", least=1, most=limits.PROBE_BYTES)
    else:
        raise Refused("kind", "the request does not say what it wants, or something unknown")
    check_number(request.patience, "patience", least=0.0, most=WEEK_SECONDS)
    check_digest(request.base, "the digest of the base")
    check_length(len(request.ticket), "bytes of the ticket", most=MAX_TICKET_BYTES)


def check_first_chunk(
    chunk: wire.Chunk,
    *,
    most: int = limits.MODEL_BYTES,
    encodings: Collection[str] = ENCODINGS,
) -> None:
    """The first chunk of a stream. most: the largest model that the receiver can use, bytes."""
    _check_envelope(chunk)
    check_number(chunk.total, "the bytes of the model", least=1, most=most)
    if chunk.encoding not in encodings:
        raise Refused("encoding", f"the encoding is not one of {', '.join(sorted(encodings))}")
    check_length(
        len(chunk.data), "bytes of a chunk", most=min(limits.MODEL_CHUNK_BYTES, chunk.total)
    )
    check_digest(chunk.digest, "the digest of the model")
    check_length(len(chunk.ticket), "bytes of the ticket", most=MAX_TICKET_BYTES)
    if chunk.digest and len(chunk.data) < chunk.total:
        raise Refused("digest", "a chunk has the digest but is not the last one")


def _check_envelope(request: Request) -> None:
    if not request.HasField("envelope"):
        raise Refused("missing", "the message has no envelope")


def _refuse_attempt(envelope: wire.Envelope, now: Attempt) -> None:
    pairs = (
        ("epoch", envelope.epoch, now.epoch),
        ("round", envelope.round, now.round_index),
        ("attempt", envelope.attempt, now.number),
    )
    for word, named, current in pairs:
        if named == current:
            continue
        # A later epoch means a later coordinator; within an epoch no worker is ahead of its orders.
        late = named < current or word == "epoch"
        raise Refused(
            word if late else "future", f"it is of {word} {named}, the current one is {current}"
        )


def _check_versions(versions: Sequence[wire.Stand]) -> None:
    check_length(len(versions), "model versions", most=limits.MODEL_VERSIONS)
    for version in versions:
        if version.round and not version.epoch:
            raise Refused("missing", f"a model version of round {version.round} names no epoch")
    if len({(one.epoch, one.round, one.attempt) for one in versions}) < len(versions):
        raise Refused("duplicate", "a model version is named twice")


def _check_workers(
    indices: Iterable[int],
    what: str,
    *,
    workers: int,
    own: int | None = None,
    asked: Collection[int] | None = None,
) -> None:
    """Indices of workers, each once; with own, not that of this worker itself."""
    seen: set[int] = set()
    for index in indices:
        if index >= workers:
            raise Refused("worker", f"{what} names worker {index}, but there are {workers} workers")
        if index == own:
            raise Refused("worker", f"{what} names worker {index}, which is this worker itself")
        if asked is not None and index not in asked:
            raise Refused("worker", f"{what} names worker {index}, which was not in the order")
        if index in seen:
            raise Refused("duplicate", f"{what} names worker {index} twice")
        seen.add(index)


def _check_peers(
    peers: Sequence[wire.PeerAddress], what: str, *, workers: int, own: int
) -> list[int]:
    check_length(len(peers), what, most=workers)
    indices = [peer.worker for peer in peers]
    _check_workers(indices, what, workers=workers, own=own)
    for peer in peers:
        _check_member(peer.name, peer.address, what)
        check_length(len(peer.ticket), f"bytes of a ticket in {what}", most=MAX_TICKET_BYTES)
    if len({peer.name for peer in peers}) < len(peers):
        raise Refused("duplicate", f"{what} has a name twice")
    return indices


@functools.lru_cache(maxsize=4096)
def _check_member(name: str, address: str, what: str) -> None:
    """A peer and where it can be called; every order names the same few."""
    check_name(name, f"a name in {what}")
    check_address(address, f"an address in {what}")


def _check_links(
    links: Sequence[wire.LinkReport],
    what: str,
    *,
    workers: int,
    own: int | None = None,
    asked: Collection[int] | None = None,
    most_bytes: int = limits.MODEL_BYTES,
) -> None:
    check_length(len(links), "links", most=limits.MAX_LINKS)
    for link in links:
        check_length(link.bytes, "bytes over a link", most=most_bytes)
        check_number(link.seconds, "the seconds of a link", least=0.0, most=WEEK_SECONDS)
        check_number(link.started, "the start of a link", least=0.0, most=WEEK_SECONDS)
        check_length(link.timed_bytes, "timed bytes of a link", most=link.bytes)
        check_number(link.timed_seconds, "timed seconds of a link", least=0.0, most=WEEK_SECONDS)
        most = LARGEST_MEASURE
        check_number(link.distance, "the distance of a link", least=0.0, most=most, nan=True)
        check_text(link.lost, "why a link was lost")
        check_number(link.lost_at, "the exchange that lost a link", most=_UINT32_MAX)
    _check_workers([link.worker for link in links], what, workers=workers, own=own, asked=asked)


def _check_work(work: wire.Work, *, committed: int, workers: int, worker: int) -> None:
    check_number(work.attempt, "the attempt", least=1, most=_UINT32_MAX)
    if work.round <= committed:
        raise Refused("order", f"round {work.round} is ordered, but round {committed} is committed")
    # Whose model others read has trained it: without a step there is no message.
    _check_training(work, least=1 if work.readers or work.HasField("group") else 0)
    check_positive(work.exchange_deadline, "exchange_deadline", most=WEEK_SECONDS)
    peers = _check_peers(work.peers, "peers", workers=workers, own=worker)
    if peers != sorted(peers):
        raise Refused("order", "the peers are not in ascending order of worker")
    _check_peers(work.readers, "readers", workers=workers, own=worker)
    probes = _check_peers(work.probes, "probes", workers=workers, own=worker)
    if not set(peers).isdisjoint(probes):
        raise Refused("duplicate", "a peer is named for the exchange and for a probe")
    if work.keep > len(peers):
        raise Refused("range", f"keep is {work.keep}, but there are {len(peers)} peers")
    if work.keep:
        check_number(work.samples, "the samples to score on", least=1, most=_UINT32_MAX)
    _check_weights(work)
    if work.exchanges:
        _check_exchanges(work, peers)
    if work.HasField("group"):
        if peers or work.readers:
            raise Refused("kind", "the order has a group average, and peers or readers")
        partners = _check_group(work.group, workers=workers, worker=worker)
        if not set(partners).isdisjoint(probes):
            raise Refused("duplicate", "a worker is named for the average and for a probe")


def _check_group(group: wire.GroupWork, *, workers: int, worker: int) -> list[int]:
    """A round with a group average; returns the workers with which this one exchanges sums."""
    check_number(group.fragments, "fragments", least=1, most=MAX_FRAGMENTS)
    check_number(group.fragment, "the fragment", most=group.fragments - 1)
    check_number(group.momentum, "momentum", least=0.0, most=1.0)
    check_number(group.rate, "the rate of the average", least=0.0, most=LARGEST_RATE)
    if group.compression not in GROUP_COMPRESSIONS:
        raise Refused("encoding", "the compression of the average is unknown")
    check_number(group.transfer_time, "transfer_time", least=0.0, most=WEEK_SECONDS)
    check_positive(group.train_time, "train_time", most=WEEK_SECONDS)
    check_number(group.members, "members of the group", most=workers)
    parents = [group.parent] if group.HasField("parent") else []
    above = _check_peers(parents, "parent", workers=workers, own=worker)
    below = _check_peers(group.children, "children", workers=workers, own=worker)
    if below != sorted(below):
        raise Refused("order", "the children are not in ascending order of worker")
    if not set(above).isdisjoint(below):
        raise Refused("duplicate", "a worker is above and below this one")
    if len(above) + len(below) > max(0, group.members - 1):
        raise Refused("range", f"a group of {group.members} has fewer partners than are named")
    if group.members > 1 and not above and not below:
        raise Refused("missing", "a member of a group has no partner")
    for norm in (*group.largest_sums, group.largest_mean):
        check_number(norm, "the largest norm of a sum", least=0.0)
    if len(group.largest_sums) != len(below):
        raise Refused("size", f"{len(group.largest_sums)} largest sums for {len(below)} children")
    if group.returning and (below or not above):
        raise Refused("kind", "a worker that returns has no children, and is not the root")
    _check_workers(group.returning_children, "returning", workers=workers, own=worker, asked=below)
    return above + below


def _check_act(act: wire.Act, *, workers: int, worker: int) -> None:
    check_number(act.round, "the round", least=1, most=_UINT32_MAX)
    _check_training(act, least=1)
    if act.HasField("partner"):
        _check_peers([act.partner], "partner", workers=workers, own=worker)


def _check_training(order: wire.Work | wire.Act, *, least: int) -> None:
    check_number(order.local_steps, "local_steps", least=least, most=MAX_LOCAL_STEPS)
    check_positive(order.learning_rate, "learning_rate")
    check_positive(order.deadline, "deadline", most=WEEK_SECONDS)


def _check_weights(work: wire.Work) -> None:
    expected = 0 if work.keep or work.exchanges else len(work.peers)
    if len(work.weights) != expected:
        raise Refused("weights", f"there are {len(work.weights)} weights, not {expected}")
    for weight in (*work.weights, work.own_weight):
        check_number(weight, "a weight", least=0.0, most=1.0 + WEIGHT_TOLERANCE)
    total = math.fsum((*work.weights, work.own_weight))
    if work.push_sum and (work.keep or work.exchanges or work.HasField("group")):
        raise Refused("weights", "push_sum needs weights, and there are none")
    if work.push_sum:
        check_positive(work.own_weight, "own_weight with push_sum", most=1.0 + WEIGHT_TOLERANCE)
    elif not (work.keep or work.exchanges) and abs(total - 1.0) > WEIGHT_TOLERANCE:
        raise Refused("weights", f"the weights sum to {total}, not to 1")


def _check_exchanges(work: wire.Work, peers: list[int]) -> None:
    """Several exchanges in a row: among the peers and readers of the order, with weights."""
    if work.keep or work.HasField("group"):
        raise Refused("kind", "the order has several exchanges, and a score or a group average")
    readers = [reader.worker for reader in work.readers]
    for mix in work.exchanges:
        for named, known in ((mix.peers, peers), (mix.readers, readers)):
            if list(named) != sorted(set(named) & set(known)):
                raise Refused("worker", "an exchange names other workers than its order, or twice")
        if len(mix.weights) != len(mix.peers):
            raise Refused("weights", f"{len(mix.weights)} weights for {len(mix.peers)} peers")
        for weight in (*mix.weights, mix.own_weight):
            check_number(weight, "a weight", least=0.0, most=1.0 + WEIGHT_TOLERANCE)
        total = math.fsum((*mix.weights, mix.own_weight))
        if abs(total - 1.0) > WEIGHT_TOLERANCE:
            raise Refused("weights", f"the weights of an exchange sum to {total}, not to 1")
        check_number(mix.times, "times", least=1, most=MAX_EXCHANGES)
    check_number(sum(mix.times for mix in work.exchanges), "exchanges", most=MAX_EXCHANGES)


def check_text(value: str, what: str, *, most: int = limits.TEXT_LENGTH) -> None:
    """A text for logs and terminals: bounded, one line, nothing that moves a cursor."""
    if len(value) > most:
        raise Refused("size", f"{what} has {len(value)} characters, at most {most} are allowed")
    if not value.isprintable():
        raise Refused("text", f"{what} has control characters: {quoted(value)}")


def one_line(text: str, *, most: int = limits.TEXT_LENGTH) -> str:
    """Any text as one that check_text accepts: one printable line of bounded length."""
    line = " ".join(printable(text).split())
    return line if len(line) <= most else line[: most - 3] + "..."


def check_name(value: str, what: str) -> None:
    """A worker's name: letters, digits, dot, dash and underscore."""
    if len(value) > (most := limits.NAME_LENGTH):
        raise Refused("size", f"{what} has {len(value)} characters, at most {most} are allowed")
    if not is_name(value):
        raise Refused("name", f"{what} is {quoted(value)}, which is not a valid name")


def check_run(value: str, what: str) -> None:
    """The identity of a run: 32 hex digits."""
    if not _RUN_ID.fullmatch(value):
        raise Refused("name", f"{what} is {quoted(value)}, not 32 hex digits")


def check_address(value: str, what: str) -> None:
    """HOST:PORT, with an IPv6 address in brackets; nothing else that gRPC would connect to."""
    if len(value) > (most := limits.ADDRESS_LENGTH):
        raise Refused("size", f"{what} has {len(value)} characters, at most {most} are allowed")
    found = split_host_port(value)
    if found is None or found.port <= 0 or not is_reachable(found.host):
        raise Refused(
            "address",
            f"{what} is {quoted(value)}, not HOST:PORT with a port from 1 to 65535 "
            "(IPv6: [ADDRESS]:PORT)",
        )


def check_number(
    value: float,
    what: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    nan: bool = False,
) -> None:
    """A finite number from least to most; NaN only where it may mean "not measured"."""
    if math.isnan(value):
        if not nan:
            raise Refused("nan", f"{what} is not a number")
    elif math.isinf(value):
        raise Refused("infinite", f"{what} is infinite")
    elif not least <= value <= most:
        raise Refused("range", f"{what} is {value}, not {least:.12g} to {most:.12g}")


def check_positive(value: float, what: str, *, most: float = math.inf) -> None:
    """A finite number above 0."""
    check_number(value, what, least=0.0, most=most)
    if value == 0:
        raise Refused("range", f"{what} is 0, not above 0")


def check_length(length: int, what: str, *, most: int) -> None:
    """A number of things or bytes, at most `most`."""
    if length > most:
        raise Refused("size", f"{what}: {length}, at most {most} are allowed")


def check_digest(value: bytes, what: str) -> None:
    """A SHA-256, or nothing."""
    if len(value) not in (0, DIGEST_BYTES):
        raise Refused("digest", f"{what} has {len(value)} bytes, not {DIGEST_BYTES}")
