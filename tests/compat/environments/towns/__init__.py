"""Environment of two policies with separate arrays; see `towns`."""
