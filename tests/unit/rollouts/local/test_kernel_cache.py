import pytest
import torch

from burnish.kernels.decoding import decode_kernels
from burnish.rollouts.local.cache import PrefilledPrompts
from burnish.rollouts.local.kernel_cache import CacheShape, KernelCache

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("instruction_set")]

SHAPES = [
    CacheShape(layers=2, heads=4, key_heads=2, head_size=8, scaling=0.25),
    CacheShape(layers=1, heads=4, key_heads=4, head_size=32, scaling=0.2),
    CacheShape(layers=2, heads=14, key_heads=2, head_size=48, scaling=0.15),
    CacheShape(layers=1, heads=32, key_heads=1, head_size=64, scaling=0.1),
]


class Case:
    """A cache, and beside it what each row has seen: (key heads, tokens, head size) keys and values of each layer."""

    def __init__(self, shape: CacheShape, dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.kernels = decode_kernels(dtype)
        self.cache = KernelCache(shape)
        self.seen: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
        self.positions: list[int] = []

    def join(self, lengths: list[int], sources: list[int]) -> None:
        count, width = max(sources) + 1, max(lengths) - 1
        size = (count, self.shape.key_heads, width, self.shape.head_size)
        keys, values = ([torch.randn(size).to(self.dtype) for _ in range(self.shape.layers)] for _ in range(2))
        self.cache.append(lengths, PrefilledPrompts(keys, values) if width else None, sources)
        for length, source in zip(lengths, sources, strict=True):
            self.seen.append(
                [
                    (key[source, :, : length - 1].float(), value[source, :, : length - 1].float())
                    for key, value in zip(keys, values, strict=True)
                ]
            )
            self.positions.append(length - 1)

    def end(self, row: int) -> None:
        """The last row takes its place."""
        last = len(self.seen) - 1
        pair = ([last], [row]) if row != last else ([], [])
        self.cache.move(*(torch.tensor(rows, dtype=torch.int64) for rows in pair), last)
        self.seen[row], self.positions[row] = self.seen[last], self.positions[last]
        del self.seen[last], self.positions[last]

    def step(self) -> None:
        shape, rows = self.shape, len(self.seen)
        angles = torch.tensor(self.positions)[:, None] * torch.logspace(0, -2, shape.head_size // 2)
        cosine, sine = (torch.cat([f(angles)] * 2, dim=1).to(self.dtype).float() for f in (torch.cos, torch.sin))
        step = self.cache.begin(torch.tensor(self.positions), cosine, sine, 0.0)
        for layer in range(shape.layers):
            inputs = torch.randn(rows, shape.heads + 2 * shape.key_heads, shape.head_size).to(self.dtype)
            found = self.kernels.attend(step, layer, inputs.flatten(1), None).view(rows, shape.heads, -1).float()
            turning, values = inputs.float().split([shape.heads + shape.key_heads, shape.key_heads], dim=1)
            first, second = turning.chunk(2, dim=2)
            turned = turning * cosine[:, None] + torch.cat([-second, first], dim=2) * sine[:, None]
            queries, keys = turned.to(self.dtype).float().split([shape.heads, shape.key_heads], dim=1)
            for row in range(rows):
                old_keys, old_values = self.seen[row][layer]
                all_keys = torch.cat([old_keys, keys[row][:, None]], dim=1)
                all_values = torch.cat([old_values, values[row][:, None]], dim=1)
                self.seen[row][layer] = all_keys, all_values
                expected = expected_output(queries[row], all_keys, all_values, shape.scaling)
                tolerance = 1e-5 if self.dtype == torch.float32 else 0.03
                torch.testing.assert_close(found[row], expected, rtol=tolerance, atol=tolerance)
        self.positions = [position + 1 for position in self.positions]


def expected_output(
    queries_HD: torch.Tensor, keys_KTD: torch.Tensor, values_KTD: torch.Tensor, scaling: float
) -> torch.Tensor:
    shared = queries_HD.shape[0] // keys_KTD.shape[0]
    keys, values = (tensor.repeat_interleave(shared, dim=0) for tensor in (keys_KTD, values_KTD))
    weights = (queries_HD[:, None] @ keys.transpose(1, 2) * scaling).softmax(-1)
    return (weights @ values)[:, 0]


@pytest.mark.slow_cases(
    "*-14-2-48-*", "native-4-2-8-dtype0", "native-32-*-dtype1", "avx2-4-2-8-dtype1", "avx2-32-*-dtype0"
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.heads}-{shape.key_heads}-{shape.head_size}")
def test_a_row_attends_to_its_prompt_and_itself_as_in_one_softmax(shape: CacheShape, dtype: torch.dtype) -> None:
    """Prompts of 40, 17, 16 and one token with 19, 2, 1 and 2 rows; then some end, and others join."""
    torch.manual_seed(0)
    case = Case(shape, dtype)
    case.join([40] * 19 + [17] * 2 + [16], [0] * 19 + [1] * 2 + [2])
    case.join([1, 1], [0, 1])
    for _ in range(3):
        case.step()
    for row in (20, 0, 5, 20):
        case.end(row)
        case.step()
    case.join([33, 33], [0, 0])
    case.step()
    while case.seen:
        case.end(0)
        if case.seen:
            case.step()
    case.join([5], [0])
    case.step()


def test_room_grows_and_what_is_not_written_counts_nothing() -> None:
    """Fresh memory is full of NaN here. Two rows go on past the first 64 columns, one more joins at 70."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    try:
        case = Case(SHAPES[0], torch.float32)
        case.join([3, 1], [0, 1])
        for _ in range(70):
            case.step()
        case.join([2], [0])
        for _ in range(40):
            case.step()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_what_a_row_gets_depends_on_no_other_row_and_no_thread(threads: int) -> None:
    """Bit for bit: a row alone, and the same row among others."""
    shape = SHAPES[2]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        prompts = PrefilledPrompts(*([torch.randn(2, 2, 30, 48) for _ in range(2)] for _ in range(2)))
        together, alone = KernelCache(shape), KernelCache(shape)
        together.append([31] * 9, prompts, [0, 0, 1, 0, 0, 0, 1, 1, 0])
        alone.append([31], prompts, [1])
        for position in range(30, 33):
            inputs, angles = torch.randn(9, 18 * 48), torch.randn(9, 48)
            found = []
            for cache, rows in ((together, slice(0, 9)), (alone, slice(6, 7))):
                positions = torch.full((len(angles[rows]),), position)
                step = cache.begin(positions, angles[rows].cos(), angles[rows].sin(), 0.0)
                found.append(decode_kernels(torch.float32).attend(step, 0, inputs[rows].contiguous(), None))
            assert torch.equal(found[0][6], found[1][0])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.heads}-{shape.key_heads}-{shape.head_size}")
def test_several_tokens_of_a_row_are_read_as_one_after_the_other(shape: CacheShape, dtype: torch.dtype) -> None:
    """Bit for bit: 70 tokens of a row, more than it has room for, 3 of another with the same prompt, and 17 of a row
    without a prompt. Then all three go on for a step, in another cache than the one that they have left."""
    torch.manual_seed(0)
    kernels, counts, starts = decode_kernels(dtype), [70, 3, 17], [32, 32, 0]
    size, width = (1, shape.key_heads, 32, shape.head_size), (shape.heads + 2 * shape.key_heads) * shape.head_size
    prompts = PrefilledPrompts(*([torch.randn(size).to(dtype) for _ in range(shape.layers)] for _ in range(2)))

    def filled() -> KernelCache:
        cache = KernelCache(shape)
        cache.append([33, 33], prompts, [0, 0])
        cache.append([1], None, [0])
        return cache

    def attended(cache: KernelCache, inputs_LRX: torch.Tensor, positions: list[int]) -> torch.Tensor:
        angles = torch.tensor(positions)[:, None] * torch.logspace(0, -2, shape.head_size)
        step = cache.begin(torch.tensor(positions), angles.cos(), angles.sin(), 0.0)
        return torch.stack([kernels.attend(step, i, one.contiguous(), None) for i, one in enumerate(inputs_LRX)])

    inputs = [torch.randn(shape.layers, count + 1, width).to(dtype) for count in counts]
    left, one_by_one = filled(), []
    for row, count in enumerate(counts):
        cache = KernelCache(shape)
        cache.add([filled().row(row)])
        steps = range(count + 1)
        one_by_one.append([attended(cache, inputs[row][:, [t]], [starts[row] + t])[:, 0] for t in steps])
    reading = left.reading([left.row(i) for i in range(3)], counts)
    tokens = torch.cat([numbers[:, :-1] for numbers in inputs], dim=1)
    found = attended(
        reading, tokens, [start + t for start, count in zip(starts, counts, strict=True) for t in range(count)]
    )
    assert torch.equal(found, torch.stack([out for outs in one_by_one for out in outs[:-1]], dim=1))
    other = KernelCache(shape)
    other.add([left.row(i) for i in range(3)])
    last = torch.stack([numbers[:, -1] for numbers in inputs], dim=1)
    ends = [start + count for start, count in zip(starts, counts, strict=True)]
    assert torch.equal(attended(other, last, ends), torch.stack([outs[-1] for outs in one_by_one], dim=1))
