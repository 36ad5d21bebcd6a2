"""What the adapter of one suite alone does, by the rules of a game."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rlx import envs
from rlx.envs import vector
from rlx.envs.wrappers import spec
from tests.envs.suites_support import MAZE, cases, jit, played

LINES = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]]


@functools.cache
def tic_tac_toe():
    """400 first boards, and each one's successors under random actions, legal or not, for 5 steps without resets."""
    env = envs.make("pgx/tic_tac_toe")
    params = env.default_params

    @jit
    @jax.vmap
    def play(key):
        obs, state = env.reset_env(key, params)

        def body(state, t):
            action = jax.random.randint(jax.random.fold_in(key, 100 + t), (), 0, 9)
            after, state, reward, terminated, _ = env.step_env(jax.random.fold_in(key, t), state, action, params)
            return state, (action, after, reward, terminated)

        return obs, *jax.lax.scan(body, state, jnp.arange(1, 6))[1]

    return jax.device_get(play(jax.random.split(jax.random.key(1), 400)))


@pytest.mark.parametrize("env_id", cases("pgx/tic_tac_toe"))
def test_tic_tac_toe_by_its_rules(env_id):
    """Our move and a reply, seen from our side, until somebody has a line; an occupied cell loses at once."""
    first, actions, boards, rewards, terminated = tic_tac_toe()
    outcomes = set()
    for game in range(len(first)):
        before = first[game].reshape(9, 2)
        for t in range(5):
            action, reward, ended = actions[game, t], rewards[game, t], terminated[game, t]
            after = boards[game, t].reshape(9, 2)
            won, lost = (any(after[line, side].all() for line in LINES) for side in (0, 1))
            if before[action].any():
                assert ended and reward == -1
                outcomes.add("illegal")
                break
            new = after & ~before
            assert new[:, 0].sum() == 1 and new[action, 0] and not (before & ~after).any()
            full = after.any(axis=1).all()
            assert ended == (won or lost or full) and reward == won - 1.0 * lost
            assert new[:, 1].sum() == 1 or (new[:, 1].sum() == 0 and (won or full))
            if ended:
                outcomes.add("won" if won else "lost" if lost else "drawn")
                break
            before = after
    assert {"illegal", "won", "lost"} <= outcomes


@pytest.mark.parametrize("env_id", cases("pgx/tic_tac_toe"))
def test_who_begins_and_where_the_other_moves(env_id):
    """Half of the games begin with the other's move, on each of the nine cells alike."""
    first = tic_tac_toe()[0].reshape(400, 9, 2)
    assert not first[..., 0].any() and set(first[..., 1].sum(axis=1)) == {0, 1}
    begun = first[..., 1].sum()
    assert abs(begun - 200) < 4 * 10  # four standard deviations of Binomial(400, 1/2)
    expected = begun / 9
    assert np.sum((first[..., 1].sum(axis=0) - expected) ** 2 / expected) < 26.1  # chi^2 of 8, p = 0.001


@struct.dataclass
class Table:
    current_player: jax.Array
    rewards: jax.Array
    terminated: jax.Array
    moves: jax.Array
    truncated: jax.Array = False
    legal_action_mask: jax.Array = None
    observation: jax.Array = None


class Fold:
    """Three players in turn, a random one first. Move 0 passes, 1 folds, which ends the game; 2 is illegal. Each move gives
    player p the reward 10^p."""

    num_players = 3

    def init(self, key):
        first, mask = jax.random.randint(key, (), 0, 3), jnp.array([True, True, False])
        return Table(first, jnp.zeros(3), jnp.zeros((), bool), jnp.int32(0), jnp.zeros((), bool), mask, jnp.zeros(1))

    def step(self, state, action, key):
        rewards = jnp.array([1.0, 10.0, 100.0])
        after = state.replace(current_player=(state.current_player + 1) % 3, rewards=rewards, moves=state.moves + 1)
        return after.replace(terminated=action >= 1)

    def _observe(self, state, player):
        return jnp.float32(player)[None]


@pytest.mark.parametrize("env_id", cases("pgx/tic_tac_toe"))
def test_rewards_of_the_others_moves_count_and_no_start_is_over(env_id):
    """Half of the others' moves would end the game: before our first turn such a deal is drawn again, later it is an end."""
    env = envs.make(env_id).env
    env.game = Fold()
    env.blank = jax.eval_shape(env.game.init, jax.random.key(0))

    @jit
    @jax.vmap
    def play(key):
        _, state = env.reset_env(key, env.default_params)
        return state, env.step_env(key, state, jnp.int32(0), env.default_params)

    start, (_, after, reward, terminated, _) = jax.device_get(play(jax.random.split(jax.random.key(0), 500)))
    assert not start.terminated.any() and (start.current_player == 0).all()
    moves, counts = np.unique(start.moves, return_counts=True)
    assert moves.tolist() == [0, 1, 2]
    # of three equal shares of deals, one survives for certain, one with 1/2, one with 1/4
    np.testing.assert_allclose(counts / 500, np.array([4, 2, 1]) / 7, atol=0.09)
    made = after.moves - start.moves
    np.testing.assert_array_equal(reward, made)  # ours and the replies, one each
    assert set(made.tolist()) == {2, 3} and ((made == 3) | terminated).all()
    assert abs(terminated.mean() - 3 / 4) < 0.08


@pytest.mark.parametrize("env_id", cases(MAZE))
def test_jumanji_own_limit_is_lifted(env_id):
    """Beyond the library's hundred steps an episode goes on, and ends at the target or at our limit."""
    step = played(env_id, 120)[0][1]
    here, there = step.next_obs.agent_position, step.next_obs.target_position
    found = (here.row == there.row) & (here.col == there.col)
    np.testing.assert_array_equal(step.terminated, found | ~step.next_obs.action_mask.any(-1))
    np.testing.assert_array_equal(step.truncated, step.info["episode_length"] == 120)
    assert step.truncated.any()


@pytest.mark.parametrize("env_id", cases("navix/Navix-Empty-5x5-v0"))
@pytest.mark.parametrize(
    ("observation", "shape", "dtype"),
    [
        ("symbolic", (5, 5, 3), np.float32),
        ("symbolic_first_person", (7, 7, 3), np.float32),
        ("categorical", (5, 5, 1), np.float32),
        ("categorical_first_person", (7, 7, 1), np.float32),
        ("rgb", (40, 40, 3), np.uint8),
        ("rgb_first_person", (56, 56, 3), np.uint8),
    ],
)
def test_navix_observations(env_id, observation, shape, dtype):
    env = envs.make(env_id, observation=observation)
    params = env.default_params
    facts = spec(env, params)
    assert (facts.obs_shape, facts.obs_dtype, facts.max_episode_steps) == (shape, dtype, 100)
    space = env.observation_space(params)
    assert (space.shape, space.dtype) == (shape, dtype)
    vector.state_dtypes(env, params)
    state = jax.eval_shape(env.reset_env, jax.random.key(0), params)[1]
    sprites = sum(x.size for x in jax.tree.leaves(state) if x.dtype == np.uint8)
    assert (sprites > 26 * 8 * 8 * 3 - 1) == (dtype == np.uint8)  # carried only where they are drawn


@pytest.mark.parametrize("env_id", cases("xminigrid/MiniGrid-Empty-5x5"))
def test_xminigrid_on_the_shortest_path(env_id):
    """Two ahead, a turn, two ahead: 1 - 0.9 * steps / limit, with the traced limit; one that is too short truncates."""
    env = envs.make(env_id)
    step = jit(env.step_env)
    for limit in (100, 20, 5, 4):
        params = vector.strong(env.default_params).replace(max_steps_in_episode=jnp.int32(limit))
        _, state = env.reset_env(jax.random.key(0), params)
        for t, action in enumerate((0, 0, 1, 0, 0), start=1):
            _, state, reward, terminated, _ = step(jax.random.key(0), state, jnp.int32(action), params)
            assert env.is_truncated(state, params) == (t >= limit)
            assert terminated == (t == 5) and reward == pytest.approx((1 - 0.9 * 5 / limit) * (t == 5))
