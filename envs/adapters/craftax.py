"""Craftax with symbolic observations, in the variants that do not reset themselves.

Craftax's one `done` holds its time limit too; `legacy` splits it off, as `max_steps_in_episode` (and Craftax's own parameter
`max_timesteps` has no effect). Its other parameters are traced. Achievements in `info` are reported where an episode
terminates. The pixel variants show the same state and render slowly, so they are left out.
"""

from __future__ import annotations

from typing import Any

from rlx.envs.adapters.legacy import Legacy
from rlx.envs.adapters.options import check, quiet
from rlx.errors import unknown

TASKS = ("Craftax-Symbolic-v1", "Craftax-Classic-Symbolic-v1")


def tasks() -> tuple[str, ...]:
    return TASKS


class Craftax(Legacy):
    """One Craftax task: float32 observations `[8268]`, `[1345]` in Classic, and 43 or 17 actions."""

    def __init__(self, task: str, max_steps: int | None = None):
        self.task = task
        with quiet():  # it prints while it loads textures
            from craftax.craftax_env import make_craftax_env_from_name

            super().__init__(make_craftax_env_from_name(task, auto_reset=False), max_steps)

    @property
    def name(self) -> str:
        return f"craftax/{self.task}"


def make(task: str, /, **options: Any) -> Craftax:
    """`craftax/TASK`. Option: `max_steps`, 100,000 by default and 10,000 in Classic, as in Craftax."""
    if task not in TASKS:
        raise unknown("environment", f"craftax/{task}", [f"craftax/{t}" for t in TASKS])
    check(f"craftax/{task}", options, ["max_steps"])
    return Craftax(task, **options)
