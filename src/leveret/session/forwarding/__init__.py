"""Forwarding: what a node asks of the leader of a queue for its own clients, and how that leader answers."""
