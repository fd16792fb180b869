"""Parts of networks: hidden layers, heads, and the bases of models."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch import nn

from warpdrive_min.errors import ConfigError, known, require
from warpdrive_min.lazy import renamed
from warpdrive_min.memory import require_room
from warpdrive_min.training.config import present
from warpdrive_min.training.defaults import DEVICES
from warpdrive_min.training.models.normalisation import Normaliser
from warpdrive_min.training.paths.facts import Facts, Layers
from warpdrive_min.training.paths.fused.activations import in_kernels
from warpdrive_min.training.paths.fused.kept import ActingInput, LearningInput
from warpdrive_min.training.paths.fused.narrow import narrow
from warpdrive_min.training.paths.fused.shared import SharedRows, perceptron
from warpdrive_min.training.paths.table import choose

if TYPE_CHECKING:
    from warpdrive_min.training.actions import ActionSpace
    from warpdrive_min.training.config import ModelConfig
    from warpdrive_min.training.paths.exact.exact import Exact

Tensor = torch.Tensor
ModelInput = Tensor | SharedRows | ActingInput | LearningInput
"""Input of a model: observations (..., n_features), or rows that represent them."""


ACTIVATIONS: Final[dict[str, type[nn.Module]]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}
"""Activations after each layer of a trunk, by their name in a run config."""


class ModelFactory:
    """Global table of model classes by name, ``model.type`` in a run config."""

    _classes: ClassVar[dict[str, Callable[..., nn.Module] | str]] = {"gru": "warpdrive_min.training.models.gru:GRU"}
    """Classes; or import paths of classes in modules that import this one."""

    @classmethod
    def add(cls, model_name: str, model_path: str | Path | type[nn.Module], object_name: str | None = None) -> None:
        """Add a model.

        Args:
            model_name: A new name.
            model_path: A class built with ``(n_features, space, config)``; or its location: the path of a ``.py`` file
                or the dotted name of a module.
            object_name: Name of the class in that file or module.

        Raises:
            ConfigError: The name is taken, the file, module or class does not exist, or the class is not a
                ``torch.nn.Module``.
        """
        who = f"model {model_name!r}"
        require(model_name not in cls._classes, who, "exists already", do="give it another name")
        found: Any = model_path
        if isinstance(model_path, str | Path):
            found = _attribute(model_name, model_path, object_name)
        is_model = isinstance(found, type) and issubclass(found, nn.Module)
        require(is_model, who, "must be a class derived from torch.nn.Module", found)
        cls._classes[model_name] = found

    @classmethod
    def create(cls, name: str) -> Callable[..., nn.Module]:
        """Return the model class of that name.

        Raises:
            ConfigError: The name is unknown; the message lists the known names.
        """
        do = f"known are {known(cls._classes)}; add others with ModelFactory.add"
        require(name in cls._classes, "model.type", "unknown model", name, do)
        model_class = cls._classes[name]
        return resolve_name(model_class) if isinstance(model_class, str) else model_class


def _attribute(model_name: str, model_path: str | Path, object_name: str | None) -> Any:
    """Import a module by path or name and return its attribute ``object_name``."""
    text, who = str(model_path), f"model {model_name!r}"
    if object_name is None:
        raise ConfigError.of(who, f"needs the name of its class in {text}", "object_name=None")
    if text.endswith(".py"):
        require(Path(text).is_file(), who, f"there is no file {text}")
        name = f"warpdrive_min_model_{model_name}"
        spec = importlib.util.spec_from_file_location(name, text)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickle look a class's module up there
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(text)
        except ModuleNotFoundError as error:
            do = "give the path of a .py file or the dotted name of a module"
            raise ConfigError.of(who, f"cannot import {text!r}", error, do) from error
    require(hasattr(module, object_name), who, f"{text} has no {object_name!r}")
    return getattr(module, object_name)


@contextmanager
def probe(module: nn.Module, n_features: int) -> Iterator[Tensor]:
    """Yield zero observations (2, 3, n_features) to try a model with.

    Changes neither the model nor the random number generators.
    """
    was_training = module.training
    module.eval()
    with torch.no_grad():
        yield torch.zeros(2, 3, n_features, dtype=torch.float32, device="cpu")
    module.train(was_training)


def check_shape(config: ModelConfig, what: str, got: Any, want: tuple[int, ...]) -> None:
    """Raise `ConfigError` unless a model's output for `probe` has the right shape."""
    shape = tuple(got.shape) if isinstance(got, Tensor) else type(got)
    rule = f"must return {what} of shape {want} for observations (2, 3, n_features)"
    require(shape == want, f"model {config.type!r}", rule, shape)


class Stochastic(nn.Module):
    """Base of models whose heads parametrise the distribution of actions.

    A head, ``(..., n_outputs)``, is the concatenated logits of all action types, or the mean of a Gaussian with
    log standard deviation `log_std`.
    """

    log_std: nn.Parameter | Tensor | None
    """Log standard deviation of continuous actions, ``(n_types,)``.

    A parameter if it is learned, else a buffer. None for discrete actions.
    """

    def __init__(self, space: ActionSpace, config: ModelConfig) -> None:
        super().__init__()
        log_std = (
            torch.full((space.n_types,), float(config.log_std_init), dtype=torch.float32, device="cpu")
            if space.is_continuous
            else None
        )
        if config.learn_log_std and log_std is not None:
            self.log_std = nn.Parameter(log_std)
        else:
            self.register_buffer("log_std", log_std)

    @property
    def has_value(self) -> bool:
        """True until `delete_value_head` deletes the value head, ``vf_head``."""
        return "vf_head" in self._modules

    def delete_value_head(self) -> None:
        """Delete parameters used only by the value head.

        A centralised critic computes the values instead; the rest of the model acts.
        """

    drop_value = renamed("drop_value", "delete_value_head")


class Recurrent(Stochastic):
    """Base of recurrent models for A2C and PPO.

    A subclass defines `state_size`, `unroll`, `head` and `value`.
    """

    state_size: int
    """Number of floats in a state."""

    def unroll(self, observations: Tensor, state: Tensor, begins: Tensor | None = None) -> Tensor:
        """Return the state after each step of sequences.

        The states have shape ``(n, n_steps, ..., state_size)``.

        Args:
            observations: ``(n, n_steps, ..., n_features)``.
            state: State before the first step, ``(n, ..., state_size)``.
            begins: Flags of the first steps of episodes, ``(n, n_steps)`` bool: the state before them is zero. None if
                no episode begins.
        """
        raise NotImplementedError

    def head(self, states: Tensor) -> Tensor:
        """Return the head computed from states, ``(..., n_outputs)``."""
        raise NotImplementedError

    def value(self, states: Tensor) -> Tensor:
        """Return the value computed from states, ``(...)``."""
        raise NotImplementedError

    def step(self, observations: Tensor, state: Tensor) -> Tensor:
        """Return the state after one step, ``(n, ..., state_size)`` like ``state``."""
        return self.unroll(observations[:, None], state)[:, 0]


class Memory:
    """Recurrent policy's state of each agent, carried from step to step.

    Args:
        model: The recurrent model.
        timestep: Env steps in the current episodes, (n_envs,), 0 where one begins.
        n_agents: Agents of the policy.
    """

    def __init__(self, model: Recurrent, timestep: Tensor, n_agents: int) -> None:
        self._model, self._timestep = model, timestep
        rows = (len(timestep), n_agents)
        self.state = torch.zeros(*rows, model.state_size, device=timestep.device, dtype=torch.float32)
        """State before the next step, (n_envs, n_agents, state_size)."""

    def reset_ended(self) -> None:
        """Zero the state where an episode begins, in place; enqueues."""
        self.state.masked_fill_(over(self._timestep == 0, self.state), 0.0)

    def act(self, observations: Tensor) -> Tensor:
        """Advance one step and return the head, (n_envs, n_agents, n_outputs); enqueues."""
        self.state.copy_(self._model.step(observations, self.state))
        return self._model.head(self.state)


def over(mask: Tensor, state: Tensor) -> Tensor:
    """Reshape a mask of the states' first axis to broadcast over all axes."""
    return mask.view(-1, *[1] * (state.dim() - 1))


def linear(layer: nn.Linear, inputs: Tensor, exact: Exact | None) -> Tensor:
    """Return the outputs of one layer, by exact kernels if given."""
    if exact is None:
        outputs: Tensor = layer(inputs)
        return outputs
    return exact.perceptron(inputs, [layer.weight, layer.bias], "relu")  # the last layer has no activation


class PolicyHead(nn.Linear):
    """Linear layer for all action types: concatenated logits, or bounded means.

    For a box the output is ``output_w * tanh(x) + output_b``. WarpDrive bounds every head of a box in this way, for a
    Gaussian's mean or an action. So the bounds can be reached only if ``output_w`` is half the width of the box.
    """

    def __init__(self, n_inputs: int, space: ActionSpace, config: ModelConfig) -> None:
        super().__init__(n_inputs, space.n_outputs)
        self.is_continuous = space.is_continuous
        self.sizes = list(space.categories) or [space.n_types]
        """Number of outputs of each type; one entry for all outputs of a box."""
        self.bounds = float(config.output_w), float(config.output_b)
        """Scale and centre of a box's actions."""
        self.exact: Exact | None = None
        """Kernels of exact training, which bound the head; None uses torch."""

    def bound(self, outputs: Tensor) -> Tensor:
        """Return the head from the layer's outputs, ``(..., n_outputs)``."""
        if not self.is_continuous:
            return outputs
        (scale, offset), tanh = self.bounds, torch.tanh if self.exact is None else self.exact.tanh
        return scale * tanh(outputs) + offset


class Trunk(nn.Sequential):
    """Hidden layers, each with an activation.

    Layers have WarpDrive's names ``<i>.0``; ``width`` is the size of the last one. With
    ``config.normalize_observations``, a `Normaliser` comes first.

    Args:
        n_inputs: Number of inputs.
        config: Layers and activation.
        n_observed: Number of first inputs that are observations; None: all.
    """

    normaliser: Normaliser

    def __init__(self, n_inputs: int, config: ModelConfig, n_observed: int | None = None) -> None:
        sizes = list(itertools.pairwise([n_inputs, *config.fc_dims]))
        n_bytes, do = 4 * sum(before * after for before, after in sizes), "use smaller layers"
        require_room(f"run config {config.PLACE}.fc_dims", n_bytes, torch.device("cpu"), do)
        act = ACTIVATIONS[config.activation]
        layers = [nn.Sequential(nn.Linear(before, after), act()) for before, after in sizes]
        first = {"normaliser": Normaliser(n_observed or n_inputs)} if config.normalize_observations else {}
        super().__init__(OrderedDict({**first, **{str(i): layer for i, layer in enumerate(layers)}}))
        self._n_inputs, self._units, self.width = n_inputs, tuple(config.fc_dims), config.fc_dims[-1]
        self.activation = config.activation
        """Name of the activation after each layer."""
        self.fused = config.fused
        """`ModelConfig.fused`: use one kernel."""
        self.exact: Exact | None = None
        """Kernels of exact training, which compute all layers; None uses others."""
        self._kernels: dict[tuple[Any, ...], Callable[..., Tensor] | None] = {}
        """Kernels chosen so far; None stands for torch."""

    def layers(self, n_outputs: int) -> Layers:
        """Return the sizes of the layers, for a number of outputs."""
        return Layers(self._n_inputs, self._units, n_outputs, self.activation)

    @property
    def obstacle(self) -> str:
        """Reason against one kernel for all layers; may be empty."""
        if "normaliser" in self._modules:
            return "it normalises observations"
        if self.fused is False:
            return "model.fused is false"
        return ""

    def head_outputs(self, inputs: ModelInput, *heads: nn.Linear) -> Tensor:
        """Return the concatenated outputs of heads, ``(..., sum of their outputs)``.

        Inputs other than tensors need a trunk without an `obstacle`.

        Raises:
            ConfigError: `fused` is true on a GPU, and no kernel supports the layers.
        """
        if isinstance(inputs, ActingInput):
            return inputs.head_outputs(lambda: [*self.parameters(), *_joined(heads)], self.activation)
        weight, bias = _joined(heads)
        if isinstance(inputs, LearningInput):
            return inputs.head_outputs([*self.parameters(), weight, bias], self.activation)
        if isinstance(inputs, SharedRows):
            return self._shared_outputs(inputs, weight, bias)
        if self.exact is not None:
            return self.exact.perceptron(self._seen(inputs), [*self.parameters(), weight, bias], self.activation)
        kernel = self._kernel(inputs.device, self.layers(len(bias)))
        if kernel is None:
            return nn.functional.linear(self(inputs), weight, bias)
        seen = self._seen(inputs)
        precision, rows = present(seen.device), seen.reshape(-1, seen.shape[-1]).float()
        name = in_kernels(self.activation, precision, seen.device)
        outputs = kernel(rows, (*self.parameters(), weight, bias), name, precision)
        return outputs.view(*seen.shape[:-1], len(bias))

    under = renamed("under", "head_outputs")

    def _seen(self, inputs: Tensor) -> Tensor:
        """Return the inputs of the first layer."""
        seen: Tensor = self.normaliser(inputs) if "normaliser" in self._modules else inputs
        return seen

    def _kernel(self, device: torch.device, layers: Layers) -> Callable[..., Tensor] | None:
        """Return the kernel of all layers, or None for torch.

        It depends on the current precision.

        Raises:
            ConfigError: `fused` is true on a GPU, and no kernel supports the layers.
        """
        if device.type not in DEVICES:
            return None
        precision = present(device)
        key = device.type, precision, layers, self.fused
        if key not in self._kernels:
            choice = choose("network", Facts(device=device.type, precision=precision, fused=self.fused, network=layers))
            rule, do = choice.why, "leave the key out, or set it to false"
            require(not (self.fused and device.type == "cuda" and rule), "model.fused", rule, do=do)
            self._kernels[key] = choice.path.build
        return self._kernels[key]

    def _shared_outputs(self, inputs: SharedRows, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the outputs of all agents, ``(..., n_agents, n_outputs)``."""
        device, layers = inputs.rows.device, self.layers(len(bias))._replace(n_features=0)  # torch multiplies them
        if not torch.is_grad_enabled() and self._kernel(device, layers) is narrow:
            precision, weights = present(device), [*self.parameters(), weight, bias]
            return perceptron(inputs, weights, in_kernels(self.activation, precision, device), precision)
        (first_weight, first_bias, *_), (first, *others) = self.parameters(), self.children()
        _, act = first.children()
        hidden: Tensor = act(inputs.first_layer(first_weight, first_bias))
        for layer in others:
            hidden = layer(hidden)
        return nn.functional.linear(hidden, weight, bias)


def _joined(heads: Sequence[nn.Linear]) -> tuple[Tensor, Tensor]:
    """Return the weights and biases of heads, concatenated if there are several."""
    if len(heads) == 1:
        return heads[0].weight, heads[0].bias
    return torch.cat([head.weight for head in heads]), torch.cat([head.bias for head in heads])


def initialise(model: nn.Module, method: str | None) -> None:
    """Draw initial weights by a method of `FullyConnected`'s table.

    Each action type and each gate is initialised separately.
    """
    if method is None:
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            sizes = getattr(module, "sizes", [module.out_features])
            gain = {"policy_head": 0.01, "vf_head": 1.0}.get(name, getattr(module, "gain", math.sqrt(2)))
            for rows in torch.split(module.weight.detach(), sizes):
                if method == "xavier":
                    nn.init.xavier_uniform_(rows)
                else:
                    nn.init.orthogonal_(rows, gain)
            if method == "orthogonal":
                nn.init.zeros_(module.bias)


def trunks_and_heads(model: nn.Module) -> tuple[list[Trunk], list[nn.Linear]]:
    """Return the trunks of a model, and its linear layers outside of them."""
    trunks = [module for module in model.modules() if isinstance(module, Trunk)]
    inside = {module for trunk in trunks for module in trunk.modules()}
    return trunks, [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer not in inside]


def layers_of(model: Any) -> Layers | str:
    """Return a model's layer sizes, or a reason."""
    as_layers: Callable[[], Layers | str] | None = getattr(model, "as_layers", None)
    return as_layers() if as_layers else f"{type(model).__name__} does not declare its layers (as_layers)"


def gated_layers_of(model: Any) -> Layers | str:
    """Return a recurrent model's layer sizes, or a reason."""
    as_layers: Callable[[], Layers | str] | None = getattr(model, "as_gated_layers", None)
    return as_layers() if as_layers else f"{type(model).__name__} has no gated units (as_gated_layers)"


def by_member(array: Tensor, n_members: int, axis: int = 1) -> Tensor:
    """Return a view ``(n_members, ...)`` of an array.

    ``axis`` counts environments, in blocks of one member each.
    """
    view: Tensor = array.unflatten(axis, (n_members, -1)).movedim(axis, 0)
    return view


def n_members_of(model: nn.Module) -> int:
    """Return the number of networks of `Members`; 0 for any other model."""
    return int(getattr(model, "n_members", 0))
