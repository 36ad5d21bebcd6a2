"""The products that MR.Q's updates are counted to consist of: by hand, by the programs themselves, and in total."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params
from jax.interpreters import partial_eval

from experiments import mrq_flops
from experiments.mrq_flops import Product
from rlx import config
from rlx.agents import mrq
from rlx.agents import mrq_updates as updates
from rlx.off_policy import Batch
from rlx.types import EnvSpec

# all sizes differ
WIDTHS = {
    "zs_size": 17, "zsa_size": 13, "za_size": 8, "encoder_size": 19, "value_size": 14, "policy_size": 10, "num_bins": 7,
    "batch_size": 4, "enc_horizon": 2,
}  # fmt: skip
SMALL = mrq.Config(**WIDTHS)


def spec_of(obs, actions, discrete=False):
    return EnvSpec("sizes", (obs,), jnp.dtype("float32"), actions if discrete else None, 0 if discrete else actions, (), None)


def total(f, config, spec):
    return mrq_flops.flops(f(config, spec))


def test_encoder_by_hand():
    f, f_inputs = (
        6 * 19 + 19 * 19 + 19 * 17,
        19 * 19 + 19 * 17,
    )  # multiplications of one sample, with and without the first layer
    step, step_inputs = 3 * 8 + 25 * 19 + 19 * 19 + 19 * 13 + 13 * 25, 25 * 19 + 19 * 19 + 19 * 13 + 13 * 25
    targets, first, unroll = 4 * 2 * f, 4 * (2 * f + f_inputs), 2 * 4 * (2 * step + step_inputs)
    assert total(mrq_flops.encoder_step, SMALL, spec_of(6, 3)) == 2 * (targets + first + unroll)


def test_values_and_policy_by_hand():
    f, policy, policy_inputs = 6 * 19 + 19 * 19 + 19 * 17, 17 * 10 + 10 * 10 + 10 * 3, 10 * 10 + 10 * 3
    g, critic, critic_inputs = 3 * 8 + 25 * 19 + 19 * 19 + 19 * 13, 13 * 14 + 14 * 14 + 14 * 14 + 14, 14 * 14 + 14 * 14 + 14
    targets = f + policy + g + 2 * critic
    critics = f + g + 2 * (2 * critic + critic_inputs)
    actor = 2 * policy + policy_inputs + 2 * g + 2 * 2 * critic
    assert total(mrq_flops.rl_step, SMALL, spec_of(6, 3)) == 2 * 4 * (targets + critics + actor)


def dots(jaxpr):
    """FLOPs of the matrix products in a program, loops counted as often as they run."""
    flops = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            flops += 2 * eqn.outvars[0].aval.size * math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
        flops += eqn.params.get("length", 1) * sum(dots(inner) for inner in jaxprs_in_params(eqn.params))
    return flops


def used(closed):
    """The program without what no output needs, as XLA compiles it: `product` has gradients by inputs, data's too."""
    return partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))[0]


@pytest.mark.parametrize("discrete", [False, True])
def test_the_programs_have_these_products(discrete):
    spec = spec_of(6, 3, discrete)
    c, hp = config.partition(SMALL)
    net = updates.networks(c, spec)
    learner = jax.eval_shape(lambda: updates.init_learner(net, hp, jax.random.key(0)))
    of = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    action = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32) if discrete else of(*shape, 3)
    flag = jax.ShapeDtypeStruct((4, 2), jnp.bool_)
    windows = {
        "obs": of(4, 2, 6), "next_obs": of(4, 2, 6), "action": action(4, 2), "reward": of(4, 2), "weight": of(4, 2),
        "terminated": flag, "truncated": flag,
    }  # fmt: skip
    batch = Batch(of(4, 6), action(4), of(4), of(4), of(4, 6), of(4))

    encoder = lambda x, windows: updates.encoder_step(net, hp, x.nets.encoder, x.target, x.encoder_opt, windows, 1.0)
    rl = lambda x, batch: updates.rl_step(net, hp, x, batch, jax.random.key(1))
    assert dots(used(jax.make_jaxpr(encoder)(learner, windows))) == total(mrq_flops.encoder_step, SMALL, spec)
    again = mrq_flops.forward(4, mrq_flops.sizes(c, spec).state)  # the critics' embeddings, written twice: the compiler sees it
    counted = total(mrq_flops.rl_step, SMALL, spec) + sum(p.flops for p in again)
    assert dots(used(jax.make_jaxpr(rl)(learner, batch))) == counted


@pytest.mark.parametrize(("obs", "actions"), [(11, 3), (17, 6)])
def test_the_totals_of_full_size(obs, actions):
    """11.5 and 7.9 GFLOP on Hopper and HalfCheetah: 8.3 where each backward pass counts as twice the forward one."""
    spec = spec_of(obs, actions)
    assert total(mrq_flops.encoder_step, mrq.Config(), spec) == pytest.approx(11.5e9, rel=0.01)
    s, rl = mrq_flops.sizes(mrq.Config(), spec), total(mrq_flops.rl_step, mrq.Config(), spec)
    uncomputed = [*mrq_flops.inputs(256, s.critic[:1], 2), *mrq_flops.inputs(256, s.policy[:1])]
    assert rl == pytest.approx(7.94e9, rel=0.002)
    assert rl + sum(p.flops for p in uncomputed) == pytest.approx(8.3e9, rel=0.01)


def test_one_product():
    assert Product("forward", 2, 3, 5, 7).flops == 2 * 2 * 3 * 5 * 7


@pytest.mark.parametrize("fields", [{"linear_model": False}, {"linear_value": True}, {"reward_loss": "mse"}])
def test_other_networks_are_not_counted(fields):
    with pytest.raises(ValueError, match="default networks"):
        mrq_flops.encoder_step(mrq.Config(**fields), spec_of(6, 3))
