"""Queues that another node leads: what goes there for this node's clients, and what comes from other nodes' clients."""
