"""A disaster, end to end, on real data: publish, lose the site, promote the standby, count every message."""
