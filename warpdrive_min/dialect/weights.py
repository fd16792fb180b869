"""Model weights under WarpDrive's names.

WarpDrive's files have a head for each action type, and no `log_std`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from warpdrive_min.errors import DataError, known, require
from warpdrive_min.training.models.fully_connected import ActorCritic, Adapted
from warpdrive_min.training.models.normalisation import normalisers
from warpdrive_min.training.models.parts import PolicyHead


def load_warpdrive_state_dict(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy WarpDrive's saved weights into a model, in place.

    Synchronises if they are on another device. The model's `log_std`, which WarpDrive lacks, is unchanged.

    Args:
        model: Model with the sizes of WarpDrive's model.
        state: ``fc.<i>.0``, ``policy_head.<j>`` (``policy_head`` of a box) and ``vf_head``, each with ``.weight`` and
            ``.bias``; all may begin with ``module.``.

    Raises:
        DataError: A key is missing or unknown, or a tensor has another shape; the model is then unchanged.
        ConfigError: The model has two trunks or normalises observations; WarpDrive's have one trunk and do not.
    """
    given = {key.removeprefix("module."): tensor for key, tensor in state.items()}
    views = _warpdrive_views(model)
    for problem, keys in (("has no", views.keys() - given.keys()), ("has too much:", given.keys() - views.keys())):
        if keys:
            raise DataError(f"WarpDrive's weights: the file {problem} {known(keys)}; the model has {known(views)}")
    for key, view in views.items():
        shape, there = tuple(view.shape), tuple(given[key].shape)
        do = "the model must have the sizes of the one that was saved"
        require(shape == there, "WarpDrive's weights", f"{key} must be of shape {shape}", there, do, DataError)
    for key, view in views.items():
        view.copy_(given[key])


def to_warpdrive_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a model's weights under WarpDrive's names.

    The copy is on the model's device and has no `log_std`.

    Raises:
        ConfigError: The model has two trunks or normalises observations; WarpDrive's have one trunk and do not.
    """
    return {key: view.clone() for key, view in _warpdrive_views(model).items()}


def _warpdrive_views(model: nn.Module) -> dict[str, Tensor]:
    """Return views of a model's live weights by WarpDrive's names.

    Each discrete action type has its own head there.
    """
    views: dict[str, Tensor] = {}
    model = model.module if isinstance(model, Adapted) else model
    has_two = any(key.startswith("value_fc.") for key in model.state_dict())
    require(not has_two, "WarpDrive's weights", "policy and value share one trunk there", do="set model.shared to true")
    rule, do = "networks see observations as they are there", "set model.normalize_observations to false"
    require(not normalisers(model), "WarpDrive's weights", rule, do=do)
    for key, tensor in model.state_dict().items():
        owner, _, kind = key.rpartition(".")
        module = model.get_submodule(owner)
        if isinstance(module, PolicyHead) and not module.is_continuous:
            views |= {f"{owner}.{j}.{kind}": part for j, part in enumerate(torch.split(tensor, module.sizes))}
        elif not (isinstance(model, ActorCritic) and key == "log_std"):
            views[key] = tensor
    return views
