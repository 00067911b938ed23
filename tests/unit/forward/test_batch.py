"""The batch: rows picked, joined and moved come back as they were, padding aside."""

import dataclasses
import pickle

import pytest
import torch
from batches import batch_of, joined
from hypothesis import given
from hypothesis import strategies as st

from burnish.forward.batch import Batch

PAD = 99


def three_rows() -> Batch:
    return batch_of(
        [[1, 2, 3], [4], [5, 6]],
        [[10], [20, 21], [30, 31, 32]],
        pad_token_id=PAD,
        advantages=torch.tensor([[0.1, 0.0, 0.0], [0.2, 0.3, 0.0], [0.4, 0.5, 0.6]]),
    )


def test_select_takes_the_order_asked_for_and_cuts_columns_that_no_row_needs() -> None:
    picked = three_rows().select([1, 0])
    assert picked.prompt_tokens.tolist() == [[4, PAD, PAD], [1, 2, 3]]
    assert picked.response_tokens.tolist() == [[20, 21], [10, PAD]]
    assert picked.loss_mask.tolist() == [[True, True], [True, False]]
    assert picked.advantages[0].tolist() == pytest.approx([0.2, 0.3])
    assert picked.group_ids.tolist() == [1, 0]
    assert picked.host.lengths.tolist() == [3, 4]
    assert picked.values is None


def test_select_of_a_row_twice_and_of_none() -> None:
    assert three_rows().select(torch.tensor([2, 2])).response_tokens.tolist() == [[30, 31, 32]] * 2
    nothing = three_rows().select([])
    assert len(nothing) == 0
    assert nothing.response_tokens.shape == (0, 0)


def test_replace_sets_and_takes_away_fields_and_leaves_the_old_batch() -> None:
    batch = three_rows()
    new = batch.replace(values=torch.ones(3, 3), advantages=None)
    assert new.values is not None
    assert new.advantages is None
    assert batch.values is None
    assert batch.advantages is not None


@pytest.mark.parametrize(
    ("shape", "message"),
    [((2, 3), "values has 2 rows, the batch has 3"), ((3, 1), r"shape \(3, 1\)"), ((3, 4), r"shape \(3, 4\)")],
)
def test_replace_refuses_shapes_that_would_broadcast_or_be_cut(shape: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        three_rows().replace(values=torch.ones(shape))


def test_to_moves_every_field() -> None:
    moved = three_rows().to("meta")
    assert moved.device.type == "meta"
    tensors = [value for value in fields_of(moved).values() if value is not None]
    assert {value.device.type for value in tensors} == {"meta"}
    assert len(tensors) == 7


def fields_of(batch: Batch) -> dict[str, torch.Tensor | None]:
    return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}


tokens = st.lists(st.integers(0, 50), min_size=1, max_size=5)


@pytest.mark.slow
@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=6), st.data())
def test_cut_anywhere_and_joined_again_it_is_the_same_batch(rows, data: st.DataObject) -> None:
    prompts, responses = [prompt for prompt, _ in rows], [response for _, response in rows]
    plain = batch_of(prompts, responses, pad_token_id=PAD)
    numbers = torch.arange(plain.loss_mask.numel(), dtype=torch.float32).reshape(plain.loss_mask.shape)
    batch = plain.replace(old_logprobs=torch.where(plain.loss_mask, -numbers, 0.0))
    order = data.draw(st.permutations(range(len(rows))))
    cut = data.draw(st.integers(1, len(rows)))
    parts = [batch.select(part) for part in (order[:cut], order[cut:]) if part]
    back = joined(parts, PAD).select(sorted(range(len(rows)), key=order.__getitem__))
    for name, value in fields_of(batch).items():
        found = fields_of(back)[name]
        assert (found is None) == (value is None), name
        assert value is None or torch.equal(found, value), name  # type: ignore[arg-type]


class AsksMeanwhile:
    """A value that is pickled while someone else asks for the batch's host rows for the first time."""

    def __init__(self) -> None:
        self.batch: Batch | None = None

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        assert len(self.batch.host) == 3
        return str, ("pickled",)


def test_a_batch_can_be_sent_while_its_host_rows_are_read() -> None:
    meanwhile = AsksMeanwhile()
    meanwhile.batch = dataclasses.replace(three_rows(), weights=meanwhile)
    assert "host" not in vars(meanwhile.batch)
    arrived = pickle.loads(pickle.dumps(meanwhile.batch))
    assert arrived.weights == "pickled"
    assert torch.equal(arrived.prompt_tokens, three_rows().prompt_tokens)
    assert arrived.host.lengths.tolist() == [4, 3, 5]
