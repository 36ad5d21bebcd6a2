"""rlx: reinforcement learning in JAX. Agent, environment, replay, evaluation and a population of runs: one program.

    result = rlx.train("ppo", "gymnax/CartPole-v1", steps=300_000, seeds=8)
    print(result.table())

Compiled programs are kept on disk between processes, under `$RLX_CACHE_DIR`, by default `~/.cache/rlx/xla`; an empty
`RLX_CACHE_DIR` turns that off, and a cache directory that JAX was given before is left alone.
"""

from rlx import cache as _cache

_cache.enable()

from rlx import agents, envs  # noqa: E402
from rlx.errors import RlxError  # noqa: E402
from rlx.results import Result, evaluate, load  # noqa: E402
from rlx.sweeps import SweepResult, sweep  # noqa: E402
from rlx.trainer import Trainer  # noqa: E402
from rlx.training import train  # noqa: E402
from rlx.versions import __version__  # noqa: E402

make = Trainer

__all__ = [
    "Result",
    "RlxError",
    "SweepResult",
    "Trainer",
    "__version__",
    "agents",
    "envs",
    "evaluate",
    "load",
    "make",
    "sweep",
    "train",
]
