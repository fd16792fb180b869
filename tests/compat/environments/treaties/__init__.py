"""Environment with masks and its own restart; see `treaties`."""
