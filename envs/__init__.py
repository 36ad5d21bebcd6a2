"""Environments: a gymnax >= 1.0 `Environment` as users write it, a `VecEnv` as the loop sees it.

`make("gymnax/CartPole-v1")` builds one by id, `vectorise` turns any of them into N environments with resets.
"""

from rlx.envs.adapters.legacy import legacy
from rlx.envs.registry import ids, make
from rlx.envs.vector import vectorise
from rlx.envs.wrappers import TimeLimit

__all__ = ["TimeLimit", "ids", "legacy", "make", "vectorise"]
