"""All set-ups: a process that measures imports them once, before it is forked for each point."""

from . import environments, iterations, kernels, learning, stepping, timing, trainers

__all__ = ["environments", "iterations", "kernels", "learning", "stepping", "timing", "trainers"]
