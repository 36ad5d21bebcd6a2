"""Sweeps: a space of configurations, the plan of its runs, and their training in batches."""

from rlx.sweeps.plan import SweepConfig
from rlx.sweeps.results import SweepResult, load
from rlx.sweeps.run import sweep
from rlx.sweeps.space import read_space

__all__ = ["SweepConfig", "SweepResult", "load", "read_space", "sweep"]
