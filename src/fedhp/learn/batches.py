"""Which of its samples a worker's local steps see: the indices of minibatches.

With replacement, every batch is drawn from all samples. By epochs, a worker's samples form one
infinite stream of permutations, one per epoch; a batch is the next piece of it and may straddle
two epochs. A batch drawn alone has the bits of the same batch drawn together with others.
"""

from __future__ import annotations

import numpy as np

from fedhp.seeds import Purpose, generator
from fedhp.types import IntArray


class ShuffledEpochs:
    """A worker's samples in a new order in every epoch, from a position in the stream on."""

    def __init__(self, seed: int, worker: int, samples: int, *, position: int) -> None:
        self._seed = seed
        self._worker = worker
        self._samples = samples
        self._epoch = -1
        self._order: IntArray = np.empty(0, dtype=np.int64)  # of that epoch
        self.position = position  # samples taken until now

    def take(self, count: int) -> IntArray:
        """The next indices, [count]."""
        pieces: list[IntArray] = []
        wanted = self.position + count
        while self.position < wanted:
            epoch, first = divmod(self.position, self._samples)
            if epoch != self._epoch:
                rng = generator(self._seed, Purpose.EPOCHS, self._worker, epoch)
                self._epoch, self._order = epoch, rng.permutation(self._samples)
            piece = self._order[first : first + wanted - self.position]
            pieces.append(piece)
            self.position += len(piece)
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
