"""Other people's software, measured beside ours: each in an interpreter of its own, the same work, in turns."""
