"""Training on several GPUs, of populations, and at the largest size that fits."""
