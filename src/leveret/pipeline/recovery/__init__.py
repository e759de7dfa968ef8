"""Recovery: which messages are unsettled, a plan of them that is frozen, and publishing it."""
