"""The reference page of all settings, made from their declarations.

python -m leveret.config.reference > docs/configuration.md
"""

from __future__ import annotations

import sys
from typing import Final

from leveret.config import SETTINGS, Setting

_HEAD: Final = """\
# Configuration

A node reads its settings from the file that `leveret serve --config` (or `LEVERET_CONFIG_FILE`) names. A directory
stands for its `*.conf` files in the order of their names; `--config` can be given several times. The files have the
form of `rabbitmq.conf`, and RabbitMQ's names wherever it has the setting:

```ini
# a comment
cluster_name = eu.1
listeners.tcp.1 = 127.0.0.1:5672      # a comment may follow
default_pass = 'in # single quotes'   # nothing in quotes is special
default_pass = $(<secrets/pass)       # the first line of a file beside this one
loopback_users.j\\.doe = true          # a dot that does not divide the key
```

If a key occurs twice, the last line counts. An unknown key, a key that RabbitMQ has and Leveret does not serve, or a
value that is not allowed stops the start (exit status 78). The error names file, line, allowed values and the nearest
known key.

If several sources set one key, the later of these takes precedence:

1. the defaults on this page
2. the files, in their order
3. the environment: `LEVERET_` and the key in capitals, with `_` for `.`, as in `LEVERET_MANAGEMENT_TCP_PORT=15673` or
   `LEVERET_NODENAME=leveret@a`. `LEVERET_LOGS` is what `RABBITMQ_LOGS` is to RabbitMQ: a log file, or `-` for standard
   output
4. the command line: `leveret serve --set heartbeat=30`; not for secrets, because the process list shows it

This command prints every setting with its source:

```
leveret serve --config leveret.conf --print-config
```

`packaging/leveret.conf.example` has all settings with their defaults.

The node stores changes that an operator makes at run time (endpoints, modes, links). They take precedence over the
file.

This page is generated from the settings themselves, by `python -m leveret.config.reference`.
"""


def reference() -> str:
    """Return the page as Markdown."""
    return _HEAD + "".join(_section(one) for one in SETTINGS)


def _section(one: Setting) -> str:
    lines = [f"## `{one.key}`", "", one.help, "", f"Takes {one.allowed}."]
    defaults = [f"`{one.prefix}.{name} = {text}`" for name, text in one.defaults.items()]
    if not one.is_family:
        defaults = [f"`{one.default}`"]
    if one.names:
        lines += ["", "`$name` is one of " + ", ".join(f"`{name}`" for name in one.names) + "."]
    lines += ["", f"Default: {', '.join(defaults) or 'none'}"]
    return "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
