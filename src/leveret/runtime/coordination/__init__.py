"""Coordination: etcd, leases, and the election of a leader among nodes that share one data set."""
