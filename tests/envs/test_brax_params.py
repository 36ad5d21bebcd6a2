"""Friction, mass and gravity of Brax tasks: scales of the task's own, traced, one value a run."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import rlx
from rlx.envs import vector
from rlx.envs.adapters import brax
from rlx.errors import RlxError
from tests.trainer_support import compilations

brax.tasks()  # silences what importing Brax prints
from brax import envs as brax_envs  # noqa: E402
from brax.io import mjcf  # noqa: E402

every = pytest.mark.parametrize(
    "backend", [pytest.param(b, marks=pytest.mark.slow) if b == "mjx" else b for b in brax.BACKENDS]
)

# A ball in free fall, a cart that a motor pushes, a wheel that a motor turns, and a puck that slides and cannot roll.
# Of the masses, spring and positional keep m^0 = 1, of the inertias the square root.
MODEL = """<mujoco><compiler inertiafromgeom="true"/><option timestep="0.002"/>
<custom><numeric name="spring_mass_scale" data="1"/><numeric name="spring_inertia_scale" data="0.5"/></custom>
<default><geom type="sphere" size="0.1" mass="2" contype="0" conaffinity="0" friction="0.2 0.005 0.0001"/></default>
<worldbody>
<geom type="plane" size="40 40 1" contype="1" conaffinity="1"/>
<body pos="0 0 5"><joint type="free"/><geom/></body>
<body pos="0 2 5"><joint name="cart" type="slide" axis="1 0 0"/><geom/></body>
<body pos="0 4 5"><joint name="wheel" type="hinge" axis="0 0 1"/><geom size="0.3"/></body>
<body pos="0 6 0.1"><joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/><geom conaffinity="1"/></body>
</worldbody><actuator><motor joint="cart" gear="3"/><motor joint="wheel" gear="0.5"/></actuator></mujoco>"""
BALL, CART, WHEEL, PUCK, LIFT = 2, 6, 7, 8, 9  # their places in the velocities
FORCE, TORQUE, MASS, INERTIA, MU, G, SPEED, DT = 3.0, 0.5, 2.0, 0.4 * 2 * 0.3**2, 0.2, 9.81, 3.0, 0.04


class Bodies(brax_envs.base.PipelineEnv):
    """Observes all velocities; the reward is the puck's."""

    def __init__(self, backend="spring"):
        super().__init__(mjcf.loads(MODEL), backend, n_frames=20)

    def reset(self, rng):
        qd = jnp.zeros(self.sys.nv).at[PUCK].set(SPEED)
        state = self.pipeline_init(self.sys.init_q, qd)
        return brax_envs.State(state, state.qd, jnp.zeros(()), jnp.zeros(()))

    def step(self, state, action):
        after = self.pipeline_step(state.pipeline_state, action)
        return state.replace(pipeline_state=after, obs=after.qd, reward=after.qd[PUCK])


@pytest.fixture(scope="module", autouse=True)
def registered():
    brax_envs.register_environment("bodies", Bodies)
    yield
    del brax_envs._envs["bodies"]


# --- laws --------------------------------------------------------------------------------------------------------------


STEPS = 8
SCALES = np.array(  # friction, mass, gravity
    [[1, 1, 1], [0.5, 1, 1], [2, 1, 1], [1, 0.5, 1], [1, 2, 1], [1, 1, 0.5], [1, 1, 2], [0, 1, 1]], np.float32
)


@functools.cache
def fallen(backend):
    """Velocities after each step, [scales, T, nv], and those of a body that got its parameters only after the reset."""
    env = brax.Brax("bodies", backend=backend)

    def body(params, state, _):
        obs, state, *_ = env.step_env(jax.random.key(0), state, jnp.ones(2), params)
        return state, obs

    def run(scales):
        params = brax.Params(*scales)
        starts = [env.reset_env(jax.random.key(0), p)[1] for p in (params, env.default_params)]
        start = jax.tree.map(lambda *x: jnp.stack(x), *starts)
        return jax.vmap(lambda s: jax.lax.scan(functools.partial(body, params), s, None, STEPS)[1])(start)

    return np.moveaxis(jax.jit(jax.vmap(run))(SCALES), 1, 0)


@every
def test_laws_of_motion(backend):
    v, t = fallen(backend)[0][:, -1], STEPS * DT
    friction, mass, gravity = SCALES.T
    particles = backend in ("spring", "positional")
    m, i = mass * (1 if particles else MASS), mass * (INERTIA**0.5 if particles else INERTIA)
    near = functools.partial(np.testing.assert_allclose, rtol=0.01 if backend == "positional" else 1e-4)
    near(v[:, BALL], -G * gravity * t)
    near(v[:, CART], FORCE / m * t)
    near(v[:, WHEEL], TORQUE / i * t)
    slowed = SPEED - v[:, PUCK]
    if backend == "positional":  # Brax's friction is only roughly Coulomb's there, and grows with mass
        np.testing.assert_allclose(slowed, slowed[0] * friction * mass * gravity, rtol=0.01, atol=0.01)
    else:
        pressed = G * gravity * t + v[:, LIFT]  # the ground's impulse on a unit of mass
        np.testing.assert_allclose(slowed, MU * friction * pressed, rtol=0.01, atol=0.004)
    assert np.all(np.abs(v[:, LIFT]) < 0.3), "nothing flies off"


@pytest.mark.parametrize("backend", ["spring", "positional"])
def test_a_step_goes_by_its_own_parameters(backend):
    """Not by those of the reset, whose masses these two keep in the state."""
    np.testing.assert_allclose(fallen(backend)[1][:, :, CART], fallen(backend)[0][:, :, CART], rtol=1e-5)


def test_every_field_is_what_mujoco_makes_of_such_a_model():
    """With its own inverse weights, subtree masses ...: for a model without armature nothing is left out."""
    friction, mass, gravity = 0.5, 3.0, 2.0
    other = mujoco.MjModel.from_xml_string(MODEL)
    for field, scale in (("geom_friction", [friction, 1, 1]), ("body_mass", mass), ("body_inertia", mass)):
        getattr(other, field)[:] *= scale
    other.opt.gravity[:] *= gravity
    mujoco.mj_setConst(other, mujoco.MjData(other))
    unused = {"mj_model": None, "dof_M0": 0, "actuator_acc0": 0}  # acc0 is for muscles
    expected = mjcf.load_model(other).replace(**unused)
    got = brax.scaled(mjcf.loads(MODEL), brax.Params(friction, mass, gravity)).replace(**unused)
    assert jax.tree.structure(got.replace(_impl=None)) == jax.tree.structure(expected.replace(_impl=None))
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7, err_msg=jax.tree_util.keystr(path))


# --- at the default ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "backend"),
    [
        ("bodies", "spring"),
        ("bodies", "generalized"),
        *(pytest.param("hopper", b, marks=pytest.mark.slow) for b in brax.BACKENDS),
    ],
)
def test_defaults_are_brax_to_the_bit(task, backend):
    """Every number of the state, for several steps on the ground."""
    env, theirs = brax.Brax(task, backend=backend), brax.tasks()[task](backend=backend)
    keys = jax.random.split(jax.random.key(0), 4)
    actions = jax.random.uniform(jax.random.key(1), (25, 4, theirs.action_size), minval=-1, maxval=1)

    def play(reset, step):
        def body(state, action):
            state = jax.vmap(step)(state, action)
            return state, state

        return jax.lax.scan(body, jax.vmap(reset)(keys), actions)[1]

    def ours(params):
        step = lambda state, action: env.step_env(keys[0], brax.State(state), action, params)[1].brax
        return play(lambda key: env.reset_env(key, params)[1].brax, step)

    got, expected = jax.jit(ours)(vector.strong(env.default_params)), jax.jit(lambda: play(theirs.reset, theirs.step))()
    assert not np.array_equal(expected.obs[0], expected.obs[-1])
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))


def test_no_tracer_stays():  # (`generalized` cannot be asked: jaxopt's own cache holds tracers)
    env = brax.Brax("hopper")
    params = vector.strong(env.default_params)
    with jax.checking_leaks():
        _, state = jax.eval_shape(env.reset_env, jax.random.key(0), params)
        jax.eval_shape(env.step_env, jax.random.key(0), state, jnp.zeros(3), params)
    assert not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(env.brax.sys))


@pytest.mark.parametrize("task", brax.tasks())
def test_every_task_takes_its_system_from_the_parameters(task):
    """No constructor keeps something of the system: a copy with another system is an environment of that system."""
    try:
        env = brax.Brax(task, backend="generalized").brax
    except RlxError:
        env = brax.Brax(task, backend="mjx").brax
    held = [leaf for name, value in vars(env).items() if name != "sys" for leaf in jax.tree.leaves(value)]
    assert not any(isinstance(x, (jax.Array, np.ndarray)) for x in held)


# --- runs --------------------------------------------------------------------------------------------------------------


@functools.cache
def trainer():
    fields = {"num_envs": 2, "rollout_length": 4, "num_minibatches": 1, "num_epochs": 1, "hidden_sizes": (4,)}
    return rlx.make("ppo", brax.make("bodies", max_steps=6), **fields)


FRICTIONS = [1.0, 1.0, 0.5]


@functools.cache
def trained():
    carry = trainer().init([3], env_params={"friction": FRICTIONS})
    return trainer().run(carry, 16)


def test_runs_differ_by_their_parameters_alone():
    """Three runs of one seed in one program."""
    carry, metrics = trained()
    same = lambda a, b: [np.array_equal(x[a], x[b]) for x in jax.tree.leaves((carry.runs.agent, carry.runs.env))]
    assert all(same(0, 1))
    assert sum(same(0, 2)) < len(same(0, 2)) / 2
    returns = np.asarray(metrics["episode_return"])
    assert returns[0] == returns[1] != returns[2]
    np.testing.assert_array_equal(carry.runs.env_params.env.friction, np.float32(FRICTIONS))


def test_evaluation_is_under_the_parameters_of_the_carry_and_compiles_nothing():
    """An episode's return is the sum of the puck's speeds: six steps under friction MU."""
    t, (carry, _) = trainer(), trained()
    expected = lambda s: sum(SPEED - MU * s * G * DT * k for k in range(1, 7))
    first = np.asarray(t.evaluate(carry, 2))
    np.testing.assert_allclose(first, [[expected(s)] * 2 for s in FRICTIONS], rtol=0.01)
    t.init([4], env_params={"mass": FRICTIONS, "gravity": FRICTIONS})  # its own small operations
    with compilations() as events:
        inner = dataclasses.replace(carry.runs.env_params.env, friction=jnp.float32([2, 1, 1]))
        params = carry.runs.env_params.replace(env=inner)
        again = np.asarray(t.evaluate(carry.replace(runs=carry.runs.replace(env_params=params)), 2))
        other = t.init([9], env_params={"mass": [0.5, 2, 3], "gravity": [1, 0, 2]})
        t.run(other, 32)
    assert not events
    np.testing.assert_allclose(again, [[expected(s)] * 2 for s in (2, 1, 1)], rtol=0.01)
    np.testing.assert_array_equal(again[1], first[1])


def test_a_misspelt_parameter():
    with pytest.raises(RlxError, match="parameter of brax/hopper 'fricton': did you mean 'friction'"):
        rlx.make("ppo", "brax/hopper", env_params={"fricton": 2})
    with pytest.raises(RlxError, match="friction"):
        rlx.make("ppo", "brax/hopper", env_params={"friction": [1.0, 2.0]})
