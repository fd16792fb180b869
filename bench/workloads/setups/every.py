"""All set-ups, which a process imports once before it is forked."""

from . import environments, iterations, kernels, learning, many_steps, starts, stepping, timing, trainers

__all__ = [
    "environments",
    "iterations",
    "kernels",
    "learning",
    "many_steps",
    "starts",
    "stepping",
    "timing",
    "trainers",
]
