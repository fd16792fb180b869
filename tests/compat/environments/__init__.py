"""Environments of real size in WarpDrive users' style, with `warp_drive` only."""
