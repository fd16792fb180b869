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
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import torch
from torch import nn

from warpdrive_min.errors import ConfigError, known, require
from warpdrive_min.memory import require_room
from warpdrive_min.training.config import present
from warpdrive_min.training.defaults import DEVICES
from warpdrive_min.training.models.normalisation import Normaliser
from warpdrive_min.training.paths.facts import Facts, Layers
from warpdrive_min.training.paths.fused.activations import in_kernels
from warpdrive_min.training.paths.fused.kept import KeptRows, StepRows
from warpdrive_min.training.paths.fused.narrow import narrow
from warpdrive_min.training.paths.fused.shared import SharedRows, perceptron
from warpdrive_min.training.paths.table import choose

if TYPE_CHECKING:
    from warpdrive_min.training.actions import ActionSpace
    from warpdrive_min.training.config import ModelConfig

Tensor = torch.Tensor
Seen = Tensor | SharedRows | StepRows | KeptRows
"""Observations (..., n_features) as models see them, or rows that stand for them."""


ACTIVATIONS: Final[dict[str, type[nn.Module]]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}
"""After each layer of a trunk, by the name in a run config."""


class ModelFactory:
    """Classes of models by the name that a run config gives as ``model.type``, in one table for all."""

    _classes: ClassVar[dict[str, Callable[..., nn.Module] | str]] = {"gru": "warpdrive_min.training.models.gru:GRU"}
    """Classes, or where they are, of files that import this one."""

    @classmethod
    def add(cls, model_name: str, model_path: str | Path | type[nn.Module], object_name: str | None = None) -> None:
        """Add a model.

        Args:
            model_name: A new name.
            model_path: A class built with ``(n_features, space, config)``; or where it is: the path of a ``.py`` file,
                or the dotted name of a module.
            object_name: Name of the class there.

        Raises:
            ConfigError: The name is taken, there is no such file, module or class, or it is no ``torch.nn.Module``.
        """
        who = f"model {model_name!r}"
        require(model_name not in cls._classes, who, "is there already", do="give it another name")
        found: Any = model_path
        if isinstance(model_path, str | Path):
            found = _attribute(model_name, model_path, object_name)
        is_model = isinstance(found, type) and issubclass(found, nn.Module)
        require(is_model, who, "must be a class derived from torch.nn.Module", found)
        cls._classes[model_name] = found

    @classmethod
    def create(cls, name: str) -> Callable[..., nn.Module]:
        """Return the class of that name.

        Raises:
            ConfigError: There is none; lists those that there are.
        """
        do = f"known are {known(cls._classes)}; add others with ModelFactory.add"
        require(name in cls._classes, "model.type", "unknown model", name, do)
        found = cls._classes[name]
        return resolve_name(found) if isinstance(found, str) else found


def _attribute(model_name: str, model_path: str | Path, object_name: str | None) -> Any:
    """Import a module by path or name and return what it calls ``object_name``."""
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
    """Give observations (2, 3, n_features) to try a model with, which changes neither it nor the random numbers."""
    was_training = module.training
    module.eval()
    with torch.no_grad():
        yield torch.zeros(2, 3, n_features, dtype=torch.float32, device="cpu")
    module.train(was_training)


def check_shape(config: ModelConfig, what: str, got: Any, want: tuple[int, ...]) -> None:
    """Raise `ConfigError` unless a model has given a tensor of some shape for the observations of `probe`."""
    shape = tuple(got.shape) if isinstance(got, Tensor) else type(got)
    rule = f"must return {what} of shape {want} for observations (2, 3, n_features)"
    require(shape == want, f"model {config.type!r}", rule, shape)


class Stochastic(nn.Module):
    """Base of models from whose heads actions are drawn.

    A head, ``(..., n_outputs)``, is the logits of all action types side by side, or the mean of a Gaussian whose scale
    is `log_std`.
    """

    log_std: nn.Parameter | Tensor | None
    """Logarithm of the standard deviation of continuous actions, ``(n_types,)``: a parameter if it is learned, else a
    buffer. None of discrete actions."""

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

    def drop_value(self) -> None:
        """Let go of what only the value needs, which a critic of its own gives; what is left acts."""


class Recurrent(Stochastic):
    """Base of recurrent models for A2C and PPO; a subclass gives `state_size`, `unroll`, `head` and `value`."""

    state_size: int
    """Numbers of a state."""

    def unroll(self, observations: Tensor, state: Tensor, begins: Tensor | None = None) -> Tensor:
        """Return the state after each step of some sequences, ``(n, n_steps, ..., state_size)``.

        Args:
            observations: ``(n, n_steps, ..., n_features)``.
            state: Before the first step, ``(n, ..., state_size)``.
            begins: Steps with which an episode begins, ``(n, n_steps)`` bool: their state before is zero. None: none.
        """
        raise NotImplementedError

    def head(self, states: Tensor) -> Tensor:
        """Return the head that follows from states, ``(..., n_outputs)``."""
        raise NotImplementedError

    def value(self, states: Tensor) -> Tensor:
        """Return the value that follows from states, ``(...)``."""
        raise NotImplementedError

    def step(self, observations: Tensor, state: Tensor) -> Tensor:
        """Return the state after one step from ``state`` ``(n, ..., state_size)``, in the same shape."""
        return self.unroll(observations[:, None], state)[:, 0]


class Memory:
    """Memory of a recurrent policy: the state of each agent of some environments, carried from step to step.

    Args:
        model: The model.
        timestep: Steps of the episodes that run, (n_envs,), 0 where one begins.
        n_agents: Agents of the policy.
    """

    def __init__(self, model: Recurrent, timestep: Tensor, n_agents: int) -> None:
        self._model, self._timestep = model, timestep
        rows = (len(timestep), n_agents)
        self.state = torch.zeros(*rows, model.state_size, device=timestep.device, dtype=torch.float32)
        """Before the next step, (n_envs, n_agents, state_size)."""

    def forget(self) -> None:
        """Zero the state where an episode begins, in place; enqueues."""
        self.state.masked_fill_(over(self._timestep == 0, self.state), 0.0)

    def act(self, observations: Tensor) -> Tensor:
        """Return the head for what the agents see, (n_envs, n_agents, n_outputs), and go a step on; enqueues."""
        self.state.copy_(self._model.step(observations, self.state))
        return self._model.head(self.state)


def over(mask: Tensor, state: Tensor) -> Tensor:
    """Return a mask of the first axis of states, broadcast to their shape."""
    return mask.view(-1, *[1] * (state.dim() - 1))


class ExactLayers(Protocol):
    """Kernels with one order of operations; `warpdrive_min.training.paths.exact.exact.Exact` has them."""

    def perceptron(self, inputs: Tensor, weights: Sequence[Tensor], activation: str) -> Tensor:
        """Return what linear layers put out, ``(..., n_outputs)``."""
        ...

    def tanh(self, x: Tensor) -> Tensor:
        """Return the hyperbolic tangents."""
        ...


class PolicyHead(nn.Linear):
    """All action types in one layer: their logits side by side, or ``output_w * tanh(x) + output_b`` of a box.

    WarpDrive bounds every head of a box in this way, be it the mean of a Gaussian or an action, so ``output_w`` must
    be half the width of the box for its bounds to be in reach.
    """

    def __init__(self, n_inputs: int, space: ActionSpace, config: ModelConfig) -> None:
        super().__init__(n_inputs, space.n_outputs)
        self.is_continuous = space.is_continuous
        self.sizes = list(space.categories) or [space.n_types]
        """Outputs of each type; those of a box are together."""
        self.bounds = float(config.output_w), float(config.output_b)
        """Factor and centre of a box's actions."""
        self.exact: ExactLayers | None = None
        """Kernels with one order of operations, which bound the head; None: torch."""

    def bound(self, outputs: Tensor) -> Tensor:
        """Return the head of what the layer puts out, ``(..., n_outputs)``."""
        if not self.is_continuous:
            return outputs
        (scale, offset), tanh = self.bounds, torch.tanh if self.exact is None else self.exact.tanh
        return scale * tanh(outputs) + offset


class Trunk(nn.Sequential):
    """Hidden layers, each with an activation, with WarpDrive's names ``<i>.0``; ``width`` is that of the last one.

    A `Normaliser` lies before them where the config says so.

    Args:
        n_inputs: Size of what goes in.
        config: Layers and activation.
        n_observed: Of the inputs, the first ones, which are observed; None: all.
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
        """Name of what comes after each layer."""
        self.fused = config.fused
        """Be one kernel, as `ModelConfig.fused` has it."""
        self.exact: ExactLayers | None = None
        """Kernels with one order of operations, which compute all layers; None: others do."""
        self._kernels: dict[tuple[Any, ...], Callable[..., Tensor] | None] = {}
        """Kernels chosen so far; None: torch."""

    def layers(self, n_outputs: int) -> Layers:
        """Return the sizes of the layers under some outputs."""
        return Layers(self._n_inputs, self._units, n_outputs, self.activation)

    @property
    def obstacle(self) -> str:
        """Reason why the layers alone do not say what is computed, or must not be put into one kernel; empty: none."""
        if "normaliser" in self._modules:
            return "it normalises observations"
        if self.fused is False:
            return "model.fused is false"
        return ""

    def under(self, inputs: Seen, *heads: nn.Linear) -> Tensor:
        """Return what the linear layers on top put out, side by side: ``(..., sum of their outputs)``.

        Rows that are no tensors are for trunks without an `obstacle`.

        Raises:
            ConfigError: On a GPU it is to be one kernel, and cannot.
        """
        weight: Tensor = heads[0].weight
        bias: Tensor = heads[0].bias
        if len(heads) > 1:
            weight, bias = torch.cat([head.weight for head in heads]), torch.cat([head.bias for head in heads])
        if isinstance(inputs, StepRows | KeptRows):
            return inputs.under([*self.parameters(), weight, bias], self.activation)
        if isinstance(inputs, SharedRows):
            return self._on_shared(inputs, weight, bias)
        if self.exact is not None:
            return self.exact.perceptron(inputs, [*self.parameters(), weight, bias], self.activation)
        kernel = self._kernel(inputs.device, self.layers(len(bias)))
        if kernel is None:
            return nn.functional.linear(self(inputs), weight, bias)
        seen = self.normaliser(inputs) if "normaliser" in self._modules else inputs
        precision, rows = present(seen.device), seen.reshape(-1, seen.shape[-1]).float()
        name = in_kernels(self.activation, precision, seen.device)
        outputs = kernel(rows, (*self.parameters(), weight, bias), name, precision)
        return outputs.view(*seen.shape[:-1], len(bias))

    def _kernel(self, device: torch.device, layers: Layers) -> Callable[..., Tensor] | None:
        """Return the kernel that computes all layers, in the present precision; None: torch does.

        Raises:
            ConfigError: There must be one, and is none.
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

    def _on_shared(self, inputs: SharedRows, weight: Tensor, bias: Tensor) -> Tensor:
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


def initialise(model: nn.Module, method: str | None) -> None:
    """Draw initial weights by the method of `FullyConnected`'s table; each action type, and gate, has its own draw."""
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
    """Return the hidden layers of a model, and the linear layers on top of them."""
    trunks = [module for module in model.modules() if isinstance(module, Trunk)]
    inside = {module for trunk in trunks for module in trunk.modules()}
    return trunks, [each for each in model.modules() if isinstance(each, nn.Linear) and each not in inside]


def layers_of(model: Any) -> Layers | str:
    """Return the sizes of a model's layers, or why they are not known."""
    found: Callable[[], Layers | str] | None = getattr(model, "as_layers", None)
    return found() if found else f"{type(model).__name__} does not say what its layers are"


def by_member(array: Tensor, n_members: int, axis: int = 1) -> Tensor:
    """Return an array whose ``axis`` counts environments, blocks of a member each, as ``(n_members, ...)``; a view."""
    view: Tensor = array.unflatten(axis, (n_members, -1)).movedim(axis, 0)
    return view


def n_members_of(model: nn.Module) -> int:
    """Return the number of networks of `Members`; 0 of any other model."""
    return int(getattr(model, "n_members", 0))
