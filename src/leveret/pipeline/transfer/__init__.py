"""Transfer: from the upstream's outgoing logs into the archive, as one streaming query."""
