"""Other software, measured interleaved with ours on the same work."""
