"""Two commands: `leveret` runs a node, `leveretctl` operates one over its HTTP API."""
