"""Classic-control environments, each with one agent."""
