"""Workloads: a file for each kind of work, with its points, its set-up, its check against an oracle, and its cases."""
