"""Ctrl-C and SIGTERM: the first asks for a clean stop, a second ends at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


class StopRequest:
    """While active, a signal sets a flag instead of raising."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self._flag = threading.Event()
        self._before: dict[int, object] = {}

    def __call__(self) -> bool:
        return self._flag.is_set()

    def __enter__(self) -> StopRequest:
        for number in self.SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._flag.is_set():
            os._exit(130)
        self._flag.set()
