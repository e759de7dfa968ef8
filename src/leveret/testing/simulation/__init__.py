"""Whole nodes in one process and in virtual time: the product's own code over simulated network, disk, clock and etcd.

A node runs as it does in production, from `runtime.roles` down. Only the edges are simulated: the event loop, the
processes on it, the sockets and the loss of power (`machine`), etcd (`etcd`), and Spark (`pipelines`). A seed decides
each delay and each fault, so a run repeats exactly.
"""
