"""Settings of the pipeline's Spark."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.config.kinds import OptionalText, TextKind
from leveret.config.sections.collect import by_name
from leveret.config.settings import family, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """Settings of the pipeline's Spark."""

    master: str | None = setting(
        "spark.master",
        OptionalText(),
        "none",
        "Spark master of the standby's pipeline; none for a Spark on this machine.",
    )
    python: str | None = setting(
        "spark.python",
        OptionalText(),
        "none",
        "Python of the workers of a `spark.master` on other machines: one path for all machines, this one included; "
        "none for the value of `PYSPARK_PYTHON`, or `python3`. docs/spark-cluster.md lists the packages that it needs.",
    )
    conf: dict[str, str] = family(
        "spark.conf",
        TextKind(),
        {},
        "A setting of Spark by its own name, as in `spark.conf.spark.sql.shuffle.partitions = 4`.",
        collect=by_name,
    )
