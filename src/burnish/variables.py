"""Which environment variables processes get that run code from outside: the ones listed here, and those that the run
file names.

Keys and passwords in the environment of the training process are not passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_NAMES = """
PATH HOME USER LOGNAME SHELL TERM TZ TMPDIR TEMP TMP LANG LANGUAGE
PYTHONPATH PYTHONHOME PYTHONHASHSEED PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX PYTHONWARNINGS PYTHONUTF8
PYTHONIOENCODING PYTHONNOUSERSITE PYTHONUSERBASE PYTHONFAULTHANDLER
VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV LD_LIBRARY_PATH DYLD_LIBRARY_PATH DYLD_FALLBACK_LIBRARY_PATH
OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS
TOKENIZERS_PARALLELISM CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
XDG_CACHE_HOME XDG_DATA_HOME XDG_CONFIG_HOME
HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE HF_HUB_OFFLINE HF_DATASETS_OFFLINE HF_ENDPOINT
TRANSFORMERS_CACHE TRANSFORMERS_OFFLINE TORCH_HOME NLTK_DATA
SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
"""
PASSED = frozenset(_NAMES.split())
"""Variables that every such process gets if they are set, as well as those that begin with `LC_`. Keys, tokens and
proxies (whose addresses often contain a password) are deliberately missing."""

_UNLESS_SET = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # they share the machine with training


def worker_environment(named: Iterable[str], ours: Mapping[str, str]) -> dict[str, str]:
    """The environment of such a process: the variables of `ours` that are in `PASSED` or named."""
    wanted = PASSED.union(named)
    found = {name: value for name, value in ours.items() if name in wanted or name.startswith("LC_")}
    return {**_UNLESS_SET, **found}
