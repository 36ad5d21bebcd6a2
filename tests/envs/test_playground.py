"""MuJoCo Playground: its cart-pole against dm_control's, and what the loop relies on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import envs, stats
from rlx.envs import vector
from rlx.envs.wrappers import spec
from rlx.errors import RlxError
from tests.envs import suites_support as library
from tests.envs.conformance_support import compiled

pytest.importorskip("mujoco_playground")
suite = pytest.importorskip("dm_control.suite")

SWINGUP = "playground/CartpoleSwingup"


@functools.cache
def swingup():
    """(Playground's own environment, reset() -> state, obs, step(state, action) -> state, obs, reward, ...), which
    test_conformance compiles too, and finds to be what rlx does."""
    env = library.swingup()
    key, params = np.zeros(2, np.uint32), jax.device_put(vector.strong(env.default_params))
    reset, step = compiled(*library.playground())
    return env.env.playground, lambda: reset(key, params), lambda state, action: step(key, state, action, params)


def test_cartpole_against_dm_control():
    """Same state, same action, 100 steps from five angles between upright and hanging, each step from Playground's state:
    positions and velocities agree to 2e-3 (float32 and semi-implicit Euler against float64 and dm_control's integrator),
    rewards to 2e-2 (Playground's sees the pole one step late: MJX leaves its kinematics where the step began)."""
    env, reset, step = swingup()
    dmc = suite.load("cartpole", "swingup")
    assert dmc.control_timestep() == pytest.approx(env.dt)
    dmc.reset()

    def put(data):
        with dmc.physics.reset_context():
            dmc.physics.data.qpos[:], dmc.physics.data.qvel[:] = data.qpos, data.qvel

    rng, rewards = np.random.default_rng(0), []
    for angle in np.linspace(0.1, np.pi, 5):
        state, _ = reset()
        data = state.data.replace(qpos=jnp.array([0.1, angle], jnp.float32), qvel=jnp.array([0.2, -0.3], jnp.float32))
        state = state.replace(data=data)
        for _ in range(20):
            action = rng.uniform(-1, 1, 1).astype(np.float32)
            put(state.data)
            dmc.task.before_step(action, dmc.physics)
            dmc.physics.step(dmc._n_sub_steps)
            state, _, reward, _, terminated = step(state, action)
            np.testing.assert_allclose(state.data.qpos, dmc.physics.data.qpos, atol=2e-3)
            np.testing.assert_allclose(state.data.qvel, dmc.physics.data.qvel, atol=2e-3)
            put(state.data)
            dmc.physics.data.ctrl[:] = action
            np.testing.assert_allclose(reward, dmc.task.get_reward(dmc.physics), atol=2e-2)
            assert not terminated
            rewards.append(float(reward))
    assert np.ptp(rewards) > 0.5


@pytest.mark.parametrize(("position", "angle"), [(0.0, np.pi), (0.05, 0.03), (1.5, 1.5)])  # the last meets the slider's limit
def test_a_trajectory_of_cartpole_equals_mujoco(position, angle):
    """100 steps from one state, never put back, by dm_control with Playground's integrator and solver: observations and
    rewards to 2e-5 (float32 against float64), where the pole's angle is taken one step late, as Playground does."""
    mujoco = pytest.importorskip("mujoco")
    _, reset, step = swingup()
    dmc = suite.load("cartpole", "swingup")
    option = dmc.physics.model.ptr.opt
    option.integrator, option.iterations, option.ls_iterations = mujoco.mjtIntegrator.mjINT_EULER, 1, 4
    option.disableflags |= mujoco.mjtDisableBit.mjDSBL_EULERDAMP
    state, _ = reset()
    qpos, qvel = np.float32([position, angle]), np.float32([0.2, -0.3])
    state = state.replace(data=state.data.replace(qpos=jnp.array(qpos), qvel=jnp.array(qvel)))
    dmc.reset()
    with dmc.physics.reset_context():
        dmc.physics.data.qpos[:], dmc.physics.data.qvel[:] = qpos, qvel
    rng, farthest = np.random.default_rng(0), 0.0
    for _ in range(100):
        action = rng.uniform(-1, 1, 1).astype(np.float32)
        late = dmc.physics.data.xmat.copy()
        dmc.task.before_step(action, dmc.physics)
        dmc.physics.step(dmc._n_sub_steps)
        state, obs, reward, _, _ = step(state, action)
        now, dmc.physics.data.xmat[:] = dmc.physics.data.xmat.copy(), late
        expected = np.concatenate([dmc.physics.bounded_position(), dmc.physics.velocity()])
        np.testing.assert_allclose(obs, expected, atol=2e-5)
        np.testing.assert_allclose(reward, dmc.task.get_reward(dmc.physics), atol=2e-5)
        dmc.physics.data.xmat[:] = now
        farthest = max(farthest, expected[0])
    assert (farthest > 1.8) == (position == 1.5)


@pytest.fixture
def outspoken():
    """MuJoCo prints and logs its warnings, as it does of itself: dm_control takes them over."""
    mujoco = pytest.importorskip("mujoco")
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(None)
    yield
    mujoco.set_mju_user_warning(previous)


def test_building_leaves_no_log_behind(tmp_path, monkeypatch, capfd, outspoken):
    """MuJoCo has something to say about the cheetah's model; and Playground about the reacher's, with this MuJoCo."""
    monkeypatch.chdir(tmp_path)
    for task in ("CheetahRun", "ReacherEasy"):
        assert envs.make(f"playground/{task}").max_steps == 1000
    assert not list(tmp_path.iterdir()) and capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_action_repeat_sums_rewards():
    _, reset, step = swingup()
    twice = envs.make(SWINGUP, episode_length=7, action_repeat=2)
    assert twice.default_params.max_steps_in_episode == 4
    _, state = jax.jit(twice.reset_env)(jax.random.key(0), twice.default_params)
    action = jnp.array([0.5], jnp.float32)
    obs, _, reward, _, _ = jax.jit(twice.step_env)(jax.random.key(4), state, action, twice.default_params)
    one, _ = reset()
    one, _, first, _, _ = step(one, action)
    _, last, second, _, _ = step(one, action)
    np.testing.assert_allclose(reward, first + second, rtol=1e-4)
    np.testing.assert_allclose(obs, last, atol=1e-4)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("CartpoleSwingUp", {}, "unknown environment 'playground/CartpoleSwingUp': did you mean 'playground/CartpoleSwingup'?"),
        ("CartpoleSwingup", {"imp": "jax"}, "unknown option 'imp' of playground/CartpoleSwingup: did you mean 'impl'?"),
        ("CartpoleSwingup", {"impl": "jaxx"}, "unknown impl of playground/CartpoleSwingup 'jaxx': did you mean 'jax'?"),
        ("CartpoleSwingup", {"episode_length": "x"}, "episode_length='x' of playground/CartpoleSwingup must be like 1000"),
        ("CartpoleSwingup", {"episode_length": 0}, "episode_length=0 of playground/CartpoleSwingup must be >= 1"),
        (
            "CartpoleSwingup",
            {"episode_length": 2**31},
            "episode_length=2147483648 of playground/CartpoleSwingup must be >= 1 and",
        ),
        ("CartpoleSwingup", {"sim_dt": 0.02}, "sim_dt=0.02 of playground/CartpoleSwingup must be > 0 and at most ctrl_dt=0.01"),
        ("CartpoleSwingup", {"sim_dt": True}, "sim_dt=True of playground/CartpoleSwingup must be like 0.01"),
        ("CartpoleSwingup", {"task": "x"}, "unknown option 'task' of playground/CartpoleSwingup: "),
        ("CartpoleSwingup", {"vision": True}, "playground/CartpoleSwingup does not run with vision=True ("),
        ("Go1JoystickFlatTerrain", {}, "playground/Go1JoystickFlatTerrain needs mujoco_menagerie, which rlx does not download"),
    ],
)
def test_errors(task, options, message):
    with pytest.raises(RlxError) as error:
        envs.make(f"playground/{task}", **options)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


@pytest.mark.slow
def test_sac_runs_on_it():
    trainer = rlx.make("sac", SWINGUP, env_options={"episode_length": 6, "action_repeat": 2}, hidden_sizes=(4,), batch_size=4,
                       replay_capacity=64, learning_starts=4)  # fmt: skip
    carry, metrics = trainer.run(trainer.init(2), 12)
    assert (metrics["episodes"] == 4).all() and (metrics["updates"] > 0).all() and np.isfinite(metrics["q"]).all()
    assert np.isfinite(trainer.evaluate(carry, 1)).all()


@pytest.mark.slow
@pytest.mark.parametrize("task", envs.ids(("playground",)))
def test_every_task_builds(task):
    """And its state keeps its structure and dtypes."""
    env = envs.make(task)
    params = vector.strong(env.default_params)
    facts = spec(env, params)
    assert facts.obs_shape == env.observation_space(params).shape and facts.obs_dtype == jnp.float32
    assert (facts.reward_shape, facts.max_episode_steps, env.name) == ((), 1000, task)
    vec = vector.vectorise(env, 2)
    state, _ = jax.eval_shape(vec.reset, jax.random.key(0), params)
    after, _ = jax.eval_shape(vec.step, jax.random.key(0), state, jnp.zeros((2, facts.action_dim), jnp.float32), params)
    avals = lambda tree: [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]
    assert jax.tree.structure(state) == jax.tree.structure(after) and avals(state) == avals(after)


@pytest.mark.slow
def test_sac_swings_up():
    """50k agent steps of two native steps each."""
    result = rlx.train(
        "sac", SWINGUP, preset="small", steps=50_000, seeds=4, env_options={"action_repeat": 2}, progress=False, eval_episodes=4
    )
    final = np.asarray(result.returns)[:, -1]
    assert stats.iqm(final) >= 600, final
