"""Scenes of environments, in the simulators' own geometry."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx import envs
from rlx.envs.pixels import SCENES
from rlx.envs.raster import BACKGROUND, GOAL, SIZE, TIP, View

RNG = np.random.default_rng(0)


def check_disc(frame, colour, view, centre, radius):
    """Pixels clearly inside the disc have `colour`, those clearly outside have not."""
    at = ((np.arange(SIZE) + 0.5) / SIZE * 2 - 1) * view.half
    x, y = np.meshgrid(view.x + at, view.y - at)
    distance = (np.hypot(x - centre[0], y - centre[1]) - radius) * SIZE / (2 * view.half)
    same = (np.asarray(frame) == colour).all(-1)
    assert (distance < -0.55).any() and same[distance < -0.55].all() and not same[distance > 0.55].any()


def gymnax(task, params=None, **state):
    """The frame of a state."""
    state = {name: jnp.asarray(x, jnp.float32) for name, x in state.items()}
    return SCENES[f"gymnax/{task}"](SimpleNamespace(**state), params or envs.make(f"gymnax/{task}").default_params)


def test_gymnax_scenes_in_their_own_geometry():
    """Ends of poles where gym draws them: its pendulum turns counter-clockwise, its acrobot hangs at 0. The arm's angles are
    absolute. Targets lie where no arm is."""
    for a, b in RNG.uniform(-np.pi, np.pi, (3, 2)):
        x, b = 0.4 * b, b / 2.5
        check_disc(gymnax("CartPole-v1", x=x, theta=b), TIP, View(2.7, y=1.0), (x + np.sin(b), np.cos(b)), 0.036 * 2.7)
        check_disc(gymnax("Pendulum-v1", theta=a), TIP, View(1.3), (-np.sin(a), np.cos(a)), 0.07 * 1.3)
        frame = gymnax("Acrobot-v1", joint_angle1=a, joint_angle2=b)
        tip = np.sin(a) + np.sin(a + b), -np.cos(a) - np.cos(a + b)
        check_disc(frame, TIP, View(2.3), tip, 0.07 * 2.3)
        line = np.flatnonzero((np.asarray(frame)[:, 2] != BACKGROUND).any(-1))
        assert set(line) <= {22, 23, 24} and len(line) > 1  # height 1: (1 - 1 / 2.3) * 42 = 23.7
        goal = -1.8 * np.array([np.cos(a), np.sin(a)])
        frame = gymnax("Reacher-misc", angles=[a, a + b], goal_xy=goal)
        check_disc(frame, TIP, View(2.2), (np.cos(a) + np.cos(a + b), np.sin(a) + np.sin(a + b)), 0.045 * 2.2)
        check_disc(frame, GOAL, View(2.2), goal, 0.07 * 2.2)


def test_lengths_and_goals_are_parameters():
    params = {task: envs.make(f"gymnax/{task}").default_params for task in ("CartPole-v1", "Pendulum-v1", "MountainCar-v0")}
    check_disc(
        gymnax("CartPole-v1", params["CartPole-v1"].replace(length=0.8), x=0, theta=0),
        TIP,
        View(2.7, y=1.0),
        (0, 1.6),
        0.036 * 2.7,
    )
    check_disc(gymnax("Pendulum-v1", params["Pendulum-v1"].replace(l=0.5), theta=0), TIP, View(1.3), (0, 0.5), 0.07 * 1.3)
    frames = [gymnax("MountainCar-v0", params["MountainCar-v0"].replace(goal_position=g), position=-0.5) for g in (0.3, 0.5)]
    columns = [np.flatnonzero((np.asarray(f) == GOAL).all(-1).any(0)).mean() for f in frames]
    assert abs(columns[1] - columns[0] - 0.2 * 42) < 1


@pytest.mark.parametrize("task", ["inverted_pendulum", "inverted_double_pendulum", "reacher"])
def test_brax_scenes_agree_with_its_links(task):
    from brax import base

    env, arm = envs.make(f"brax/{task}").env, task == "reacher"
    end, link = ([0.11, 0.0, 0.0], 1) if arm else ([0.0, 0.0, 0.6], env.brax.sys.num_links() - 1)

    @jax.jit
    def scene(q):
        state = env.brax.pipeline_init(q, jnp.zeros_like(q))
        tip = state.x.take(link).do(base.Transform.create(pos=jnp.array(end))).pos
        return tip, state.x.pos[-1], SCENES[f"brax/{task}"](SimpleNamespace(brax=SimpleNamespace(pipeline_state=state)), None)

    for q in RNG.uniform(-1, 1, (4, env.brax.sys.q_size())).astype(np.float32):
        if arm:
            q[:2] *= 3, 1.3
            q[2:] = -0.2 * np.cos(q[0]), -0.2 * np.sin(q[0])
        tip, last, frame = scene(q)
        check_disc(
            frame, TIP, View(0.3) if arm else View(1.75), (tip[0], tip[1 if arm else 2]), 0.045 * 0.3 if arm else 0.036 * 1.75
        )
        if arm:
            check_disc(frame, GOAL, View(0.3), last[:2], 0.02)


PLAYGROUND = {  # what the tip is: kind, name, where in its frame; the drawing's second axis; view; radius of the tip
    "CartpoleSwingup": ("body", "pole_1", 1.0, 2, View(2.1), 0.036 * 2.1),
    "PendulumSwingup": ("geom", "mass", 0.0, 2, View(0.65), 0.07 * 0.65),
    "AcrobotSwingup": ("site", "tip", 0.0, 2, View(2.3), 0.07 * 2.3),
    "ReacherEasy": ("geom", "finger", 0.0, 1, View(0.3), 0.045 * 0.3),
    "ReacherHard": ("geom", "finger", 0.0, 1, View(0.3), 0.045 * 0.3),
}


@pytest.mark.parametrize("task", PLAYGROUND)
def test_playground_scenes_agree_with_mujoco(task):
    """Tips and targets where MuJoCo's kinematics put them at random positions; targets of the sizes in the models."""
    pytest.importorskip("mujoco_playground")
    import mujoco

    kind, name, along, second, view, radius = PLAYGROUND[task]
    model = envs.make(f"playground/{task}").env.playground.mj_model
    data, base = mujoco.MjData(model), model.body(1).pos
    field = lambda x: jnp.asarray(x, jnp.float32)
    for _ in range(3):
        data.qpos[:] = RNG.uniform(-1.3, 1.3, model.nq)
        if model.nmocap:
            data.mocap_pos[0, :2] = -0.2 * np.cos(data.qpos[0]), -0.2 * np.sin(data.qpos[0])
        mujoco.mj_forward(model, data)
        state = SimpleNamespace(data=SimpleNamespace(qpos=field(data.qpos), mocap_pos=field(data.mocap_pos)))
        frame = SCENES[f"playground/{task}"](state, None)
        part = getattr(data, kind)(name)
        place = part.xpos + along * part.xmat.reshape(3, 3)[:, 2] - base
        check_disc(frame, TIP, view, (place[0], place[second]), radius)
        if task.startswith("Reacher"):
            check_disc(frame, GOAL, view, data.geom("target").xpos[:2], model.geom("target").size[0])
        elif task.startswith("Acrobot"):
            place = data.site("target").xpos - base
            check_disc(frame, GOAL, view, (place[0], place[2]), model.site("target").size[0])
