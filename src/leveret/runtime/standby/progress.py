"""How far the promotion is that runs now, for whoever asks: not only for the shell that began it."""

from __future__ import annotations

from typing import Any

from leveret.runtime.standby.pipeline_process import Event


class PromotionProgress:
    """What its pipeline has said so far.

    Attributes:
        step: what it does now, in words.
        queues, messages: how many of both it is to recover, as far as is known.
        recovered: how many messages are recovered.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.step = "ending the links"
        self.queues = self.messages = self.recovered = 0

    def take(self, event: Event) -> None:
        """Take what the pipeline said."""
        match event.get("event"):
            case "started":
                self.step = "looking for what was not consumed"
            case "planned":
                self.step = "recovering"
                self.queues += len(event["queues"])
                self.messages += sum(event["queues"].values())
            case "published":
                self.recovered += event["messages"]

    def row(self) -> dict[str, Any]:
        """For the status."""
        return {
            "step": self.step,
            "queues": self.queues,
            "messages": self.messages,
            "recovered": self.recovered,
        }
