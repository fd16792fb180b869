"""Rollouts, policies, metrics and checkpoints: the parts of a training loop."""
