"""Networks of policies and values."""

from warpdrive_min.lazy import on_first_use

__getattr__ = on_first_use(
    __name__,
    {
        "fully_connected": ("ActorCritic", "FullyConnected", "create_actor", "create_actor_critic", "create_critic"),
        "parts": ("ModelFactory", "PolicyHead", "Stochastic", "Trunk"),
    },
)
