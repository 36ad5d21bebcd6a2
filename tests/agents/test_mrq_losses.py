"""MR.Q's mathematics by hand, and the traps that lie in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx import off_policy
from rlx.agents import mrq, mrq_networks
from rlx.agents import mrq_losses as losses
from rlx.agents import mrq_updates as updates
from tests.agents.mrq_support import network

KEY = jax.random.key(0)
BINS = jnp.asarray(losses.bins(65))


@pytest.mark.parametrize("batch", [(), (4,), (4, 5), "vmap"])
def test_gradients_of_the_product(strict, batch):
    """By inputs and by weights those of `x @ w`, summed over whatever batch axes there are, and of each member of a vmap."""
    rng = np.random.default_rng(0)
    shape = (3,) if batch == "vmap" else batch
    w = rng.standard_normal((3, 6, 2) if batch == "vmap" else (6, 2)).astype(np.float32)
    x, g = (rng.standard_normal((*shape, d)).astype(np.float32) for d in (6, 2))

    def pulled(x, w, g):
        y, pull = jax.vjp(mrq_networks.product, x, w)
        return y, *pull(g)

    y, dx, dw = (jax.vmap(pulled) if batch == "vmap" else pulled)(jnp.asarray(x), jnp.asarray(w), jnp.asarray(g))
    if batch == "vmap":
        want = np.einsum("bi,bij->bj", x, w), np.einsum("bj,bij->bi", g, w), np.einsum("bi,bj->bij", x, g)
    else:
        want = x @ w, g @ w.T, np.einsum("ni,nj->ij", x.reshape(-1, 6), g.reshape(-1, 2))
    for got, by_hand in zip((y, dx, dw), want, strict=True):
        np.testing.assert_allclose(got, by_hand, rtol=1e-5, atol=1e-6)


def test_two_hot_keeps_the_mean(strict):
    for x in (0.1, -0.37, 3.7, -512.0, 21_000.0):
        weights = losses.two_hot(jnp.float32(x), BINS)
        np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-6)
        assert (weights > 0).sum() == 2 and np.diff(np.flatnonzero(weights)) == 1
        np.testing.assert_allclose((weights * BINS).sum(), x, rtol=1e-4)


def test_two_hot_of_a_bin_is_one_hot_and_beyond_the_last_it_is_clipped(strict):
    for x, hot in ((0.0, 32), (float(BINS[40]), 40), (1e6, 64), (-1e6, 0), (float(BINS[64]), 64), (float(BINS[0]), 0)):
        np.testing.assert_allclose(losses.two_hot(jnp.float32(x), BINS), np.eye(65)[hot], atol=1e-5)
    assert BINS[32] == 0.0


def test_the_mask_of_a_window(strict):
    no, one = jnp.zeros(5, bool), jnp.ones(5)
    at = lambda k: no.at[k].set(True)
    for k in range(5):  # a last step counts, nothing after it, whichever ending it is
        want = (np.arange(5) <= k).astype(float)
        np.testing.assert_array_equal(losses.window_mask(at(k), no, one), want)
        np.testing.assert_array_equal(losses.window_mask(no, at(k), one), want)
        np.testing.assert_array_equal(losses.window_mask(no, no, one.at[k].set(0.0)), np.arange(5) < k)
    np.testing.assert_array_equal(losses.window_mask(no, no, one), np.ones(5))


@pytest.mark.parametrize("terminal", [0, 1, 2, None])
def test_return_and_discount_with_a_termination_at_each_step(terminal):
    """The terminal step's own reward counts, the next episode's do not (three versions of the published code disagree)."""
    done = jnp.zeros((1, 3), bool) if terminal is None else jnp.zeros((1, 3), bool).at[0, terminal].set(True)
    windows = {
        "obs": jnp.zeros((1, 3, 1)), "next_obs": jnp.arange(3.0)[None, :, None], "action": jnp.zeros((1, 3, 1)),
        "reward": jnp.asarray([[1.0, 10.0, 100.0]]), "terminated": done, "truncated": jnp.zeros((1, 3), bool),
        "weight": jnp.ones((1, 3)),
    }  # fmt: skip
    batch = off_policy.batch(dict(windows), jnp.float32(0.5))
    want = {0: 1.0, 1: 6.0, 2: 31.0, None: 31.0}[terminal]
    assert batch.return_[0] == want and batch.discount[0] == (0.125 if terminal is None else 0.0)
    # at a time limit the same return bootstraps, from the true successor of the step that it falls on
    batch = off_policy.batch(windows | {"terminated": jnp.zeros((1, 3), bool), "truncated": done}, jnp.float32(0.5))
    last = 2 if terminal is None else terminal
    assert batch.return_[0] == want and batch.discount[0] == 0.5 ** (last + 1) and batch.next_obs[0, 0] == last


def test_scaled_targets(strict):
    """Target values times the scale they were trained under, all by the new one; minimum, or mean."""
    f = jnp.float32
    args = f(3.0), f(0.5), jnp.asarray([4.0, 8.0]), f(2.0), f(10.0)
    assert losses.value_target(*args) == (3.0 + 0.5 * 4.0 * 10.0) / 2.0
    assert losses.value_target(*args, minimum=False) == (3.0 + 0.5 * 6.0 * 10.0) / 2.0


def test_the_value_loss_is_a_mean_over_critics(strict):
    q, y = jnp.asarray([1.5, 4.0]), jnp.float32(1.0)
    np.testing.assert_allclose(losses.value_loss(q, y), (0.125 + 2.5) / 2)
    np.testing.assert_allclose(jax.grad(losses.value_loss)(q, y), [0.25, 0.5])
    np.testing.assert_allclose(losses.value_loss(q, y, huber=False), (0.25 + 9.0) / 2)


def test_the_policy_loss_takes_the_mean_of_the_critics(strict):
    loss = losses.policy_loss(jnp.asarray([1.0, 4.0]), jnp.asarray([2.0, 4.0]), jnp.float32(0.1))
    np.testing.assert_allclose(loss, -2.5 + 0.1 * 10.0)


def test_noise_is_clipped_first_and_added_to_the_action(strict):
    action, noise = jnp.asarray([0.9, -0.2, 0.0]), jnp.asarray([0.5, 0.1, -0.7])
    np.testing.assert_allclose(losses.noisy(action, noise, jnp.float32(0.3), False), [1.0, -0.1, -0.3], rtol=1e-6)
    np.testing.assert_allclose(losses.noisy(action, noise, jnp.inf, False), [1.0, -0.1, -0.7], rtol=1e-6)
    np.testing.assert_array_equal(losses.noisy(jnp.asarray([0.3, 0.4, 0.3]), noise, jnp.float32(0.3), True), [1.0, 0.0, 0.0])


def test_gumbel_softmax_is_a_sample_whatever_the_temperature(strict):
    u = jnp.asarray([0.0, 1.0, 2.0])
    keys = jax.random.split(KEY, 4000)
    soft = {t: jax.vmap(lambda k, t=t: losses.gumbel_softmax(u, k, jnp.float32(t)))(keys) for t in (1.0, 10.0)}
    np.testing.assert_array_equal(*(x.argmax(-1) for x in soft.values()))
    np.testing.assert_allclose(np.bincount(soft[10.0].argmax(-1)) / 4000, jax.nn.softmax(u), atol=0.03)
    assert soft[10.0].max() < 0.7 and soft[10.0].max(-1).mean() < soft[1.0].max(-1).mean()


def test_layer_norm_and_initial_kernels(strict):
    x = jnp.asarray([[1000.0, 1000.01, 1000.02], [0.0, 0.0, 1e-3]])
    y = np.asarray(x, np.float64)
    want = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(mrq_networks.layer_norm(x), want, atol=2e-2)
    kernel = mrq_networks.XAVIER(KEY, (300, 100))
    bound = np.sqrt(2.0) * np.sqrt(6.0 / 400)
    assert 0.99 * bound < np.abs(kernel).max() <= bound
    net, _ = network()
    outputs = net.init(KEY).policy["params"]["l3"]
    assert np.abs(outputs["kernel"]).max() > 0.9 * np.sqrt(2.0) * np.sqrt(6.0 / 13) and (outputs["bias"] == 0).all()


@pytest.mark.parametrize(("obs", "actions", "want"), [(17, 6, 3.857e6), (11, 3, 3.852e6), (376, 17, 4.049e6)])
def test_the_papers_number_of_parameters(obs, actions, want):
    spec = mrq.EnvSpec("x", (obs,), jnp.dtype("float32"), None, actions, (), None)
    shapes = jax.eval_shape(updates.networks(mrq.Config(), spec).init, KEY)
    np.testing.assert_allclose(sum(x.size for x in jax.tree.leaves(shapes)), want, rtol=2e-4)


# --- windows and the encoder's loss -----------------------------------------------------------------------------------------


def windows_of(done=None, batch=3, horizon=4):
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    no = jnp.zeros((batch, horizon), bool)
    return {
        "obs": normal(batch, horizon, 6), "next_obs": normal(batch, horizon, 6), "action": normal(batch, horizon, 3),
        "reward": normal(batch, horizon), "terminated": no if done is None else no.at[:, done].set(True), "truncated": no,
        "weight": jnp.ones((batch, horizon)),
    }  # fmt: skip


step = jax.jit(updates.encoder_step, static_argnums=0)


def encoder_step(windows, seen=1.0, **fields):
    net, hp = network(**fields)
    learner = updates.init_learner(net, hp, KEY)
    other = updates.init_learner(net, hp, jax.random.key(1)).nets
    args = net, hp, learner.nets.encoder, other, learner.encoder_opt, windows
    return step(*args, jnp.float32(seen))


def equal(a, b):
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


@pytest.mark.parametrize("junk", [1e3, -7.0])
def test_what_follows_a_termination_is_masked_and_the_terminal_successor_is_not(junk):
    windows = windows_of(done=1)
    poisoned = {name: windows[name].at[:, 2:].set(junk) for name in ("next_obs", "reward", "action")}
    assert equal(encoder_step(windows), encoder_step(windows | poisoned))
    successor = windows | {"next_obs": windows["next_obs"].at[:, 1].set(junk)}
    assert not equal(encoder_step(windows)[2], encoder_step(successor)[2])


def test_the_done_loss_waits_for_a_termination():
    """Until one was seen, the done head's output changes nothing but by weight decay."""
    before = network()[0].init(KEY).encoder["params"]["model"]
    heads = {seen: encoder_step(windows_of(), seen)[0]["params"]["model"]["kernel"][:, 0] for seen in (0.0, 1.0)}
    np.testing.assert_allclose(heads[0.0], before["kernel"][:, 0] * (1 - 1e-4 * 1e-4), rtol=1e-6)
    assert np.abs(heads[1.0] - before["kernel"][:, 0]).max() > 1e-5


def test_the_loss_sums_over_steps():
    """A window of four steps of which the last three are masked has the loss of a window of one."""
    first = {name: x[:, :1] for name, x in windows_of(done=0).items()}
    np.testing.assert_allclose(encoder_step(windows_of(done=0))[2], encoder_step(first)[2], rtol=1e-6)
    assert encoder_step(windows_of())[2] > 2 * encoder_step({n: x[:, :1] for n, x in windows_of().items()})[2]


DYNAMICS = {"dynamics_target": "zsa", "zsa_size": 16}


@pytest.mark.parametrize(
    "fields", [{"reward_loss": "mse"}, {"linear_model": False}, {"target_encoder": False}, {"linear_value": True}, {}, DYNAMICS]
)
def test_switches_of_the_design_study_learn(fields):
    """The loss falls on a fixed batch."""
    net, hp = network(**fields)
    hp["encoder_lr"] = jnp.float32(3e-3)
    learner = updates.init_learner(net, hp, KEY)
    params, opt, windows = learner.nets.encoder, learner.encoder_opt, windows_of(done=2)
    history = []
    for _ in range(40):
        params, opt, loss = step(net, hp, params, learner.target, opt, windows, jnp.float32(1.0))
        history.append(float(loss))
    assert history[-1] < 0.7 * history[0]


# --- images ------------------------------------------------------------------------------------------------------------------


def test_shifted_images(strict):
    """All channels move together, edges repeat, and every offset up to four pixels occurs."""
    rows, columns = jnp.meshgrid(jnp.arange(12), jnp.arange(12), indexing="ij")
    image = jnp.stack([rows, columns, rows], -1).astype(jnp.uint8)
    out = np.asarray(jax.vmap(losses.shift, (None, 0))(image, jax.random.split(KEY, 400)))
    assert out.shape == (400, 12, 12, 3) and out.dtype == np.uint8
    np.testing.assert_array_equal(out[..., 0], out[..., 2])
    offsets = set()
    for one in out:
        dy, dx = int(one[6, 6, 0]) - 6, int(one[6, 6, 1]) - 6
        np.testing.assert_array_equal(one[..., 0], np.clip(rows + dy, 0, 11))
        np.testing.assert_array_equal(one[..., 1], np.clip(columns + dx, 0, 11))
        offsets.add((dy, dx))
    assert len(offsets) > 75 and {max(o) for o in offsets} >= {4} and {min(o) for o in offsets} >= {-4}


def test_pixels_are_centred_and_boards_are_not():
    spec = mrq.EnvSpec("x", (84, 84, 4), jnp.dtype("uint8"), 6, 0, (), None)
    net = updates.networks(mrq.Config(), spec)
    params = jax.eval_shape(net.init, KEY).encoder["params"]
    assert params["zs_out"]["kernel"].shape == (1568, 512) and params["zs_cnn"]["PatchConv_3"]["kernel"].shape == (3, 3, 32, 32)
    assert mrq_networks.is_image((84, 84, 4)) and not mrq_networks.is_image((10, 10, 4))
    small = updates.networks(mrq.Config(zs_size=8), spec._replace(obs_shape=(31, 31, 1)))
    nets = small.init(KEY)
    dark, light = (small.zs(nets.encoder, jnp.full((31, 31, 1), v, jnp.uint8)) for v in (0, 255))
    assert dark.shape == (8,) and not np.allclose(dark, light)
    assert np.abs(dark).max() > 0.1  # black is -1/2: of nothing, without biases, nothing would come out
