"""A simulated etcd, the paths to it, its client, and the companion of a lease."""
