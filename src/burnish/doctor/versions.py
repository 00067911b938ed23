"""Which packages are installed, which of the optional ones, and what those would switch on."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from pathlib import Path

from burnish import __version__
from burnish.doctor.facts import Extra, Versions
from burnish.doctor.privacy import hidden

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic", "datasets", "peft")
"""Always needed, and worth naming in a report."""
IMPORTED = ("torch", "transformers")
"""Without these nothing runs. Both are large, and may be installed and still not load."""
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "ray": (("ray",), "cluster.backend: ray"),
    "vllm": (("vllm",), "rollout.engine: vllm in this environment"),
    "serve": (("starlette", "uvicorn"), "burnish serve, burnish sandbox serve, conversation.agent"),
    "mcp": (("mcp",), "tools of MCP servers"),
    "openenv": (("websockets",), "environments behind an OpenEnv server"),
    "reasoning-gym": (("reasoning-gym",), "data.train.reasoning_gym and its reward"),
    "sentiment": (("vaderSentiment",), "the reward sentiment"),
    "instructions": (("langdetect",), "instructions about a language in the reward instructions"),
    "json-schema": (("jsonschema",), "the reward json_schema"),
    "wandb": (("wandb",), "the sink wandb"),
    "mlflow": (("mlflow-skinny",), "the sink mlflow"),
}
"""Extra of the package -> what it installs, and what that switches on."""
_ALSO = {"mlflow-skinny": "mlflow"}
"""Packages that hold the same as the one that an extra names."""


def find_versions() -> Versions:
    """Imports PyTorch and transformers, and says what came of it."""
    from burnish.checkpointing.run import git_revision

    broken = {name: failure for name in IMPORTED if (failure := _import_failure(name)) is not None}
    return Versions(
        burnish=__version__,
        revision=git_revision(Path(__file__).resolve().parent),
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        packages={name: version_of(name) for name in PACKAGES},
        extras=tuple(
            Extra(name, {package: version_of(package) for package in packages}, enables)
            for name, (packages, enables) in EXTRAS.items()
        ),
        broken=broken,
    )


def version_of(package: str) -> str | None:
    """None if it is not installed."""
    for name in (package, *filter(None, [_ALSO.get(package)])):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _import_failure(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 boundary: a package with missing libraries may raise anything
        return hidden(f"{type(error).__name__}: {error}")[:300]
    return None
