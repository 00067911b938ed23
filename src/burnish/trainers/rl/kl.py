"""The KL to the reference as a step logs it, and how the controller reacts to it."""

from __future__ import annotations

from burnish.algorithms.kl import KLController, k1, k3
from burnish.algorithms.ratios import beyond_limit, log_ratio
from burnish.config.schema import AlgorithmConfig
from burnish.forward.batch import Batch, present
from burnish.types import Metric, Reduction


def steer_kl(batch: Batch, controller: KLController, algorithm: AlgorithmConfig) -> dict[str, Metric]:
    """Let the controller react to the KL between the policy and the reference on the step's responses. Returns what to
    log.

    The batch has `ref_logprobs`, and log-probabilities under the weights that sampled it.
    """
    mask = batch.loss_mask
    # Log-probabilities from before the first update: the trainer's, if it computed them, otherwise the sampler's.
    sampled_with = batch.rollout_logprobs if batch.old_logprobs is None else batch.old_logprobs
    policy, reference = present(sampled_with, "rollout_logprobs"), present(batch.ref_logprobs, "ref_logprobs")
    per_response = k1(policy, reference, mask=mask).sum(dim=1)
    num_sequences = int(mask.any(dim=1).sum())
    used = controller.coef  # this step's objective had this one; the controller sets it for the next step
    if num_sequences:
        controller.update(float(per_response.sum()) / num_sequences, num_sequences)
    metrics = {
        "kl/reference": Metric(Reduction.MEAN, per_response.sum(), num_sequences),
        "kl/reference_per_token": Metric(Reduction.MEAN, k3(policy, reference, mask=mask).sum(), mask.sum()),
        "kl/coef": Metric(Reduction.LAST, used),
    }
    if algorithm.kl_target is not None:
        metrics["kl/target"] = Metric(Reduction.LAST, algorithm.kl_target)
    # Only k3 clamps its log-ratio; a clamped token adds a constant to the loss and has no gradient.
    if algorithm.kl_function == "k3":
        clamped_BT = beyond_limit(log_ratio(policy, reference, mask))
        metrics["kl/clamped_fraction"] = Metric(Reduction.MEAN, clamped_BT.sum(), mask.sum())
    return metrics
