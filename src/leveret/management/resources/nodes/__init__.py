"""The nodes and the cluster: their state, health and operations; one resource of the API a file."""
