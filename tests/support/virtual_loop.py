"""The virtual loop, where tests find it; it is part of `ejpy.testing`."""

from __future__ import annotations

from ejpy.testing.virtual_loop import EPOCH, LoopClock, Stuck, VirtualLoop, run_virtual

__all__ = ["EPOCH", "LoopClock", "Stuck", "VirtualLoop", "run_virtual"]
