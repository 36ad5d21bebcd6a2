"""MR.Q: model-based representations for Q-learning (Fujimoto et al. 2025, arXiv 2501.16142, algorithm 1).

    for each environment step: act with noise, store the transition with the highest priority so far
    for each gradient step:
        every target_period-th, before everything else:
            target encoder, values, policy <- online ones;  r_target <- r;  r <- mean |reward| of the replay
            target_period times: encoder step on the losses of `enc_horizon` steps unrolled through the linear model
        values: Huber loss to (R_n + D min_j Q'_j(g'(f'(s_n), a')) r_target) / r;   policy: -mean_j Q_j(g(f(s), pi(f(s))))
        priority <- max(1, max_j |Q_j - y|)^priority_exponent

So within a period both encoders stand still, one version apart: the target is the encoder before the burst. Values and policy
send no gradient into the encoder. Networks: `mrq_networks.py`; losses: `mrq_losses.py`; the two updates: `mrq_updates.py`.

Where the published code and the paper, or either and sense, differ (each with its reason):
- the n-step return counts the reward of a terminal step and nothing after it (a version of the code drops the former, another
  adds the first reward of the next episode);
- the model's target after a last step is the true successor, which the code, having stored none, takes from another slot;
- a window that meets a time limit is cut there and bootstraps from the true successor; the code leaves out all windows that
  meet one, hence the last 5 steps of such an episode. Both are right, this one wastes nothing. A window that meets a
  termination stays, too: without those the done loss sees few examples. Where both coincide, it is a termination;
- all stored actions are one-hot where discrete (the code stores those of the warm-up as numbers);
- r is the mean over stored steps (the code's includes the empty slots between episodes), and 1 while all rewards are 0. There
  it is 1e-8, which divides the first targets, those of untrained values, and leaves priorities of 1e3 behind for good;
- windows of both horizons start where the longer one fits; a step may be drawn once its window is complete, with the highest
  priority of that moment. That maximum is never reset; priorities are floored, then exponentiated, in reward-scaled units;
- learning starts after exactly `learning_starts` random steps; with several environments periods count gradient updates;
- evaluation of discrete actions draws from softmax(u), as published scores did; `sample_greedy=False` takes its argmax;
- random actions of Atari's evaluation (1e-3) are none of the agent's business, nor does it clip rewards;
- AdamW decays all parameters, biases too; the gradient's norm is clipped over both critics together, nowhere else;
- on GPUs matrices multiply in TF32 unless `jax_default_matmul_precision` says "highest", as published scores need;
- time 0 is evaluated by the untrained policy, and the score is that of the last evaluation, by whoever drives the loop.

The paper's design study is all fields: "no LAP" is `priority_exponent=0, value_loss="mse"`, "no unroll" `enc_horizon=1`,
"1-step return" `n_step=1`. "No model-based representation" is `model_based=False`: the critics' loss trains the encoder, with
`encoder_lr`. For the state-action target, `dynamics_target="zsa"`, the paper says neither which action nor how it unrolls: here
the action is the target policy's likeliest, and the prediction goes on in the place of the next state's embedding.

Every default is the paper's table 3. Noises are in units of the action in [-1, 1]; of the three discrete actions take half,
added to a one-hot vector.
Metric `encoder_loss` is the mean of the latest burst, 0 before the first one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import struct

from rlx import config as base
from rlx import off_policy, priorities
from rlx.agents import mrq_losses as losses
from rlx.agents.mrq_networks import is_image
from rlx.agents.mrq_updates import Learner, encoder_step, init_learner, networks, rl_step, synchronise
from rlx.config import Traced
from rlx.errors import RlxError
from rlx.masks import mask
from rlx.normalize import weighted_mean
from rlx.priorities import Priorities
from rlx.types import HP, Agent, EnvSpec, PyTree, Transition, keys_for

_NONNEGATIVE = ("encoder_lr", "weight_decay", "dynamics_coef", "reward_coef", "done_coef", "preact_coef")
_SIZES = ("enc_horizon", "zs_size", "zsa_size", "za_size", "encoder_size", "value_size", "policy_size")


@dataclass(frozen=True)
class Config(base.Config):
    num_envs: int = 1  # environments of one run
    rollout_length: int = 1  # steps of each environment per iteration
    updates_per_step: float = 1.0  # gradient updates per environment step, of values and policy; of the encoder on average
    learning_starts: int = 10_000  # env steps of uniformly random actions before the first update
    batch_size: int = 256  # windows of one update
    replay_capacity: int = 1_000_000  # transitions kept, of all environments of one run
    n_step: int = 3  # steps of the return before bootstrapping
    enc_horizon: int = 5  # steps that the model is unrolled for
    target_period: int = 250  # updates between two copies to the targets; encoder updates in each burst
    zs_size: int = 512  # units of the state embedding
    zsa_size: int = 512  # units of the state-action embedding
    za_size: int = 256  # units of the action embedding
    encoder_size: int = 512  # hidden units of the encoders
    value_size: int = 512  # hidden units of the critics
    policy_size: int = 512  # hidden units of the policy
    num_bins: int = 65  # bins of the reward's two-hot encoding, over symexp(+-10)
    image_shift: bool = True  # shift images at random, up to 4 pixels, in all updates
    sample_greedy: bool = True  # discrete: evaluate with samples of the policy, not its likeliest action
    reward_loss: Literal["two_hot", "mse"] = "two_hot"  # how the model learns rewards
    reward_scaling: bool = True  # divide targets by the mean absolute reward
    value_loss: Literal["huber", "mse"] = "huber"  # of the critics
    minimum: bool = True  # bootstrap from the smaller critic, else from their mean
    linear_value: bool = False  # critics that are linear in the state-action embedding
    linear_model: bool = True  # model that is linear in the state-action embedding, else an MLP
    dynamics_target: Literal["zs", "zsa"] = "zs"  # the model predicts the next state, or it with the policy's action there
    model_based: bool = True  # train the encoder by the model's losses, else by the critics'
    target_encoder: bool = True  # targets from an encoder that stands still, else from the online one
    encoder_lr: Traced[float] = 1e-4  # AdamW's step size, encoder and model
    critic_lr: Traced[float] = 3e-4  # AdamW's step size, critics
    actor_lr: Traced[float] = 3e-4  # AdamW's step size, policy
    weight_decay: Traced[float] = 1e-4  # AdamW's, of all parameters
    max_grad_norm: Traced[float] = 20.0  # global norm of the critics' gradient
    gamma: Traced[float] = 0.99  # discount
    exploration_noise: Traced[float] = 0.2  # standard deviation of the noise added to actions in [-1, 1]; half if discrete
    target_noise: Traced[float] = 0.2  # standard deviation of the noise added to the target policy's actions; half if discrete
    target_noise_clip: Traced[float] = 0.3  # the most that this noise may be; half if discrete
    dynamics_coef: Traced[float] = 1.0  # weight of the next embedding in the encoder's loss
    reward_coef: Traced[float] = 0.1  # weight of the reward in the encoder's loss
    done_coef: Traced[float] = 0.1  # weight of the termination in the encoder's loss, once one was seen
    preact_coef: Traced[float] = 1e-5  # weight of the policy's squared output before tanh or softmax
    gumbel_temperature: Traced[float] = 10.0  # of the relaxed samples of discrete policies
    priority_exponent: Traced[float] = 0.4  # of the errors that windows are drawn by; 0: uniformly

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "paper": {},
        # for CPUs
        "small": {
            **dict.fromkeys(("zs_size", "zsa_size", "za_size", "encoder_size", "value_size", "policy_size", "batch_size"), 128),
            "learning_starts": 1_000,
            "replay_capacity": 100_000,
        },
    }
    bounds: ClassVar[dict[str, tuple[float, float]]] = {
        **dict.fromkeys(_NONNEGATIVE, (0, float("inf"))),
        **dict.fromkeys(_SIZES, (1, float("inf"))),
        "num_bins": (2, float("inf")),
        "gumbel_temperature": (1e-6, float("inf")),
    }


class State(struct.PyTreeNode):
    learner: Learner
    replay: PyTree
    priorities: Priorities
    terminal_seen: jax.Array  # float32: 1 once an episode has terminated


def make(config: Config, spec: EnvSpec) -> Agent:
    """MR.Q for an environment. Raises RlxError for vector rewards and update counts that are not whole."""
    c, discrete = config, spec.num_actions is not None
    if c.dynamics_target == "zsa" and c.zs_size != c.zsa_size:
        raise RlxError(f"dynamics_target='zsa' needs equal embeddings: zsa_size={c.zsa_size} must be zs_size={c.zs_size}")
    horizon = max(c.enc_horizon, c.n_step)
    plan, buffer = off_policy.plan(c, spec, "mrq", horizon)
    jax.eval_shape(lambda: buffer.admit(priorities.init(c.replay_capacity), jnp.uint32(0), horizon))  # too small: an RlxError
    net = networks(c, spec)

    def init(hp: HP, key: jax.Array) -> State:
        return State(init_learner(net, hp, key), buffer.init(), priorities.init(c.replay_capacity), jnp.zeros((), jnp.float32))

    def preact(state: State, obs: jax.Array) -> jax.Array:
        nets = state.learner.nets
        return net.preact(nets.policy, net.zs(nets.encoder, obs))

    def act(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array, i: jax.Array) -> tuple:
        first, second = (jax.random.fold_in(key, k) for k in (0, 1))

        def explore() -> jax.Array:
            if spec.num_actions is not None:
                return jax.random.randint(first, (), 0, spec.num_actions, jnp.int32)
            return jax.random.uniform(first, (spec.action_dim,), minval=-1.0, maxval=1.0)

        def policy() -> jax.Array:
            action = net.action(hp, preact(state, obs), first)
            noise = net.noise_scale * hp["exploration_noise"] * jax.random.normal(second, action.shape)
            noisy = losses.noisy(action, noise, jnp.inf, discrete)
            return jnp.argmax(noisy).astype(jnp.int32) if discrete else noisy

        return jax.lax.cond(i < plan.random, explore, policy), memory, ()

    def greedy(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array) -> tuple:
        u = preact(state, obs)
        if not discrete:
            return net.best(u), memory
        chosen = net.action(hp, u, key) if c.sample_greedy else u
        return jnp.argmax(chosen).astype(jnp.int32), memory

    def value(hp: HP, state: State, obs: jax.Array) -> jax.Array:
        """Of the likeliest action, by the critic that says less."""
        nets = state.learner.nets
        q = net.q(nets.encoder, nets.critic, net.zs(nets.encoder, obs), net.best(preact(state, obs)))
        return q.min() * state.learner.scale

    def learn(hp: HP, state: State, rollout: Transition, key: jax.Array, i: jax.Array) -> tuple[State, dict]:
        data = buffer.insert(state.replay, rollout, i)
        priority = buffer.admit(state.priorities, i, horizon)
        seen = jnp.maximum(state.terminal_seen, (rollout.terminated & (rollout.weight > 0)).any().astype(jnp.float32))

        def windows(slots: jax.Array, steps: int, key: jax.Array) -> dict[str, jax.Array]:
            taken = buffer.take(data, slots, steps)
            taken = mask(taken["weight"] > 0, taken)  # what weighs nothing may be anything, NaN included
            return augment(taken, key) if c.image_shift and is_image(spec.obs_shape) else taken

        def burst(learner: Learner, priority: Priorities, key: jax.Array) -> Learner:
            """Synchronise, then improve the encoder: every draw from the same priorities, hence from one table."""
            learner = synchronise(learner, mean_absolute_reward(buffer.stored(data)) if c.reward_scaling else jnp.float32(1.0))
            if not c.model_based:
                return learner
            table = priorities.table(priority)

            def one(scanned: tuple, k: jax.Array) -> tuple[tuple, jax.Array]:
                params, opt = scanned
                draw, shift = (jax.random.fold_in(jax.random.fold_in(key, k), j) for j in (0, 1))
                batch = windows(priorities.draw(priority, table, draw, c.batch_size), c.enc_horizon, shift)
                params, opt, loss = encoder_step(net, hp, params, learner.target, opt, batch, seen)
                return (params, opt), loss

            steps = jnp.arange(c.target_period, dtype=jnp.uint32)
            (encoder, opt), loss = jax.lax.scan(one, (learner.nets.encoder, learner.encoder_opt), steps)
            return learner.replace(nets=learner.nets.replace(encoder=encoder), encoder_opt=opt, encoder_loss=loss.mean())

        def update(learner: Learner, priority: Priorities, key: jax.Array, u: jax.Array) -> tuple:
            encode, draw, shift, noise = (jax.random.fold_in(key, k) for k in range(4))
            due = off_policy.begins(plan, c.target_period, i, u)
            learner = jax.lax.cond(due, lambda x: burst(x, priority, encode), lambda x: x, learner)
            slots = priorities.draw(priority, priorities.table(priority), draw, c.batch_size)
            batch = off_policy.batch(windows(slots, c.n_step, shift), hp["gamma"])
            learner, values, metrics = rl_step(net, hp, learner, batch, noise)
            metrics |= {"encoder_loss": learner.encoder_loss, "reward_scale": learner.scale}
            return learner, slots, values, metrics

        learner, priority, metrics = off_policy.prioritised_updates(plan, update, state.learner, priority, key, i)
        return State(learner, data, priority, seen), metrics

    return Agent(init, lambda hp, state, key: (), act, greedy, learn, c.num_envs, c.rollout_length, value)


def mean_absolute_reward(stored: dict[str, jax.Array]) -> jax.Array:
    """Of the steps that are stored, `[capacity]`; 1 while all rewards are 0."""
    mean = weighted_mean(jnp.abs(stored["reward"]), stored["weight"])
    return jnp.where(mean > 0.0, jnp.maximum(mean, 1e-8), 1.0)


def augment(windows: dict[str, jax.Array], key: jax.Array) -> dict[str, jax.Array]:
    """With every observation of the windows `[B, H, ...]` shifted on its own; what acts sees them as they are."""

    def shifted(images: jax.Array, key: jax.Array) -> jax.Array:
        flat = images.reshape(-1, *images.shape[2:])
        return jax.vmap(losses.shift)(flat, keys_for(key, flat.shape[0])).reshape(images.shape)

    obs, next_obs = (jax.random.fold_in(key, k) for k in (0, 1))
    return windows | {"obs": shifted(windows["obs"], obs), "next_obs": shifted(windows["next_obs"], next_obs)}
