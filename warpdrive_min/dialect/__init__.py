"""WarpDrive's dialect: its arrays and its rule of learning, where they differ from the core's.

`training` names them by their paths, and imports them when they are needed; importing them does nothing.
"""
