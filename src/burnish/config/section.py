"""What all sections of a run file are made of: their base class, number types and shorthand forms."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from burnish.config import fields

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values never change after loading, numbers are strict."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _plain_scalars(cls, value: Any, info: ValidationInfo) -> Any:
        return fields.plain_scalar(fields.field_annotations(cls)[str(info.field_name)], value)


def refuse(problems: list[Any]) -> None:
    """Hand several problems of fields together through pydantic, which knows only one message."""
    if problems:
        text = "; ".join(f"{p.field}: {p.message} ({p.remedy})" for p in problems)
        raise PydanticCustomError("problems", "{text}", {"text": text, "problems": problems})


def as_list(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


def path_shorthand(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value
