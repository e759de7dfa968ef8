"""Values that all rooms share: definitions, settlement reasons, errors. This room imports no other one."""
