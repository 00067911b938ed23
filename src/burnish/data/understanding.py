"""How a data set was read, as text for the command line to print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Understanding:
    """How one source was read. `roles` maps role to column; `skipped` and `changed` count rows by reason."""

    path: str
    name: str
    rows: int
    kept: int
    schema: str
    roles: Mapping[str, str]
    domain: str | None = None
    prompt_template: str | None = None
    system_prompt: str | None = None
    limit: int | None = None
    share: float | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)
    columns_left_out: tuple[str, ...] = ()
    query: str | None = None

    def lines(self) -> list[str]:
        """The description as lines of text. The first one names the source."""
        head = f"{self.path}: {self.kept:,} of {self.rows:,} rows used" if self.kept != self.rows else ""
        lines = [(head or f"{self.path}: {self.rows:,} rows") + f", layout {self.schema}"]
        lines.append("  " + ", ".join(f"{role} <- {column}" for role, column in self.roles.items()))
        if self.domain is not None:
            lines.append(f"  domain: {self.domain}")
        for label, value in (("prompt template", self.prompt_template), ("system prompt", self.system_prompt)):
            if value is not None:
                lines.append(f"  {label}: {value!r}")
        if self.query is not None:
            lines.append(f"  prompts are queries cut from the documents, {self.query}")
        if self.limit is not None:
            lines.append(f"  limited to the first {self.limit:,} rows")
        if self.share is not None:
            lines.append(f"  share of the mixture: {self.share:.1%}")
        lines += [f"  left out: {count:,} {reason}" for reason, count in self.skipped.items() if count]
        lines += [f"  changed: {count:,} {reason}" for reason, count in self.changed.items() if count]
        if self.columns_left_out:
            lines.append(f"  columns without text or numbers, not loaded: {', '.join(self.columns_left_out)}")
        return [line for line in lines if line.strip()]
