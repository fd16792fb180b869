"""Precision: what is multiplied in which, for how long, and what stays float32."""

from __future__ import annotations

import pytest
import torch

from tests.training.builders import everything, make_run
from warpdrive_min.training.config import precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "within"), [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")])
def test_precision_holds_within_its_block(name, within):
    """Within the block matrices are multiplied so; after it, and after an error in it, as before."""
    before = torch.get_float32_matmul_precision()
    rows = torch.ones(2, 2)
    with precision(name, CPU):
        assert torch.get_float32_matmul_precision() == within
        assert (rows @ rows).dtype == (torch.bfloat16 if name == "bf16" else torch.float32)
    assert torch.get_float32_matmul_precision() == before
    with pytest.raises(ZeroDivisionError), precision(name, CPU):
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == before
    assert (rows @ rows).dtype == torch.float32


@pytest.mark.parametrize("name", ["A2C", "PPO", "PPO, continuous", "DDPG"])
def test_bfloat16_trains_with_all_state_in_float32(name, tmp_path):
    """Two iterations in bfloat16: no tensor of the run is shorter than in float32, and the losses are near those."""
    rows, dtypes = [], []
    for kind in ("fp32", "bf16"):
        trainer = make_run(name, basedir=tmp_path / kind, trainer={"precision": kind}, n_steps=12)
        rows.append(trainer.train(2))
        dtypes.append({key: tensor.dtype for key, tensor in everything(trainer).items()})
    assert dtypes[0] == dtypes[1]
    loss = "critic_loss" if name == "DDPG" else "value_loss"
    got, want = (row[f"shared/{loss}"] for row in reversed(rows))
    assert got == pytest.approx(want, rel=0.1)
    assert got != want, "the precision must have had an effect"
