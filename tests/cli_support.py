"""The command line, called in process: what it returns and prints, and what is compiled."""

import contextlib
import functools
from pathlib import Path

import jax

from rlx import cli, envs
from tests.train_support import CARTPOLE, contents, ppo

FLAGS = ["--num_envs", "2", "--rollout_length", "10", "--num_minibatches", "1", "--num_epochs", "1", "--hidden_sizes", "8"]
SHORT = [*FLAGS, "--steps", "240", "--eval_every", "60", "--save_every", "80", "--eval_episodes", "2", "--lr", "0.05"]

compiled: list[str] = []


@jax.monitoring.register_event_duration_secs_listener
def _listen(event: str, seconds: float, **names: object) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        compiled.append(str(names))


def rlx_(capfd, *argv: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `rlx ...`."""
    capfd.readouterr()
    with contextlib.suppress(SystemExit):
        code = cli.main(list(argv))
        assert type(code) is int
        return code, *capfd.readouterr()
    return 0, *capfd.readouterr()


@functools.cache
def warm(env: str) -> None:
    """The single operations that the first trainer and the first environment of a process compile, whichever test is first."""
    ppo()
    envs.make(env)


def bad(capfd, argv: list[str], *words: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr with these words; nothing compiled, nothing created here."""
    warm("brax/hopper" if "brax/hopper" in argv else CARTPOLE)
    before, compilations = contents(Path.cwd()), len(compiled)
    code, out, err = rlx_(capfd, *argv)
    assert (code, out) == (2, ""), err
    assert err.startswith("rlx: ") and err.endswith("\n") and err.count("\n") == 1, err
    assert all(word in err for word in words), err
    assert compiled[compilations:] == []
    assert contents(Path.cwd()) == before
    assert not [p for p in Path.cwd().rglob("*") if p.is_dir() and not any(p.iterdir())]


TRAIN = ["train", "ppo", CARTPOLE, *SHORT, "--out", "new"]
