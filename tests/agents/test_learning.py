"""The agents reach their baselines' scores. Slow: minutes each."""

import numpy as np
import pytest

import rlx
from rlx import stats

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "env", "steps", "seeds", "aim"),
    [
        ("ppo-cartpole", "gymnax/CartPole-v1", 300_000, 8, 475.0),
        ("sac-pendulum", "gymnax/Pendulum-v1", 20_000, 6, -180.0),
        ("ppo-hopper", "brax/hopper", 2_000_000, 4, 1449.0),  # 10 x random (145), above standing still (992)
        ("sac-double-pendulum", "brax/inverted_double_pendulum", 80_000, 6, 1678.0),  # 10 x random (168), above still (350)
        ("ppo-breakout", "gymnax/Breakout-MinAtar", 600_000, 4, 4.5),  # 10 x random (0.45)
        ("dqn-cartpole", "gymnax/CartPole-v1", 100_000, 8, 475.0),
        ("pqn-cartpole", "gymnax/CartPole-v1", 300_000, 8, 475.0),
        ("td3-pendulum", "gymnax/Pendulum-v1", 20_000, 6, -180.0),
        ("td3-double-pendulum", "brax/inverted_double_pendulum", 80_000, 6, 1678.0),
        ("sac-discrete-cartpole", "gymnax/CartPole-v1", 60_000, 8, 475.0),
        ("sac-gymnasium-hopper", "gymnasium/Hopper-v5", 100_000, 4, 202.0),  # 10 x random (20.2), above still (147)
    ],
)
def test_baseline(name, env, steps, seeds, aim):
    """The interquartile mean over seeds of the last evaluation, of 16 episodes each."""
    if env.startswith("gymnasium/"):
        pytest.importorskip("gymnasium")
    from experiments.baselines import fields

    keywords = fields(name)
    assert (keywords["env"], keywords["steps"], keywords["seeds"]) == (env, steps, seeds)
    result = rlx.train(**keywords, eval_episodes=16, progress=False)
    final = np.asarray(result.returns)[:, -1]
    assert final.shape == (seeds,)
    assert stats.iqm(final) >= aim, final


@pytest.mark.parametrize(
    ("agent", "env", "steps", "fields", "aim"),
    [
        ("mrq", "gymnax/Pendulum-v1", 4_000, {}, -200.0),
        ("mrq", "gymnax/CartPole-v1", 4_000, {}, 94.0),  # 4 x random (23.5): its evaluations still swing, from 100 to 500
        ("td3", "gymnax/Pendulum-v1", 20_000, {"prioritized": True}, -180.0),
        ("dqn", "gymnax/CartPole-v1", 100_000, {"prioritized": True}, 475.0),
    ],
)
def test_small(agent, env, steps, fields, aim):
    """Preset `small`, 4 seeds, the same score: MR.Q in a fifth of the steps, and prioritised replay."""
    result = rlx.train(
        agent, env, preset="small", steps=steps, seeds=4, eval_every=steps, eval_episodes=16, progress=False, **fields
    )
    final = np.asarray(result.returns)[:, -1]
    assert stats.iqm(final) >= aim, final
