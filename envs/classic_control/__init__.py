"""The classic-control environments, each with one agent."""
