"""WarpDrive's array layout and learning rule, where they differ from ours.

`training` imports these modules on first use; importing them has no side effects.
"""
