"""Forwarding: the requests of a node to the leader of a queue for its own clients, and the leader's answers."""
