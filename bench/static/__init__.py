"""Machine code without a GPU: compiled, read, recorded and compared."""
