"""pgx games for one agent: it is player 0, and all others play uniformly at random among their legal moves.

A step is the agent's move and the others' replies until it is the agent's turn again or the game is over; its reward is
the sum of player 0's rewards meanwhile. Who begins is drawn by the game. A deal that the others end before the agent's
first turn is drawn again, since the agent has no part in it.

Agents here know no masks: a move that is illegal ends the game with reward -1, as pgx defines it. `terminated` and
`truncated` are pgx's own; its caps on the number of moves are rules of the game (a draw, or the score) and terminate.
What has no cap (2048, MinAtar) gets one, which truncates.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

from rlx.envs.adapters.options import check, quiet
from rlx.envs.wrappers import TimeLimit
from rlx.errors import unknown

EPISODE_STEPS = 4000  # beyond any board game, and Freeway's own 2500


@struct.dataclass
class Params:
    """pgx games have no parameters; the time limit is added by `TimeLimit`."""


def tasks() -> tuple[str, ...]:
    """pgx's games, without those whose code is not installed: MinAtar came apart from pgx before its version 2."""
    with quiet():
        import pgx
    minatar = any(importlib.util.find_spec(module) for module in ("pgx.minatar", "pgx_minatar"))
    return tuple(name for name in pgx.available_envs() if minatar or not name.startswith("minatar-"))


class Pgx(environment.Environment):
    """One game. Observations are player 0's view, in the game's shape and dtype: bool, but for chess and its kin (float32)."""

    def __init__(self, task: str):
        self.task = task
        with quiet():
            import pgx

            self.game = pgx.make(task)
        self.blank = jax.eval_shape(self.game.init, jax.random.key(0))

    @property
    def name(self) -> str:
        return f"pgx/{self.task}"

    @property
    def default_params(self) -> Params:
        return Params()

    def others(self, key: jax.Array, state: Any) -> Any:
        """`state` after the moves of the others, up to player 0's turn or the end, with the rewards added up."""
        if self.game.num_players == 1:
            return state

        def move(carry: tuple) -> tuple:
            i, state = carry
            move_key = jax.random.fold_in(key, i)
            logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
            action = jax.random.categorical(jax.random.fold_in(move_key, 0), logits).astype(jnp.int32)
            after = self.game.step(state, action, jax.random.fold_in(move_key, 1))
            return i + 1, after.replace(rewards=state.rewards + after.rewards)

        waiting = lambda carry: ~over(carry[1]) & (carry[1].current_player != 0)
        return jax.lax.while_loop(waiting, move, (jnp.uint32(0), state))[1]

    def observe(self, state: Any) -> jax.Array:
        # `state.observation` is the current player's, who may be another at the end; the public `observe(state, player)`
        # says the same but warns that its argument will go.
        return self.game._observe(state, jnp.int32(0))

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, Any]:
        def deal(carry: tuple) -> tuple:
            i, _ = carry
            deal_key = jax.random.fold_in(key, i)
            return i + 1, self.others(jax.random.fold_in(deal_key, 1), self.game.init(jax.random.fold_in(deal_key, 0)))

        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.blank).replace(terminated=jnp.ones((), bool))
        _, state = jax.lax.while_loop(lambda carry: over(carry[1]), deal, (jnp.uint32(0), blank))
        return self.observe(state), state

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Params) -> tuple:
        state = self.game.step(state, action, jax.random.fold_in(key, 0))
        state = self.others(jax.random.fold_in(key, 1), state)
        return self.observe(state), state, state.rewards[0], state.terminated, {}

    def is_truncated(self, state: Any, params: Params) -> jax.Array:
        return state.truncated

    def action_space(self, params: Params) -> spaces.Discrete:
        return spaces.Discrete(self.blank.legal_action_mask.shape[0])

    def observation_space(self, params: Params) -> spaces.Box:
        shape, dtype = self.blank.observation.shape, self.blank.observation.dtype
        return spaces.Box(0, 1, shape, dtype) if dtype == jnp.bool_ else spaces.Box(-np.inf, np.inf, shape, dtype)


def over(state: Any) -> jax.Array:
    return state.terminated | state.truncated


def make(task: str, /, **options: Any) -> TimeLimit:
    """`pgx/TASK`. Option: `max_steps`, in moves of the agent."""
    known = tasks()
    if task not in known:
        raise unknown("environment", f"pgx/{task}", [f"pgx/{t}" for t in known])
    check(f"pgx/{task}", options, ["max_steps"])
    return TimeLimit(Pgx(task), options.get("max_steps", EPISODE_STEPS))
