"""Whole nodes in one process and in virtual time: the product's own code over simulated network, disk, clock and etcd.

A node runs as it does in production, from `runtime.roles` down. Only the edges are simulated: the event loop (`loop`),
the processes on it (`process`), the sockets (`network`), the loss of power (`disk`) and etcd (`etcd`). A seed decides
each delay and each fault, so a run repeats exactly.
"""
