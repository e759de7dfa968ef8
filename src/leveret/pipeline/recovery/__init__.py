"""Recovery: finds unsettled messages, freezes a plan of them, and publishes it."""
