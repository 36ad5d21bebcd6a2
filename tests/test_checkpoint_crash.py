"""No crash while saving loses the previous checkpoint: injected at every step, and a real kill -9."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlx import checkpoint
from rlx.errors import RlxError
from tests.checkpoint_support import load, put


class Killed(BaseException):
    """Not an Exception: no handler of `save` may see it, as none would see a kill -9."""


def crash_at(monkeypatch, step: int) -> None:
    """Die at the `step`-th change of the file system; a deletion dies half way."""
    count = 0

    def dying(function, half_way=lambda *args: None):
        def wrapped(*args, **kwargs):
            nonlocal count
            count += 1
            if count == step:
                half_way(*args)
                raise Killed
            return function(*args, **kwargs)

        return wrapped

    def half_deleted(directory):
        if Path(directory).exists():
            os.unlink(Path(directory) / "rlx.json")

    monkeypatch.setattr(checkpoint.os, "rename", dying(os.rename))
    monkeypatch.setattr(checkpoint, "_fsync", dying(checkpoint._fsync))
    monkeypatch.setattr(checkpoint.shutil, "rmtree", dying(shutil.rmtree, half_deleted))
    monkeypatch.setattr(checkpoint.ocp.Checkpointer, "save", dying(checkpoint.ocp.Checkpointer.save))
    monkeypatch.setattr(Path, "write_text", dying(Path.write_text))


def test_a_crash_at_any_step_leaves_the_old_or_the_new_one(tmp_path):
    path, seen = tmp_path / "c", []
    put(path, 0)
    for step in range(1, 100):
        before = load(path)
        with pytest.MonkeyPatch.context() as monkeypatch:
            crash_at(monkeypatch, step)
            try:
                put(path, step)
            except Killed:
                finished = False
            else:
                finished = True
        after = load(path)
        assert after in (before, step)
        seen.append(after == step)
        if finished:
            break
    assert finished and step > 10
    assert seen == sorted(seen)  # old up to the last rename, new from there on
    assert os.listdir(tmp_path) == ["c"]  # and the first save that finishes has removed what the crashes left


def test_first_save_crashes(tmp_path, monkeypatch):
    with monkeypatch.context() as m, pytest.raises(Killed):
        crash_at(m, 3)
        put(tmp_path / "c", 1)
    with pytest.raises(RlxError, match="no checkpoint at"):
        load(tmp_path / "c")
    put(tmp_path / "c", 2)
    assert load(tmp_path / "c") == 2 and os.listdir(tmp_path) == ["c"]


def test_crash_between_the_two_renames(tmp_path):
    put(tmp_path / "c", 1)
    (tmp_path / "c").rename(tmp_path / "c.old")
    assert load(tmp_path / "c") == 1
    put(tmp_path / "c", 2)
    assert load(tmp_path / "c") == 2 and os.listdir(tmp_path) == ["c"]


SAVE_FOR_EVER = """
import sys, itertools
from tests.checkpoint_support import put
for n in itertools.count(1):
    put(sys.argv[1], n)
    print(n, flush=True)
"""


def test_kill_9(tmp_path):
    """A process that saves without pause: what it reported as saved is there, or the next one."""
    command = [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path / "c")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    assert child.stdout is not None
    assert child.stdout.readline() == "1\n"
    time.sleep(random.uniform(0.0, 0.3))
    os.kill(child.pid, signal.SIGKILL)
    last = ["1", *child.communicate()[0].split()][-1]
    assert load(tmp_path / "c") in (int(last), int(last) + 1)
