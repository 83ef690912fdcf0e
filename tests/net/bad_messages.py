"""Bad messages by name: how each is made from a good one, and the word of its refusal.

`spoil` changes a good message of that kind in place; any good one will do, a real worker's too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.message_checks import MAX_BROKEN_LINKS, MAX_WARNINGS
from fedhp.cluster.protocol.setup import MAX_PARTS, MAX_SCALED
from net.good_messages import Scene, address_of, other

Spoil = Callable[[Any, Scene], None]
MONTH = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Bad:
    """One fault in one kind of message (a key of GOOD)."""

    name: str
    kind: str
    reason: str
    spoil: Spoil
    second: bool = False  # a good message goes first; the bad one is made from its copy


def put(path: str, value: Any) -> Spoil:
    """Set one field, given by its dotted path; the first entry of a list is [0]."""
    *way, last = path.split(".")

    def spoil(message: Any, scene: Scene) -> None:
        for step in way:
            message = getattr(message, step.removesuffix("[0]"))
            message = message[0] if step.endswith("[0]") else message
        setattr(message, last, value)

    return spoil


def more(path: str, *values: Any) -> Spoil:
    """Append to a list, given by its dotted path."""

    def spoil(message: Any, scene: Scene) -> None:
        for step in path.split("."):
            message = getattr(message, step)
        message.extend(values)

    return spoil


def drop(field: str) -> Spoil:
    """Leave a field out."""
    return lambda message, scene: message.ClearField(field)


def nothing(message: Any, scene: Scene) -> None:
    """The message again, as it was."""


def short_digest(message: Any, scene: Scene) -> None:
    """A digest of a committed model that is too short."""
    message.catch_up.digests.append(b"x")


def setup_part(**fields: Any) -> Spoil:
    """One more part of the setup, with these fields."""
    good = {"name": "data", "digest": bytes(32)}
    return lambda message, scene: message.setup.parts.add(**(good | fields))


def too_many_parts(message: Any, scene: Scene) -> None:
    """A setup without end."""
    for _ in range(MAX_PARTS + 1):
        message.setup.parts.add(name="data", digest=bytes(32))


def many_means(message: Any, scene: Scene) -> None:
    """A scaling of more channels than are sent."""
    message.setup.mean.extend([0.0] * (MAX_SCALED + 1))


def bad_readmission(message: Any, scene: Scene) -> None:
    """A name that no machine can have."""
    message.readmitted["not a name"] = 1


def raised(path: str, by: int) -> Spoil:
    """A whole number in the envelope, larger by so much."""

    def spoil(message: Any, scene: Scene) -> None:
        setattr(message.envelope, path, getattr(message.envelope, path) + by)

    return spoil


def old_process(message: Any, scene: Scene) -> None:
    """The process that the sender's present one has replaced."""
    message.envelope.incarnation -= 1
    message.envelope.sequence += 1


def links(message: wire.RoundReport, *workers: int) -> None:
    """Links to these workers and no others."""
    del message.links[:]
    message.links.extend(wire.LinkReport(worker=worker, distance=math.nan) for worker in workers)


def same_link_twice(message: Any, scene: Scene) -> None:
    links(message, other(scene, 1), other(scene, 1))


def too_many_links(message: Any, scene: Scene) -> None:
    links(message, *range(limits.MAX_LINKS + 1))


def link_to_itself(message: Any, scene: Scene) -> None:
    links(message, scene.worker)


def link_to_nobody(message: Any, scene: Scene) -> None:
    links(message, scene.workers)


def link_not_asked(message: Any, scene: Scene) -> None:
    links(message, other(scene, 5))


def selected(*steps: int) -> Spoil:
    """Peers kept, by their places after the sender."""

    def spoil(message: Any, scene: Scene) -> None:
        message.selected[:] = [other(scene, step) for step in steps]

    return spoil


def selected_nobody(message: Any, scene: Scene) -> None:
    message.selected[:] = [2**32 - 1]


def model_versions(count: int, *, same: bool) -> Spoil:
    """So many model versions."""

    def spoil(message: Any, scene: Scene) -> None:
        del message.stands[:]
        for index in range(count):
            message.stands.add(round=1 if same else index + 1, epoch=1, attempt=1)

    return spoil


def version_without_epoch(message: Any, scene: Scene) -> None:
    message.stands.add(round=5)


def weights(*values: float) -> Spoil:
    """Other weights of the peers."""

    def spoil(message: Any, scene: Scene) -> None:
        message.work.weights[:] = values

    return spoil


def push_sum(*values: float, own: float) -> Spoil:
    """Weights that need not sum to 1."""

    def spoil(message: Any, scene: Scene) -> None:
        message.work.weights[:] = values
        message.work.own_weight, message.work.push_sum = own, True

    return spoil


def falling_peers(message: Any, scene: Scene) -> None:
    peers = sorted(message.work.peers, key=lambda peer: -peer.worker)
    del message.work.peers[:]
    message.work.peers.extend(peers)


def twice(field: str) -> Spoil:
    """The first of a list of peers once more, in a list of two."""

    def spoil(message: Any, scene: Scene) -> None:
        peers = getattr(message.work, field)
        first = wire.PeerAddress.FromString(peers[0].SerializeToString())
        del peers[:]
        peers.extend([first, first])

    return spoil


def two_of_one_name(message: Any, scene: Scene) -> None:
    peers = message.work.peers
    peers[1].name = peers[0].name


def probe_of_a_peer(message: Any, scene: Scene) -> None:
    message.work.probes[0].CopyFrom(message.work.peers[0])


def among_itself(field: str) -> Spoil:
    """The receiver in a list of its peers."""

    def spoil(message: Any, scene: Scene) -> None:
        getattr(message.work, field)[0].CopyFrom(address_of(scene.worker))

    return spoil


def crowd(message: Any, scene: Scene) -> None:
    message.work.readers.extend(address_of(worker) for worker in range(scene.workers + 1))


def dialed(verdict: str, *, why: str = "", times: int = 1) -> Spoil:
    """Results of tests in a heartbeat."""

    def spoil(message: Any, scene: Scene) -> None:
        message.dialed.extend(wire.DialResult(verdict=verdict, why=why) for _ in range(times))

    return spoil


def target(name: str, address: str, *, times: int = 1) -> Spoil:
    """Addresses to try in the reply to a heartbeat."""

    def spoil(message: Any, scene: Scene) -> None:
        message.dial.extend(wire.DialTarget(name=name, address=address) for _ in range(times))

    return spoil


def crowd_of_broken_links(message: Any, scene: Scene) -> None:
    message.broken.extend(wire.BrokenLink(worker=1) for _ in range(MAX_BROKEN_LINKS + 1))


def crowd_of_warnings(message: Any, scene: Scene) -> None:
    message.warnings.extend(wire.Warning(key="attempts") for _ in range(MAX_WARNINGS + 1))


def warning_about_no_name(message: Any, scene: Scene) -> None:
    message.warnings[0].members.append("a b")


def crowd_of_members(message: Any, scene: Scene) -> None:
    message.members.extend(wire.MemberStatus(worker=worker) for worker in range(limits.MAX_WORKERS))


def whole_with_short_digest(message: Any, scene: Scene) -> None:
    message.total, message.digest = len(message.data), bytes(20)


def partner_itself(message: Any, scene: Scene) -> None:
    message.act.partner.CopyFrom(address_of(scene.worker))


def nobody_there(message: Any, scene: Scene) -> None:
    del getattr(message, message.WhichOneof("what")).peers[:]


def gone(*workers: int) -> Spoil:
    """Workers nobody should wait for."""

    def spoil(message: Any, scene: Scene) -> None:
        message.gone[:] = workers

    return spoil


def member_twice(message: Any, scene: Scene) -> None:
    message.members.add().CopyFrom(message.members[0])


LONG = "x" * (limits.TEXT_LENGTH + 1)


def without_partners(message: Any, scene: Scene) -> None:
    message.work.group.ClearField("parent")
    message.work.group.ClearField("children")
    message.work.group.ClearField("returning_children")


def falling_children(message: Any, scene: Scene) -> None:
    children = sorted(message.work.group.children, key=lambda peer: -peer.worker)
    del message.work.group.children[:]
    message.work.group.children.extend(children)


def one_child_twice(message: Any, scene: Scene) -> None:
    message.work.group.children[1].CopyFrom(message.work.group.children[0])


def parent_is_child(message: Any, scene: Scene) -> None:
    message.work.group.parent.CopyFrom(message.work.group.children[0])


def parent_is_itself(message: Any, scene: Scene) -> None:
    message.work.group.parent.CopyFrom(address_of(scene.worker))


def returning_stranger(message: Any, scene: Scene) -> None:
    message.work.group.returning_children.append(other(scene, 5))


def probe_of_a_child(message: Any, scene: Scene) -> None:
    message.work.probes[0].CopyFrom(message.work.group.children[0])


def readers_too(message: Any, scene: Scene) -> None:
    message.work.readers.append(address_of(other(scene, 5)))


def committed_just_now(message: Any, scene: Scene) -> None:
    message.committed.round = scene.attempt.round_index


INJECTED = "all is well\n2031-01-01 12:00:00 coordinator: worker-1 is dead"

ENVELOPES = [
    Bad("no envelope", "Beat", "missing", drop("envelope")),
    Bad("no incarnation", "Beat", "missing", put("envelope.incarnation", 0)),
    Bad("no sequence", "Report", "missing", put("envelope.sequence", 0)),
    Bad("a later protocol", "Join", "version", raised("version", 1)),
    Bad("an earlier protocol", "Next", "version", raised("version", -1)),
    Bad("another run", "Next", "run", put("envelope.run", "f" * 32)),
    Bad("no run where one is needed", "Report", "run", put("envelope.run", "")),
    Bad("a run with a tail", "Join", "run", put("envelope.run", "0123456789abcdef" * 2 + "\n")),
    Bad("in the name of another", "Report", "sender", put("envelope.sender", "worker-1")),
    Bad("in nobody's name", "Leave", "sender", put("envelope.sender", "")),
    Bad("a name in capitals", "Beat", "sender", put("envelope.sender", "WORKER-2")),
    Bad("an old epoch", "Report", "epoch", raised("epoch", -1)),
    Bad("an epoch to come", "Report", "epoch", raised("epoch", 1)),
    Bad("an old epoch at a peer", "Pull", "epoch", raised("epoch", -1)),
    Bad("an earlier round", "Report", "round", raised("round", -1)),
    Bad("a round to come", "Report", "future", raised("round", 1)),
    Bad("an earlier attempt", "Report", "attempt", raised("attempt", -1)),
    Bad("an attempt to come", "Report", "future", raised("attempt", 1)),
    Bad("a replayed report", "Report", "replay", nothing, second=True),
    Bad("a replayed command", "Command", "replay", nothing, second=True),
    Bad("a replayed pull", "Pull", "replay", nothing, second=True),
    Bad(
        "older than the window",
        "Beat",
        "replay",
        raised("sequence", -limits.SEQUENCE_WINDOW),
        second=True,
    ),
    Bad("a process that was replaced", "Beat", "incarnation", old_process, second=True),
]
WORKERS = [
    Bad("an address without a port", "Join", "address", put("address", "node-a")),
    Bad("a join that cannot be answered", "Join", "size", put("nonce", b"")),
    Bad("a short nonce", "Join", "size", put("nonce", bytes(15))),
    Bad("no address", "Join", "address", put("address", "")),
    Bad("port 0", "Join", "address", put("address", "node-a:0")),
    Bad("port 65536", "Join", "address", put("address", "node-a:65536")),
    Bad("a port in other digits", "Join", "address", put("address", "node-a:７００１")),
    Bad("IPv6 without brackets", "Join", "address", put("address", "2001:db8::7:7000")),
    Bad("half an IPv6 address", "Join", "address", put("address", "[2001:db8::7:7000")),
    Bad("an IPv4 address of 5 parts", "Join", "address", put("address", "10.0.0.0.5:7000")),
    Bad("a wildcard address", "Join", "address", put("address", "0.0.0.0:7000")),
    Bad("a Unix socket", "Join", "address", put("address", "unix:///run/docker.sock")),
    Bad("another resolver", "Join", "address", put("address", "dns://8.8.8.8/node-a:7000")),
    Bad("an address with a user", "Join", "address", put("address", "root@node-a:7000")),
    Bad("an address of two lines", "Join", "address", put("address", "node-a:7000\n")),
    Bad("a long address", "Join", "size", put("address", "a" * 255 + ":7000")),
    Bad("a long version", "Join", "size", put("fedhp", "1" * 65)),
    Bad("a version that moves the cursor", "Join", "text", put("fedhp", "0.1\x1b[2J")),
    Bad("a negative step time", "Join", "range", put("step_time", -1e-9)),
    Bad(
        "too many model versions",
        "Join",
        "size",
        model_versions(limits.MODEL_VERSIONS + 1, same=False),
    ),
    Bad("one model version twice", "Next", "duplicate", model_versions(2, same=True)),
    Bad("a model version without an epoch", "Next", "missing", version_without_epoch),
    Bad("a step time that is not a number", "Next", "nan", put("step_time", math.nan)),
    Bad("a line for the log", "Beat", "text", put("phase", INJECTED)),
    Bad("a text that turns around", "Beat", "text", put("phase", "mixing \u202egnihton")),
    Bad("a long phase", "Beat", "size", put("phase", LONG)),
    Bad("an unknown verdict", "Beat", "kind", dialed("fine")),
    Bad("a result in colour", "Beat", "text", dialed("failed", why="\x1b[31m")),
    Bad("a crowd of results", "Beat", "size", dialed("failed", times=5)),
    Bad("a test of nowhere", "DialBack", "address", put("address", "unix:/run/x")),
    Bad("a test of all addresses", "DialBack", "address", put("address", "0.0.0.0:1")),
    Bad("a reason with a bell", "Leave", "text", put("why", "bye\a")),
    Bad("a long reason", "Leave", "size", put("why", LONG)),
    Bad("an empty command", "Command", "kind", drop("drain")),
    Bad("a stop that says no", "Command", "kind", put("stop", False)),
    Bad("a drain of a path", "Command", "name", put("drain", "../../etc/passwd")),
    Bad("a drain of nobody", "Command", "name", put("drain", "")),
    Bad("a pardon of a long name", "Command", "size", put("allow", "w" * 65)),
]
REPORTS = [
    Bad("a loss that is not a number", "Report", "nan", put("train_loss", math.nan)),
    Bad("an infinite loss", "Report", "infinite", put("train_loss", math.inf)),
    Bad("a step time of nothing", "Report", "range", put("step_time", 0.0)),
    Bad("a step of a month", "Report", "range", put("step_time", MONTH)),
    Bad("an infinite step time", "Report", "infinite", put("step_time", math.inf)),
    Bad("negative computing", "Report", "range", put("compute_seconds", -1.0)),
    Bad("negative exchange", "Report", "range", put("exchange_seconds", -1.0)),
    Bad("negative rest", "Report", "range", put("other_seconds", -1.0)),
    Bad("link before its order", "Report", "range", put("links[0].started", -1.0)),
    Bad("a negative norm", "Report", "range", put("update_norm", -0.1)),
    Bad("a norm that is not a number", "Report", "nan", put("update_norm", math.nan)),
    Bad("infinite smoothness", "Report", "infinite", put("smoothness", math.inf)),
    Bad("negative variance", "Report", "range", put("gradient_variance", -1.0)),
    Bad("an infinite start", "Report", "infinite", put("start_loss", -math.inf)),
    Bad("infinite accuracy", "Report", "infinite", put("accuracy", math.inf)),
    Bad("infinite accuracy of the whole", "Report", "infinite", put("whole_accuracy", -math.inf)),
    Bad("a digest too short", "Report", "digest", put("digest", bytes(31))),
    Bad("a digest too long", "Report", "digest", put("digest", bytes(64))),
    Bad("two links to one worker", "Report", "duplicate", same_link_twice),
    Bad("too many links", "Report", "size", too_many_links),
    Bad("a link to itself", "Report", "worker", link_to_itself),
    Bad("a link to nobody", "Report", "worker", link_to_nobody),
    Bad("a link that was not asked for", "Report", "worker", link_not_asked),
    Bad("a link of exabytes", "Report", "size", put("links[0].bytes", 2**63)),
    Bad("a link in negative time", "Report", "range", put("links[0].seconds", -1.0)),
    Bad("a link in no time at all", "Report", "nan", put("links[0].seconds", math.nan)),
    Bad("a negative distance", "Report", "range", put("links[0].distance", -1.0)),
    Bad("an infinite distance", "Report", "infinite", put("links[0].distance", math.inf)),
    Bad("a loss of many lines", "Report", "text", put("links[0].lost", "gone\r\ngone")),
    Bad("a loss of many words", "Report", "size", put("links[0].lost", LONG)),
    Bad("itself kept", "Report", "worker", selected(0)),
    Bad("one peer kept twice", "Report", "duplicate", selected(1, 1)),
    Bad("nobody kept", "Report", "worker", selected_nobody),
]
PEERS = [
    Bad("nothing wanted", "Pull", "kind", drop("wanted")),
    Bad("something unknown wanted", "Pull", "kind", put("wanted", 77)),
    Bad("a trained model of no attempt", "Pull", "range", put("envelope.attempt", 0)),
    Bad("a trained model of no round", "Pull", "range", put("envelope.round", 0)),
    Bad("endless patience", "Pull", "infinite", put("patience", math.inf)),
    Bad("negative patience", "Pull", "range", put("patience", -1.0)),
    Bad("patience of a month", "Pull", "range", put("patience", MONTH)),
    Bad("a base of 5 bytes", "Pull", "digest", put("base", b"12345")),
    Bad("a committed model of no version", "Pull committed", "missing", drop("stand")),
    Bad("a version without an epoch", "Pull committed", "missing", put("stand.epoch", 0)),
    Bad("a probe of nothing", "Pull probe", "range", put("bytes", 0)),
    Bad("a probe of 4 GB", "Pull probe", "range", put("bytes", 2**32 - 1)),
    Bad("a model of nothing", "Chunk", "range", put("total", 0)),
    Bad("a model of exabytes", "Chunk", "range", put("total", 2**63)),
    Bad("an unknown encoding", "Chunk", "encoding", put("encoding", "pickle")),
    Bad("a chunk over its size", "Chunk", "size", put("data", bytes(limits.MODEL_CHUNK_BYTES + 1))),
    Bad("more data than announced", "Chunk", "size", put("total", 4095)),
    Bad("a short digest", "Chunk", "digest", put("digest", b"1")),
    Bad("a SHA-1 at the end", "Chunk", "digest", whole_with_short_digest),
    Bad("a digest before the end", "Chunk", "digest", put("digest", bytes(32))),
    Bad("a chunk of no envelope", "Chunk", "missing", drop("envelope")),
]
SETUPS = [
    Bad("a setup without end", "Join", "size", too_many_parts),
    Bad("a scaling of too many channels", "Next", "size", many_means),
    Bad("a short fingerprint", "Join", "digest", setup_part(digest=b"1")),
    Bad("no fingerprint", "Next", "digest", setup_part(digest=b"")),
    Bad("facts of many lines", "Join", "text", setup_part(facts="a\nb")),
    Bad("facts of a book", "Next", "size", setup_part(facts="x" * 301)),
    Bad("a long sketch", "Join", "size", setup_part(sketch=[0.0] * 3)),
    Bad("an infinite sketch", "Next", "infinite", setup_part(sketch=[math.inf])),
    Bad("a sketch of no number", "Join", "nan", setup_part(sketch=[math.nan])),
]
GROUPS = [
    Bad("more steps during than in all", "Group report", "range", put("steps_during", 10)),
    Bad("a million steps more", "Group report", "range", put("steps", 2**31)),
    Bad("a short digest of the consensus", "Group report", "digest", put("consensus", b"1")),
    Bad("a short digest of the average", "Group report", "digest", put("result", b"1")),
    Bad("a short digest of what was sent", "Group report", "digest", put("whole", b"1")),
    Bad("a change of no size", "Group report", "nan", more("change_norms", math.nan)),
    Bad("a change below nothing", "Group report", "range", more("change_norms", -1.0)),
    Bad("changes of 1,025 fragments", "Group report", "size", more("change_norms", *[0.0] * 1023)),
    Bad("more timed than came", "Group report", "size", put("links[0].timed_bytes", 2**40)),
    Bad("timed backwards", "Group report", "range", put("links[0].timed_seconds", -1.0)),
    Bad("timed by no clock", "Group report", "nan", put("links[0].timed_seconds", math.nan)),
    Bad("a failure of many lines", "Failed", "text", put("failed", "gone\r\ngone")),
    Bad("a failure at oneself", "Failed", "worker", link_to_itself),
    Bad("a failure at nobody", "Failed", "worker", link_to_nobody),
    Bad("a failure that was not asked for", "Failed", "worker", link_not_asked),
    Bad("a piece of a model", "Piece", "encoding", put("encoding", "raw")),
    Bad("a piece of nothing", "Piece", "range", put("total", 0)),
    Bad("a piece over its size", "Piece", "size", put("data", bytes(5001))),
    Bad("a piece of no envelope", "Piece", "missing", drop("envelope")),
    Bad("a version of its own that is later", "Group", "future", put("own.round", 2**31)),
    Bad("a version of its own of no epoch", "Group", "missing", put("own.epoch", 0)),
    Bad("no fragments", "Group", "range", put("work.group.fragments", 0)),
    Bad("a fragment beyond the last", "Group", "range", put("work.group.fragment", 2)),
    Bad("a million fragments", "Group", "range", put("work.group.fragments", 2**20)),
    Bad("momentum above 1", "Group", "range", put("work.group.momentum", 1.5)),
    Bad("a rate below 0", "Group", "range", put("work.group.rate", -0.5)),
    Bad("a rate above 100", "Group", "range", put("work.group.rate", 101.0)),
    Bad("a rate that is no number", "Group", "nan", put("work.group.rate", float("nan"))),
    Bad("an unknown compression", "Group", "encoding", put("work.group.compression", "zip")),
    Bad("a transfer that ends before", "Group", "range", put("work.group.transfer_time", -1.0)),
    Bad("training for no time", "Group", "range", put("work.group.train_time", 0.0)),
    Bad("training for a month", "Group", "range", put("work.group.train_time", MONTH)),
    Bad("more members than workers", "Group", "range", put("work.group.members", 7)),
    Bad("more partners than members", "Group", "range", put("work.group.members", 3)),
    Bad("partners of nobody", "Group", "range", put("work.group.members", 0)),
    Bad("a returning worker with children", "Group", "kind", put("work.group.returning", True)),
    Bad("a sum of a stranger", "Group", "size", more("work.group.largest_sums", 1.0)),
    Bad("a mean below nothing", "Group", "range", put("work.group.largest_mean", -1.0)),
    Bad("a mean of no size", "Group", "nan", put("work.group.largest_mean", math.nan)),
    Bad("a version to keep twice", "Group", "duplicate", more("keep", *[wire.Stand()] * 2)),
    Bad("a version to keep of no epoch", "Group", "missing", put("keep[0].epoch", 0)),
    Bad("a member without partners", "Group", "missing", without_partners),
    Bad("children in falling order", "Group", "order", falling_children),
    Bad("one child twice", "Group", "duplicate", one_child_twice),
    Bad("a child above", "Group", "duplicate", parent_is_child),
    Bad("itself above", "Group", "worker", parent_is_itself),
    Bad("a returning stranger", "Group", "worker", returning_stranger),
    Bad("a partner that is probed", "Group", "duplicate", probe_of_a_child),
    Bad("an average and models", "Group", "kind", readers_too),
]
ORDERS = [
    Bad("an order of no epoch", "Wait", "missing", put("epoch", 0)),
    Bad("an order without a committed version", "Wait", "missing", drop("committed")),
    Bad("an order to do nothing", "Wait", "kind", drop("wait")),
    Bad("a version of a later epoch", "Wait", "future", put("committed.epoch", 2**40)),
    Bad("a committed round of no epoch", "Wait", "missing", put("committed.epoch", 0)),
    Bad("a wait with a bell", "Wait", "text", put("wait.why", "\a")),
    Bad("a long goodbye", "Finished", "size", put("finished.why", LONG)),
    Bad("work on a committed round", "Work", "order", put("committed.round", 2**31)),
    Bad("work on the last committed round", "Work", "order", committed_just_now),
    Bad("work of no attempt", "Work", "range", put("work.attempt", 0)),
    Bad("no steps", "Work", "range", put("work.local_steps", 0)),
    Bad("a million steps and one", "Work", "range", put("work.local_steps", 1_000_001)),
    Bad("no learning", "Work", "range", put("work.learning_rate", 0.0)),
    Bad("unlearning", "Work", "range", put("work.learning_rate", -0.1)),
    Bad("a rate that is not a number", "Work", "nan", put("work.learning_rate", math.nan)),
    Bad("a deadline that is past", "Work", "range", put("work.deadline", -1.0)),
    Bad("a deadline of now", "Work", "range", put("work.deadline", 0.0)),
    Bad("a deadline in a month", "Work", "range", put("work.deadline", MONTH)),
    Bad("an endless exchange", "Work", "infinite", put("work.exchange_deadline", math.inf)),
    Bad("a weight missing", "Work", "weights", weights(0.5)),
    Bad("weights of 2", "Work", "weights", weights(0.75, 0.75)),
    Bad("weights of less than 1", "Work", "weights", weights(0.25, 0.249)),
    Bad("a negative weight", "Work", "range", weights(-0.25, 0.75)),
    Bad("a weight that is not a number", "Work", "nan", weights(0.25, math.nan)),
    Bad("an infinite weight", "Work", "infinite", weights(0.25, math.inf)),
    Bad("weights whose sum overflows", "Work", "range", weights(1e308, 1e308)),
    Bad("a negative weight of its own", "Work", "range", put("work.own_weight", -0.5)),
    Bad("nothing kept with push-sum", "Work", "range", push_sum(0.5, 0.5, own=0.0)),
    Bad("a weight of 2 with push-sum", "Work", "range", push_sum(0.5, 2.0, own=0.5)),
    Bad("push-sum without a number", "Work", "nan", push_sum(0.5, math.nan, own=0.5)),
    Bad("peers in falling order", "Work", "order", falling_peers),
    Bad("one peer twice", "Work", "duplicate", twice("peers")),
    Bad("one reader twice", "Work", "duplicate", twice("readers")),
    Bad("two peers of one name", "Work", "duplicate", two_of_one_name),
    Bad("a peer that is probed too", "Work", "duplicate", probe_of_a_peer),
    Bad("itself among the peers", "Work", "worker", among_itself("peers")),
    Bad("itself among the readers", "Work", "worker", among_itself("readers")),
    Bad("itself among the probes", "Work", "worker", among_itself("probes")),
    Bad("a peer that does not exist", "Work", "worker", put("work.peers[0].worker", 2**31)),
    Bad("a peer without a name", "Work", "name", put("work.peers[0].name", "")),
    Bad("a peer at a Unix socket", "Work", "address", put("work.peers[0].address", "unix:x")),
    Bad("more readers than workers", "Work", "size", crowd),
    Bad("more to keep than peers", "Scoring", "range", put("work.keep", 3)),
    Bad("scoring on nothing", "Scoring", "range", put("work.samples", 0)),
    Bad("scoring with weights", "Scoring", "weights", weights(0.5, 0.5)),
    Bad("scoring with push-sum", "Scoring", "weights", put("work.push_sum", True)),
    Bad("a turn with itself", "Act", "worker", partner_itself),
    Bad("a turn of no round", "Act", "range", put("act.round", 0)),
    Bad("a turn of no steps", "Act", "range", put("act.local_steps", 0)),
    Bad("a turn of no deadline", "Act", "nan", put("act.deadline", math.nan)),
    Bad("nobody to catch up from", "CatchUp", "missing", nobody_there),
    Bad("a short digest to catch up with", "CatchUp", "digest", short_digest),
    Bad("no link to survey", "Survey", "missing", nobody_there),
]
REPLIES = [
    Bad("a place in no run", "JoinReply", "name", put("run", "")),
    Bad("a long proof", "JoinReply", "size", put("proof", b"x" * (1 << 17))),
    Bad("a run in capitals", "JoinReply", "name", put("run", "ABCDEF01" * 4)),
    Bad("a place in no epoch", "JoinReply", "missing", put("epoch", 0)),
    Bad("a place out of range", "JoinReply", "worker", put("worker", limits.MAX_WORKERS)),
    Bad("a long experiment", "JoinReply", "size", put("experiment", "é" * (1 << 19) + "e")),
    Bad("an experiment with a zero", "JoinReply", "text", put("experiment", "a = 1\0")),
    Bad("no beat", "JoinReply", "range", put("beat_seconds", 0.0)),
    Bad("a beat in an hour", "JoinReply", "range", put("beat_seconds", 3600.0)),
    Bad("a beat of no epoch", "BeatReply", "missing", put("epoch", 0)),
    Bad("a bad name let in again", "BeatReply", "name", bad_readmission),
    Bad("nobody is gone", "BeatReply", "worker", gone(2**32 - 1)),
    Bad("gone twice", "BeatReply", "duplicate", gone(1, 1)),
    Bad("a target nowhere", "BeatReply", "address", target("w1", "unix:/run/x")),
    Bad("a target of no name", "BeatReply", "name", target("a b", "10.0.0.1:1")),
    Bad("a crowd of targets", "BeatReply", "size", target("w1", "10.0.0.1:1", times=5)),
    Bad("a test from no name", "DialBackReply", "name", put("results[0].name", "a b")),
    Bad("a test in colour", "DialBackReply", "text", put("results[0].why", "\x1b[31m")),
    Bad("tested nowhere", "DialBackReply", "address", put("address", ":1")),
    Bad("a receipt of two lines", "Receipt", "text", put("why", "no\u2028really")),
    Bad("a long receipt", "Receipt", "size", put("why", LONG)),
    Bad("an unknown state", "StatusReply", "kind", put("state", "\x1b[31m")),
    Bad("an unknown status", "StatusReply", "kind", put("members[0].status", "fine")),
    Bad("a crowd of members", "StatusReply", "size", crowd_of_members),
    Bad("a member twice", "StatusReply", "duplicate", member_twice),
    Bad("a certificate of no name", "StatusReply", "name", put("expiring[0].name", "a b")),
    Bad("it never expires", "StatusReply", "infinite", put("expiring[0].seconds", math.inf)),
    Bad("a warning in colour", "StatusReply", "text", put("warnings[0].text", "\x1b[31m")),
    Bad("a warning of no name", "StatusReply", "name", warning_about_no_name),
    Bad("an endless warning", "StatusReply", "infinite", put("warnings[0].value", math.inf)),
    Bad("a crowd of warnings", "StatusReply", "size", crowd_of_warnings),
    Bad("a member of no name", "StatusReply", "name", put("members[0].name", "a b")),
    Bad("a member nowhere", "StatusReply", "address", put("members[0].address", ":1")),
    Bad("a phase in colour", "StatusReply", "text", put("members[0].phase", "\x1b[31m")),
    Bad("a cause in colour", "StatusReply", "text", put("broken[0].why", "\x1b[31m")),
    Bad("a link from nowhere", "StatusReply", "worker", put("broken[0].peer", 1 << 20)),
    Bad("a crowd of broken links", "StatusReply", "size", crowd_of_broken_links),
    Bad("endless silence", "StatusReply", "infinite", put("members[0].silent_seconds", math.inf)),
]
BAD_MESSAGES = [*ENVELOPES, *WORKERS, *REPORTS, *PEERS, *SETUPS, *GROUPS, *ORDERS, *REPLIES]
