"""Memory and disk: their use, and the limits at which publishers are blocked."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.checks import refused_as
from leveret.cli.command import Session, command
from leveret.cli.output.values import MessageLine

_UNITS: Final = {"gb": 10**9, "gib": 2**30, "mb": 10**6, "mib": 2**20, "kb": 10**3, "kib": 2**10, "bytes": 1}
_RELATIVE_MAX: Final = 1.0


@command("Reporting memory breakdown on node {node}...", "memory_breakdown --unit mb")
def memory_breakdown(
    ctl: Session,
    unit: Annotated[
        Literal["gb", "gib", "mb", "mib", "kb", "kib", "bytes"], Option("--unit", "-u", help="Unit of sizes.")
    ] = "gb",
) -> MessageLine:
    """Show the node's use of memory, the largest part first."""
    memory = ctl.api.get("nodes", ctl.node, "memory")["memory"]
    sizes = {name: size for name, size in memory.items() if isinstance(size, int)}
    total = sum(sizes.values()) or 1
    found = {
        name: {"bytes": size, "percentage": round(100 * size / total, 2)}
        for name, size in sorted(sizes.items(), key=lambda item: -item[1])
    }
    lines = [
        f"{name}: {round(each['bytes'] / _UNITS[unit], 4)} {unit} ({each['percentage']}%)"
        for name, each in found.items()
    ]
    return MessageLine("\n".join(lines), found)


@command("", "set_vm_memory_high_watermark absolute 2GB")
def set_vm_memory_high_watermark(
    ctl: Session,
    limit: Annotated[list[str], Argument(help="A part of all memory, as 0.4; or: absolute 2GB.")],
) -> None:
    """Set the memory limit above which publishers are blocked, until the next start."""
    body: dict[str, str | float]
    match limit:
        case ["absolute", size]:
            what, body = f"{size} bytes", {"absolute": size}
        case [text]:
            what, body = text, {"relative": _fraction(text, _RELATIVE_MAX)}
        case _:
            raise CtlError(exits.USAGE, "expected a fraction, or: absolute SIZE")
    ctl.announce(f"Setting memory threshold on {ctl.node} to {what} ...")
    with refused_as(exits.DATA):
        ctl.api.put("operations", "memory-limit", body=body)


@command("", "set_disk_free_limit 2GB")
def set_disk_free_limit(
    ctl: Session,
    limit: Annotated[list[str], Argument(help="A size, as 50MB; or: mem_relative 1.5.")],
) -> None:
    """Set the free disk space below which publishers are blocked, until the next start."""
    body: dict[str, str | float]
    match limit:
        case ["mem_relative", text]:
            what, body = f"{text} times the total RAM", {"relative": _fraction(text, None)}
        case [size]:
            what, body = f"{size} bytes", {"absolute": size}
        case _:
            raise CtlError(exits.USAGE, "expected a size, or: mem_relative FRACTION")
    ctl.announce(f"Setting disk free limit on {ctl.node} to {what} ...")
    with refused_as(exits.DATA):
        ctl.api.put("operations", "disk-limit", body=body)


def _fraction(text: str, most: float | None) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= (most if most is not None else value):
        bound = f" between 0.0 and {most}" if most is not None else " of 0.0 or more"
        raise CtlError(exits.DATA, f"Bad argument: The threshold should be a fraction{bound}")
    return value
