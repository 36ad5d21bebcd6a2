"""The suites that extras install, each against its own library: the same keys and actions through rlx and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

import rlx
from rlx import envs
from rlx.envs import registry, vector
from rlx.envs.wrappers import AgentView, encode, spec
from rlx.errors import RlxError
from tests.envs.suites_support import BREAKOUT, CRAFTAX, LIMIT, MAZE, OBSTACLES, XLAND, N, T, build, cases, limit_of, played

SUITES = ("jumanji", "navix", "xminigrid", "pgx", "craftax")
every = pytest.mark.parametrize("env_id", cases(MAZE, OBSTACLES, XLAND, BREAKOUT, CRAFTAX, slow=[XLAND, BREAKOUT, CRAFTAX]))


def same(got, expected):
    """Leaf by leaf, in shape and dtype; equal, but for float arithmetic in two programs."""
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    assert len(got) == len(expected) > 0
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@every
def test_steps_equal_the_library(env_id):
    """Observations before and after a reset, rewards, and where episodes end; nothing is quarantined."""
    (start, step, _), native = played(env_id)
    np.testing.assert_array_equal(step.terminated | step.truncated, native.ended)
    same((start, step.next_obs, step.obs), (native.start, native.next_obs, native.obs))
    same(step.reward, native.reward.astype(np.float32))
    assert step.weight.min() == 1


@every
def test_the_own_time_limit_truncates(env_id):
    """And nothing but it; true endings terminate, also on the last step that the limit allows."""
    (_, step, _), native = played(env_id)
    length, limit = step.info["episode_length"], limit_of(env_id)
    np.testing.assert_array_equal(step.terminated, native.terminated)
    np.testing.assert_array_equal(step.truncated, length == limit)
    assert step.truncated.any() and step.terminated.any() and length.max() == limit


@every
def test_the_limit_is_a_parameter(env_id):
    """A thousand episodes of one step, and not a second program. Starts are fresh, Breakout's ball apart (left or right)."""
    (_, step, state), _ = played(env_id, 1)
    played(env_id)
    assert build(env_id)[-1]._cache_size() == 1
    assert step.truncated.all()
    rows = np.concatenate([leaf[0].reshape(T * N, -1).astype(np.float64) for leaf in state], axis=1)
    distinct = len(np.unique(rows, axis=0))
    assert distinct == 2 if env_id == BREAKOUT else distinct > 0.9 * T * N


@every
def test_observations_lie_in_the_space(env_id):
    env, params, _ = build(env_id)
    (start, step, _), _ = played(env_id)
    space = env.observation_space(params)
    flat = lambda obs: jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), obs)
    for obs in (flat(start), flat(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), step.next_obs))):
        assert np.asarray(jax.vmap(space.contains)(obs)).all()
        one = jax.tree.map(lambda x: x[0], obs)
        conform(space, one)
        encoded, facts = encode(space, one), spec(env, params)
        assert (encoded.shape, encoded.dtype) == (facts.obs_shape, facts.obs_dtype)


def conform(space, obs):
    if isinstance(space, spaces.Dict):
        for name, child in space.spaces.items():
            conform(child, getattr(obs, name))
    else:
        assert (obs.shape, obs.dtype) == (space.shape, space.dtype)


@pytest.mark.parametrize("env_id", cases(MAZE, OBSTACLES, XLAND, BREAKOUT, CRAFTAX, slow=[CRAFTAX]))
def test_avals_of_step_and_reset_agree(env_id):
    """For the environment's own, weakly typed, default parameters too."""
    env = envs.make(env_id)
    avals = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), jax.tree.leaves(tree))
    key = jax.random.key(0)
    for at in (vector.strong(env.default_params), env.default_params):
        vec = vector.vectorise(AgentView(env), N)
        state, obs = jax.eval_shape(vec.reset, key, at)
        after, step = jax.eval_shape(vec.step, key, state, jnp.zeros(N, jnp.int32), at)
        assert jax.tree.structure(state) == jax.tree.structure(after) and avals(state) == avals(after)
        assert avals(obs) == avals(step.obs) == avals(step.next_obs)
        assert not any(x.weak_type for x in jax.tree.leaves((state, obs, step.reward)))


# --- by id -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_every_id_builds(suite):
    if not registry.installed(suite):
        pytest.skip("the extra is not installed")
    ids = envs.ids([suite])
    assert len(ids) == len(set(ids)) >= 2
    for env_id in ids:
        env = envs.make(env_id)
        params = vector.strong(env.default_params)
        facts = spec(env, params)
        assert isinstance(env, Environment) and env.name == env_id
        assert facts.num_actions >= 2 and facts.reward_shape == () and facts.max_episode_steps >= 1
        vector.state_dtypes(env, params)


@pytest.mark.parametrize("env_id", cases("craftax/Craftax-Symbolic-v1"))
def test_craftax_builds(env_id):
    env = envs.make(env_id)
    params = vector.strong(env.default_params)
    facts = spec(env, params)
    assert (facts.obs_shape, facts.num_actions, facts.max_episode_steps) == ((8268,), 43, 100_000)
    assert envs.make(env_id, max_steps=7).default_params.max_steps_in_episode == 7


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("jumanji/Snake", {}, "unknown environment 'jumanji/Snake': did you mean 'jumanji/Snake-v1'?"),
        ("jumanji/Snake-v1", {"num_row": 5}, "unknown option 'num_row' of jumanji/Snake-v1: did you mean 'num_rows'?"),
        ("jumanji/Snake-v1", {"time_limit": 5}, "unknown option 'time_limit' of jumanji/Snake-v1: "),
        ("jumanji/Snake-v1", {"max_steps": 0}, "max_steps=0 of jumanji/Snake-v1 must be a whole number in [1, 2^31)"),
        ("jumanji/Snake-v1", {"num_rows": "abc"}, "jumanji/Snake-v1 does not run with num_rows='abc' ("),
        ("jumanji/Tetris-v0", {}, "jumanji/Tetris-v0 is left out: its action is several numbers at once (MultiDiscrete)"),
        ("jumanji/Sokoban-v0", {}, "jumanji/Sokoban-v0 is left out: it downloads its levels when built"),
        ("jumanji/SearchAndRescue-v0", {}, "jumanji/SearchAndRescue-v0 is left out: it is played by a team"),
        ("navix/Navix-Empty-5x5", {}, "unknown environment 'navix/Navix-Empty-5x5': did you mean 'navix/Navix-Empty-5x5-v0'?"),
        ("navix/Navix-Empty-5x5-v0", {"max_step": 5}, "unknown option 'max_step' of navix/Navix-Empty-5x5-v0: did you mean"),
        (
            "navix/Navix-Empty-5x5-v0",
            {"max_steps": 0},
            "max_steps=0 of navix/Navix-Empty-5x5-v0 must be a whole number in [1, 2^31)",
        ),
        (
            "navix/Navix-Empty-5x5-v0",
            {"observation": "symbol"},
            "unknown observation of navix/Navix-Empty-5x5-v0 'symbol': did you mean 'symbolic'?",
        ),
        ("xminigrid/DoorKey-5x5", {}, "unknown environment 'xminigrid/DoorKey-5x5': did you mean 'xminigrid/MiniGrid-DoorKey"),
        ("xminigrid/MiniGrid-Unlock", {"ruleset": 1}, "unknown option 'ruleset' of xminigrid/MiniGrid-Unlock: choose from"),
        ("xminigrid/MiniGrid-Unlock", {"view_size": 4}, "view_size=4 of xminigrid/MiniGrid-Unlock must be odd and >= 3"),
        (
            "xminigrid/MiniGrid-Unlock",
            {"max_steps": 0},
            "max_steps=0 of xminigrid/MiniGrid-Unlock must be a whole number in [1, 2^31)",
        ),
        (
            "xminigrid/XLand-MiniGrid-R1-9x9",
            {"ruleset": 1},
            "xminigrid/XLand-MiniGrid-R1-9x9 does not run with ruleset='int' (",
        ),
        ("pgx/tictactoe", {}, "unknown environment 'pgx/tictactoe': did you mean 'pgx/tic_tac_toe'?"),
        ("pgx/hex", {"size": 5}, "unknown option 'size' of pgx/hex: choose from max_steps"),
        ("pgx/hex", {"max_steps": 0}, "max_steps=0 of pgx/hex must be a whole number in [1, 2^31)"),
        ("craftax/Craftax-v1", {}, "unknown environment 'craftax/Craftax-v1': did you mean 'craftax/Craftax-Symbolic-v1'?"),
        (
            "craftax/Craftax-Symbolic-v1",
            {"god": 1},
            "unknown option 'god' of craftax/Craftax-Symbolic-v1: choose from max_steps",
        ),
        (
            "craftax/Craftax-Symbolic-v1",
            {"max_steps": 0},
            "max_steps=0 of craftax/Craftax-Symbolic-v1 must be a whole number in [1, 2^31)",
        ),
    ],
)
def test_errors_name_the_nearest(env_id, options, message):
    suite = env_id.partition("/")[0]
    if not registry.installed(suite):
        message = f"{env_id} needs an extra: pip install 'rlx[{suite}]'"
    with pytest.raises(RlxError) as error:
        envs.make(env_id, **options)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


# --- training ----------------------------------------------------------------------------------------------------------

TINY = dict(num_envs=4, rollout_length=8, num_minibatches=4, hidden_sizes=(8,))


@pytest.mark.parametrize(
    "env_id",
    cases(MAZE, "navix/Navix-Empty-5x5-v0", XLAND, "pgx/tic_tac_toe", CRAFTAX, slow=[MAZE, XLAND, "pgx/tic_tac_toe", CRAFTAX]),
)
def test_ppo_runs(env_id):
    """Two iterations and an evaluation, with true episodes in it."""
    trainer = rlx.make("ppo", env_id, env_options={"max_steps": LIMIT}, **TINY)
    carry, metrics = trainer.run(trainer.init(seeds=1), steps=64)
    assert trainer.steps(carry) == 64
    assert all(np.isfinite(metrics[name]).all() for name in ("policy_loss", "value_loss", "entropy"))
    returns = np.asarray(trainer.evaluate(carry, 3, jax.random.key(0)))
    assert returns.shape == (1, 3) and np.isfinite(returns).all()
