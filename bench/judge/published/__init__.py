"""Published claims and rates, and what records say of them."""
