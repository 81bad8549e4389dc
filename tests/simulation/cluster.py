"""The simulated cluster, where tests find it; it is part of `ejpy.testing`."""

from __future__ import annotations

from ejpy.testing.cluster import JOB, SimCluster, instant, job_config

__all__ = ["JOB", "SimCluster", "instant", "job_config"]
