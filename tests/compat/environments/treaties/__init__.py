"""An environment of masks with a restart of its own; see `treaties`."""
