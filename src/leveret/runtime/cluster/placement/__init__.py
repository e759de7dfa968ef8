"""Placement: leaders and mirrors of the queues of a cluster, and this node's part in them."""
