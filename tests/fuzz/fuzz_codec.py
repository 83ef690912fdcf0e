"""An atheris harness for the receiver of models: it may raise nothing but BadModel.

Valid streams of all encodings are changed a little, so that most of them pass the header.
Run: PYTHONPATH=src:tests python tests/fuzz/fuzz_codec.py -runs=1000000 -max_len=256 -timeout=5
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import warnings
from collections import Counter
from typing import Any

import atheris
import numpy as np

with atheris.instrument_imports(include=["fedhp.cluster.protocol.codec", "fedhp.learn.topk"]):
    from fedhp.cluster.protocol import codec as module
    from fedhp.learn.quantize import Row
    from fedhp.learn.topk import Delta

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.learn.params import Layout, Slot
from fuzz.streams import change_bytes, seldom

SLOTS = (
    Slot("w", (4, 3), 0, 12),
    Slot("none", (0, 2), 12, 12),
    Slot("b", (), 12, 13),
    Slot("v", (7,), 13, 20),
)
CODEC = module.ModelCodec(Layout(SLOTS, (), trainable=20, mixed=20, width=20, counter_width=0))
KNOWN: Row = np.linspace(-3e38, 3e38, 20, dtype=np.float32)
ROW: Row = np.linspace(-1, 1, 20, dtype=np.float32)
PAIRS = Delta(np.array([0, 7, 19], dtype="<u4"), np.array([1, -2, 3], dtype="<f4"))
FILES = {
    **{each: b"".join(CODEC.encode(ROW, each).parts) for each in ("raw", "fp16", "int8")},
    "topk": b"".join(CODEC.encode_delta(PAIRS).parts),
}
NUMBERS = (0, 1, -1, 2, 3, 7, 19, 20, 2**31, 2**32, 2**63, 2**64, 10**30)
MAX_GROWTH = 50 << 20  # bytes
WARM_UP = 20_000  # runs until the memory in use is taken as the baseline


class Run:
    """Counts the results, and watches the memory."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.runs = 0
        self.baseline = 0

    def __call__(self, data: bytes) -> None:
        """One stream."""
        source = atheris.FuzzedDataProvider(data)
        receiver = module.ModelReceiver(CODEC, module.ENCODINGS, known=KNOWN)
        try:
            for chunk in stream(source):
                receiver.push(chunk)
            row = receiver.finish()
        except module.BadModel as error:
            self.reasons[error.reason] += 1
        else:
            assert row.shape == (20,)
            assert row.dtype == np.float32
            assert np.isfinite(row).all()
            self.reasons["taken"] += 1
        self._watch()

    def _watch(self) -> None:
        self.runs += 1
        if self.runs % 10_000:
            return
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if self.runs == WARM_UP:
            self.baseline = peak
        assert not self.baseline or peak - self.baseline < MAX_GROWTH, (
            f"{peak - self.baseline} bytes more"
        )
        if self.runs % 100_000 == 0:
            grown = (peak - self.baseline) >> 20
            print(f"{self.runs} runs, {grown} MiB more:", dict(self.reasons), flush=True)


def stream(source: Any) -> list[wire.Chunk]:
    """A valid stream with some changes, cut anywhere."""
    encoding = source.PickValueInList(list(FILES))
    file = FILES[encoding]
    length = int.from_bytes(file[:8], "little")
    head, body = file[8 : 8 + length], bytearray(file[8 + length :])
    if seldom(source, 0.4):
        head = changed_head(source, head)
    for _ in range(source.ConsumeIntInRange(0, 3)):
        change_bytes(source, body)
    size = source.ConsumeUInt(8) if seldom(source, 0.1) else len(head)
    data = bytearray((size % 2**64).to_bytes(8, "little") + head + body)
    if seldom(source, 0.1):
        change_bytes(source, data)
    total = source.ConsumeUInt(8) if seldom(source, 0.1) else len(data)
    digest = hashlib.sha256(data).digest()
    if seldom(source, 0.05):
        digest = source.ConsumeBytes(32)
    return cut(source, bytes(data), total=total, encoding=encoding, digest=digest)


def cut(source: Any, data: bytes, *, total: int, encoding: str, digest: bytes) -> list[wire.Chunk]:
    chunks: list[wire.Chunk] = []
    while data and len(chunks) < 20:
        size = source.ConsumeIntInRange(0, len(data)) if source.ConsumeBool() else len(data)
        chunks.append(wire.Chunk(data=data[:size]))
        data = data[size:]
    chunks = chunks or [wire.Chunk()]
    if seldom(source, 0.05):
        encoding = source.ConsumeUnicodeNoSurrogates(8)
    chunks[0].total, chunks[0].encoding = total % 2**64, encoding
    chunks[-1].digest = digest
    if seldom(source, 0.1):
        place = source.ConsumeIntInRange(0, len(chunks) - 1)
        again = source.ConsumeIntInRange(0, len(chunks) - 1)
        chunks.insert(place, chunks[again])
    return chunks


def changed_head(source: Any, head: bytes) -> bytes:
    """Another header: a part of its table changed, or some of its bytes."""
    if seldom(source, 0.3):
        text = bytearray(head)
        change_bytes(source, text)
        return bytes(text)
    table = json.loads(head)
    for _ in range(source.ConsumeIntInRange(1, 3)):
        name = source.PickValueInList(list(table))
        entry = table[name]
        kind = source.ConsumeIntInRange(0, 6)
        if kind == 0:
            table[source.ConsumeUnicode(6)] = table.pop(name)
        elif kind == 1:
            table[name] = any_value(source)
        elif kind == 2:
            table["__metadata__"] = {"a": any_value(source)}
        elif isinstance(entry, dict) and isinstance(entry.get("data_offsets"), list):
            key = source.PickValueInList(["dtype", "shape", "data_offsets"])
            if kind == 3:
                entry[key] = any_value(source)
            elif kind == 4:
                shift = source.ConsumeIntInRange(-8, 8)
                entry["data_offsets"] = [
                    each + shift for each in entry["data_offsets"] if isinstance(each, int)
                ]
            elif kind == 5 and isinstance(entry.get("shape"), list):
                entry["shape"].append(source.PickValueInList(list(NUMBERS)))
            else:
                other = table[source.PickValueInList(list(table))]
                if isinstance(other, dict):
                    entry["data_offsets"] = other.get("data_offsets")
    return json.dumps(table).encode()


def any_value(source: Any) -> Any:
    number = source.PickValueInList(list(NUMBERS))
    values = [number, float(number), str(number), None, True, [], [number], [0, number], {}]
    values += [float("nan"), {"dtype": "F32", "shape": [number], "data_offsets": [0, number]}]
    return source.PickValueInList(values)


if __name__ == "__main__":
    assert limits.MODEL_CHUNK_BYTES > 4096  # no stream here is refused for its size alone
    warnings.simplefilter("error")
    atheris.Setup(sys.argv, Run())
    atheris.Fuzz()
