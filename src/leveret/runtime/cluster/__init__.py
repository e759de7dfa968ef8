"""One node of a cluster: what it shares with the others (docs/adr/0008-cluster.md)."""
