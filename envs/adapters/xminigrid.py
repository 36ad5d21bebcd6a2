"""XLand-MiniGrid: its ports of MiniGrid, and XLand with one ruleset. Benchmarks of rulesets are downloaded, so none is used.

A user who has one passes its `ruleset` as an option. By default XLand's is the simplest that has a goal: walk up to the
red ball, the only object. (The library's own default has no goal and no reward.)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from gymnax.environments import environment, spaces

from rlx.envs import wrappers
from rlx.envs.adapters.options import check, misfit, quiet
from rlx.errors import RlxError, unknown


def tasks() -> tuple[str, ...]:
    with quiet():
        import xminigrid
    return xminigrid.registered_environments()


def red_ball() -> Any:
    """The default ruleset of XLand."""
    from xminigrid.core.constants import TILES_REGISTRY, Colors, Tiles
    from xminigrid.core.goals import AgentNearGoal
    from xminigrid.core.rules import EmptyRule
    from xminigrid.types import RuleSet

    tiles: Any = TILES_REGISTRY  # (an array, annotated as the list that it was)
    ball = tiles[Tiles.BALL, Colors.RED]
    return RuleSet(goal=AgentNearGoal(tile=ball).encode(), rules=EmptyRule().encode()[None], init_tiles=ball[None])


class XMiniGrid(environment.Environment):
    """One task, 6 actions.

    Observations are the agent's view `[view, view, 2]` of tile and colour numbers, float32 and not uint8, since networks
    divide uint8 by 255, which leaves nothing of a number below 13. The reward, 1 - 0.9 * steps / limit at the goal, follows
    the (traced) time limit. The state is the library's `TimeStep`; `discount` 0 is termination.
    """

    def __init__(self, task: str, **options: Any):
        import xminigrid

        self.task = task
        made: tuple[Any, Any] = xminigrid.make(task, **options)
        self.xminigrid, self.base = made

    @property
    def name(self) -> str:
        return f"xminigrid/{self.task}"

    @property
    def default_params(self) -> environment.EnvParams:
        return environment.EnvParams(max_steps_in_episode=self.base.max_steps)

    def reset_env(self, key: jax.Array, params: environment.EnvParams) -> tuple[jax.Array, Any]:
        timestep = self.xminigrid.reset(self.base, key)
        return timestep.observation.astype(jnp.float32), timestep

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: environment.EnvParams) -> tuple:
        timestep = self.xminigrid.step(self.base.replace(max_steps=params.max_steps_in_episode), state, action)
        return timestep.observation.astype(jnp.float32), timestep, timestep.reward, timestep.discount == 0.0, {}

    def is_truncated(self, state: Any, params: environment.EnvParams) -> jax.Array:
        return state.state.step_num >= params.max_steps_in_episode

    def action_space(self, params: environment.EnvParams) -> spaces.Discrete:
        return spaces.Discrete(self.xminigrid.num_actions(self.base))

    def observation_space(self, params: environment.EnvParams) -> spaces.Box:
        return spaces.Box(0, 12, self.xminigrid.observation_shape(self.base))


def make(task: str, /, **options: Any) -> XMiniGrid:
    """`xminigrid/TASK`. Options: `max_steps` (default: the task's own), `view_size` (odd), and `ruleset` for XLand."""
    known = tasks()
    if task not in known:
        raise unknown("environment", f"xminigrid/{task}", [f"xminigrid/{t}" for t in known])
    name, xland = f"xminigrid/{task}", task.startswith("XLand")
    check(name, options, ["max_steps", "view_size", *(["ruleset"] if xland else [])])
    view = options.get("view_size", 3)
    if view not in range(3, 256, 2):
        raise RlxError(f"view_size={view!r} of {name} must be odd and >= 3")
    env = XMiniGrid(task, **({"ruleset": red_ball()} if xland else {}) | options)
    if "ruleset" in options:
        try:
            wrappers.spec(env, env.default_params)
        except Exception as error:
            raise misfit(name, {"ruleset": type(options["ruleset"]).__name__}, error) from error
    return env
