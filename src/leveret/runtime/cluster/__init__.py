"""One node of a cluster, and the state that it shares with the others (docs/adr/0008-cluster.md)."""
