"""Mirrored queues: the log of each is sent from its leader to its mirrors; see docs/adr/0008-cluster.md.

sources.py          the leader's part: all logs that a node leads
source_link.py      the leader's end of the link of one mirror node; source_link_base.py has its frames
led_log.py          a log that is led here
source_stream.py    one log on one such link
copies.py           the mirror's part: all logs that a node mirrors
copy_link.py        the mirror's end of the link to one leader
mirror_copy.py      one log that is mirrored
"""
