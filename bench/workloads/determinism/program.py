"""Process of `determinism`, run as ``python -m PROGRAM JSON FOLDER``.

JSON is the point. FOLDER receives the training state after each iteration, as ``ITERATION.npz``, and ``report.json``.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from warpdrive_min.agreement.changes import other_blocks
from warpdrive_min.training.record import certificate

from ...core.machine import card_hash
from ...core.point import Point
from ..setups.trainers import WatchedTrainer, settings
from . import BLOCK


def play(point: Point, folder: Path) -> None:
    """Train; write states, their hashes, and the seconds of each iteration."""
    trainer = WatchedTrainer(point["env"], settings(point))
    backend, seconds = trainer.wrapper.backend, list[float]()
    digests = [save(trainer, folder)]
    for _ in range(point["n_iterations"]):
        backend.synchronize()
        began = time.perf_counter()
        trainer.iterate()
        backend.synchronize()
        seconds.append(time.perf_counter() - began)
        digests.append(save(trainer, folder))
    shape = trainer.wrapper.cuda_function_manager.shape
    facts = {
        "block": f"{shape.threads} threads, {shape.envs_per_block} environments",
        "threads": torch.get_num_threads(),
        **processor(backend.device),
    }
    (folder / "report.json").write_text(json.dumps({"digests": digests, "seconds": seconds, **facts}))


def save(trainer: WatchedTrainer, folder: Path) -> dict[str, str]:
    """Write a trainer's state; return the hash of each tensor."""
    state = trainer.state()
    assert state is not None, "a trainer of one rank has all of its state"
    arrays: dict[str, Any] = {name: tensor.cpu().numpy() for name, tensor in state[0].items()}
    np.savez(folder / f"{trainer.iteration}.npz", **arrays)
    return certificate.point(trainer).tensors


def processor(device: torch.device) -> dict[str, Any]:
    """Return a device's name, architecture and, of a GPU, card."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        card = torch.cuda.get_device_properties(device)
        return {"processor": card.name, "architecture": f"sm_{major}{minor}", "card": card_hash(str(card.uuid))}
    return {"processor": platform.machine(), "architecture": torch.backends.cpu.get_cpu_capability()}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    with other_blocks() if asked["variation"] == BLOCK else nullcontext():
        play(asked, Path(sys.argv[2]))
