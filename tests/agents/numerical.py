"""What the NumPy versions of the agents share: parameters by path, and gradients that need no autodiff."""

import jax
import numpy as np


def flat(params):
    """float64 arrays by path, `actor/MLP_0/Dense_0/kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(params["params"])
    return {"/".join(k.key for k in path): np.asarray(x, np.float64) for path, x in leaves}


def gradient(f, params):
    """Central differences of the scalar f(params), `params` as from `flat`."""
    out = {}
    for name, x in params.items():
        out[name] = np.zeros_like(x)
        for k in np.ndindex(x.shape):
            h = np.zeros_like(x)
            h[k] = 1e-6
            out[name][k] = (f({**params, name: x + h}) - f({**params, name: x - h})) / 2e-6
    return out
