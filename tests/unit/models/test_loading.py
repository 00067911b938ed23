import json
import shutil

import pytest
import torch
from transformers import AutoTokenizer

from burnish.config.schema_data import ModelConfig
from burnish.errors import ModelError
from burnish.machine.resources import resolve_device
from burnish.models import loading
from burnish.models.characters import character_tokenizer, tiny_llama
from burnish.models.loading import align_weights, load_model
from burnish.models.tokenizers import (
    chat_template_for,
    choose_pad_token_id,
    eos_token_ids,
    load_tokenizer,
    save_tokenizer,
)
from burnish.models.weight_checks import check_declared_sizes, check_quantization
from burnish.planning.model_facts import facts_of


@pytest.fixture
def copy_of_model(model_folder, tmp_path):
    """A writable copy of the tiny Llama's folder."""
    return shutil.copytree(model_folder("llama"), tmp_path / "tiny-model")


def _edit_json(file, **fields):
    content = json.loads(file.read_text())
    content.update(fields)
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_loads_a_folder(load, family):
    loaded = load(family, kernels="off")
    assert loaded.eos_token_ids == (1,)
    assert loaded.pad_token_id == 2
    assert loaded.context_length == 64
    assert loaded.notes == ()
    assert not loaded.model.training
    assert loaded.model.dtype is torch.float32
    assert load(family, kernels="off", dtype="bfloat16").model.dtype is torch.bfloat16


def test_the_tokenizer_is_read_once_and_before_the_weights(copy_of_model, monkeypatch):
    read = []
    for name in ("load_tokenizer", "_saved_model"):
        call = getattr(loading, name)
        monkeypatch.setattr(loading, name, lambda *given, name=name, call=call: read.append(name) or call(*given))
    load_model(ModelConfig(path=str(copy_of_model), device="cpu"))
    assert read == ["load_tokenizer", "_saved_model"]


def test_from_scratch_ignores_the_weights_and_follows_the_seed(copy_of_model):
    config = ModelConfig(path=str(copy_of_model), from_scratch=True, device="cpu")
    saved = load_model(config.model_copy(update={"from_scratch": False})).model.lm_head.weight
    (copy_of_model / "model.safetensors").unlink()
    first, again, other = (load_model(config, seed=seed).model.lm_head.weight for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, saved)


def test_all_end_ids_of_the_files_are_honoured(copy_of_model):
    _edit_json(copy_of_model / "generation_config.json", eos_token_id=[14, 15])
    assert load_model(ModelConfig(path=str(copy_of_model), device="cpu")).eos_token_ids == (14, 15, 1)


def test_defaults_of_a_config_class_are_no_end_ids(copy_of_model):
    """LlamaConfig's default end id 2 is an ordinary token of many vocabularies."""
    (copy_of_model / "generation_config.json").unlink()
    _edit_json(copy_of_model / "config.json", eos_token_id=None)
    loaded = load_model(ModelConfig(path=str(copy_of_model), device="cpu"))
    assert loaded.eos_token_ids == (1,)
    loaded.tokenizer.eos_token = None
    assert eos_token_ids(loaded.tokenizer, {}, {}) == ()


def test_pad_never_ends_a_response():
    tokenizer = character_tokenizer("ab", eos="E", pad="P", unk="U")
    assert choose_pad_token_id(tokenizer, (0,), pad_token=None) == (1, None)
    tokenizer.pad_token = "E"
    pad, note = choose_pad_token_id(tokenizer, (0,), pad_token=None)
    assert pad == 2
    assert "'E'" in note
    assert "'U'" in note
    pad, _ = choose_pad_token_id(tokenizer, (0, 2), pad_token=None)
    assert pad == 1
    with pytest.raises(ModelError, match="ends a response"):
        choose_pad_token_id(tokenizer, (0,), pad_token="E")
    with pytest.raises(ModelError, match="'Q'"):
        choose_pad_token_id(tokenizer, (0,), pad_token="Q")


def test_relative_folder_is_not_taken_for_a_hub_name(copy_of_model, monkeypatch):
    monkeypatch.chdir(copy_of_model.parent.parent)
    with pytest.raises(ModelError, match="does not exist"):
        load_model(ModelConfig(path=f"{copy_of_model.parent.name}/tiny-modle"))


def test_unreachable_hub_name_suggests_a_folder(copy_of_model, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(copy_of_model.parent)
    with pytest.raises(ModelError, match="tiny-modle") as caught:
        load_model(ModelConfig(path="tiny-modle"))
    assert "tiny-model" in caught.value.remedy
    with pytest.raises(ModelError, match="nobody/nothing-at-all") as caught:
        load_model(ModelConfig(path="nobody/nothing-at-all"))
    assert "hub name" in caught.value.remedy


def test_weights_that_nobody_uses_are_said(copy_of_model):
    _edit_json(copy_of_model / "config.json", num_hidden_layers=1)
    loaded = load_model(ModelConfig(path=str(copy_of_model), device="cpu"))
    assert any("not used" in note for note in loaded.notes)


def _remove_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def _shrink_vocabulary(folder):
    tiny_llama(vocab_size=10, hidden_size=16, eos_token_id=1, pad_token_id=2).save_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "path", "message", "remedy"),
    [
        (str, "tiny-modle", "tiny-modle", "tiny-model"),
        (str, ".", r"no config\.json", "tiny-model"),
        (str, "tiny-model/config.json", "is a file", ""),
        (lambda folder: (folder / "model.safetensors").unlink(), "tiny-model", "no weights", "from_scratch"),
        (_remove_tokenizer, "tiny-model", "tokenizer", "model.tokenizer"),
        (_shrink_vocabulary, "tiny-model", "id 15", ""),
    ],
)
def test_what_cannot_be_loaded_is_named(change, path, message, remedy, copy_of_model):
    change(copy_of_model)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(ModelConfig(path=str(copy_of_model.parent / path)))
    assert remedy in caught.value.remedy


def test_foreign_code_is_off(copy_of_model):
    _edit_json(
        copy_of_model / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModel": "own.M"}
    )
    marker = copy_of_model / "executed"
    (copy_of_model / "own.py").write_text(f"open({str(marker)!r}, 'w')\n")
    with pytest.raises(ModelError):
        load_model(ModelConfig(path=str(copy_of_model)))
    assert not marker.exists()


def test_unknown_kind_of_tokenizer(shared_dir):
    folder = shared_dir / "data" / "arithmetic_sequence" / "model"
    with pytest.raises(ModelError, match="tokenizer"):
        load_tokenizer(ModelConfig(path=str(folder)))


@pytest.mark.parametrize(
    ("model_type", "named"),
    [("llama", "TokenizersBackend"), ("qwen2", "Qwen2Tokenizer"), ("qwen3", "Qwen2TokenizerFast"), ("new", "New")],
)
def test_the_class_of_the_tokenizer_is_transformers_choice(model_type, named, copy_of_model):
    _edit_json(copy_of_model / "config.json", model_type=model_type)
    _edit_json(copy_of_model / "tokenizer_config.json", tokenizer_class=named)
    ours, theirs = load_tokenizer(ModelConfig(path=str(copy_of_model))), AutoTokenizer.from_pretrained(copy_of_model)
    assert type(ours) is type(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.special_tokens_map == theirs.special_tokens_map


def test_tokenizer_beside_the_model(copy_of_model, tmp_path):
    character_tokenizer("xyz", eos="E", pad="P").save_pretrained(tmp_path / "other")
    config = ModelConfig(path=str(copy_of_model), tokenizer=str(tmp_path / "other"))
    assert load_tokenizer(config)("zx")["input_ids"] == [4, 2]


def test_a_saved_tokenizer_keeps_its_sentencepiece_model(copy_of_model, tmp_path):
    """Transformers leaves it out; llama.cpp's converter reads from it the order in which letters are joined."""
    (copy_of_model / "tokenizer.model").write_bytes(b"pieces")
    for folder in (tmp_path / "first", tmp_path / "second"):  # of the model, and of its first copy
        save_tokenizer(load_tokenizer(ModelConfig(path=str(copy_of_model))), folder)
        assert (folder / "tokenizer.model").read_bytes() == b"pieces"
        added = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
        assert {"E", "P"} <= {token["content"] for token in added.values()}
        copy_of_model = folder


def test_chat_template_inline_or_file(copy_of_model, tmp_path):
    inline = ModelConfig(path=str(copy_of_model), chat_template="{{ messages[0]['content'] }}!")
    messages = [{"role": "user", "content": "12"}]
    assert load_tokenizer(inline).apply_chat_template(messages, tokenize=False) == "12!"
    file = tmp_path / "template.jinja"
    file.write_text("{{ 'from file' }}")
    assert chat_template_for(None, str(file)) == "{{ 'from file' }}"
    with pytest.raises(ModelError, match=r"missing\.jinja"):
        chat_template_for(None, "missing.jinja")


def test_devices(monkeypatch):
    assert resolve_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("mps") == torch.device("mps")
    assert resolve_device("auto").type != "mps"


@pytest.mark.parametrize(
    ("name", "told"),
    [("gpu0", "gpu0"), ("cuda:99", "CUDA devices"), ("mps:0", "does not support"), ("mps", "no GPU of Apple's")],
)
def test_devices_that_are_not_there(name, told, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ModelError, match=told):
        resolve_device(name)


def test_real_model(stories_model):
    loaded = load_model(ModelConfig(path=str(stories_model), device="cpu"))
    assert loaded.context_length == 512
    assert 1 in loaded.eos_token_ids
    assert loaded.pad_token_id not in loaded.eos_token_ids


def test_weights_begin_where_pytorchs_own_memory_does(load) -> None:
    """A file is mapped into memory as it is; a matrix that begins elsewhere is multiplied with other rounding."""
    model = load("llama").model
    assert all(tensor.data_ptr() % 64 == 0 for tensor in (*model.parameters(), *model.buffers()))
    assert model.get_output_embeddings().weight.data_ptr() % 64 == 0


def test_numbers_do_not_hang_on_where_a_file_holds_the_weights() -> None:
    layer = torch.nn.Linear(5, 3)
    memory = torch.empty(15 + 1)
    expected = layer.weight.detach().clone()
    layer.weight.data = memory[1:].view(3, 5).copy_(expected)
    kept = layer.weight
    align_weights(layer)
    assert layer.weight is kept
    assert layer.weight.data_ptr() % 64 == 0
    assert torch.equal(layer.weight, expected)


@pytest.mark.parametrize("found", [{"quant_method": "magic"}, {"bits": 3}, "nf4ish"])
def test_weights_of_an_unknown_quantization_are_refused(found):
    for config in ({"quantization_config": found}, {"text_config": {"quantization_config": found}}):
        with pytest.raises(ModelError, match="its weights are quantized by"):
            check_quantization(config, "m")
    for known in ({"quant_method": "gptq"}, {"load_in_4bit": True}, None):
        check_quantization({"quantization_config": known}, "m")


def test_a_size_for_each_layer():
    """As gemma3n has them."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 9}
    varied = {**sizes, "intermediate_size": [32, 48]}
    check_declared_sizes(varied, "m")
    assert facts_of(varied, num_parameters=1).intermediate_size == 48
    wrong = [("intermediate_size", value) for value in ([], [32, 0], [32, "48"], [True], {"a": 1})]
    for name, value in [*wrong, ("hidden_size", [8, 8])]:
        with pytest.raises(ModelError, match=f"{name} is"):
            check_declared_sizes({**sizes, name: value}, "m")
