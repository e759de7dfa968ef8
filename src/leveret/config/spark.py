"""How the pipeline's Spark runs."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.config.collect import by_name
from leveret.config.kinds import OptionalText, Text
from leveret.config.settings import family, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """How the pipeline's Spark runs."""

    master: str | None = setting(
        "spark.master", OptionalText(), "none", "Spark master of the pipeline; none for this machine."
    )
    conf: dict[str, str] = family(
        "spark.conf",
        Text(),
        {},
        "Any setting of Spark by its own name, as in `spark.conf.spark.sql.shuffle.partitions = 4`.",
        collect=by_name,
    )
