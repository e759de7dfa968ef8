"""Placement: where the queues of a cluster are, who leads and mirrors them, and what this node does for that."""
