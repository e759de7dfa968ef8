"""One request: the caller and its permissions, the answer, and the node of the cluster that answers."""
