"""Agents by name. Each module shows, in order: Config, State, losses, `make(config, spec) -> Agent`."""

from __future__ import annotations

from types import ModuleType

from rlx.agents import dqn, mrq, ppo, ppo_rnn, pqn, sac, sac_discrete, td3
from rlx.errors import unknown

AGENTS: dict[str, ModuleType] = {
    "dqn": dqn,
    "mrq": mrq,
    "ppo": ppo,
    "ppo_rnn": ppo_rnn,
    "pqn": pqn,
    "sac": sac,
    "sac_discrete": sac_discrete,
    "td3": td3,
}


def get(name: str) -> ModuleType:
    """The module of the agent of that name, or an RlxError that names the nearest one."""
    if name not in AGENTS:
        raise unknown("agent", name, AGENTS)
    return AGENTS[name]
