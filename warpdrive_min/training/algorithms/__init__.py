"""Algorithms: what a policy learns by, and the parts that they are made of."""
