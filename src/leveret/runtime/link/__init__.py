"""Link: one connection between nodes - framing, proof of the secret, heartbeats, questions."""
