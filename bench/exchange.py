"""How fast a model is transferred: `python -m bench.exchange` (two processes, mutual TLS 1.3).

Pulls whole models through grpc.aio with the real codec and chunks, and compares with a plain TLS
socket and a copy in memory; interleaved, so that a busy machine slows all of them equally.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
import grpc.aio
import numpy as np

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.calls import PEER_SERVICE, Messages, ServiceMethods
from fedhp.cluster.protocol.codec import Encoded, ModelCodec, ModelReceiver
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.protocol.stubs import PeerStub
from fedhp.learn.params import Layout, Slot
from fedhp.learn.quantize import Row

VALUES = (1_690_046, 6_750_000)  # of the models: 6.8 and 27 MB
TENSORS = 8
REPEATS = 9
BAR = 200  # MiB/s
SECONDS = 120  # for one pull


def codec_of(values: int) -> ModelCodec:
    """A model of several tensors."""
    ends = np.linspace(0, values, TENSORS + 1, dtype=int).tolist()
    slots = tuple(
        Slot(f"layer{index}.weight", (stop - start,), start, stop)
        for index, (start, stop) in enumerate(pairwise(ends))
    )
    return ModelCodec(Layout(slots, (), values, values, values, 0))


def row_of(values: int) -> Row:
    return np.random.default_rng(values).standard_normal(values).astype(np.float32)


class Server:
    """Only the transfers of a worker; the envelope's round selects the model."""

    def __init__(self) -> None:
        self.codecs = [codec_of(values) for values in VALUES]
        self.encoded = [
            codec.encode(row_of(values)) for codec, values in zip(self.codecs, VALUES, strict=True)
        ]

    async def Pull(self, messages: Messages[wire.PullRequest], context: Any) -> None:
        request = await messages.only()
        index = request.envelope.round
        limits.MODEL_CHUNK_BYTES = request.bytes
        for chunk in self.encoded[index].chunks(request.envelope):
            await context.write(chunk)

    async def Swap(self, chunks: Messages[wire.Chunk], context: Any) -> None:
        async for chunk in chunks:
            await context.write(chunk)

    Average = Swap

    async def refuse_method(self, refusal: Refused, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, str(refusal))


async def serve(folder: Path) -> None:
    """Run both servers until standard input ends; the first line of output has their ports."""
    implementation = Server()
    authority, certificate, key = (
        (folder / name).read_bytes() for name in ("ca.pem", "cert.pem", "key.pem")
    )
    bounds = limits.WORKER_LIMITS
    server = grpc.aio.server(options=bounds.options())
    server.add_generic_rpc_handlers((ServiceMethods(implementation, PEER_SERVICE, bounds),))
    credentials = grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=authority, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    listener = socket.create_server(("127.0.0.1", 0))
    plain = threading.Thread(
        target=serve_plain, args=(listener, folder, implementation.encoded), daemon=True
    )
    plain.start()
    print(port, listener.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    listener.close()
    await server.stop(0)


def tls(folder: Path, purpose: ssl.Purpose) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cafile=str(folder / "ca.pem"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def serve_plain(listener: socket.socket, folder: Path, models: list[Encoded]) -> None:
    """The client sends the number of a model; the answer is its bytes."""
    connection, _ = listener.accept()
    with tls(folder, ssl.Purpose.CLIENT_AUTH).wrap_socket(connection, server_side=True) as stream:
        while request := stream.recv(1):
            for part in models[request[0]].parts:
                stream.sendall(part)


async def pull(channel: grpc.aio.Channel, index: int, codec: ModelCodec, size: int) -> Row:
    """Pull a model like a worker: from the request to a checked model."""
    request = wire.PullRequest(
        envelope=wire.Envelope(version=1, round=index), wanted=wire.TRAINED, bytes=size
    )
    receiver = ModelReceiver(codec)
    async for chunk in PeerStub(channel).Pull(request, timeout=SECONDS):
        receiver.push(chunk)
    return receiver.finish()


def pull_plain(stream: ssl.SSLSocket, index: int, target: memoryview) -> None:
    stream.sendall(bytes([index]))
    done = 0
    while done < len(target):
        done += stream.recv_into(target[done:])


async def measure(folder: Path, ports: tuple[int, int], sizes: list[int], repeats: int) -> bool:
    """Measure all kinds of transfer for every model; whether the bar is reached."""
    authority, certificate, key = (
        (folder / name).read_bytes() for name in ("ca.pem", "cert.pem", "key.pem")
    )
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    limits.MODEL_CHUNK_BYTES = max(sizes)
    bare = socket.create_connection(("localhost", ports[1]))
    plain = tls(folder, ssl.Purpose.SERVER_AUTH).wrap_socket(bare, server_hostname="localhost")
    reached = True
    async with grpc.aio.secure_channel(
        f"localhost:{ports[0]}", credentials, options=limits.CONNECTION_OPTIONS
    ) as channel:
        with plain:
            for index, values in enumerate(VALUES):
                speeds = await one_model(channel, plain, index, sizes, repeats)
                reached &= show(values, speeds, best=sizes[0])
    return reached


async def one_model(
    channel: grpc.aio.Channel, plain: ssl.SSLSocket, index: int, sizes: list[int], repeats: int
) -> dict[str, list[float]]:
    codec, row = codec_of(VALUES[index]), row_of(VALUES[index])
    encoded = codec.encode(row)
    source, target = bytearray(b"".join(encoded.parts)), bytearray(encoded.total)
    speeds: dict[str, list[float]] = {}

    def note(name: str, start: float) -> None:
        speeds.setdefault(name, []).append(encoded.total / 2**20 / (perf_counter() - start))

    for repeat in range(-1, repeats):
        if not repeat:
            speeds.clear()  # the first repeat only warms up
        for size in sizes:
            start = perf_counter()
            received = await pull(channel, index, codec, size)
            note(f"pull in chunks of {size >> 10} KiB", start)
            if not np.array_equal(received, row):
                raise SystemExit("the received model differs from the one that was sent")
        start = perf_counter()
        pull_plain(plain, index, memoryview(target))
        note("plain TLS socket", start)
        start = perf_counter()
        target[:] = source
        note("copy in memory", start)
        start = perf_counter()
        codec.encode(row)
        note("encode, once for all readers", start)
    return speeds


def show(values: int, speeds: dict[str, list[float]], *, best: int) -> bool:
    """Print MiB/s and the shares of the plain socket and of the copy within each repeat."""
    count = len(speeds["copy in memory"])
    print(f"model of {4 * values / 1e6:.1f} MB, median (min to max) of {count} in MiB/s")
    for name, rates in speeds.items():
        shares = "".join(
            f"  {statistics.median(a / b for a, b in zip(rates, speeds[other], strict=True)):6.2f}"
            f" of {other}"
            for other in ("plain TLS socket", "copy in memory")
        )
        median = statistics.median(rates)
        print(f"  {name:32} {median:7.0f} ({min(rates):.0f} to {max(rates):.0f}){shares}")
    return statistics.median(speeds[f"pull in chunks of {best >> 10} KiB"]) >= BAR


def certificates(folder: Path) -> None:
    import trustme

    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    leaf.private_key_pem.write_to_path(str(folder / "key.pem"))
    for pem in leaf.cert_chain_pems:
        pem.write_to_path(str(folder / "cert.pem"), append=True)


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The other process; it ends when its standard input is closed."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=SECONDS)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.exchange", description=__doc__)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument(
        "--chunks",
        default=str(limits.MODEL_CHUNK_BYTES >> 10),
        help="sizes in KiB, separated by commas; the first one must reach the bar",
    )
    return parser.parse_args()


def main() -> int:
    """Print the speeds; 1 if a model is transferred more slowly than the bar."""
    arguments = parsed()
    if arguments.serve:
        asyncio.run(serve(arguments.serve))
        return 0
    sizes = [int(size) << 10 for size in arguments.chunks.split(",")]
    with tempfile.TemporaryDirectory(prefix="fedhp-exchange-") as name:
        folder = Path(name)
        certificates(folder)
        command = [sys.executable, "-m", "bench.exchange", "--serve", name]
        with started(command) as process:
            assert process.stdout is not None
            first, second = process.stdout.readline().split()
            ports = int(first), int(second)
            return 0 if asyncio.run(measure(folder, ports, sizes, arguments.repeats)) else 1


if __name__ == "__main__":
    sys.exit(main())
