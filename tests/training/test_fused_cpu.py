"""CPU kernels: odd sizes, threads, and unsupported networks."""

from __future__ import annotations

import pytest
import torch

from tests.training.test_actor_critic import BOX, DISCRETE, F, N, T, make_algorithm, make_batch, make_model
from warpdrive_min.training.config import ModelConfig
from warpdrive_min.training.models.fully_connected import FullyConnected, create_actor_critic
from warpdrive_min.training.paths import available
from warpdrive_min.training.paths.facts import Facts
from warpdrive_min.training.paths.fused import cpu
from warpdrive_min.training.paths.table import choose


@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["choices", "box"])
@pytest.mark.parametrize(
    ("n_rows", "network"),
    [
        (1, {"fc_dims": (8, 20)}),
        (64, {"fc_dims": (64, 64), "shared": False}),
        (515, {"fc_dims": (33, 130), "activation": "relu", "output_w": 0.7, "output_b": 0.1}),
    ],
)
def test_evaluation_is_that_of_torch(n_rows, network, space):
    """Kernels give the model's heads and values in float64."""
    model = make_model(space, **network)
    layers, x = model.as_network(), torch.randn(n_rows, F)
    head, value = torch.full((n_rows, space.n_outputs), torch.nan), torch.full((n_rows,), torch.nan)
    cpu.Evaluation(layers)(x, head)
    cpu.Evaluation(layers, of_value=True)(x, value)
    with torch.no_grad():
        want = model.double()(x.double())
    torch.testing.assert_close((head.double(), value.double()), want, rtol=2e-6, atol=2e-6)


def test_evaluation_passes_what_is_not_a_number():
    """A NaN in an observation affects only its own row."""
    for activation in ("relu", "tanh"):
        x, out = torch.zeros(3, F), torch.zeros(3, DISCRETE.n_outputs)
        x[1, 2] = torch.nan
        cpu.Evaluation(make_model(DISCRETE, fc_dims=(8, 8), activation=activation).as_network())(x, out)
        assert out.isnan().any(1).tolist() == [False, True, False]


def gradient_of(batch, space, n_threads, **given):
    """Return a step's gradient, computed with a number of threads."""
    torch.set_num_threads(n_threads)
    algorithm = make_algorithm("PPO", batch, make_model(space, fc_dims=(24, 8)), space, n_epochs=1, **given)
    algorithm.iterate()
    return algorithm.optimiser.gradient.clone()


def test_gradient_is_the_same_on_any_number_of_threads():
    """The number of threads does not change the gradient's bits.

    Blocks are added up in their order.
    """
    batch = make_batch(DISCRETE, make_model(DISCRETE), n_envs=60)
    assert T * 60 * N > 3 * cpu.BLOCK_ROWS
    one, three = (gradient_of(batch, DISCRETE, n_threads, n_minibatches=1) for n_threads in (1, 3))
    assert torch.equal(one, three)
    assert one.abs().min(), "each parameter has a gradient"


def test_blocks_add_up_to_what_one_would(monkeypatch):
    """Blocks of a gradient add up to torch's gradient.

    Many blocks and tiles, each cut short.
    """
    batch = make_batch(BOX, make_model(BOX), n_envs=97)
    got = gradient_of(batch, BOX, 1, n_minibatches=2)
    monkeypatch.setattr(available, "why_no_cpp", lambda: "needs a C++ compiler")
    torch.testing.assert_close(got, gradient_of(batch, BOX, 1, n_minibatches=2), rtol=1e-4, atol=1e-6)


def test_gpus_and_users_models_have_other_paths(factory):
    """Models on a GPU, and classes with another forward, do not act by these kernels."""
    of_a_gpu = Facts(network=make_model(DISCRETE, fc_dims=(8, 8)).as_layers(), device="cuda")
    assert "needs a CPU (got cuda)" in choose("acting", of_a_gpu).why
    factory.add("own", type("Own", (FullyConnected,), {}))
    own = create_actor_critic(F, DISCRETE, ModelConfig(type="own", fc_dims=(8, 8)))
    assert "Own overrides methods of FullyConnected" in choose("acting", Facts(network=own.as_layers())).why
