"""Tests of compatibility with WarpDrive.

`walkers*` is code in its users' style.
"""
