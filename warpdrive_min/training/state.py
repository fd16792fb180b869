"""What a run goes on from: the live tensors of policies, environments and statistics, by the names of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.training.learners import Learner
from warpdrive_min.training.recorder import Recorder

Tensors = dict[str, torch.Tensor]


def shared_state(learners: Mapping[str, Learner]) -> Tensors:
    """Return what is the same on all ranks: weights, and the optimisers' moments."""
    state = weights(learners)
    for name, learner in learners.items():
        if learner.algorithm is not None:
            state |= {f"policy/{name}/algorithm/{key}": value for key, value in learner.algorithm.state().items()}
    return state


def weights(learners: Mapping[str, Learner]) -> Tensors:
    """Return the weights of all models."""
    return {
        f"policy/{name}/{part}/{key}": value
        for name, learner in learners.items()
        for part, model in learner.models.items()
        for key, value in model.state_dict().items()
    }


def is_weight(name: str) -> bool:
    """Tell whether a tensor of a checkpoint belongs to a model."""
    section, *rest = name.split("/")
    return section == "policy" and rest[1] not in ("algorithm", "own")


def own_state(data: CUDADataManager, recorders: Mapping[str, Recorder], learners: Mapping[str, Learner]) -> Tensors:
    """Return what each rank has of its own: environments, statistics, what the algorithms remember and count."""
    names = [name for name in data.array_names() if not data.attribute(name, "scratch")]
    state = {f"env/{name}": data.tensor(name) for name in names}
    for suffix, recorder in recorders.items():
        state |= {f"recorder{suffix}/{name}": tensor for name, tensor in recorder.state().items()}
    for name, learner in learners.items():
        if learner.algorithm is not None:
            state |= {f"policy/{name}/own/{key}": value for key, value in learner.algorithm.own_state().items()}
    return state
