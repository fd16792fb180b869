"""Machine code without a GPU: compiled as it would be launched, read, recorded, and compared with a baseline's."""
