"""Every message that comes from outside, field by field, before anything acts on it.

A function returns nothing or raises Refused with the word for that kind of fault. Whether a sender
may say something at all is guard.py's business. FIELDS has what holds of a field by itself; what
depends on other fields or on the receiver follows: of a coordinator first, then a worker, a peer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

from fedhp.cluster.protocol import guard, limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import is_name, is_reachable, split_host_port
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.codec import ENCODINGS
from fedhp.cluster.protocol.guard import Refused, quoted
from fedhp.cluster.protocol.setup import MAX_FACTS, MAX_PARTS, MAX_SCALED, SKETCH
from fedhp.columns import LARGEST_MEASURE, LONGEST_STEP, WORKER_COLUMNS
from fedhp.exchange.group import LARGEST_RATE
from fedhp.texts import printable

WEEK_SECONDS = 7 * 86_400.0  # longer than any round and any deadline
SHARE, ANY_METRIC = (0.0, 1.0), (-1e9, 1e9)  # of a test's result: least and most
MAX_LOCAL_STEPS = 1_000_000  # of one round
MAX_BEAT_SECONDS = 60.0
MAX_LIBRARIES = 50  # whose versions a coordinator may list
MAX_EXCHANGES = 100_000  # of one round
WEIGHT_TOLERANCE = 1e-6  # of the sum of a worker's mixing weights
DIGEST_BYTES = 32  # of SHA-256
NONCE_BYTES = 16  # of a join
MAX_PROOF_BYTES = 1 << 16  # of a signed reply: a certificate, and some digests
MAX_FRAGMENTS = 1024  # of a model, for group averages
MAX_DIALS = 4  # addresses that a member is asked to try with one heartbeat
MAX_DIAL_TEXT = 300  # characters of why an address was not reached
MAX_BROKEN_LINKS = 1_000  # that a status names
MAX_EXPIRING = 100  # certificates that a status names
MAX_WARNINGS = 100  # that a status has
MAX_WARNING_MEMBERS = 100  # that one of them names
MAX_CAUSE = 100  # characters of why a link is broken
MAX_SURVEYED = 64  # links that one worker may be asked to time before the first round
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_NOT_TOML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

Check: TypeAlias = Callable[[Any, str], None]  # of a value, and what it is in a refusal

# --- single values -----------------------------------------------------------------------------


def check_text(value: str, what: str, *, most: int = limits.TEXT_LENGTH) -> None:
    """A text for logs and terminals: bounded, one line, nothing that moves a cursor."""
    _check_length(len(value), f"characters of {what}", most=most)
    if not value.isprintable():
        raise Refused("text", f"{what} has control characters: {quoted(value)}")


def one_line(text: str, *, most: int = limits.TEXT_LENGTH) -> str:
    """Any text as one that check_text accepts: one printable line of bounded length."""
    line = " ".join(printable(text).split())
    return line if len(line) <= most else line[: most - 3] + "..."


@lru_cache(maxsize=4096)  # every order names the same few
def check_name(value: str, what: str) -> None:
    """A worker's name: letters, digits, dot, dash and underscore."""
    _check_length(len(value), f"characters of {what}", most=limits.NAME_LENGTH)
    if not is_name(value):
        raise Refused("name", f"{what} is {quoted(value)}, which is not a valid name")


def _check_run(value: str, what: str) -> None:
    """The identity of a run."""
    if not _RUN_ID.fullmatch(value):
        raise Refused("name", f"{what} is {quoted(value)}, not 32 hex digits")


@lru_cache(maxsize=4096)
def check_address(value: str, what: str) -> None:
    """HOST:PORT, with an IPv6 address in brackets; nothing else that gRPC would connect to."""
    _check_length(len(value), f"characters of {what}", most=limits.ADDRESS_LENGTH)
    found = split_host_port(value)
    if found is None or found.port <= 0 or not is_reachable(found.host):
        raise Refused(
            "address",
            f"{what} is {quoted(value)}, not HOST:PORT with a port from 1 to 65535 "
            "(IPv6: [ADDRESS]:PORT)",
        )


def _check_word(value: str, what: str, *, words: Collection[str], reason: str = "kind") -> None:
    if value not in words:
        raise Refused(reason, f"{what} is not one of {', '.join(sorted(words))}")


def check_number(
    value: float,
    what: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    nan: bool = False,
    positive: bool = False,
) -> None:
    """A finite number from least to most; NaN only where it may mean "not measured"."""
    if math.isnan(value):
        if not nan:
            raise Refused("nan", f"{what} is not a number")
    elif math.isinf(value):
        raise Refused("infinite", f"{what} is infinite")
    elif not least <= value <= most:
        raise Refused("range", f"{what} is {value}, not {least:.12g} to {most:.12g}")
    elif positive and value == 0:
        raise Refused("range", f"{what} is 0, not above 0")


def _check_length(length: int, what: str, *, most: int) -> None:
    """A number of things or bytes, at most `most`."""
    if length > most:
        raise Refused("size", f"{what}: {length}, at most {most} are allowed")


def _check_bytes(value: bytes, what: str, *, sizes: Collection[int], reason: str = "size") -> None:
    if len(value) not in sizes:
        raise Refused(reason, f"{what} has {len(value)} bytes, not {max(sizes)}")


def _check_each(values: Collection[Any], what: str, *, check: Check, most: int) -> None:
    _check_length(len(values), what, most=most)
    for value in values:
        check(value, what)


def _check_envelope(envelope: wire.Envelope, what: str) -> None:
    if not envelope.ByteSize():
        raise Refused("missing", "the message has no envelope")


def _check_version(version: wire.Stand, what: str) -> None:
    if version.round and not version.epoch:
        raise Refused("missing", f"{what}: a model version of round {version.round} has no epoch")


def _check_versions(versions: Sequence[wire.Stand], what: str) -> None:
    _check_each(versions, what, check=_check_version, most=limits.MODEL_VERSIONS)
    if len({(one.epoch, one.round, one.attempt) for one in versions}) < len(versions):
        raise Refused("duplicate", f"{what} names a model version twice")


def _check_if_given(value: str, what: str, *, check: Check) -> None:
    if value:
        check(value, what)


def _check_workers(
    indices: Iterable[int],
    what: str,
    *,
    workers: int = limits.MAX_WORKERS,
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


# --- what holds of a field by itself -----------------------------------------------------------


def check_fields(message: Any, what: str = "") -> None:
    """All fields of a message that have a check in FIELDS."""
    for name, named, check in _CHECKS[type(message)]:
        check(getattr(message, name), named)


def _list(check: Check, most: int) -> Check:
    return partial(_check_each, check=check, most=most)


_NOT_NEGATIVE = partial(check_number, least=0.0)
_SECONDS = partial(check_number, least=0.0, most=WEEK_SECONDS)
_DEADLINE = partial(check_number, least=0.0, most=WEEK_SECONDS, positive=True)
_STEP_TIME = partial(check_number, least=0.0, most=LONGEST_STEP)
_RATE = partial(check_number, least=0.0, positive=True)
_WEIGHT = partial(check_number, least=0.0, most=1.0 + WEIGHT_TOLERANCE)
_SAMPLES = partial(check_number, most=1_000_000_000)
_STEPS = partial(check_number, most=MAX_LOCAL_STEPS)
_FROM_1 = partial(check_number, least=1)
_MEASURE = partial(check_number, least=0.0, most=LARGEST_MEASURE)
_DIGEST = partial(_check_bytes, sizes=(0, DIGEST_BYTES), reason="digest")
_SHA256 = partial(_check_bytes, sizes=(DIGEST_BYTES,), reason="digest")
_TICKET = partial(_check_bytes, sizes=range(65))
_WORD = partial(check_text, most=limits.NAME_LENGTH)
_FACTS = partial(check_text, most=MAX_FACTS)
_NAMES = _list(check_name, limits.MAX_WORKERS)
_DIAL_VERDICTS = ("reached", "failed", "untested")
_RUN_STATES = ("starting", "gathering", "running", "paused", "finished")
_STATUSES = (
    *("ready", "behind", "suspect", "dead", "left", "draining"),
    *("quarantined", "suspended", "removed"),
)

# By message, then by fields; those that are not named can have any value.
FIELDS: Mapping[type[Any], Mapping[str, Check]] = {
    wire.JoinRequest: {
        "envelope": _check_envelope,
        "address": check_address,
        "fedhp": _WORD,
        "step_time": _STEP_TIME,
        "samples": _SAMPLES,
        "stands": _check_versions,
        "nonce": partial(_check_bytes, sizes=(NONCE_BYTES,)),
        "setup": check_fields,
    },
    wire.Setup: {
        "parts": _list(check_fields, MAX_PARTS),
        "mean deviation": _list(check_number, MAX_SCALED),
    },
    wire.SetupPart: {
        "name facts": _FACTS,
        "digest": _SHA256,
        "sketch": _list(check_number, SKETCH),
    },
    wire.NextRequest: {
        "envelope": _check_envelope,
        "step_time": _STEP_TIME,
        "samples": _SAMPLES,
        "model_bytes": partial(check_number, most=limits.MODEL_BYTES),
        "stands": _check_versions,
        "setup": check_fields,
        "surveyed": _list(check_fields, MAX_SURVEYED),
    },
    wire.LinkReport: {
        "seconds started timed_seconds": _SECONDS,
        "distance": partial(_MEASURE, nan=True),
        "lost": check_text,
    },
    wire.RoundReport: {
        "links": _list(check_fields, limits.MAX_LINKS),
        "failed": check_text,
        "compute_seconds exchange_seconds other_seconds": _SECONDS,
        "start_loss": partial(_MEASURE, least=-LARGEST_MEASURE, nan=True),
        "steps": _STEPS,
        "consensus result whole digest": _DIGEST,
        "change_norms": _list(_MEASURE, MAX_FRAGMENTS),
        "images": _SAMPLES,
    },
    wire.BeatRequest: {
        "envelope": _check_envelope,
        "phase": check_text,
        "dialed": _list(check_fields, MAX_DIALS),
    },
    wire.DialResult: {
        "verdict": partial(_check_word, words=_DIAL_VERDICTS),
        "why": partial(check_text, most=MAX_DIAL_TEXT),
        "name": partial(_check_if_given, check=check_name),
    },
    wire.LeaveRequest: {"envelope": _check_envelope, "why": check_text},
    wire.StatusRequest: {"envelope": _check_envelope},
    wire.DialBackRequest: {"envelope": _check_envelope, "address": check_address},
    wire.DialBackReply: {"address": check_address, "results": _list(check_fields, 64)},
    wire.JoinReply: {
        "run": _check_run,
        "beat_seconds": partial(_RATE, most=MAX_BEAT_SECONDS),
        "key": partial(_check_bytes, sizes=(0, DIGEST_BYTES)),
        "committed": _check_version,
        "proof": partial(_check_bytes, sizes=range(MAX_PROOF_BYTES + 1)),
    },
    wire.Order: {"committed own": _check_version, "keep": _check_versions, "receipt": check_fields},
    wire.Receipt: {"why": check_text},
    wire.Wait: {"why": check_text},
    wire.Finished: {"why": check_text},
    wire.PeerAddress: {"name": check_name, "address": check_address, "ticket": _TICKET},
    wire.CatchUp: {"digests": _list(_DIGEST, limits.MAX_WORKERS)},
    wire.Survey: {"deadline": _DEADLINE},
    wire.Work: {
        "attempt": _FROM_1,
        "local_steps": _STEPS,
        "learning_rate": _RATE,
        "deadline exchange_deadline": _DEADLINE,
    },
    wire.MixWork: {"times": partial(check_number, least=1, most=MAX_EXCHANGES)},
    wire.GroupWork: {
        "fragments": partial(check_number, least=1, most=MAX_FRAGMENTS),
        "momentum": partial(check_number, least=0.0, most=1.0),
        "rate": partial(check_number, least=0.0, most=LARGEST_RATE),
        "compression": partial(_check_word, words=("int8", "none"), reason="encoding"),
        "transfer_time": _SECONDS,
        "train_time": _DEADLINE,
        "largest_sums": _list(_NOT_NEGATIVE, limits.MAX_WORKERS),
        "largest_mean": _NOT_NEGATIVE,
    },
    wire.Act: {
        "round": _FROM_1,
        "local_steps": partial(_STEPS, least=1),
        "learning_rate": _RATE,
        "deadline": _DEADLINE,
    },
    wire.BeatReply: {
        "barred readmitted pardoned": _NAMES,
        "dial": _list(check_fields, MAX_DIALS),
    },
    wire.DialTarget: {"name": check_name, "address": check_address},
    wire.StatusReply: {
        "run": _check_run,
        "why": check_text,
        "state": partial(_check_word, words=_RUN_STATES),
        "clock": _NOT_NEGATIVE,
        "round_seconds": _SECONDS,
        "versions": _list(_WORD, MAX_LIBRARIES),
        "members": _list(check_fields, limits.MAX_WORKERS),
        "broken": _list(check_fields, MAX_BROKEN_LINKS),
        "expiring": _list(check_fields, MAX_EXPIRING),
        "warnings": _list(check_fields, MAX_WARNINGS),
    },
    wire.MemberStatus: {
        "name": check_name,
        "address": partial(_check_if_given, check=check_address),
        "status": partial(_check_word, words=_STATUSES),
        "phase": check_text,
        "silent_seconds": _NOT_NEGATIVE,
        "step_time": _SECONDS,
        "accuracy": partial(check_number, nan=True),
    },
    wire.BrokenLink: {"why": partial(check_text, most=MAX_CAUSE)},
    wire.ExpiringCertificate: {"name": check_name, "seconds": check_number},
    wire.Warning: {
        "key": _WORD,
        "members": _list(check_name, MAX_WARNING_MEMBERS),
        "value": check_number,
        "text": check_text,
    },
    wire.PullRequest: {
        "envelope": _check_envelope,
        "patience": _SECONDS,
        "base": _DIGEST,
        "ticket": _TICKET,
    },
    wire.Chunk: {"envelope": _check_envelope, "digest": _DIGEST, "ticket": _TICKET},
}
_CHECKS = {
    kind: [
        (name, f"{name} of {kind.DESCRIPTOR.name}", check)
        for names, check in checks.items()
        for name in names.split()
    ]
    for kind, checks in FIELDS.items()
}

# --- whole messages ----------------------------------------------------------------------------


def check_next(request: wire.NextRequest) -> None:
    """A worker asks for its next order."""
    check_fields(request)
    _check_links(request.surveyed, "surveyed")


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
    _check_envelope(report.envelope, "")
    if Attempt.from_wire(report.envelope) != attempt:
        _refuse_attempt(report.envelope, attempt)
    check_fields(report)
    _check_links(report.links, "a link", most_bytes, workers=workers, own=worker, asked=asked)
    _check_measures(report)
    check_number(report.steps_during, "the steps during the transfer", most=report.steps)
    for name in ("accuracy", "whole_accuracy"):
        check_number(getattr(report, name), name, least=metric[0], most=metric[1], nan=True)
    _check_workers(report.selected, "selected", workers=workers, own=worker, asked=asked)


def _check_measures(report: wire.RoundReport) -> None:
    """The columns of the record that a worker measures itself."""
    added = {column.name for column in WORKER_COLUMNS if column.added and column.reported}
    if unknown := sorted(set(report.measures) - added):
        raise Refused("kind", f"{quoted(unknown[0])} is not a column of the record")
    for column in WORKER_COLUMNS:
        name, bounds = column.name, column.reported
        if bounds is None or (column.added and name not in report.measures):
            continue
        value = float(report.measures[name] if column.added else getattr(report, name))
        check_number(
            value,
            name,
            least=bounds.least,
            most=bounds.most,
            nan=bounds.unmeasured,
            positive=bounds.positive,
        )


def check_command(request: wire.CommandRequest) -> None:
    """An operator's command."""
    _check_envelope(request.envelope, "")
    what = request.WhichOneof("what")
    if what in ("drain", "remove", "allow"):
        check_name(getattr(request, what), f"the worker to {what}")
    elif not request.stop:
        raise Refused("kind", "the command names no action")


def check_join_reply(reply: wire.JoinReply) -> None:
    """A worker's index in the run; the experiment is parsed later, by the worker."""
    guard.check_leader(reply.epoch)
    check_fields(reply)
    guard.check_line(reply.leaders, epoch=reply.epoch)
    _check_workers([reply.worker], "the reply")
    size = len(reply.experiment.encode())
    _check_length(size, "bytes of the experiment", most=limits.EXPERIMENT_BYTES)
    if _NOT_TOML.search(reply.experiment):
        raise Refused("text", "the experiment has control characters")


def check_order(order: wire.Order, *, workers: int, worker: int) -> None:
    """An order of any kind to worker `worker`; the guard decides whether its epoch is followed."""
    guard.check_leader(order.epoch, order.token)
    if not order.HasField("committed"):
        raise Refused("missing", "the order names no committed model version")
    check_fields(order)
    if order.committed.epoch > order.epoch:
        raise Refused("future", "the committed model version is of a later epoch than the order")
    if order.own.epoch > order.epoch or order.own.round > order.committed.round:
        raise Refused("future", "the worker's own model version is later than the committed one")
    what = order.WhichOneof("what")
    if what is None:
        raise Refused("kind", "the order names no action")
    check_fields(getattr(order, what))
    if what == "work":
        _check_work(order.work, committed=order.committed.round, workers=workers, worker=worker)
    elif what == "act":
        partners = [order.act.partner] if order.act.HasField("partner") else []
        _check_peers(partners, "partner", workers=workers, own=worker)
    elif what in ("catch_up", "survey"):
        peers = getattr(order, what).peers
        if not peers:
            raise Refused("missing", f"{what} names no peer")
        _check_peers(peers, what, workers=workers, own=worker)
        _check_length(len(order.catch_up.digests), "digests", most=workers)
        check_number(order.catch_up.compare, "the models to compare", most=workers)


def check_beat_reply(reply: wire.BeatReply, *, workers: int) -> None:
    """The current attempt, and the workers that nobody should wait for."""
    guard.check_leader(reply.epoch, reply.token)
    check_fields(reply)
    _check_workers(reply.gone, "gone", workers=workers)


def check_status_reply(reply: wire.StatusReply) -> None:
    """The state of the run, for a terminal."""
    check_fields(reply)
    for version in reply.versions.values():
        _WORD(version, "a version")
    _check_workers([member.worker for member in reply.members], "a member")
    for link in reply.broken:
        for end in (link.worker, link.peer):
            _check_workers([end], "a broken link")


def check_pull(request: wire.PullRequest) -> None:
    """A peer asks for a model or probe bytes; whether it gets them is decided elsewhere."""
    check_fields(request)
    if request.wanted == wire.TRAINED:
        _FROM_1(request.envelope.round, "the round")
        _FROM_1(request.envelope.attempt, "the attempt")
    elif request.wanted == wire.COMMITTED:
        if not request.HasField("stand"):
            raise Refused("missing", "the request names no model version")
        _check_version(request.stand, "the request")
    elif request.wanted == wire.PROBE:
        check_number(request.bytes, "the bytes of a probe", least=1, most=limits.PROBE_BYTES)
    else:
        raise Refused("kind", "the request does not say what it wants, or something unknown")


def check_first_chunk(
    chunk: wire.Chunk,
    *,
    most: int = limits.MODEL_BYTES,
    encodings: Collection[str] = ENCODINGS,
) -> None:
    """The first chunk of a stream. most: the largest model that the receiver can use, bytes."""
    check_fields(chunk)
    check_number(chunk.total, "the bytes of the model", least=1, most=most)
    _check_word(chunk.encoding, "the encoding", words=encodings, reason="encoding")
    most = min(limits.MODEL_CHUNK_BYTES, chunk.total)
    _check_length(len(chunk.data), "bytes of a chunk", most=most)
    if chunk.digest and len(chunk.data) < chunk.total:
        raise Refused("digest", "a chunk has the digest but is not the last one")


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


def _check_links(
    links: Sequence[wire.LinkReport], what: str, most: int = limits.MODEL_BYTES, **known: Any
) -> None:
    """To whom they are, and that no more bytes went over one than can have."""
    for link in links:
        _check_length(link.bytes, "bytes over a link", most=most)
        _check_length(link.timed_bytes, "timed bytes of a link", most=link.bytes)
    _check_workers([link.worker for link in links], what, **known)


def _check_peers(
    peers: Sequence[wire.PeerAddress], what: str, *, workers: int, own: int
) -> list[int]:
    """Peers that an order names; returns their indices."""
    _check_each(peers, what, check=check_fields, most=workers)
    indices = [peer.worker for peer in peers]
    _check_workers(indices, what, workers=workers, own=own)
    if len({peer.name for peer in peers}) < len(peers):
        raise Refused("duplicate", f"{what} has a name twice")
    return indices


def _check_work(work: wire.Work, *, committed: int, workers: int, worker: int) -> None:
    if work.round <= committed:
        raise Refused("order", f"round {work.round} is ordered, but round {committed} is committed")
    # Whose model others read has trained it: without a step there is no message.
    if not work.local_steps and (work.readers or work.HasField("group")):
        raise Refused("range", "local_steps is 0, and others read the model")
    peers, _, probes = (
        _check_peers(getattr(work, name), name, workers=workers, own=worker)
        for name in ("peers", "readers", "probes")
    )
    if peers != sorted(peers):
        raise Refused("order", "the peers are not in ascending order of worker")
    if not set(peers).isdisjoint(probes):
        raise Refused("duplicate", "a peer is named for the exchange and for a probe")
    if work.keep > len(peers):
        raise Refused("range", f"keep is {work.keep}, but there are {len(peers)} peers")
    if work.keep:
        _FROM_1(work.samples, "the samples to score on")
    if work.exchanges:
        _check_exchanges(work, peers)
    unweighted = bool(work.keep or work.exchanges)
    if work.push_sum and (unweighted or work.HasField("group")):
        raise Refused("weights", "push_sum needs weights, and there are none")
    if work.push_sum:
        _RATE(work.own_weight, "own_weight with push_sum")
    _check_weights(work, 0 if unweighted else len(peers), any_sum=work.push_sum or unweighted)
    if work.HasField("group"):
        if peers or work.readers:
            raise Refused("kind", "the order has a group average, and peers or readers")
        check_fields(work.group)
        partners = _check_group(work.group, workers=workers, worker=worker)
        if not set(partners).isdisjoint(probes):
            raise Refused("duplicate", "a worker is named for the average and for a probe")


def _check_group(group: wire.GroupWork, *, workers: int, worker: int) -> list[int]:
    """A round with a group average; returns the workers with which this one exchanges sums."""
    check_number(group.fragment, "the fragment", most=group.fragments - 1)
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
    if len(group.largest_sums) != len(below):
        raise Refused("size", f"{len(group.largest_sums)} largest sums for {len(below)} children")
    if group.returning and (below or not above):
        raise Refused("kind", "a worker that returns has no children, and is not the root")
    _check_workers(group.returning_children, "returning", workers=workers, own=worker, asked=below)
    return above + below


def _check_weights(mix: wire.Work | wire.MixWork, peers: int, *, any_sum: bool = False) -> None:
    """A weight for each peer; they and the own one sum to 1."""
    if len(mix.weights) != peers:
        raise Refused("weights", f"there are {len(mix.weights)} weights, not {peers}")
    weights = (*mix.weights, mix.own_weight)
    for weight in weights:
        _WEIGHT(weight, "a weight")
    if not any_sum and abs(math.fsum(weights) - 1.0) > WEIGHT_TOLERANCE:
        raise Refused("weights", f"the weights sum to {math.fsum(weights)}, not to 1")


def _check_exchanges(work: wire.Work, peers: list[int]) -> None:
    """Several exchanges in a row: among the peers and readers of the order, with weights."""
    if work.keep or work.HasField("group"):
        raise Refused("kind", "the order has several exchanges, and a score or a group average")
    readers = [reader.worker for reader in work.readers]
    for mix in work.exchanges:
        for named, known in ((mix.peers, peers), (mix.readers, readers)):
            if list(named) != sorted(set(named) & set(known)):
                raise Refused("worker", "an exchange names other workers than its order, or twice")
        _check_weights(mix, len(mix.peers))
        check_fields(mix)
    check_number(sum(mix.times for mix in work.exchanges), "exchanges", most=MAX_EXCHANGES)
