"""The backlog of a queue: its ready messages by offset, in one order or by priority."""
