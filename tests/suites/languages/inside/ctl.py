"""`ctl.py SOCKET ARGUMENTS`: an operator's command of a suite, which the process that started the broker carries out.

RabbitMQ's suites call `rabbitmqctl -n NODE`, and `make` with the targets of RabbitMQ's sources.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Client

TARGETS = {"stop-rabbit-on-node": "stop-node", "start-rabbit-on-node": "start-node"}


def main(door: str, arguments: list[str]) -> int:
    """Have the command carried out; return its status."""
    if arguments[:1] == ["--version"]:
        print("GNU Make, as far as these suites ask")
        return 0
    if arguments[:1] == ["-n"]:
        arguments = arguments[2:]
    if arguments[:1] == ["list_connections"]:
        # The Java client's suite reads the rows of releases that printed no heads.
        arguments.append("--no-table-headers")
    targets = [TARGETS[each] for each in arguments if each in TARGETS]
    for command in [[target] for target in targets] or [arguments]:
        with Client(door, "AF_UNIX") as operator:
            operator.send(command)
            status, out, err = operator.recv()
        sys.stdout.write(out)
        sys.stderr.write(err)
        if status:
            return int(status)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
