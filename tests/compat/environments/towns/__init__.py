"""An environment of two policies with arrays of their own; see `towns`."""
