"""Ctrl-C: the first asks, the second insists."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class SigInt:
    """Within the context a first Ctrl-C only sets `received`; a second one raises KeyboardInterrupt. Main thread only."""

    def __init__(self) -> None:
        self.received = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True

    def __enter__(self) -> SigInt:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._previous)
