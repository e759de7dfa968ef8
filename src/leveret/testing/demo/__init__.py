"""Two disasters on real data, every message counted: a site is lost (`.`), a node of a cluster is (`.cluster`)."""
