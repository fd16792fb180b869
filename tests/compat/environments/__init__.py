"""Environments of real size in the style of WarpDrive's users: they know `warp_drive` only."""
