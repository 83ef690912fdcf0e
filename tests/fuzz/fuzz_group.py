"""An atheris harness for the pieces of a group average: they may raise nothing but BadModel.

Valid streams of all kinds are changed a little, so that most of them pass the first checks.
Run: PYTHONPATH=src:tests python tests/fuzz/fuzz_group.py -runs=1000000 -max_len=256 -timeout=5
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections import Counter
from typing import Any

import atheris
import numpy as np

with atheris.instrument_imports(include=["fedhp.cluster.protocol.group_codec"]):
    from fedhp.cluster.protocol import group_codec as module

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.codec import GROUP_STREAMS, BadModel, GroupStream
from fedhp.learn.group_state import Columns
from fuzz.streams import change_bytes, seldom

CODECS = [
    module.FragmentCodec(Columns(3, 3 + trained, 3 + trained + plain), compression)
    for trained, plain in ((700, 5), (1300, 0), (0, 9))
    for compression in ("int8", "none")
]


class Run:
    """Counts the results."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.runs = 0

    def __call__(self, data: bytes) -> None:
        """One stream."""
        source = atheris.FuzzedDataProvider(data)
        codec: module.FragmentCodec = source.PickValueInList(CODECS)
        kind: GroupStream = source.PickValueInList(list(GROUP_STREAMS))
        reader = module.PieceReader(codec, kind)
        try:
            for chunk in stream(source, codec, kind):
                number, values = reader.push(chunk)
                assert len(values) == codec.pieces[number].count
                assert np.isfinite(values).all()
        except BadModel as error:
            self.reasons[error.reason] += 1
        else:
            self.reasons["taken"] += 1
            reader.timing.busy()
        self.runs += 1
        if self.runs % 100_000 == 0:
            print(f"{self.runs} runs:", dict(self.reasons), flush=True)


def stream(source: Any, codec: module.FragmentCodec, kind: GroupStream) -> list[wire.Chunk]:
    """A valid stream with some changes."""
    parts = []
    for piece in codec.pieces:
        values = np.linspace(-1, 1, piece.count)
        parts.append(bytearray(codec.encode(kind, piece, values.astype(np.float32))))
    for _ in range(source.ConsumeIntInRange(0, 3)):
        change_bytes(source, parts[source.ConsumeIntInRange(0, len(parts) - 1)])
    chunks = [wire.Chunk(data=bytes(part)) for part in parts]
    total = codec.total(kind)
    chunks[0].total = source.ConsumeUInt(8) if seldom(source, 0.1) else total
    chunks[0].encoding = source.ConsumeUnicodeNoSurrogates(8) if seldom(source, 0.1) else kind
    chunks[-1].digest = hashlib.sha256(b"".join(parts)).digest()
    if seldom(source, 0.1):
        chunks[-1].digest = source.ConsumeBytes(32)
    if seldom(source, 0.2):
        place = source.ConsumeIntInRange(0, len(chunks) - 1)
        chunks[place].ready = source.ConsumeFloat()
    if seldom(source, 0.1):
        place = source.ConsumeIntInRange(0, len(chunks) - 1)
        chunks.insert(place, chunks[source.ConsumeIntInRange(0, len(chunks) - 1)])
    return chunks


if __name__ == "__main__":
    warnings.simplefilter("error")
    atheris.Setup(sys.argv, Run())
    atheris.Fuzz()
