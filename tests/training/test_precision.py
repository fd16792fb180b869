"""Precision: what is multiplied in which, for how long, and what stays float32."""

from __future__ import annotations

import pytest
import torch

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
