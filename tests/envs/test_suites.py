"""The suites that extras install: what builds, what does not and why, and that agents train on it. See test_conformance too."""

import jax
import numpy as np
import pytest
from gymnax.environments.environment import Environment

import rlx
from rlx import envs
from rlx.envs import registry, vector
from rlx.envs.wrappers import spec
from rlx.errors import RlxError
from tests.envs.suites_support import CRAFTAX, MAZE, XLAND, cases

SUITES = ("jumanji", "navix", "xminigrid", "pgx", "craftax")
LIMIT = 12


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
    cases(MAZE, "navix/Navix-Empty-5x5-v0", XLAND, "pgx/tic_tac_toe", CRAFTAX),
)
@pytest.mark.slow
def test_ppo_runs(env_id):
    """Two iterations and an evaluation, with true episodes in it."""
    trainer = rlx.make("ppo", env_id, env_options={"max_steps": LIMIT}, **TINY)
    carry, metrics = trainer.run(trainer.init(seeds=1), steps=64)
    assert trainer.steps(carry) == 64
    assert all(np.isfinite(metrics[name]).all() for name in ("policy_loss", "value_loss", "entropy"))
    returns = np.asarray(trainer.evaluate(carry, 3, jax.random.key(0)))
    assert returns.shape == (1, 3) and np.isfinite(returns).all()
