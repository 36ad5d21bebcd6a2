"""Pixels as observations: the wrapper, its place among the others, the quarantine, every scene in its environment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

import rlx
from rlx import envs
from rlx.envs import modifiers, vector
from rlx.envs.modifiers import ActionCost, ActionRepeat, FrameStack
from rlx.envs.pixels import SCENES, Pixels
from rlx.envs.raster import SIZE
from rlx.envs.wrappers import TimeLimit, spec
from rlx.errors import RlxError
from tests.envs.echo_support import Echo
from tests.envs.walk_support import KEY, N, Params, Walk, actions, run


def dots(state, params):
    """A frame [2, 3, 1] that tells the state and a parameter."""
    values = jnp.concatenate([20.0 * jnp.clip(state.x, 0.0, 10.0), jnp.asarray(params.end, jnp.float32)[None]])
    return jnp.stack([values, jnp.zeros(3)])[..., None].astype(jnp.uint8)


def seen(x, end):
    """The same in NumPy, of states `[..., 2]`."""
    frame = np.zeros((*x.shape[:-1], 2, 3, 1), np.uint8)
    frame[..., 0, :2, 0] = 20 * np.clip(x, 0, 10)
    frame[..., 0, 2, 0] = end
    return frame


# --- the wrapper -------------------------------------------------------------------------------------------------------


def test_frames_are_of_the_states_and_nothing_else_changes():
    """Of the successor where an episode ends, of the new start in what is acted on next; rewards and endings as without."""
    params = Params(end=3.0)
    start, states, step = run(Pixels(Walk(), dots), params)
    bare_start, bare_states, bare = run(Walk(), params)
    np.testing.assert_array_equal(states.x, bare_states.x)
    for name in ("reward", "terminated", "truncated", "weight"):
        np.testing.assert_array_equal(getattr(step, name), getattr(bare, name))
    assert step.terminated.any() and step.truncated.any()
    for frame, x in ((start, bare_start), (step.obs, bare.obs), (step.next_obs, bare.next_obs)):
        assert frame.dtype == np.uint8
        np.testing.assert_array_equal(frame, seen(x, 3.0))


@pytest.mark.parametrize("nan_in", ["obs", "reward"])
@pytest.mark.parametrize("repeat", [1, 3])
def test_what_frames_hide_is_quarantined(nan_in, repeat):
    """The state is sound and so is the frame: without the wrapper's care, only a NaN in the reward would show."""
    env = Pixels(ActionRepeat(Walk(nan_in), repeat), dots)
    _, _, step = run(env, Params(max_steps_in_episode=100, end=100.0, nan_at=2 * repeat), given=actions(steps=4))
    np.testing.assert_array_equal(step.weight, np.tile([[1], [0], [1], [0]], N))
    np.testing.assert_array_equal(step.truncated, step.weight == 0)
    assert not step.terminated.any() and not step.reward[1].any() and not step.next_obs[1].any()
    assert step.obs[1].any() and np.isfinite(step.reward).all()


def test_quarantine_of_vector_rewards_and_of_a_pendulum_gone_wrong():
    env = Pixels(Walk(objectives=3), dots)
    _, _, step = run(env, Params(100, 100.0, nan_at=2), given=actions(steps=2))
    assert step.reward.shape == (2, N, 3) and (step.weight == [[1], [0]]).all() and not step.reward[1].any()

    env = Pixels(envs.make("gymnax/Pendulum-v1"))
    params = vector.strong(env.default_params)
    vec = vector.vectorise(env, 2)
    state, _ = jax.jit(vec.reset)(KEY, params)
    state = state.replace(theta=state.theta.at[0].set(jnp.nan))
    state, step = jax.jit(vec.step)(KEY, state, jnp.zeros((2, 1)), params)
    assert (step.weight == jnp.array([0.0, 1.0])).all() and bool(step.truncated[0]) and np.isfinite(state.theta).all()
    assert not step.next_obs[0].any() and step.next_obs[1].any() and step.obs[0].any()


def test_spaces_and_spec():
    env = envs.make("gymnax/CartPole-v1", pixels=True)
    space = env.observation_space(env.default_params)
    assert (space.low, space.high, space.shape, space.dtype) == (0, 255, (SIZE, SIZE, 3), jnp.uint8)
    got, bare = (spec(e, e.default_params) for e in (env, env.env))
    assert got == bare._replace(obs_shape=(84, 84, 3), obs_dtype=jnp.dtype("uint8"))
    small = Pixels(Walk(), dots)
    assert small.observation_space(small.default_params).shape == (2, 3, 1)


def test_the_order_of_wrappers_and_their_states_and_parameters():
    """Drawn once after the repeat; stacks are of frames; scenes are found in the states and parameters of all wrappers."""
    env = envs.make("gymnax/Pendulum-v1")
    env = modifiers.apply(TimeLimit(env, 9), action_repeat=2, action_cost=0.25, pixels=True, frame_stack=2)
    kinds, inner = [], env
    while hasattr(inner, "env"):
        kinds.append(type(inner))
        inner = inner.env
    assert kinds == [TimeLimit, FrameStack, Pixels, ActionRepeat, ActionCost]
    assert spec(env, env.default_params).obs_shape == (84, 84, 6) and spec(env, env.default_params).frames == 2
    params = env.default_params.replace(env=env.default_params.env.replace(env=inner.default_params.replace(l=0.5)))
    obs, state = env.reset_env(KEY, params)
    again, after, *_ = jax.jit(env.step_env)(KEY, state, jnp.ones(1), params)
    draw = jax.jit(lambda state, length: SCENES["gymnax/Pendulum-v1"](state, inner.default_params.replace(l=length)))
    np.testing.assert_array_equal(obs, np.concatenate([draw(state.env.env, 0.5)] * 2, -1))
    np.testing.assert_array_equal(again, np.concatenate([draw(state.env.env, 0.5), draw(after.env.env, 0.5)], -1))
    assert (again[..., :3] != again[..., 3:]).any() and (obs[..., :3] != draw(state.env.env, 1.0)).any()

    limited = Pixels(TimeLimit(inner, 5))  # a limit inside is the episode's too
    assert spec(limited, limited.default_params).max_episode_steps == 5


def test_what_cannot_be_drawn():
    with pytest.raises(RlxError) as error:
        envs.make("gymnax/Swimmer-misc", pixels=True)
    start = "pixels: Swimmer-misc has no scene: use Pixels(env, draw) or one of gymnax/CartPole-v1, "
    assert str(error.value).startswith(start) and "brax/reacher, " in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(RlxError, match="pixels: Walk has no scene"):
        Pixels(Walk())
    with pytest.raises(RlxError, match=r"pixels: Walk is drawn as float32\[2\]; it must be uint8\[H, W, C\]"):
        Pixels(Walk(), lambda state, params: state.x)
    with pytest.raises(RlxError, match=r"pixels: Walk is drawn as uint8\[2, 3\]"):
        Pixels(Walk(), lambda state, params: dots(state, params)[..., 0])
    with pytest.raises(RlxError, match="pixels='yes' must be True or False"):
        modifiers.apply(Echo(spaces.Discrete(2)), pixels="yes")
    with pytest.raises(RlxError, match="obs_noise: Pendulum-v1 observes no floats"):
        envs.make("gymnax/Pendulum-v1", pixels=True, obs_noise=0.1)
    with pytest.raises(RlxError, match="gymnasium/Pendulum-v1 runs on the host"):
        envs.make("gymnasium/Pendulum-v1", pixels=True)
    env = Walk()
    assert modifiers.apply(env, pixels=False) is env and not isinstance(envs.make("gymnax/Pendulum-v1", pixels=None), Pixels)


# --- every scene in its environment ------------------------------------------------------------------------------------


def test_scenes_are_of_environments_that_there_are():
    known = envs.ids(suite for suite in ("gymnax", "brax", "playground") if envs.registry.installed(suite))
    missing = [name for name in SCENES if name not in known and name.partition("/")[0] in {k.partition("/")[0] for k in known}]
    assert missing == [] and len(SCENES) == 18


@pytest.mark.parametrize("name", [n for n in SCENES if not n.startswith("playground/")])
def test_every_scene_is_drawn_and_moves(name):
    """jit, vmap and scan: eight environments for 30 steps, every frame as drawn from its state alone."""
    env = envs.make(name, pixels=True)
    params = vector.strong(env.default_params)
    vec = vector.vectorise(env, 8, auto_reset=False)

    @jax.jit
    def frames(key):
        state, obs = vec.reset(key, params)

        def body(state, i):
            action = jax.vmap(env.action_space(params).sample)(jax.random.split(jax.random.fold_in(key, i), 8))
            state, step = vec.step(jax.random.fold_in(key, i), state, action, params)
            return state, step.next_obs

        state, rest = jax.lax.scan(body, state, jnp.arange(30, dtype=jnp.uint32))
        return obs, rest, state

    first, rest, state = jax.device_get(frames(KEY))
    assert rest.shape == (30, 8, SIZE, SIZE, 3) and rest.dtype == np.uint8
    change = lambda a, b: np.abs(a.astype(int) - b).max((-3, -2, -1))
    assert (change(rest[-1], first) > 60).all() and (change(first[1:], first[:-1]) > 0).all()
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 5
    pixels = env.env if isinstance(env, TimeLimit) else env
    own, own_params = (state.env, params.env) if isinstance(env, TimeLimit) else (state, params)
    np.testing.assert_allclose(pixels.draw(jax.tree.map(lambda x: x[3], own), own_params).astype(int), rest[-1, 3], atol=1)


def test_playground_is_drawn_where_it_is():
    """Where the vector observation's angle is one step late, the frame is not."""
    pytest.importorskip("mujoco_playground")
    env = envs.make("playground/CartpoleBalance", pixels=True)
    params = env.default_params
    obs, state = jax.jit(env.reset_env)(KEY, params)
    step, draw = jax.jit(env.step_env), jax.jit(SCENES["playground/CartpoleBalance"])
    np.testing.assert_allclose(obs.astype(int), draw(state.env, None).astype(int), atol=1)
    for _ in range(3):
        obs, state, reward, *_ = step(KEY, state, jnp.ones(1), params)
        np.testing.assert_allclose(obs.astype(int), draw(state.env, None).astype(int), atol=1)
    assert np.isfinite(reward) and float(state.env.data.qpos[1]) != 0


@pytest.mark.parametrize("name", [n for n in SCENES if n.startswith("playground/")])
def test_playground_states_have_what_scenes_read(name):
    pytest.importorskip("mujoco_playground")
    env = envs.make(name, pixels=True)
    assert env.observation_space(env.default_params).shape == (84, 84, 3)


def test_an_agent_trains_on_pixels():
    result = rlx.train(
        "sac", "gymnax/Pendulum-v1", steps=32, seeds=1, env_options={"pixels": True, "action_repeat": 50}, progress=False,
        eval_episodes=2, num_envs=4, hidden_sizes=(4,), batch_size=2, replay_capacity=32, learning_starts=16,
        updates_per_step=0.25,
    )  # fmt: skip
    assert result.trainer.spec.obs_shape == (84, 84, 3) and result.metrics["updates"].sum() > 0
    assert np.isfinite(result.metrics["critic_loss"].iloc[-1]) and np.isfinite(result.returns).all()
