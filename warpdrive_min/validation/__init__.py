"""Checks of an environment's kernels: what `python -m warpdrive_min validate PATH` runs."""

from warpdrive_min.validation.checks import CHECKS, Result, run_checks
from warpdrive_min.validation.subject import Subject, load_class

__all__ = ["CHECKS", "Result", "Subject", "load_class", "run_checks"]
