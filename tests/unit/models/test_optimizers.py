import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from burnish.config.schema_optimization import OptimizationConfig
from burnish.errors import CheckpointError
from burnish.models.muon import is_layer_matrix, orthogonal
from burnish.models.optimizers import AdamTF, OptimizerSettings, WeightOptimizer, _in_one_pass, euclidean_norm

EPS = 1e-5
ADAMS = ["exp_avg", "exp_avg_sq", "step"]


def _rates(schedule, *, warmup_steps=0, total_steps=4, final_fraction=0.0):
    settings = OptimizerSettings(8.0, total_steps, schedule, warmup_steps, final_fraction)
    return [settings.learning_rate_at(step) for step in range(total_steps + 1)]


def test_schedules_by_hand():
    assert _rates("constant") == [8, 8, 8, 8, 8]
    assert _rates("linear") == [8, 6, 4, 2, 0]
    assert _rates("linear", final_fraction=0.5) == [8, 7, 6, 5, 4]
    assert _rates("linear", warmup_steps=2) == [4, 8, 8, 4, 0]
    assert _rates("cosine") == pytest.approx([8, 6.82842712, 4, 1.17157288, 0])
    with pytest.raises(ValueError, match="polynomial"):
        _rates("polynomial")


def test_linear_matches_the_published_last_rate():
    assert OptimizerSettings(5e-5, 156, "linear").learning_rate_at(155) == pytest.approx(5e-5 * 32 / 4992)


def test_settings_come_from_the_run_file():
    config = OptimizationConfig(learning_rate=1e-3, schedule="linear", optimizer="adam_tf", eps=EPS)
    settings = OptimizerSettings.from_config(config, total_steps=10)
    assert settings.learning_rate_at(5) == pytest.approx(5e-4)
    adam = WeightOptimizer([("p", nn.Parameter(torch.zeros(1)))], settings)._adam
    assert isinstance(adam, AdamTF)
    assert adam.defaults["eps"] == EPS


def test_first_step_is_that_of_adam_and_weight_decay_spares_vectors():
    matrix, vector = nn.Parameter(torch.ones(1, 1)), nn.Parameter(torch.ones(1))
    optimizer = WeightOptimizer(
        [("matrix", matrix), ("vector", vector)],
        OptimizerSettings(0.1, 10, weight_decay=0.5, eps=1e-12, max_grad_norm=None),
    )
    matrix.grad, vector.grad = torch.full((1, 1), 3.0), torch.full((1,), 4.0)
    norm = optimizer.grad_norm()
    assert norm.item() == pytest.approx(5.0)
    optimizer.step(0, norm)
    assert matrix.item() == pytest.approx(1 - 0.1 * 0.5 - 0.1)
    assert vector.item() == pytest.approx(1 - 0.1)
    assert matrix.grad is None


def test_clipping_scales_the_whole_gradient():
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = WeightOptimizer([("p", parameter)], OptimizerSettings(0.1, 10, max_grad_norm=1.0))
    parameter.grad = torch.tensor([3.0, 4.0])
    optimizer.step(0, optimizer.grad_norm())
    first_moment = optimizer.state()["moments"]["p"]["exp_avg"]
    torch.testing.assert_close(first_moment, torch.tensor([0.06, 0.08]), atol=1e-6, rtol=0)


def test_small_updates_of_bfloat16_weights_add_up():
    parameter = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = WeightOptimizer([("p", parameter)], OptimizerSettings(1e-4, 100))
    for step in range(100):
        parameter.grad = torch.ones(1)
        optimizer.step(step, optimizer.grad_norm())
    assert parameter.item() == pytest.approx(0.99, abs=4e-3)


def test_small_gradients_of_bfloat16_weights_add_up():
    """1 and a thousand times 0.001: a sum in bfloat16 would stay at 1."""
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = WeightOptimizer([("p", parameter)], OptimizerSettings(1e-4, 100))
    for slope in [1.0] + 1000 * [0.001]:
        (parameter * slope).sum().backward()
    assert optimizer.grad_norm().item() == pytest.approx(2.0, rel=2e-3)


@pytest.mark.parametrize(
    ("optimizer", "places", "fused"),
    [
        ("adamw", ("cpu", "cpu"), True),
        ("adamw", ("cuda:0", "cuda:1"), True),
        ("adamw", ("cuda:0", "cpu"), False),
        ("adamw", ("mps",), False),
        ("adamw", ("meta",), False),
        ("adam_tf", ("cuda:0",), False),
        ("muon", ("cpu",), True),
    ],
)
def test_adamw_is_fused_where_all_weights_are_on_processors_that_can(optimizer, places, fused):
    weights = [SimpleNamespace(device=torch.device(place), is_floating_point=lambda: True) for place in places]
    assert _in_one_pass(OptimizerSettings(0.1, 10, optimizer=optimizer), weights) == ({"fused": True} if fused else {})
    whole = SimpleNamespace(device=torch.device("cuda"), is_floating_point=lambda: False)
    assert _in_one_pass(OptimizerSettings(0.1, 10), [whole]) == {}


@pytest.mark.parametrize(("fused", "device"), [(True, "meta"), (False, "cpu")])
def test_steps_are_counted_where_adam_reads_them_and_saved_in_host_memory(fused, device):
    """A fused Adam on a GPU, which `meta` stands for here, counts there; a checkpoint is the same for all."""
    optimizer = WeightOptimizer([("p", nn.Parameter(torch.zeros(2, device="meta")))], OptimizerSettings(0.1, 10))
    optimizer._adam.defaults["fused"] = fused
    moments = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
    optimizer.load_state({"moments": {"p": moments}, "masters": {}})
    (state,) = optimizer._adam.state.values()
    assert state["step"].device.type == device
    assert state["exp_avg"].device.type == "meta"
    if not fused:
        assert optimizer.state()["moments"]["p"]["step"].item() == 3.0


def test_state_of_other_parameters_is_refused():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = WeightOptimizer([("p", parameter)], OptimizerSettings(0.1, 10))
    with pytest.raises(CheckpointError, match="'q'"):
        optimizer.load_state({"moments": {"q": {"exp_avg": torch.zeros(1)}}, "masters": {}})
    with pytest.raises(CheckpointError, match=r"'p' \(2,\)"):
        optimizer.load_state({"moments": {"p": {"exp_avg": torch.zeros(2)}}, "masters": {}})


def _gradient(values: torch.Tensor) -> WeightOptimizer:
    """An optimizer of one weight that has this gradient."""
    weight = nn.Parameter(torch.zeros_like(values))
    weight.grad = values
    return WeightOptimizer([("weight", weight)], OptimizerSettings(0.1, 10))


def _exact(*tensors: torch.Tensor) -> float:
    parts = (part for tensor in tensors for part in tensor.flatten().split(4096))
    return math.sqrt(math.fsum(float(part.double().square().sum()) for part in parts))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4096, 4096), (1 << 24,), (2, (1 << 23) + 77)], ids=["matrix", "vector", "two rows"])
def test_the_norm_of_a_large_gradient_is_right_on_any_number_of_threads(shape):
    """torch.linalg.vector_norm loses 7e-4 of it on one thread."""
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 9e-4
    threads, norms = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            norms.append(_gradient(gradient).grad_norm())
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*norms)
    assert norms[0].dtype == torch.float32
    assert norms[0].item() == pytest.approx(_exact(gradient), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (255,), (256,), (257,), (70_001,), (300, 500), (0,)])
def test_the_norm_of_any_gradient(shape, dtype):
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert euclidean_norm([gradient, gradient]).item() == pytest.approx(_exact(gradient, gradient), rel=1e-6)
    transposed = torch.randn(300, 70, generator=torch.Generator().manual_seed(2)).to(dtype).T
    assert euclidean_norm([transposed]).item() == pytest.approx(_exact(transposed), rel=1e-6)


@pytest.mark.parametrize("size", [1e25, 1e-25, 3e17, 2e-15])
def test_the_norm_of_numbers_whose_squares_leave_float32(size):
    assert euclidean_norm([torch.full((300, 100), size)]).item() == pytest.approx(size * math.sqrt(30_000), rel=1e-6)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_has_no_finite_norm(bad):
    gradient = torch.ones(1000)
    gradient[700] = bad
    assert not math.isfinite(_gradient(gradient).grad_norm().item())


def test_the_rate_follows_the_plan_where_there_is_one():
    settings = OptimizerSettings(1.0, 10, schedule="linear", first_step=4)
    assert settings.own_step(None, made=3) == 3
    assert settings.learning_rate_at(settings.own_step(9, made=3)) == pytest.approx(0.5)


def constant_gradient_steps(optimizer_class, gradient, count):
    """Steps / learning rate for a gradient that stays the same."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = optimizer_class([weight], lr=1e-3, eps=EPS, weight_decay=0.0)
    steps = []
    for _ in range(count):
        before = weight.item()
        weight.grad = torch.full((1,), gradient, dtype=torch.float64)
        optimizer.step()
        steps.append((before - weight.item()) / 1e-3)
    return steps


@pytest.mark.parametrize(
    ("gradient", "torch_form", "tf_form"),
    [
        (1e-3, 0.990099, (0.759747, 0.817219, 0.845548)),
        (1e-4, 0.909091, (0.240253, 0.308964, 0.353775)),
        (1e-5, 0.5, (0.030653, 0.042797, 0.051903)),
    ],
)
def test_published_steps_of_a_constant_gradient(gradient, torch_form, tf_form):
    assert constant_gradient_steps(AdamTF, gradient, 3) == pytest.approx(tf_form, abs=1e-6)
    assert constant_gradient_steps(torch.optim.AdamW, gradient, 3) == pytest.approx([torch_form] * 3, abs=1e-6)


@pytest.mark.parametrize(("t", "effective"), [(1, 3.1623e-7), (10, 9.9775e-7), (100, 3.0856e-6), (1000, 7.9518e-6)])
def test_effective_epsilon_of_the_other_form(t, effective):
    """In the place where TensorFlow's form has eps, PyTorch's has eps sqrt(1 - b2^t): a step of AdamTF with that
    epsilon is the step of AdamW with EPS."""
    generator = torch.Generator().manual_seed(t)
    start = torch.randn(7, generator=generator, dtype=torch.float64)
    gradient, mean = (1e-4 * torch.randn(7, generator=generator, dtype=torch.float64) for _ in range(2))
    square = 1e-8 * torch.rand(7, generator=generator, dtype=torch.float64)
    ends = []
    for optimizer_class, eps in ((torch.optim.AdamW, EPS), (AdamTF, effective)):
        weight = nn.Parameter(start.clone())
        optimizer = optimizer_class([weight], lr=1e-3, eps=eps, weight_decay=0.0)
        moments = {"exp_avg": mean.clone(), "exp_avg_sq": square.clone()}
        optimizer.state[weight] = {"step": torch.tensor(float(t - 1)), **moments}
        weight.grad = gradient.clone()
        optimizer.step()
        ends.append(weight.detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=2e-8)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_is_the_other_form_with_a_growing_epsilon(weight_decay):
    """TF(eps) makes the steps of AdamW whose epsilon at step t is eps / sqrt(1 - b2^t)."""
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(4, 3, dtype=torch.float64)) for _ in range(2))
    settings = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": weight_decay}
    tf, adam = AdamTF([ours], eps=EPS, **settings), torch.optim.AdamW([theirs], eps=EPS, **settings)
    for t in range(1, 30):
        gradient = 1e-4 * torch.randn(4, 3, generator=generator, dtype=torch.float64)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        adam.param_groups[0]["eps"] = EPS / math.sqrt(1 - 0.99**t)
        tf.step()
        adam.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_weight_without_gradient_stays():
    moved, still = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = AdamTF([moved, still], lr=0.1, weight_decay=0.5)
    moved.grad = torch.ones(1)
    optimizer.step()
    assert moved.item() != 1.0
    assert still.item() == 1.0
    assert still not in optimizer.state


def _moved_by_rounds(value):
    for _ in range(5):
        value = 3.4445 * value - 4.7750 * value**3 + 2.0315 * value**5
    return value


def test_orthogonal_moves_singular_values_alone():
    """Of a rotated diagonal matrix, 3 and 4 of norm 5; as one of a stack, on its side, in any unit; and of zeros."""
    turn, diagonal = torch.tensor([[0.6, -0.8], [0.8, 0.6]]), torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    expected = turn @ torch.tensor([[_moved_by_rounds(0.6), 0.0, 0.0], [0.0, _moved_by_rounds(0.8), 0.0]])
    matrix = turn @ diagonal
    torch.testing.assert_close(orthogonal(matrix), expected)
    torch.testing.assert_close(orthogonal(matrix.T), expected.T)
    torch.testing.assert_close(
        orthogonal(torch.stack([1e-9 * matrix, -1e9 * matrix])), torch.stack([expected, -expected])
    )
    assert not orthogonal(torch.zeros(2, 3)).any()


def test_orthogonal_of_any_matrix_is_near_an_orthonormal_one():
    for shape in ((8, 8), (5, 40), (40, 5), (64, 48)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(1))))
        assert 0.6 < float(values.min()) <= float(values.max()) < 1.25


def _muon(**settings):
    """An optimizer of a matrix in a layer (singular values of whose gradient are 3 and 4), an embedding, a vector."""
    weights = {name: nn.Parameter(torch.ones(2, 2)) for name in ("layers.0.up.weight", "embed.weight")}
    weights["layers.0.norm.weight"] = nn.Parameter(torch.ones(2))
    return weights, WeightOptimizer(list(weights.items()), OptimizerSettings(0.1, 10, optimizer="muon", **settings))


def _muon_step(weights, optimizer, step=0):
    for weight in weights.values():
        weight.grad = torch.tensor([3.0, 4.0]).diag() if weight.dim() == 2 else torch.tensor([3.0, 4.0])
        weight.grad *= 1 + step
    return optimizer.step(step, optimizer.grad_norm())


def test_a_first_step_of_muon():
    """Decay .5 x .1; the matrix by .1 x .2 sqrt(2) along both directions, the others by .1 with the sign, as AdamW."""
    weights, optimizer = _muon(weight_decay=0.5)
    _muon_step(weights, optimizer)
    step = [0.1 * 0.2 * math.sqrt(2) * _moved_by_rounds(value) for value in (0.6, 0.8)]
    expected = torch.full((2, 2), 0.95) - torch.tensor(step).diag()
    torch.testing.assert_close(weights["layers.0.up.weight"].detach(), expected)
    torch.testing.assert_close(weights["embed.weight"].detach(), torch.tensor([[0.85, 0.95], [0.95, 0.85]]))
    torch.testing.assert_close(weights["layers.0.norm.weight"].detach(), torch.tensor([0.9, 0.9]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "matrix"),
    [("adamw", ADAMS), ("adam_tf", ADAMS), ("muon", ["exp_avg"])],
)
def test_a_state_goes_on_bit_for_bit_with_its_schedule_and_masters(kind, matrix, dtype):
    def fresh():
        torch.manual_seed(0)
        weights = {name: nn.Parameter(torch.randn(6, 4).to(dtype)) for name in ("h.1.lora_A.weight", "wte.weight")}
        return weights, WeightOptimizer(list(weights.items()), OptimizerSettings(0.1, 10, "cosine", optimizer=kind))

    def steps(weights, optimizer, numbers):
        for number in numbers:
            for weight in weights.values():
                weight.grad = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))
            optimizer.step(number, optimizer.grad_norm())

    (straight, optimizer), (resumed, other) = fresh(), fresh()
    steps(straight, optimizer, range(3))
    for name, weight in resumed.items():
        weight.data.copy_(straight[name])
    state = optimizer.state()
    other.load_state(state)
    moments = {name: sorted(kept) for name, kept in state["moments"].items()}
    assert moments == {"h.1.lora_A.weight": matrix, "wte.weight": ADAMS}
    steps(straight, optimizer, range(3, 6))
    steps(resumed, other, range(3, 6))
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
    assert state["masters"].keys() == (set() if dtype == torch.float32 else set(straight))


@pytest.mark.parametrize(
    ("name", "shape", "is_one"),
    [
        ("model.layers.3.mlp.up_proj.weight", (8, 4), True),
        ("transformer.h.0.attn.c_attn.weight", (4, 12), True),
        ("base_model.model.model.layers.0.q_proj.lora_A.default.weight", (2, 4), True),
        ("model.layers.0.mlp.experts.gate_up_proj", (3, 8, 4), True),
        ("model.layers.0.mixer.conv1d.weight", (8, 1, 4), False),
        ("model.layers.0.norm.weight", (4,), False),
        ("model.embed_tokens.weight", (9, 4), False),
        ("transformer.wpe.weight", (9, 4), False),
        ("lm_head.weight", (9, 4), False),
    ],
)
def test_matrices_of_layers_by_their_names(name, shape, is_one):
    assert is_layer_matrix(name, torch.zeros(shape)) is is_one
