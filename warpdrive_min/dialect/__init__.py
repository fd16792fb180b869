"""WarpDrive's dialect: its arrays and its rule of learning, where they differ from the core's.

The core names them by their paths, in its tables of layouts and algorithms; importing them does nothing.
"""
