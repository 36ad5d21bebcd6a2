"""What offline runs of Weights & Biases have stored, read without their service."""

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from wandb.proto import wandb_internal_pb2 as proto

BLOCK = 32768
HEADER = struct.Struct("<IHB")  # checksum, length, type: the log format of LevelDB, after 7 bytes of their own
FULL, LAST = 1, 4


def records(path: Path) -> Iterator[proto.Record]:
    data, at, part = path.read_bytes(), 7, b""
    while at + HEADER.size <= len(data):
        if (left := BLOCK - at % BLOCK) < HEADER.size:
            at += left
            continue
        _, length, kind = HEADER.unpack_from(data, at)
        at += HEADER.size
        part, at = part + data[at : at + length], at + length
        if kind in (FULL, LAST):
            yield proto.Record.FromString(part)
            part = b""


class Logged(NamedTuple):
    configs: dict[str, dict[str, Any]]  # by the run's id
    groups: set[str]
    rows: dict[str, list[tuple[int, dict[str, float]]]]  # in the order in which they were logged


def read(out: Path) -> Logged:
    """All that the processes that worked on `out` have stored, the first one first."""
    logged = Logged({}, set(), defaultdict(list))
    for path in sorted(out.glob("wandb/offline-run-*/*.wandb")):
        name = path.stem.removeprefix("run-")
        for record in records(path):
            if record.WhichOneof("record_type") == "run":
                logged.groups.add(record.run.run_group)
                logged.configs[name] = {u.key: json.loads(u.value_json) for u in record.run.config.update if u.key}
            elif record.WhichOneof("record_type") == "history":
                items = {(i.key or i.nested_key[0]): json.loads(i.value_json) for i in record.history.item}
                values = {key: x for key, x in items.items() if not key.startswith("_")}
                logged.rows[name].append((record.history.step.num, values))
    return logged
