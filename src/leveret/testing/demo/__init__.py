"""Two disasters on real data, every message counted: the loss of a site (`.`), or of a node (`.cluster`)."""
