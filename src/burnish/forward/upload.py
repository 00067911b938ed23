"""From the host to a device without making either wait for the other."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(values: NDArray[np.generic] | Tensor, device: torch.device) -> Tensor:
    """Host values on `device`; on a CPU nothing is copied.

    A plain copy to a GPU waits until everything queued there has run. A copy from pinned memory is queued as well.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if tensor.device == device or tensor.device.type != "cpu":
        return tensor.to(device)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
