"""Plan of a run of `burnish prefer`, with its memory."""

from __future__ import annotations

from burnish.config.schema_prefer import START, PreferConfig
from burnish.config.schema_run import RunConfig
from burnish.planning.memory import RoleMemory
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import NOTHING_KNOWN, ModelRole, Plan, Preview
from burnish.planning.rm import comparison_tokens, plan_of_comparisons


def plan_prefer(config: PreferConfig, data: Preview = NOTHING_KNOWN, facts: ModelFacts | None = None) -> Plan:
    """The plan of `burnish prefer`."""
    models = [ModelRole("policy", "its adapters are trained" if config.model.lora else "is trained")]
    if config.reference != START:
        models.append(ModelRole("reference", f"{config.reference} scores all responses once, before the policy trains"))
    rows, texts = "data.train, rated responses for kto", "all responses with their prompts, one pass"
    return plan_of_comparisons(config, data, facts, models, rows, texts)


class PreferTable(RoleMemory):
    """A policy, and nothing else: the reference has scored all responses before the first step."""

    @staticmethod
    def pass_tokens(config: RunConfig) -> int:
        """A pair is never split, however small the budget."""
        return comparison_tokens(config, min(config.texts_each, 2))
