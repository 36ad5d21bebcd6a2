import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx import networks
from rlx.errors import RlxError

KEY = jax.random.key(0)


def shapes(params):
    return jax.tree.map(lambda x: x.shape, params["params"])


@pytest.mark.parametrize(
    ("obs", "expected"),
    [
        (np.array([0, 255, 51], np.uint8), [0.0, 1.0, 0.2]),
        (np.array([False, True]), [0.0, 1.0]),
        (np.array([-3, 255], np.int32), [-3.0, 255.0]),
        (np.array([0.5, 300.0], np.float32), [0.5, 300.0]),
    ],
)
def test_preprocess(strict, obs, expected):
    out = networks.preprocess(jnp.asarray(obs))
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "at_minus_one"),
    [("relu", 0.0), ("tanh", -0.761594), ("elu", -0.632121), ("silu", -0.268941), ("gelu", -0.158808)],
)
def test_activations(strict, name, at_minus_one):
    np.testing.assert_allclose(networks.ACTIVATIONS[name](jnp.float32(-1.0)), at_minus_one, rtol=1e-4)


def test_unknown_activation_names_the_nearest(strict):
    with pytest.raises(RlxError, match="unknown activation 'rleu': did you mean 'relu'"):
        networks.MLP((4,), "rleu").init(KEY, jnp.zeros(2))


def test_mlp_activates_every_layer(strict):
    net = networks.MLP((8, 5), "tanh")
    x = jax.random.normal(KEY, (7, 3))
    params = net.init(KEY, x)
    p = params["params"]
    assert shapes(params) == {"Dense_0": {"kernel": (3, 8), "bias": (8,)}, "Dense_1": {"kernel": (8, 5), "bias": (5,)}}
    expected = np.tanh(np.tanh(x @ p["Dense_0"]["kernel"]) @ p["Dense_1"]["kernel"])  # biases start at 0
    np.testing.assert_allclose(net.apply(params, x), expected, rtol=1e-5, atol=1e-6)


def test_mlp_kernel_init_and_layer_norm(strict):
    net = networks.MLP((4,), kernel_init=networks.orthogonal(2.0), layer_norm=True)
    params = net.init(KEY, jnp.zeros(4))
    kernel = params["params"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, 4 * np.eye(4), atol=1e-5)
    x = np.array([1.0, -2.0, 3.0, 0.5], np.float32)
    h = x @ kernel
    np.testing.assert_allclose(net.apply(params, x), np.maximum(0, (h - h.mean()) / h.std()), atol=1e-4)


@pytest.mark.parametrize("shape", [(7, 7), (64, 16), (4, 64), (3, 3, 2, 16), (256, 256)])
def test_orthogonal_rows_or_columns_are_orthonormal(shape, strict):
    w = np.asarray(networks.orthogonal(2.0)(KEY, shape)).reshape(-1, shape[-1]) / 2.0
    gram = w.T @ w if w.shape[0] >= w.shape[1] else w @ w.T
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=2e-5)
    assert abs(np.linalg.slogdet(gram)[1]) < 1e-3


def test_orthogonal_is_uniformly_distributed():
    """Every entry of a Haar matrix of size n has mean 0 and variance 1 / n."""
    q = np.asarray(jax.vmap(lambda k: networks.orthogonal(1.0)(k, (5, 5)))(jax.random.split(KEY, 4000)))
    np.testing.assert_allclose(q.mean(0), 0.0, atol=0.03)
    np.testing.assert_allclose(q.var(0), 0.2, atol=0.02)


def test_orthogonal_defaults_to_the_gain_of_relu():
    np.testing.assert_allclose(np.linalg.norm(networks.orthogonal()(KEY, (3, 3)), 2), np.sqrt(2), rtol=1e-5)


@pytest.mark.parametrize(("size", "kernel", "stride"), [((5, 6), 3, 1), ((11, 8), 3, 2), ((8, 8), 8, 4), ((5, 7), 2, 4)])
def test_patch_conv_equals_a_convolution(strict, size, kernel, stride):
    x = jax.random.normal(KEY, (2, *size, 3))
    ours = networks.PatchConv(5, kernel, stride)
    theirs = nn.Conv(5, (kernel, kernel), stride, padding="VALID")
    params = jax.jit(theirs.init)(KEY, x)
    assert shapes(jax.eval_shape(ours.init, KEY, x)) == shapes(params)
    params["params"]["bias"] += jnp.arange(5.0)

    y, out = jax.jit(lambda p, x: (theirs.apply(p, x), ours.apply(p, x)))(params, x)
    assert out.shape == y.shape
    np.testing.assert_allclose(out, y, rtol=1e-4, atol=1e-5)


def test_patch_conv_has_the_gradient_of_a_convolution(strict):
    x = jax.random.normal(KEY, (2, 7, 8, 3))
    theirs = nn.Conv(5, (3, 3), 2, padding="VALID")
    params = theirs.init(KEY, x)
    loss = lambda net: lambda p, x: jnp.sin(net.apply(p, x)).sum()
    grads = [jax.jit(jax.grad(loss(net), (0, 1)))(params, x) for net in (theirs, networks.PatchConv(5, 3, 2))]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *grads)


def test_patch_conv_starts_like_a_convolution(strict):
    x = jnp.zeros((6, 6, 4))
    kernel = networks.PatchConv(64, 3).init(KEY, x)["params"]["kernel"]
    np.testing.assert_allclose(kernel.std(), 1 / np.sqrt(3 * 3 * 4), rtol=0.1)  # fan-in counts the whole patch


def test_patch_conv_larger_than_the_image_is_an_error():
    with pytest.raises(RlxError, match=r"4 x 9 pixels is smaller than .* 5 x 5"):
        networks.PatchConv(2, 5).init(KEY, jnp.zeros((4, 9, 1)))


def torso(obs_shape):
    return networks.Torso((32, 16), obs_shape=obs_shape)


@pytest.mark.parametrize(
    ("obs_shape", "dtype", "inputs"),
    [
        ((3,), jnp.float32, 3),
        ((), jnp.int32, 1),
        ((5, 4), jnp.float32, 20),
        ((10, 10, 4), jnp.bool_, 8 * 8 * 16),
        ((35, 40, 1), jnp.uint8, 33 * 38 * 16),
        ((36, 40, 3), jnp.uint8, 1 * 1 * 64),
        ((84, 84, 4), jnp.uint8, 7 * 7 * 64),
        ((2, 6, 3), jnp.float32, 36),
    ],
)
def test_torso_of_every_kind_of_observation(obs_shape, dtype, inputs):
    net = torso(obs_shape)
    params = jax.eval_shape(net.init, KEY, jax.ShapeDtypeStruct(obs_shape, dtype))
    assert params["params"]["MLP_0"]["Dense_0"]["kernel"].shape == (inputs, 32)
    for batch in ((), (2,), (3, 2)):
        out = jax.eval_shape(net.apply, params, jax.ShapeDtypeStruct((*batch, *obs_shape), dtype))
        assert (out.shape, out.dtype) == ((*batch, 16), jnp.float32)


@pytest.mark.parametrize("obs_shape", [(6,), (6, 6, 2)])
def test_torso_of_a_batch_is_the_torso_of_its_items(strict, obs_shape):
    net = torso(obs_shape)
    obs = jax.random.normal(KEY, (3, 2, *obs_shape))
    init, apply = jax.jit(net.init), jax.jit(net.apply)
    params = init(KEY, obs[0, 0])
    jax.tree.map(np.testing.assert_array_equal, params, init(KEY, obs))
    out = apply(params, obs)
    single = [[apply(params, o) for o in row] for row in obs]
    np.testing.assert_allclose(jnp.array(single), out, rtol=1e-4, atol=1e-5)
    assert len(np.unique(out)) > 10


def test_nature_cnn_layers(strict):
    params = jax.eval_shape(torso((84, 84, 4)).init, KEY, jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8))
    cnn = {k: v["kernel"] for k, v in shapes(params)["CNN_0"].items()}
    assert cnn == {"PatchConv_0": (8, 8, 4, 32), "PatchConv_1": (4, 4, 32, 64), "PatchConv_2": (3, 3, 64, 64)}


def test_torso_takes_its_initialiser_to_the_convolution(strict):
    net = networks.Torso((4,), "relu", nn.initializers.constant(0.5), obs_shape=(4, 4, 1))
    params = net.init(KEY, jnp.zeros((4, 4, 1)))
    kernels = [x for x in jax.tree.leaves(params) if x.ndim > 1]
    assert len(kernels) == 2 and all((x == 0.5).all() for x in kernels)


def test_torso_refuses_another_shape():
    with pytest.raises(RlxError, match=r"\(2, 5\) does not end in .*\(4,\)"):
        torso((4,)).init(KEY, jnp.zeros((2, 5)))


class Critic(nn.Module):
    @nn.compact
    def __call__(self, obs, action):
        return nn.Dense(1)(networks.MLP((4,))(jnp.concatenate([obs, action], -1)))[..., 0]


def test_an_ensemble_is_independent_copies(strict):
    net = networks.ensemble(Critic, 3)()
    obs, action = jax.random.normal(KEY, (5, 2)), jax.random.normal(KEY, (5, 1))
    params = jax.jit(net.init)(KEY, obs, action)
    out = net.apply(params, obs, action)
    assert out.shape == (3, 5)
    assert shapes(params)["Dense_0"]["kernel"] == (3, 4, 1)
    for a in range(3):
        member = jax.tree.map(lambda x, a=a: x[a], params)
        np.testing.assert_allclose(Critic().apply(member, obs, action), out[a], rtol=1e-5, atol=1e-6)
        assert not np.allclose(out[a], out[a - 1])
