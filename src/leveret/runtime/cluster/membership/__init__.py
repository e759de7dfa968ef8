"""This process as a member of a cluster: etcd, the links to other members, the definitions lock."""
