"""Tests of the drop-in compatibility with WarpDrive; `walkers*` is code as WarpDrive's users write it."""
