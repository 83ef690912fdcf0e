"""The pieces of a group average: a tree of nodes gives the bits of the simulation, and a stream
that is not exactly what the order announces is refused."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.codec import GROUP_STREAMS, BadModel, GroupStream
from fedhp.cluster.protocol.group_codec import (
    FragmentCodec,
    LinkTiming,
    PieceReader,
    PieceWriter,
)
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.worker.tree_node import (
    AverageLost,
    NodeRows,
    NotAvailable,
    OpenAverage,
    TreeNode,
)
from fedhp.exchange import GroupAverage
from fedhp.exchange.group import CHUNKS
from fedhp.learn.group import group_step
from fedhp.learn.group_state import Columns
from fedhp.timing import INT8_BLOCK

ATTEMPT = Attempt(1, 5, 1)
TRAINED, PLAIN = 5000, 37
COLUMNS = Columns(100, 100 + TRAINED, 100 + TRAINED + PLAIN)
TREE = GroupAverage(  # 4 - {2 - {7 - {1, 9}}, 5}, and 5 and 9 return
    participants=np.array([1, 2, 4, 5, 7, 9]),
    parents=np.array([7, 4, -1, 4, 2, 7]),
    returning=np.array([False, False, False, True, False, True]),
)


def rows(seed: int, width: int = TRAINED) -> Any:
    values = np.random.default_rng(seed).normal(size=(len(TREE.participants), width))
    return values.astype(np.float32)


def order_of(worker: int, compression: str) -> wire.GroupWork:
    """What the coordinator tells a worker of this tree."""
    place = TREE.participants.tolist().index(worker)
    group = wire.GroupWork(
        fragments=1,
        momentum=TREE.momentum,
        compression=compression,
        members=len(TREE.participants),
        returning=bool(TREE.returning[place]),
    )
    if TREE.parents[place] >= 0:
        group.parent.worker, group.parent.name = TREE.parents[place], f"w{TREE.parents[place]}"
    below = TREE.parents == worker
    for child in TREE.participants[below].tolist():
        group.children.add(worker=child, name=f"w{child}")
    group.returning_children.extend(TREE.participants[below & TREE.returning].tolist())
    group.largest_sums.extend(0.0 for _ in group.children)
    return group


async def climb(child: TreeNode, parent: TreeNode, worker: int) -> None:
    """The link of a child to its parent, without a network in between."""
    parent.reader(worker)
    child.reader(child.parent)
    envelope = wire.Envelope(sender=f"w{worker}")

    async def up() -> None:
        writer = PieceWriter(child.codec, "sum", envelope)
        async for data in child.pieces_up():
            parent.take(worker, writer.chunk(data))

    async def down() -> None:
        writer = PieceWriter(child.codec, parent.kind_for(worker), envelope)
        async for data in parent.pieces_down(worker):
            child.take(child.parent, writer.chunk(data))

    await asyncio.gather(up(), down())


@pytest.mark.parametrize("compression", ["int8", "none"])
def test_a_tree_of_nodes_has_the_bits_of_the_simulation(compression: str) -> None:
    changes, residuals, consensus = rows(1), 0.01 * rows(2), rows(3)
    momentum, root_residual, plain = rows(4)[0], 0.01 * rows(5)[0], rows(6, PLAIN)
    workers = TREE.participants.tolist()
    expected = group_step(
        GroupAverage(TREE.participants, TREE.parents, TREE.returning, compression=compression),
        changes=changes,
        residuals=residuals,
        plain=plain,
        consensus=dict(zip(workers, consensus, strict=True)),
        momentum=momentum,
        root_residual=root_residual,
    )

    async def average() -> dict[int, TreeNode]:
        nodes = {
            worker: TreeNode(
                ATTEMPT,
                order_of(worker, compression),
                FragmentCodec(COLUMNS, compression),
                NodeRows(
                    changes[place],
                    residuals[place],
                    plain[place],
                    consensus[place],
                    momentum,
                    root_residual,
                ),
            )
            for place, worker in enumerate(workers)
        }
        for node in nodes.values():
            node.begin()
        links = [
            climb(node, nodes[node.parent], worker)
            for worker, node in nodes.items()
            if node.parent >= 0
        ]
        await asyncio.gather(*links)
        until = asyncio.get_running_loop().time() + 10
        for node in nodes.values():
            await node.wait(until=until)
        return nodes

    results = asyncio.run(average())
    for place, worker in enumerate(workers):
        result = results[worker]
        if TREE.returning[place]:
            np.testing.assert_array_equal(result.whole, expected.wholes[worker])
        else:
            np.testing.assert_array_equal(result.consensus_change, expected.change)
        np.testing.assert_array_equal(result.residual, expected.residuals[place])
        np.testing.assert_array_equal(result.plain, expected.plain)
    np.testing.assert_array_equal(results[4].root_residual, expected.root_residual)


@pytest.mark.parametrize("trained", [1, 255, 256, 1025, 150_000, 40_000_000])
def test_no_piece_cuts_a_block_and_all_fit_a_message(trained: int) -> None:
    codec = FragmentCodec(Columns(0, trained, trained + 300_000), "int8")
    ends = [(piece.start, piece.stop) for piece in codec.pieces if not piece.plain]
    assert ends[0][0] == 0
    assert ends[-1][1] == trained
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(ends))
    assert all(start % INT8_BLOCK == 0 for start, _ in ends)
    if trained < 16_000_000:
        assert len(ends) <= CHUNKS
    for kind in GROUP_STREAMS:
        assert max(codec.size(kind, piece) for piece in codec.pieces) <= limits.MODEL_CHUNK_BYTES
    assert sum(piece.count for piece in codec.pieces) == trained + 300_000


# --- bad streams ---------------------------------------------------------------------------


def stream(kind: GroupStream, compression: str = "int8") -> list[wire.Chunk]:
    codec = FragmentCodec(COLUMNS, compression)
    writer = PieceWriter(codec, kind, wire.Envelope(sender="w1"))
    values = {False: rows(1)[0], True: rows(2, PLAIN)[0]}
    return [
        writer.chunk(codec.encode(kind, piece, values[piece.plain][piece.columns]))
        for piece in codec.pieces
    ]


def read(chunks: list[wire.Chunk], kind: GroupStream, compression: str = "int8") -> PieceReader:
    reader = PieceReader(FragmentCodec(COLUMNS, compression), kind)
    for chunk in chunks:
        reader.push(chunk)
    return reader


@pytest.mark.parametrize("compression", ["int8", "none"])
@pytest.mark.parametrize("kind", GROUP_STREAMS)
def test_a_good_stream_is_taken(kind: GroupStream, compression: str) -> None:
    reader = read(stream(kind, compression), kind, compression)
    assert reader.complete
    assert reader.bytes == FragmentCodec(COLUMNS, compression).total(kind)


def put(place: int, name: str, value: Any) -> Callable[[list[wire.Chunk]], None]:
    return lambda chunks: setattr(chunks[place], name, value)


def with_bytes(place: int, start: int, data: bytes) -> Callable[[list[wire.Chunk]], None]:
    """Other bytes in a piece; the digest at the end is that of the changed data."""

    def spoil(chunks: list[wire.Chunk]) -> None:
        old = chunks[place].data
        chunks[place].data = old[:start] + data + old[start + len(data) :]
        digest = hashlib.sha256(b"".join(chunk.data for chunk in chunks))
        chunks[-1].digest = digest.digest()

    return spoil


NAN, INFINITE = np.float32(np.nan).tobytes(), np.float32(np.inf).tobytes()
BAD_STREAMS: dict[str, tuple[str, Callable[[list[wire.Chunk]], None]]] = {
    "another kind": ("encoding", put(0, "encoding", "change")),
    "another total": ("size", put(0, "total", 17)),
    "an announcement in the middle": ("header", put(1, "total", 5)),
    "a short piece": ("size", put(2, "data", b"12")),
    "a long piece": ("size", put(2, "data", bytes(1 << 20))),
    "an empty piece": ("size", put(1, "data", b"")),
    "a digest in the middle": ("digest", put(1, "digest", bytes(32))),
    "no digest": ("digest", put(-1, "digest", b"")),
    "another digest": ("digest", put(-1, "digest", bytes(32))),
    "a scale that is not a number": ("scale", with_bytes(0, 0, NAN)),
    "an infinite scale": ("scale", with_bytes(0, 0, INFINITE)),
    "a negative scale": ("scale", with_bytes(0, 0, np.float32(-1).tobytes())),
    "a code below the least": ("range", with_bytes(0, 100, b"\x80")),
    "an infinite plain sum": ("nan", with_bytes(-1, 0, np.float64(np.inf).tobytes())),
    "a time before the first piece": ("range", put(1, "ready", -1.0)),
    "a time that is not a number": ("range", put(1, "ready", math.nan)),
    "one piece more": ("size", lambda chunks: chunks.append(wire.Chunk(data=b"1"))),
    "one piece twice": ("size", lambda chunks: chunks.insert(5, chunks[4])),
}


@pytest.mark.parametrize("name", BAD_STREAMS)
def test_a_bad_stream_is_refused(name: str) -> None:
    reason, spoil = BAD_STREAMS[name]
    chunks = stream("sum")
    spoil(chunks)
    with pytest.raises(BadModel) as refused:
        read(chunks, "sum")
    assert refused.value.reason == reason


def test_values_that_are_not_finite_are_not_sent() -> None:
    codec = FragmentCodec(COLUMNS, "int8")
    values = np.full(codec.pieces[0].count, np.nan, np.float32)
    with pytest.raises(BadModel):
        codec.encode("sum", codec.pieces[0], values)


# --- nodes whose neighbors fail ------------------------------------------------------------


def leaf() -> TreeNode:
    nothing, plain = np.zeros(TRAINED, np.float32), np.zeros(PLAIN, np.float32)
    known = NodeRows(nothing, nothing, plain, nothing, nothing, nothing)
    return TreeNode(ATTEMPT, order_of(7, "int8"), FragmentCodec(COLUMNS, "int8"), known)


def test_a_lost_neighbor_loses_the_average() -> None:
    async def scenario() -> None:
        node = leaf()
        node.begin()
        node.lose(9, "unreachable")
        with pytest.raises(AverageLost) as lost:
            await node.wait(until=asyncio.get_running_loop().time() + 10)
        assert lost.value.lost == {9: "unreachable"}
        assert not lost.value.late
        node.close()

    asyncio.run(scenario())


def test_who_is_waited_for_in_vain_is_named() -> None:
    async def scenario() -> None:
        node = leaf()
        node.begin()
        reader = node.reader(1)
        for chunk in stream("sum"):
            node.take(1, chunk)
        assert reader.complete
        with pytest.raises(AverageLost) as lost:
            await node.wait(until=asyncio.get_running_loop().time())
        assert lost.value.lost == {9: "deadline"}  # not worker 1, which sent all
        assert lost.value.late
        with pytest.raises(NotAvailable, match="already"):
            node.reader(1)
        node.close()

    asyncio.run(scenario())


def test_only_the_children_of_the_attempt_get_in() -> None:
    async def scenario() -> None:
        average, node = OpenAverage(), leaf()
        early = asyncio.create_task(average.take(ATTEMPT, child="w9", patience=10))
        await average.open(ATTEMPT, node)
        assert await early is node
        with pytest.raises(Refused) as refused:
            await average.take(ATTEMPT, child="w4", patience=10)
        assert refused.value.reason == "role"
        with pytest.raises(NotAvailable):
            await average.take(Attempt(1, 4, 1), child="w9", patience=10)
        with pytest.raises(NotAvailable) as not_yet:
            await average.take(Attempt(1, 6, 1), child="w9", patience=0)
        assert not_yet.value.reason == "patience"
        await average.open(Attempt(1, 5, 2), None)
        with pytest.raises(NotAvailable):
            await average.take(Attempt(1, 5, 2), child="w9", patience=10)

    asyncio.run(scenario())


# --- how fast a link is --------------------------------------------------------------------


def test_pieces_that_wait_show_the_speed_of_the_link() -> None:
    timing = LinkTiming()
    for number in range(10):  # all ready at once, one comes every 100 ms
        timing.add(1000, arrived=5.0 + 0.1 * number, ready=0.0)
    size, seconds = timing.busy()
    assert (size, round(seconds, 6)) == (9000, 0.9)
    assert timing.started == 5.0
    assert timing.seconds == pytest.approx(0.9)


def test_pieces_that_come_as_soon_as_they_are_ready_do_not() -> None:
    timing = LinkTiming()
    for number in range(10):  # the tree's slowest link is another one
        timing.add(1000, arrived=5.0 + 0.1 * number, ready=0.1 * number)
    assert timing.busy() == (0, 0.0)
    assert LinkTiming().busy() == (0, 0.0)
