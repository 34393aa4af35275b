"""The `measure:` of a scenario: the part of a run that is measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import doc
from pydantic import Discriminator, Field, Tag

from scenarios.schema.engine import Seconds
from scenarios.schema.strict import Strict
from simulator.named_class import CLASS_PATTERN, split_class

if TYPE_CHECKING:
    from simulator.metrics.warmup_cut import WarmupCut
    from simulator.results.records import Records


def _moved(key: str) -> str | None:
    return "is the top-level `front_end: {fixed_s: ...}`" if key == "front_end_s" else None


class Measure(Strict):
    """The window over which metrics are taken, and metrics of one's own."""

    elsewhere: ClassVar = staticmethod(_moved)

    warmup_s: Annotated[
        Annotated[Seconds, Tag("<number>")] | Annotated[Literal["auto"], Tag("<word>")],
        Discriminator(lambda value: "<word>" if value == "auto" else "<number>"),
        Field(description="a number of at least 0, or auto"),
        doc(
            "time cut off at the start; `auto`: until TTFT and TPOT have settled, by MSER-5, and the summary says when"
        ),
    ] = 0.0
    cooldown_s: Annotated[Seconds, doc("time cut off at the end")] = 0.0
    metrics: Annotated[
        list[Annotated[str, Field(pattern=CLASS_PATTERN, description="the path of a file and a name in it")]],
        doc("metrics of your own, each `path.py:NAME`"),
    ] = Field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        """The files of one's own metrics."""
        return [Path(split_class(name)[0]) for name in self.metrics]

    def warmup(self, records: "Records") -> "WarmupCut | None":
        """The warm-up that was found in a run; None where it is given in seconds."""
        from simulator.metrics.warmup_cut import warmup_cut

        return warmup_cut(records) if self.warmup_s == "auto" else None

    def cuts(self) -> dict[str, float]:
        """The parts that are cut off whatever the run does. ValueError where the warm-up is found in each run."""
        if self.warmup_s == "auto":
            raise ValueError("the warm-up depends on the run")
        return {"warmup_s": self.warmup_s, "cooldown_s": self.cooldown_s}

    def window(self, records: "Records") -> dict[str, float]:
        """The parts that are cut off a run, as the metrics take them."""
        found = self.warmup(records)
        warmup_s = self.warmup_s if found is None else found.cut_s
        assert warmup_s != "auto"
        return {"warmup_s": warmup_s, "cooldown_s": self.cooldown_s}
