"""Mirrored queues: shipping the log of each from its leader to its mirrors; see docs/adr/0008-cluster.md.

sources.py          the leader's work for all logs that it leads
source_link.py      its end of the link of one mirror node; mirror_link.py has its frames
led_log.py          a log that is led here
mirror_stream.py    one log on one such link
copies.py           a mirror node's work for all logs that it mirrors
copy_link.py        its end of the link to one leader
mirror_copy.py      one log that is mirrored
"""
