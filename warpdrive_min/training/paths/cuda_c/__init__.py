"""Networks on a GPU's matrix units, in CUDA C."""
