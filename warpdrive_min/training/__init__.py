"""Training: A2C, PPO and DDPG on the device of the environments."""
